"""The producer: sending, trying again, and avoiding brokers that fail (DefaultMQProducerImpl)."""
