"""Filters of consumers: tag expressions and SQL92 selectors (org.apache.rocketmq.filter)."""
