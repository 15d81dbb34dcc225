"""Records of Kafka and messages of RocketMQ, mapped to each other. Pure: no network, no kafka-python."""
