"""The producer: sends, retries, and avoids brokers that fail (DefaultMQProducerImpl)."""
