"""Sinks: messages, send-backs, and `write_once`."""
