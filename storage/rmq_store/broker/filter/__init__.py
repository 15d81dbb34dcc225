"""Which messages a consumer wants: tag expressions and SQL92 selectors (org.apache.rocketmq.filter)."""
