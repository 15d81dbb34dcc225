"""Streams a topic into a store, in a Spark of its own: `killed_driver.py SOURCE FORMAT TARGET CHECKPOINT`."""

from __future__ import annotations

import sys

import rmq_test_sources
from pyspark.sql import SparkSession

source, sink, target, checkpoint = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .getOrCreate()
)
spark.dataSource.register(rmq_test_sources.DiesAfterAppendSource)
spark.dataSource.register(rmq_test_sources.DiesBeforeAppendSource)
query = (
    spark.readStream.format("rmq")
    .option("path", source)
    .option("subscribe", "Orders")
    .option("group", "cg")
    .load()
    .select("body")
    .writeStream.format(sink)
    .option("path", target)
    .option("topic", "Enriched")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
