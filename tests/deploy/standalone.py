"""A standalone cluster of Spark on this machine: a master and two workers, each a JVM of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark

from helpers.cluster.waiting import free_ports, until
from helpers.spark_jvm import SHORT_LIFE

# Not the one of the tests: executors import PySpark from its zip, for their environment has none.
SPARK_HOME = Path(pyspark.__file__).parent

# Three JVMs start at once.
START_S = 900.0

DEFAULTS = """
spark.ui.enabled false
spark.executor.memory 512m
spark.cores.max 2
spark.task.maxFailures 1
spark.sql.shuffle.partitions 2
spark.log.level WARN
spark.connect.grpc.binding.port {connect}
spark.executor.extraJavaOptions {short}
"""


def outside() -> dict[str, str]:
    """The environment without what this run of the tests has put there for its own Spark and Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}


class Standalone:
    """Below `directory`: logs, the directories of executors (`work`), and `conf`, the settings of drivers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.work = directory / "work"
        port, self.connect_port = free_ports(2)
        self.master = f"spark://127.0.0.1:{port}"
        for name in ("conf", "work", "logs", "pids"):
            (directory / name).mkdir(parents=True)
        (directory / "conf" / "spark-defaults.conf").write_text(
            DEFAULTS.format(short=SHORT_LIFE, connect=self.connect_port)
        )

    def environment(self, *path: Path) -> dict[str, str]:
        """For a driver; `path` stands in front of the PATH."""
        directories = [*map(str, path), str(SPARK_HOME / "bin"), os.environ["PATH"]]
        return outside() | {
            "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(self.work),
            "SPARK_CONF_DIR": str(self.directory / "conf"), "SPARK_LOG_DIR": str(self.directory / "logs"),
            "SPARK_PID_DIR": str(self.directory / "pids"),
            "SPARK_SUBMIT_OPTS": SHORT_LIFE, "SPARK_LAUNCHER_OPTS": SHORT_LIFE,
            "SPARK_DAEMON_JAVA_OPTS": f"{SHORT_LIFE} -Dspark.master.rest.enabled=false",
            "PATH": os.pathsep.join(directories),
        }  # fmt: skip

    @contextlib.contextmanager
    def running(self) -> Iterator[Standalone]:
        """Master and workers; on return both workers have registered."""
        host, port = "127.0.0.1", self.master.rpartition(":")[2]
        with contextlib.ExitStack() as stack:
            self._start(stack, "master.Master", "--host", host, "--port", port, "--webui-port", "0")
            for _ in range(2):
                self._start(
                    stack, "worker.Worker", "--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0",
                    self.master,
                )  # fmt: skip
            log = self.directory / "master.Master.log"
            until(lambda: len(re.findall("Registering worker", log.read_text())) == 2, "two workers register", START_S)
            yield self

    def _start(self, stack: contextlib.ExitStack, name: str, *arguments: str) -> None:
        log = stack.enter_context((self.directory / f"{name}.log").open("ab"))
        # Workers that start with PYSPARK_PYTHON would give it to executors. The memory is for these alone: a Connect
        # server takes the same variable, and does not start with less than 450 MiB.
        environment = self.environment() | {"SPARK_DAEMON_MEMORY": "256m"}
        process = subprocess.Popen(
            [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
            env=environment, cwd=self.directory, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        stack.callback(process.wait)
        stack.callback(process.terminate)

    def executors_said(self) -> str:
        """The end of what each executor printed, for messages of failed tests."""
        return "\n".join(f"{path}: {path.read_text()[-1500:]}" for path in self.work.rglob("stderr"))
