"""The target of a command: a store, or a cluster. The command for it, and its options."""
