"""`consume` and `redrive`: RocketMQ's retries and dead letters for the rows of a stream."""
