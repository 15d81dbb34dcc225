"""The brokers that a client talks to: a protocol, and a cluster of store directories."""
