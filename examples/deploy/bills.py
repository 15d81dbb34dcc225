"""A job for a cluster of Spark: writes a bill for each order that has come since its last run.

    spark-submit ... bills.py NAME_SERVERS CHECKPOINT

docs/deploy.md has the commands for each place where Spark runs. NAME_SERVERS are those of a RocketMQ cluster, or the
address of a served store; CHECKPOINT is a directory that the driver and all executors see.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

name_servers, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("bills").getOrCreate()

source = spark.readStream.format("rmq").options(nameServer=name_servers, subscribe="Orders", group="cg_bills")
orders = source.option("startingOffsets", "earliest").load()  # of a new group; then it goes on where it stopped
bills = orders.selectExpr("keys", "concat('bill for ', CAST(body AS STRING)) AS body")
sink = bills.writeStream.format("rmq").options(nameServer=name_servers, topic="Bills", checkpointLocation=checkpoint)
sink.trigger(availableNow=True).start().awaitTermination()

stored = spark.read.format("rmq").options(nameServer=name_servers, subscribe="Bills").load()
print(f"{stored.count()} bills")
spark.stop()
