"""A Kafka topic into a RocketMQ topic by Spark: `python examples/from_kafka.py ADDRESS TOPIC STORE CHECKPOINT`.

Needs Spark with its connector for Kafka, for example `spark-submit --packages
org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0`. docs/kafka.md says when `rmq mirror` does this better.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery


def kafka_records(spark: SparkSession, address: str, topic: str) -> DataFrame:
    """Committed records with their headers; one that appears twice counts as its last one."""
    spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
    source = source.option("kafka.isolation.level", "read_committed").option("includeHeaders", "true")
    return source.option("startingOffsets", "earliest").load()


def as_messages(records: DataFrame) -> DataFrame:
    """One message for each record that is not a tombstone; partition n becomes queue n."""
    return records.where("value IS NOT NULL").selectExpr(
        "value AS body",
        "CAST(key AS STRING) AS keys",
        "CAST(key AS STRING) AS shardingKey",
        "partition AS queueId",
        "timestamp AS bornTimestamp",
        "map_from_entries(transform(headers, h -> struct(h.key, nullif(CAST(h.value AS STRING), '')))) AS properties",
    )


def mirror(spark: SparkSession, address: str, topic: str, store: str, checkpoint: str) -> StreamingQuery:
    """Copy all records up to now. Each is stored once, even if the query is killed and started again."""
    sink = as_messages(kafka_records(spark, address, topic)).writeStream.format("rmq")
    sink = sink.options(path=store, topic=topic, useQueueId="true", checkpointLocation=checkpoint)
    return sink.trigger(availableNow=True).start()


def main() -> None:
    """Copy once, and show the messages of the topic in the store."""
    address, topic, store, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.appName("from-kafka").getOrCreate()
    mirror(spark, address, topic, store, checkpoint).awaitTermination()
    messages = spark.read.format("rmq").options(path=store, subscribe=topic).load()
    for row in messages.orderBy("queueId", "queueOffset").collect():
        print(f"{row['queueId']} {row['keys']}: {row['body'].decode()} {dict(sorted(row['properties'].items()))}")
    spark.stop()


if __name__ == "__main__":
    main()
