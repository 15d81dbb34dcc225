"""RocketMQ's own mqadmin of a version, in one JVM: tests/cluster/java/Mqadmin.java."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from compat.stores import brokers as released
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.java_process import LOG_LINES

SOURCE = Path(__file__).parents[2] / "cluster" / "java" / "Mqadmin.java"
LOGBACKS = ("logback_tools.xml", "logback.xml")
SHADED = ("rmq.tools.logback.xml", "rmq.broker.logback.xml", "rmq.client.logback.xml", "rmq.logback.xml")
END_S = 20


class MqadminError(Exception):
    """mqadmin ended; the end of what it wrote."""


class Mqadmin:
    """A JVM that runs one command after the other, for a `with` block."""

    def __init__(self, cluster: RocketmqCluster) -> None:
        self._name_server = cluster.name_server
        self._log = tempfile.TemporaryFile("w+")
        self._home = tempfile.TemporaryDirectory(prefix="rmq-mqadmin-", dir=os.environ.get("RMQ_TEST_SERVER_DIRECTORY"))
        conf = Path(self._home.name) / "conf"
        conf.mkdir()
        shaded = released.LOGBACK.format(package="org.apache.rocketmq.logging.ch.qos.logback")
        for names, text in ((LOGBACKS, released.LOGBACK.format(package="ch.qos.logback")), (SHADED, shaded)):
            for name in names:
                (conf / name).write_text(text)
        home = f"-Duser.home={self._home.name}", f"-Drocketmq.home.dir={self._home.name}"
        path = f"{conf}:{released.jars(cluster.version)}/*"
        self._process = subprocess.Popen(
            ["java", "-Xmx192m", *home, "-Drocketmq.client.logUseSlf4j=true", *released.JVM, "-cp", path, str(SOURCE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8",
        )  # fmt: skip

    def run(self, *arguments: str) -> list[str]:
        """The lines that a command prints, without empty ones and blanks at their ends. Raises `MqadminError`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\t".join((*arguments, "-n", self._name_server)) + "\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line == "END\n":
                return lines
            if line.strip():
                lines.append(line.rstrip())
        raise MqadminError(f"mqadmin ended at {arguments}:\n{self.log()}")

    def log(self, lines: int = LOG_LINES) -> str:
        """The end of what it wrote beside: exceptions of its commands."""
        self._log.seek(0)
        return "\n".join(self._log.read().splitlines()[-lines:])

    def close(self) -> None:
        """End the JVM."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()
        self._home.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
