"""Spark's checkpoint directories of streams that read an rmq store: read them, compare them with a store, write new
ones.

This folder is the command `rmq checkpoint`; it works without Spark. A source of this package writes a
`pyspark_rmq.position.position.StreamPosition` into a checkpoint.
"""
