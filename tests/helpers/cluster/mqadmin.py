"""RocketMQ's own mqadmin of a version, or its dashboard's client, in one JVM: Mqadmin.java and Dashboard.java."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from compat.stores import brokers as released
from helpers.cluster.brokers import RocketmqCluster
from helpers.line_program import LineProgram

TESTS = Path(__file__).parents[2]
LOGBACKS = ("logback_tools.xml", "logback.xml")
SHADED = ("rmq.tools.logback.xml", "rmq.broker.logback.xml", "rmq.client.logback.xml", "rmq.logback.xml")


class Mqadmin(LineProgram):
    """A JVM that runs one command after the other, for a `with` block."""

    source = TESTS / "cluster" / "java" / "Mqadmin.java"

    def __init__(self, cluster: RocketmqCluster) -> None:
        self.version, self._name_server = cluster.version, cluster.name_server
        self._home = tempfile.TemporaryDirectory(prefix="rmq-mqadmin-", dir=os.environ.get("RMQ_TEST_SERVER_DIRECTORY"))
        conf = Path(self._home.name) / "conf"
        conf.mkdir()
        shaded = released.LOGBACK.format(package="org.apache.rocketmq.logging.ch.qos.logback")
        for names, text in ((LOGBACKS, released.LOGBACK.format(package="ch.qos.logback")), (SHADED, shaded)):
            for name in names:
                (conf / name).write_text(text)
        homes = f"-Duser.home={self._home.name}", f"-Drocketmq.home.dir={self._home.name}"
        path = f"{conf}:{released.jars(cluster.version)}/*"
        options = ("-Xmx192m", *homes, "-Drocketmq.client.logUseSlf4j=true", *released.JVM)
        super().__init__("mqadmin", ["java", *options, "-cp", path, self.source], Path(self._home.name))

    def run(self, *arguments: str) -> list[str]:
        """The lines that a command prints, without empty ones and blanks at their ends. Raises `ProgramError`."""
        told = "\t".join((*arguments, "-n", self._name_server))
        self.write_line(told)
        lines = []
        while (line := self.read_line(told)) != "END\n":
            if line.strip():
                lines.append(line.rstrip())
        return lines

    def close(self) -> None:
        """End the JVM."""
        super().close()
        self._home.cleanup()


class Dashboard(Mqadmin):
    """A JVM that calls one method of DefaultMQAdminExt after the other."""

    source = TESTS / "interop" / "java" / "Dashboard.java"
