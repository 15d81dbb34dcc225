"""RocketMQ's own example of a consumer by POP, as it was released: org.apache.rocketmq.example.simple.PopConsumer."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from compat.stores import brokers as released
from helpers.line_program import LineProgram

VERSION = "5.5.0"
TOPIC, GROUP = "TopicTest", "CID_JODIE_1"
_SHA256 = "9f565d1e54383eed12094d66858477eda67f7097e74aca37bbab46ce3b03e0a5"
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"


class PopExample(LineProgram):
    """The example at a name server, for a `with` block. It sets the mode POP with popShareQueueNum 8, and consumes."""

    def __init__(self, name_server: str, home: Path) -> None:
        path = f"{_jar()}:{released.jars(VERSION)}/*"
        options = ("-Xmx192m", f"-Duser.home={home}", f"-Drocketmq.namesrv.addr={name_server}", *released.JVM)
        main = "org.apache.rocketmq.example.simple.PopConsumer"
        super().__init__("PopConsumer", ["java", *options, "-cp", path, main], home)

    def received(self) -> str:
        """The line of the next messages that it got. Raises `ProgramError`."""
        while "Receive New Messages" not in (line := self.read_line("its start")):
            pass
        return line

    def close(self) -> None:
        """End the JVM, which does not listen to its input."""
        self.kill()
        super().close()


def _jar() -> Path:
    directory = released.BUILD / VERSION / "example"
    jar = directory / f"rocketmq-example-{VERSION}.jar"
    if not jar.exists():
        artifact = f"-Dartifact=org.apache.rocketmq:rocketmq-example:{VERSION}"
        command = ["mvn", "-q", "-B", _GOAL, artifact, f"-DoutputDirectory={directory}"]
        subprocess.run(command, check=True, capture_output=True)
    total = hashlib.sha256(jar.read_bytes()).hexdigest()
    if total != _SHA256:
        raise released.JarsChangedError(f"{jar.name} is not the jar that was tried: SHA-256 {total}")
    return jar
