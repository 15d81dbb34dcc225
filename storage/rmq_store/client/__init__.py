"""RocketMQ's clients over a backend: the local store, later a cluster."""
