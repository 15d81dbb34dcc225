"""One frame of the commit log: layout, checks, checksums, and what queues and index need of it."""
