"""`rmq mirror`: records between Kafka and a store."""
