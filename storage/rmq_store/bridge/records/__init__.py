"""Maps records of Kafka and messages of RocketMQ to each other. Pure: no network, no kafka-python."""
