"""RocketMQ's own client as a witness: tests/cluster/java/Witness.java, whose comment has its instructions."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compat.stores import brokers as released
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.java_process import LOG_LINES

SOURCE = Path(__file__).parents[2] / "cluster" / "java" / "Witness.java"
TARGET = SOURCE.parent / "target"
END_S = 20


class WitnessError(Exception):
    """The client failed; the end of what it wrote."""


class Witness:
    """A JVM with a client of `version` (the cluster's without it), for a `with` block. It ends with its input.

    `has_binary_headers`: the client writes the headers of its requests in the form ROCKETMQ.
    """

    def __init__(self, cluster: RocketmqCluster, version: str = "", *, has_binary_headers: bool = False) -> None:
        self.version = version or cluster.version
        self._log = tempfile.TemporaryFile("w+")
        self._home = tempfile.TemporaryDirectory(prefix="rmq-witness-", dir=os.environ.get("RMQ_TEST_SERVER_DIRECTORY"))
        options = [f"-Duser.home={self._home.name}", "-Drocketmq.client.logUseSlf4j=true", "-Xmx192m", *released.JVM]
        if has_binary_headers:
            options.append("-Drocketmq.serialize.type=ROCKETMQ")
        if cluster.tls is not None:
            options += cluster.tls.client_options()
        acl = cluster.acl
        credentials = [] if acl is None else [acl.access_key, acl.secret_key]
        path = f"{_classes(self.version)}:{released.jars(self.version)}/*"
        self._process = subprocess.Popen(
            ["java", *options, "-cp", path, "Witness", cluster.name_server, *credentials],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8",
        )  # fmt: skip

    def ask(self, do: str, **fields: object) -> Any:
        """One instruction; its answer. Raises `WitnessError`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do} | fields) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._log.seek(0)
            said = "\n".join(self._log.read().splitlines()[-LOG_LINES:])
            raise WitnessError(f"the client of {self.version} failed at {do} {fields}:\n{said}")
        return json.loads(answer)

    def kill(self) -> None:
        """End the JVM with kill -9: its members do not leave their groups."""
        self._process.kill()
        self._process.wait()

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
                raise WitnessError(f"Witness.java does not compile with RocketMQ {version}:\n{done.stderr}")
    return target
