"""Invisible messages: receive, acknowledge, change (PopMessageProcessor, AckMessageProcessor)."""
