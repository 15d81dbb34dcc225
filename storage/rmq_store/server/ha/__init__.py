"""A master's side of replication: the HA port, what slaves have, and the tables that they take (DefaultHAService)."""
