"""Commands about replicas: follow, promote, rejoin."""
