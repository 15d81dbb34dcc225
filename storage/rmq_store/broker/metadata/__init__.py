"""Settings, topics, groups, offsets and leases: the JSON tables of a broker, and the locks beside them."""
