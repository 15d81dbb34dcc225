"""Commands about replicas: follow, promote, rejoin, and `rmq broker run --role SLAVE`."""
