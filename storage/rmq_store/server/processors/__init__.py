"""The answers of a broker, a module for each of the processors of RocketMQ."""
