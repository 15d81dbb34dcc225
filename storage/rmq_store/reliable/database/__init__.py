"""Shared by all parts: engines, transactions, the tables and their versions, ids, leases, the manual list."""
