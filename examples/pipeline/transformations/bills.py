"""A declarative pipeline from one topic to another: `spark-pipelines run` in the directory above."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
store = spark.conf.get("store")


@dp.table
def orders() -> DataFrame:
    """All orders, as the stream of a group has read them."""
    return spark.readStream.format("rmq").options(path=store, subscribe="Orders", group="cg_bills").load()


dp.create_sink("bills", "rmq", {"path": store, "topic": "Bills"})


@dp.append_flow(target="bills")
def bill() -> DataFrame:
    """A bill for each order."""
    return spark.readStream.table("orders").selectExpr("keys", "concat('bill for ', CAST(body AS STRING)) AS body")
