"""How driver and tasks reach a store, for reading and for writing."""
