"""A declarative pipeline from one topic to another: `spark-pipelines run` in the directory above."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
store = spark.conf.get("store")

dp.create_sink("bills", "rmq", {"path": store, "topic": "Bills"})


@dp.append_flow(target="bills")
def bill() -> DataFrame:
    """A bill for each order; each run continues where the previous one stopped."""
    orders = spark.readStream.format("rmq").options(path=store, subscribe="Orders", group="cg_bills").load()
    return orders.selectExpr("keys", "concat('bill for ', CAST(body AS STRING)) AS body")
