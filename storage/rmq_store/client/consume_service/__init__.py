"""Messages to a listener, and what its answer does (ConsumeMessageConcurrentlyService and its kin)."""
