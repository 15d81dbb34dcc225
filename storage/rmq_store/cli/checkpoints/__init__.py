"""Spark's checkpoint directories of streams that read our stores: read, compared with a store, written anew.

What a source of ours keeps in one is `pyspark_rmq.position.position.StreamPosition`, the only name of the connector
that the command uses: that module needs no Spark.
"""
