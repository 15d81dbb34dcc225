"""Failed messages of a cluster: sent back to the brokers that hold them, and dead letters that are moved on."""
