"""Asks the brokers for a `ClusterReader`, one module for each kind of answer."""
