"""Consumers' filters: tag expressions and SQL92 selectors (org.apache.rocketmq.filter)."""
