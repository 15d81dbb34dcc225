"""Clusters for tests: released name servers and brokers, faults between us and them, and a simulated one."""
