"""mqadmin's commands over a cluster of brokers: its names and flags, its columns and labels.

Differences to mqadmin: --json is added, destructive commands ask, an error is one line and an exit code, and it names
the broker that refused or did not answer.
"""
