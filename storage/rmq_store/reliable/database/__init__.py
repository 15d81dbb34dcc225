"""What all parts stand on: engines, transactions, the tables and their versions, ids, leases, the manual list."""
