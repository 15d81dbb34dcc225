"""`rmq mirror`: copy records between Kafka and a store."""
