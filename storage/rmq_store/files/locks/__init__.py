"""Locks between threads and processes, how waiters are notified, and the shared page that says where the log ends."""
