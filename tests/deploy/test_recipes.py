"""The commands of docs/deploy.md run as they stand there, with the addresses of this machine: `make deploy`."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import rmq_store
from helpers.cluster.waiting import until
from rmq_store import Store

from .conftest import ORDERS, shell
from .page import ROOT, command
from .standalone import START_S, Standalone

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(1800)]

# What reads, streams and writes; each error in one line. Executors are asked where their package is.
TRY_ALL = """
import json, sys
import pyspark_rmq
from pyspark.sql import SparkSession

name_server, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
given = {"nameServer": name_server}
orders = spark.read.format("rmq").options(**given, subscribe="Orders").load()
found = {}

def tried(step, run):
    try:
        found[step] = run()
    except Exception as error:
        found[step] = str(error)

def streamed():
    stream = spark.readStream.format("rmq").options(**given, subscribe="Orders", startingOffsets="earliest").load()
    sink = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = sink.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception:
        return str(pyspark_rmq.failure(query))
    return query.lastProgress["numInputRows"]

rows = spark.createDataFrame([("ORD-X", "one more")], "keys string, body string").coalesce(1)
tried("read", orders.count)
tried("stream", streamed)
tried("sink", lambda: rows.write.format("rmq").options(**given, topic="Written").mode("append").save())
pyspark_rmq.register(spark)
tried("registered", lambda: spark.read.format("rmq").options(**given, subscribe="Orders").load().count())
print(json.dumps(found))
spark.stop()
"""

ASK_CONNECT = """
import sys
from pyspark.sql import SparkSession

remote, name_server, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
source = spark.readStream.format("rmq").options(nameServer=name_server, subscribe="Orders", group="cg_bills")
orders = source.option("startingOffsets", "earliest").load()
sink = orders.select("keys", "body").writeStream.format("rmq").options(nameServer=name_server, topic="Bills")
query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
print(spark.read.format("rmq").options(nameServer=name_server, subscribe="Bills").load().count(), "bills")
spark.stop()
"""


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """The directory in which a driver starts. Its `environment` is that of this test run: only an executor, in whose
    directory an archive was unpacked, has another one.
    """
    directory = tmp_path / "driver"
    directory.mkdir()
    (directory / "environment").symlink_to(Path(sys.prefix))
    shutil.copy(ROOT / "examples" / "deploy" / "bills.py", directory)
    (directory / "try_all.py").write_text(TRY_ALL)
    return directory


def drivers(standalone: Standalone) -> dict[str, str]:
    """Without PYTHONPATH: Spark would hand it on to executors, which then had the package of this test run."""
    return standalone.environment(Path(sys.prefix) / "bin")


def found_by(program: str, arguments: str, driver: Path, standalone: Standalone, name_server: str) -> dict[str, object]:
    """What TRY_ALL has found, submitted as the page says with other arguments."""
    script = command("standalone", master=standalone.master, name_server=name_server, checkpoint=f"{driver}/checkpoint")
    assert "bills.py" in script
    script = script.replace("bills.py", f"{arguments} {program}")
    said = shell(script, driver, drivers(standalone))
    found: dict[str, object] = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    return found | {"said": said}


def archive_without(packed: Path, directory: Path, *names: str) -> None:
    """The packed environment without some of its files, as `environment.tar.gz` in a directory."""
    with tarfile.open(packed / "environment.tar.gz") as whole, tarfile.open(directory / "environment.tar.gz", "w:gz",
                                                                           compresslevel=1) as left:  # fmt: skip
        for member in whole:
            if not any(f"site-packages/{name}" in member.name for name in names):
                left.addfile(member, whole.extractfile(member) if member.isreg() else None)


def test_a_job_of_a_standalone_cluster_brings_its_environment(
    packed: Path, standalone: Standalone, driver: Path, name_server: str
) -> None:
    shutil.copy(packed / "environment.tar.gz", driver)
    script = command("standalone", master=standalone.master, name_server=name_server, checkpoint=f"{driver}/checkpoint")
    said = shell(script, driver, drivers(standalone))
    assert f"{ORDERS} bills" in said, said[-3000:] + standalone.executors_said()
    unpacked = list(standalone.work.glob("app-*/*/environment/bin/python"))
    assert unpacked, "executors did not get the archive"


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_connect_server_of_a_standalone_cluster_brings_the_environment(
    packed: Path, standalone: Standalone, driver: Path, name_server: str, tmp_path: Path
) -> None:
    shutil.copy(packed / "environment.tar.gz", driver)
    environment, unpacked = drivers(standalone), str(tmp_path / "unpacked")
    shell(command("connect", unpacked=unpacked), driver, environment)
    shell(command("connect-server", master=standalone.master, unpacked=unpacked), driver, environment)

    def logs() -> str:
        return "".join(path.read_text()[-2000:] for path in (standalone.directory / "logs").glob("*.out"))

    try:
        # The script returns before the server is there, and a client waits for a server that has died.
        port = standalone.connect_port
        until(lambda: answers(port) or "Exception in thread" in logs(), "the server answers", START_S)
        assert answers(port), logs()
        remote = f"sc://127.0.0.1:{port}"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", ASK_CONNECT, remote, name_server, str(tmp_path / "checkpoint")],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert f"{ORDERS} bills" in done.stdout, done.stderr[-3000:] + logs() + standalone.executors_said()
    finally:
        shell("$SPARK_HOME/sbin/stop-connect-server.sh", driver, environment)


def test_an_executor_without_the_package_is_one_sentence(
    packed: Path, standalone: Standalone, driver: Path, name_server: str, tmp_path: Path
) -> None:
    archive_without(packed, driver, "pyspark_rmq", "rmq_store")
    found = found_by("try_all.py", "", driver, standalone, name_server)
    for step in ("read", "stream", "sink"):
        said = str(found[step])
        assert f"cannot import pyspark-rmq {rmq_store.__version__}, which the driver has" in said, (step, said[-2000:])
        assert "This task has read and written nothing" in said and "--archives (docs/deploy.md)" in said
    assert str(found["stream"]).startswith("ImportError: the Python worker ")
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert "Written" not in store.topics()


def test_an_executor_without_the_extension_is_one_sentence(
    packed: Path, standalone: Standalone, driver: Path, name_server: str
) -> None:
    archive_without(packed, driver, "rmq_store/_native")
    found = found_by("try_all.py", "", driver, standalone, name_server)
    for step in ("read", "stream", "sink"):
        said = str(found[step])
        assert "would take two to three times the processor time of the driver: the C extension is not there" in said
        assert "This task has read and written nothing" in said
    assert str(found["stream"]).startswith("UsageError: the Python worker ")


def test_a_wheel_in_py_files_is_slow_and_the_driver_says_so(
    packed: Path, standalone: Standalone, driver: Path, name_server: str
) -> None:
    """Spark sends the zip only with a source that was registered, and puts it before the driver's package, too: then
    nobody has the extension. To the source that it finds by itself, executors have no package.
    """
    archive_without(packed, driver, "pyspark_rmq", "rmq_store")
    (wheel,) = (packed / "wheels").iterdir()
    shutil.copy(wheel, driver / "pyspark_rmq.zip")
    found = found_by("try_all.py", "--py-files pyspark_rmq.zip", driver, standalone, name_server)
    assert "cannot import pyspark-rmq" in str(found["read"]), found["read"]
    assert found["registered"] == ORDERS, found["registered"]
    said = str(found["said"])
    assert "pyspark-rmq takes two to three times the processor time here: pyspark-rmq was imported from the zip" in said
