"""The RocketMQ side of a mirror into Kafka: a store, or a broker of a cluster."""
