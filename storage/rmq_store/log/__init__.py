"""The commit log, its views (consume queues, hash index), and recovery."""
