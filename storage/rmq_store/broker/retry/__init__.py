"""Send-backs: failed messages to `%RETRY%group` or `%DLQ%group` (SendMessageProcessor#consumerSendMsgBack)."""
