"""Spark's executors on hosts of their own: they see no file of the driver, and resolve secrets by themselves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyspark
import pytest

from helpers import servers
from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.security import Account, Acl
from helpers.cluster.waiting import until

from ..connector.conftest import worker_environment

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]
COUNT = 200
DRIVERS, EXECUTORS = "0nly-the-driver-has-this", "0nly-executors-have-this"

# What Spark's Python workers are started by. Those of executors live in a mount namespace of their own: in it the
# directory of the driver is empty, and the file of the secret is another one.
PYTHON = """#!/bin/sh
if [ "$HOST_OF" != executor ]; then exec {python} "$@"; fi
exec unshare {how} --mount sh -c '
    mount -t tmpfs tmpfs {driver} && mount --bind {root}/of-executors {root}/secrets || exit 1
    cd / && exec {python} "$@"' sh "$@"
"""

PROGRAM = """
import json, os, sys, urllib.request
from pathlib import Path
from pyspark.sql import SparkSession

root, name_server = sys.argv[1:]
os.chdir(root + "/driver")
spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]")
    .config("spark.executorEnv.HOST_OF", "executor")
    .config("spark.ui.port", "0").config("spark.ui.showConsoleProgress", "false")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", "file://" + root + "/events")
    .config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
    .config("spark.log.level", "INFO")
    .getOrCreate()
)
given = {"nameServer": name_server, "accessKey": f"file:{root}/secrets/access", "pullGroup": "pulls"}
given["secretKey"] = f"file:{root}/secrets/secret"

def seen(batches):
    import os
    import pyarrow as pa
    for batch in batches:
        yield batch.append_column("sees", pa.array([os.path.exists(root + "/driver/mine")] * len(batch)))

found = {}
orders = spark.read.format("rmq").options(**given).option("subscribe", "Orders").option("minPartitions", 4).load()
rows = orders.select("body").mapInArrow(seen, "body binary, sees boolean").collect()
found["batch"] = sorted(int(row.body) for row in rows)
found["executors see"] = any(row.sees for row in rows)
found["driver sees"] = os.path.exists("mine")
sink = {"topic": "Bills", "settleTime": "1200ms"}
once = {"txnAppId": "bills", "txnVersion": "1"}
for _ in range(2):
    orders.select("body").write.format("rmq").options(**given, **sink, **once).mode("append").save()
stream = spark.readStream.format("rmq").options(**given, subscribe="Orders", startingOffsets="earliest").load()
writer = stream.select("body").writeStream.format("rmq").options(**given, **sink)
query = writer.option("checkpointLocation", root + "/checkpoint").trigger(availableNow=True).start()
assert query.awaitTermination(300)
found["progress"] = query.lastProgress["numInputRows"]
ui = spark.sparkContext.uiWebUrl
pages = [ui + "/environment/", ui + "/SQL/", ui + "/jobs/", ui + "/StreamingQuery/"]
pages += [f"{ui}/SQL/execution/?id={number}" for number in range(4)]
found["pages"] = []
for page in pages:
    with urllib.request.urlopen(page) as answer:
        found["pages"].append(answer.read().decode(errors="replace"))
spark.stop()
Path(root, "found.json").write_text(json.dumps(found))
"""


@pytest.fixture
def unshare() -> str:
    """How `unshare` makes a mount namespace here: as root, or as the root of a user namespace."""
    for how in ("", "--map-root-user"):
        command = ["unshare", *how.split(), "--mount", "true"]
        if shutil.which("unshare") and subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return how
    reason = "this machine forbids mount namespaces, which hide the driver's files from executors"
    if servers.REQUIRED:
        pytest.fail(f"RMQ_TEST_SERVERS=required, but {reason}", pytrace=False)
    pytest.skip(reason)


def accounts(version: str) -> tuple[Account, Account]:
    """The driver may plan reads; executors may read and write."""
    is_old = version.startswith("4.")
    read, write = ("SUB", "PUB|SUB") if is_old else ("SUB|GET", "PUB|SUB|GET")
    pulls = {"pulls": read}
    return (
        Account("driver-of-bills", DRIVERS, {"Orders": read}, pulls),
        Account("executor-of-bills", EXECUTORS, {"Orders": read, "Bills": write, "PYRMQ_SINK_RECORDS": write}, pulls),
    )


@pytest.fixture(params=VERSIONS)
def guarded(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    require_released(request.param)
    users = accounts(request.param)
    with RocketmqCluster(request.param, acl=Acl(accounts=users)) as cluster:
        for user in users if not request.param.startswith("4.") else ():
            cluster.create_account(user)
        yield cluster


def texts(paths: Iterable[Path]) -> list[str]:
    """What the files among them have, checksums of Hadoop's included."""
    return [path.read_text(errors="replace") for path in paths if path.is_file()]


def test_executors_read_and_write_without_the_files_and_secrets_of_the_driver(
    guarded: RocketmqCluster, tmp_path: Path, unshare: str
) -> None:
    for topic, queue_count in (("Orders", 2), ("Bills", 2), ("PYRMQ_SINK_RECORDS", 1)):
        guarded.create_topic(topic, queue_count)
    with guarded.connect() as administrator:
        for queue_id in (0, 1):
            numbers = range(queue_id, COUNT, 2)
            answer = requests.send_batch(administrator, "Orders", [b"%d" % number for number in numbers], queue_id)
            assert answer.code == 0, answer
            requests.await_end(administrator, "Orders", COUNT // 2, queue_id)
    for name in ("driver", "secrets", "of-executors", "events", "home/work"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "driver" / "mine").touch()
    driver, executor = accounts(guarded.version)
    for directory, user in (("secrets", driver), ("of-executors", executor)):
        (tmp_path / directory / "access").write_text(user.access_key)
        (tmp_path / directory / "secret").write_text(user.secret_key)
    python = tmp_path / "python"
    python.write_text(PYTHON.format(python=sys.executable, how=unshare, driver=tmp_path / "driver", root=tmp_path))
    python.chmod(0o755)
    # Executors keep their logs below Spark's home.
    installed = Path(pyspark.__file__).parent
    for name in ("bin", "jars", "python", "sbin"):
        if (installed / name).exists():
            (tmp_path / "home" / name).symlink_to(installed / name)
    environment = os.environ | worker_environment() | {"SPARK_HOME": str(tmp_path / "home")}
    # Spark runs a source that it has found by itself with the second one, in executors too.
    environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(tmp_path), guarded.name_server],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    logs = [path for path in (tmp_path / "home" / "work").rglob("std*") if path.is_file()]
    assert done.returncode == 0, done.stderr[-4000:] + "".join(path.read_text()[-1000:] for path in logs)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["driver sees"], found["executors see"]) == (True, False)
    assert found["batch"] == list(range(COUNT))
    assert found["progress"] == COUNT
    with guarded.connect() as administrator:
        # Once by the batch write, which came twice, and once by the stream.
        until(lambda: sum(requests.max_offset(administrator, "Bills", queue) for queue in (0, 1)) >= 2 * COUNT, "bills")
        assert sum(requests.max_offset(administrator, "Bills", queue) for queue in (0, 1)) == 2 * COUNT
    places = {
        "a page of the UI": found["pages"],
        "what was printed and logged": [done.stdout, done.stderr],
        "a log of an executor": texts(logs),
        "the log of events": texts((tmp_path / "events").rglob("*")),
        "the checkpoint": texts((tmp_path / "checkpoint").rglob("*")),
    }
    for name, found_there in places.items():
        assert "".join(found_there), f"{name} is looked at"
        assert not [secret for secret in (DRIVERS, EXECUTORS, "Signature=") if secret in "".join(found_there)], name
