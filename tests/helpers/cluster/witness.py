"""RocketMQ's own client as a witness: tests/cluster/java/Witness.java, whose comment has its instructions."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from compat.stores import brokers as released
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.java_process import CLIENTS
from helpers.line_program import LineProgram, ProgramError

SOURCE = Path(__file__).parents[2] / "cluster" / "java" / "Witness.java"
TARGET = SOURCE.parent / "target"


class Witness(LineProgram):
    """A JVM with the newest client of the line of `version` (the cluster's without it), for a `with` block. It ends
    with its input.

    `has_binary_headers`: the client writes the headers of its requests in the form ROCKETMQ.
    """

    def __init__(self, cluster: RocketmqCluster, version: str = "", *, has_binary_headers: bool = False) -> None:
        self.version = CLIENTS[version or cluster.version]
        self._home = tempfile.TemporaryDirectory(prefix="rmq-witness-", dir=os.environ.get("RMQ_TEST_SERVER_DIRECTORY"))
        options = [f"-Duser.home={self._home.name}", "-Drocketmq.client.logUseSlf4j=true", "-Xmx192m", *released.JVM]
        if has_binary_headers:
            options.append("-Drocketmq.serialize.type=ROCKETMQ")
        if cluster.tls is not None:
            options += cluster.tls.client_options()
        acl = cluster.acl
        credentials = [] if acl is None else [acl.access_key, acl.secret_key]
        path = f"{_classes(self.version)}:{released.jars(self.version)}/*"
        command = ["java", *options, "-cp", path, "Witness", cluster.name_server, *credentials]
        super().__init__(f"the client of {self.version}", command, Path(self._home.name))

    def ask(self, do: str, **fields: object) -> Any:
        """One instruction; its answer. Raises `ProgramError`."""
        told = json.dumps({"do": do} | fields)
        self.write_line(told)
        return json.loads(self.read_line(told))

    def close(self) -> None:
        """End the JVM."""
        super().close()
        self._home.cleanup()


def _classes(version: str) -> Path:
    """The program, compiled against the jars of a version; by one process, however many want it."""
    target = TARGET / version
    target.mkdir(parents=True, exist_ok=True)
    with (target / "compiling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        compiled = target / "Witness.class"
        if not compiled.exists() or compiled.stat().st_mtime < SOURCE.stat().st_mtime:
            command = ["javac", "-nowarn", "-d", str(target), "-cp", f"{released.jars(version)}/*", str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ProgramError(f"Witness.java does not compile with RocketMQ {version}:\n{done.stderr}")
    return target
