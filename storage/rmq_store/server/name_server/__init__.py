"""Routes: the brokers of each topic."""
