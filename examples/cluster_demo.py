"""A cluster of released RocketMQ brokers on this machine, and a Spark stream through the death of a master.

The stream reads the topic Orders and writes the topic Bills, one bill for each order.

Run it with `make cluster-demo` in a checkout: it takes about three minutes. Maven fetches RocketMQ's jars once. The
demo needs 3 GB of memory, listens on loopback only, and removes everything at the end. `python examples/cluster_demo.py
4.9.7` takes the other version.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

HERE = Path(__file__).resolve().parent
# What starts real brokers for the tests starts them here, too.
sys.path.insert(0, str(HERE.parent / "tests"))

try:
    from pyspark.errors import PySparkException

    from helpers.cluster import requests
    from helpers.cluster.brokers import RocketmqCluster
    from helpers.cluster.witness import Witness
    from helpers.server_process import ServerError
except ImportError as error:
    sys.exit(f"{error.name} is not here: run `make cluster-demo` in a checkout of the project.")

VERSION = "5.5.0"
GROUPS = ("broker-a", "broker-b")
MASTER_THAT_DIES = GROUPS[0]
QUEUES = 2
PATIENCE_S = 180
WIDTH = 100


def read_orders(spark: SparkSession, name_servers: str) -> DataFrame:
    return (
        spark.readStream.format("rmq")
        .option("nameServer", name_servers)
        .option("subscribe", "Orders")
        .option("group", "cg_bills")
        .option("startingOffsets", "earliest")
        .load()
    )


def write_bills(orders: DataFrame, name_servers: str, work: Path) -> StreamingQuery:
    return (
        orders.selectExpr("concat('bill for ', string(body)) AS body", "keys")
        .writeStream.format("rmq")
        .option("nameServer", name_servers)
        .option("topic", "Bills")
        .option("markerPath", str(work / "records"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )


class Account:
    """How many messages each broker has, and how many bills there are for each order."""

    def __init__(self, spark: SparkSession, cluster: RocketmqCluster) -> None:
        self._spark = spark
        self._cluster = cluster

    def counts(self, topic: str) -> Counter[str]:
        """Messages by group of brokers, as the running masters count them."""
        found: Counter[str] = Counter()
        for name in self._cluster.broker_names:
            if self._cluster.broker(name).runs():
                with self._cluster.connect(name) as broker:
                    found[name] = sum(requests.max_offset(broker, topic, queue_id) for queue_id in range(QUEUES))
        return found

    def numbers(self, topic: str, broker_name: str = "") -> Counter[int]:
        """How often each order is in a topic, or at one group of brokers."""
        reader = self._spark.read.format("rmq").option("nameServer", self._cluster.name_server)
        frame = reader.option("subscribe", topic).load()
        if broker_name:
            frame = frame.where(frame.brokerName == broker_name)
        rows = frame.selectExpr("int(substring_index(string(body), ' ', -1)) AS number")
        return Counter(row.number for row in rows.collect())

    def has_bills(self, broker_name: str) -> bool:
        """Whether there is a bill for each order that a group of brokers has now."""
        return not self.numbers("Orders", broker_name) - self.numbers("Bills")


def tell(spark: SparkSession, cluster: RocketmqCluster, work: Path) -> bool:
    """Run all steps; whether nothing was lost and nothing is there twice."""
    say(
        f"Two name servers ({' and '.join(cluster.name_servers)}) and two broker groups of RocketMQ {cluster.version} "
        "run, each with a master and a slave. A master acknowledges a message when its slave has it, too."
    )
    for (name, broker_id), process in sorted(cluster.brokers.items()):
        say(f"    {name}  {'slave ' if broker_id else 'master'}  {process.address}  process {process.pid}")
    say("The topics Orders and Bills have two queues at each group.")
    for topic in ("Orders", "Bills"):
        cluster.create_topic(topic, QUEUES, on_slaves=True)

    account = Account(spark, cluster)
    with Witness(cluster) as java:
        java.ask("begin", topic="Orders", everyMs=20)
        say("A Java program with RocketMQ's own client sends the orders 0, 1, 2 ... A Spark stream writes their bills:")
        say("    spark.readStream.format('rmq').option('nameServer', ...).option('subscribe', 'Orders')")
        say("    orders.writeStream.format('rmq').option('nameServer', ...).option('topic', 'Bills')")
        query = write_bills(read_orders(spark, cluster.name_server), cluster.name_server, work)
        try:
            wait_for(query, lambda: min(account.counts("Bills")[name] for name in GROUPS) >= 100, "the first bills")
            say(f"Bills so far: {describe(account.counts('Bills'))}.")

            heading(f"The master of {MASTER_THAT_DIES} is killed (kill -9)")
            cluster.broker(MASTER_THAT_DIES).kill()
            with cluster.connect(MASTER_THAT_DIES, 1) as slave:
                left = sum(requests.max_offset(slave, "Orders", queue_id) for queue_id in range(QUEUES))
            bills = account.counts("Bills")["broker-b"]
            wait_for(query, lambda: account.counts("Bills")["broker-b"] >= bills + 200, "200 more bills at broker-b")
            wait_for(
                query, lambda: account.has_bills(MASTER_THAT_DIES), f"bills for orders of {MASTER_THAT_DIES}'s slave"
            )
            say(
                f"The stream went on. It has read all {left} orders of {MASTER_THAT_DIES}: what was left came from the "
                f"slave. Java's client and Spark's sink now send to broker-b alone: it has "
                f"{account.counts('Bills')['broker-b'] - bills} bills more than before."
            )

            heading("The master comes back")
            cluster.broker(MASTER_THAT_DIES).start()
            cluster.await_registered()
            before = account.counts("Bills")[MASTER_THAT_DIES]
            wait_for(query, lambda: account.counts("Orders")[MASTER_THAT_DIES] >= left + 50, "orders at the master")
            wait_for(query, lambda: account.counts("Bills")[MASTER_THAT_DIES] >= before + 50, "bills at the master")
            wait_for(query, lambda: account.has_bills(MASTER_THAT_DIES), "bills for orders at the master")
            say(
                "It has registered at the name servers. Clients have seen that at their next look (every 30 s), and "
                f"read from it and send to both groups again. Bills so far: {describe(account.counts('Bills'))}."
            )

            heading("The account")
            sent: dict[str, Any] = java.ask("end")
            query.processAllAvailable()
        finally:
            query.stop()
    acknowledged = set(sent["acknowledged"])
    orders, bills_of = account.numbers("Orders"), account.numbers("Bills")
    missing = len(acknowledged - bills_of.keys())
    more = sum((bills_of - orders).values())
    say(f"Acknowledged to the Java program: {len(acknowledged)} orders, by broker and status: {sent['brokers']}.")
    say(f"Sends for which its client gave up: {len(sent['failed'])}.")
    if twice := sum(times > 1 for times in orders.values()):
        say(f"Orders that Java's client has stored twice, because it sent them again after an error: {twice}.")
    say(f"Bills: {describe(account.counts('Bills'))}.")
    say(f"Acknowledged orders without a bill: {missing}.")
    say(f"Bills that are there twice: {more}.")
    return not missing and not more and bills_of == orders


def describe(counts: Counter[str]) -> str:
    """How many messages each group has."""
    return ", ".join(f"{count} at {name}" for name, count in sorted(counts.items()))


def wait_for(query: Any, fulfilled: Callable[[], bool], what: str) -> None:
    """Wait until something has come out of the stream. Raises TimeoutError, or the query's own error."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not fulfilled():
        if query.exception() is not None:
            raise query.exception()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} did not come within {PATIENCE_S} s")
        time.sleep(0.1)


def heading(text: str) -> None:
    """Print the heading of a step."""
    print(f"\n-- {text} {'-' * (WIDTH - len(text) - 4)}", flush=True)


def say(text: str) -> None:
    """Print a paragraph."""
    print(text, flush=True)


@contextlib.contextmanager
def quiet_spark(work: Path) -> Iterator[SparkSession]:
    """A small Spark session whose log is a file below `work`."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    kept = os.dup(2)
    with (work / "spark.log").open("wb") as log:
        os.dup2(log.fileno(), 2)
    builder = SparkSession.builder.master("local[2]").appName("pyspark-rmq cluster demo")
    settings = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.local.dir": str(work),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
        yield spark
        spark.stop()
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def main() -> int:
    """Run the demo; the exit code is 0 if nothing was lost."""
    version = sys.argv[1] if len(sys.argv) > 1 else VERSION
    cluster = RocketmqCluster(version, groups=2, slaves=1, name_servers=2, sync=True)
    if reason := cluster.missing():
        sys.exit(reason)
    with tempfile.TemporaryDirectory(prefix="pyspark-rmq-cluster-demo-", ignore_cleanup_errors=True) as directory:
        work = Path(directory)
        say("The brokers start (six JVMs; about half a minute) ...")
        try:
            with cluster, quiet_spark(work) as spark:
                is_complete = tell(spark, cluster, work)
        except (ServerError, TimeoutError, PySparkException) as error:
            sys.exit(f"The demo has failed: {error}")
        except KeyboardInterrupt:
            return 130
    say("All processes have ended, and their directories are removed.")
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
