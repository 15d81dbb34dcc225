"""`rmq` over a cluster: the commands that differ from those for a store, with the same names."""
