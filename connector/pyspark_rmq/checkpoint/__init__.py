"""Spark's checkpoint directories of streams that read our stores: read them, compare them with a store, write new ones.

This folder is the command `rmq checkpoint`, without Spark. A source of ours writes a
`pyspark_rmq.position.position.StreamPosition` into a checkpoint.
"""
