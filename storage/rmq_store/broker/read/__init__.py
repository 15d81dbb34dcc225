"""Reading queues and finding single messages."""
