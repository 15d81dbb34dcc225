"""Dead letters of Kafka in a store's triage, and RocketMQ's retries for consumers of Kafka."""
