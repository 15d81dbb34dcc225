"""Positions of a query, their fingerprints, the plan of a trigger, and the ranges of a batch: pure, no I/O."""
