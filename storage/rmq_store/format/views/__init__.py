"""Entries of consume queues and of index files."""
