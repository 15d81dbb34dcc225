"""How driver and tasks reach a store: its location, the interface for reading, the sinks' writes, and the pool."""
