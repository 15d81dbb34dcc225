"""Queues and index against the log: ends, gaps, damaged entries, and damage that somebody accepted."""
