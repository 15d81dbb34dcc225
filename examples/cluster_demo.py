"""A cluster of released RocketMQ brokers on this machine, and a Spark stream through the death of a master.

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

HERE = Path(__file__).resolve().parent
# What starts real brokers for the tests starts them here, too.
sys.path.insert(0, str(HERE.parent / "tests"))

try:
    from pyspark.errors import PySparkException

    from helpers.cluster.brokers import RocketmqCluster
    from helpers.cluster.witness import Witness
    from helpers.server_process import ServerError
except ImportError as error:
    sys.exit(f"{error.name} is not here: run `make cluster-demo` in a checkout of the project.")

VERSION = "5.5.0"
MASTER_THAT_DIES = "broker-a"
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


class Bills:
    """What the stream has delivered: how often each order came, and from which broker."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()
        self.brokers: Counter[str] = Counter()

    def take(self, batch: DataFrame, _: int) -> None:
        """Keep the rows of a batch."""
        for row in batch.selectExpr("int(string(body)) AS number", "brokerName").collect():
            self.times[row.number] += 1
            self.brokers[row.brokerName] += 1


def tell(spark: SparkSession, cluster: RocketmqCluster, work: Path) -> bool:
    """Run all steps; whether nothing was lost and nothing came twice."""
    say(
        f"Two name servers ({' and '.join(cluster.name_servers)}) and two broker groups of RocketMQ {cluster.version} "
        "run, each with a master and a slave. A master acknowledges a message when its slave has it, too."
    )
    for (name, broker_id), process in sorted(cluster.brokers.items()):
        say(f"    {name}  {'slave ' if broker_id else 'master'}  {process.address}  process {process.pid}")
    say("The topic Orders has two queues at each group.")
    cluster.create_topic("Orders", 2, on_slaves=True)

    bills = Bills()
    with Witness(cluster) as java:
        java.ask("begin", topic="Orders", everyMs=20)
        say("A Java program with RocketMQ's own client sends the orders 0, 1, 2 ... A Spark stream reads them:")
        say("    format('rmq').option('nameServer', ...).option('subscribe', 'Orders').option('group', 'cg_bills')")
        checkpoint = str(work / "checkpoint")
        stream = read_orders(spark, cluster.name_server).writeStream.foreachBatch(bills.take)
        query = stream.option("checkpointLocation", checkpoint).trigger(processingTime="1 second").start()
        try:
            wait_for(query, lambda: bills.brokers.total() >= 200, "the first 200 orders")
            say(f"{describe(bills)}.")

            heading(f"The master of {MASTER_THAT_DIES} is killed (kill -9)")
            at_slave = bills.brokers[MASTER_THAT_DIES]
            other = bills.brokers["broker-b"]
            cluster.broker(MASTER_THAT_DIES).kill()
            wait_for(query, lambda: bills.brokers["broker-b"] >= other + 300, "300 more orders from broker-b")
            from_slave = bills.brokers[MASTER_THAT_DIES] - at_slave
            say(
                f"The stream went on. Java's client now sends to broker-b alone. {from_slave} orders of "
                f"{MASTER_THAT_DIES} that the stream had not read yet came from its slave. {describe(bills)}."
            )

            heading("The master comes back")
            before = bills.brokers[MASTER_THAT_DIES]
            cluster.broker(MASTER_THAT_DIES).start()
            cluster.await_registered()
            wait_for(query, lambda: bills.brokers[MASTER_THAT_DIES] >= before + 100, "orders from the master again")
            say(
                "It has registered at the name servers, Java's client has seen that at its next look (every 30 s), and "
                f"sends to both groups again. {describe(bills)}."
            )

            heading("The account")
            sent: dict[str, Any] = java.ask("end")
            acknowledged = set(sent["acknowledged"])
            wait_for(query, lambda: acknowledged <= bills.times.keys(), "the last orders")
        finally:
            query.stop()
    twice = sum(times > 1 for times in bills.times.values())
    say(f"Acknowledged to the Java program: {len(acknowledged)}, by broker and status: {sent['brokers']}.")
    say(f"Sends for which its client gave up: {len(sent['failed'])}.")
    say(f"Acknowledged orders that the stream has not delivered: {len(acknowledged - bills.times.keys())}.")
    say(
        f"Orders that the stream has delivered twice: {twice}. (A client that sends again after an error can store a "
        "message twice; here none did, or this number says how many.)"
        if twice
        else "Orders that the stream has delivered twice: 0."
    )
    return acknowledged <= bills.times.keys()


def describe(bills: Bills) -> str:
    """How many orders came from which group."""
    return "Delivered so far: " + ", ".join(f"{count} of {name}" for name, count in sorted(bills.brokers.items()))


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
