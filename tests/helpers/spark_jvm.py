"""How tests start Spark's JVM: options for a JVM that lives for seconds or minutes, and the classes that it loads.

    python tests/helpers/spark_jvm.py       makes the archive of classes, unless there is one; ten seconds

Most of what a test with a Spark of its own waits for is Java that loads, verifies and compiles 15,000 classes. One
compiler instead of two, the smallest collector, and an archive of classes (JEP 350) more than halve that. The archive
lies in build/, for this Java, this Spark and this place. The JVM ignores one that does not fit, or is not there.

Each Python process that Spark starts imports pyspark from `python/lib/pyspark.zip` of SPARK_HOME, and compiles all of
it again: two seconds, of the ten that Spark waits for it. Without that file it imports the installed package, whose
bytecode is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Reads and writes, in batches and as a stream, and a server of Spark Connect: what the tests do, once.
TRAINING = """
import os, sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
directory = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    .config("spark.connect.grpc.binding.port", "0")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", directory + "/warehouse")
    .getOrCreate()
)
frame = spark.range(10).selectExpr("cast(id as string) value", "id % 3 k")
frame.groupBy("k").count().orderBy("k").collect()
frame.select("value").write.format("rmq").mode("append").option("topic", "T").save(directory + "/store")
spark.read.format("rmq").option("subscribe", "T").load(directory + "/store").count()
stream = spark.readStream.format("rmq").option("subscribe", "T").option("startingOffsets", "earliest")
query = stream.load(directory + "/store").writeStream.foreachBatch(lambda rows, number: rows.collect())
query.option("checkpointLocation", directory + "/c").trigger(availableNow=True).start().awaitTermination()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()
sys.exit(jvm.wait())
"""


def archive() -> Path | None:
    """Where the archive is or would be; None where no Java or no Spark is found."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    spark = importlib.util.find_spec("pyspark")
    if java is None or spark is None or spark.origin is None:
        return None
    release = Path(java).resolve().parents[1] / "release"
    if not release.exists():
        return None
    fits = (
        f"{release.resolve()} {release.read_text()} {spark_home()} {importlib.metadata.version('pyspark')} {TRAINING}"
    )
    return ROOT / "build" / f"spark-classes-{hashlib.sha256(fits.encode()).hexdigest()[:16]}.jsa"


def spark_home() -> Path | None:
    """A SPARK_HOME like the installed one, but without its zip of Python; made when it is not there. None without
    pyspark.
    """
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        return None
    installed = Path(spark.origin).parent
    made = ROOT / "build" / f"spark-home-{hashlib.sha256(str(installed).encode()).hexdigest()[:16]}"
    made.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "jars", "data"):
        with contextlib.suppress(FileExistsError):
            (made / name).symlink_to(installed / name)
    return made


def environment() -> dict[str, str]:
    """For every process that starts a Spark, or whose children do."""
    options = SHORT_LIFE
    place = {} if (path := spark_home()) is None else {"SPARK_HOME": str(path)}
    if (path := archive()) is not None and path.exists():
        # Without a word about archives that do not fit, on a standard output that tests read.
        options += f" -XX:SharedArchiveFile={path} -Xlog:disable"
    return {"SPARK_SUBMIT_OPTS": options, "SPARK_LAUNCHER_OPTS": SHORT_LIFE, **place}


def make() -> None:
    """Make the archive unless it is there. Tests are slower without it, so a failure is only told."""
    path = archive()
    if path is None or path.exists():
        return
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="spark-classes-") as directory:
        made = Path(directory) / "made.jsa"
        options = f"{SHORT_LIFE} -XX:ArchiveClassesAtExit={made} -Xlog:disable"
        pythonpath = os.pathsep.join([str(ROOT / "storage"), str(ROOT / "connector")])
        done = subprocess.run(
            [sys.executable, "-c", TRAINING, directory],
            env=os.environ | environment() | {"SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1"}
            | {"PYTHONPATH": pythonpath, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if done.returncode or not made.exists():
            sys.stderr.write(f"No archive of Spark's classes, so tests take longer. {done.stderr[-2000:]}\n")
            return
        for old in path.parent.glob("spark-classes-*.jsa"):
            old.unlink()
        made.rename(path)


if __name__ == "__main__":
    make()
