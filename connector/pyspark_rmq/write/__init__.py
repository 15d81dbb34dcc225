"""Sinks: new messages, send-backs, and `write_once`."""
