"""Rows of Arrow batches to the brokers of a cluster: batch requests, retries, and the replay check."""
