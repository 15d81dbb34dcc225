"""Positions of a query, their fingerprints, and the ranges of a batch: pure, no I/O."""
