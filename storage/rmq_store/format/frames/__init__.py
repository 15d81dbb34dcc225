"""One frame of the commit log: layout, checks, checksums, and the fields that queues and index need."""
