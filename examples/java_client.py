"""RocketMQ's own Java client for the demo: a producer that sends orders to a served store."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
POM: Final = HERE / "java" / "pom.xml"
SOURCE: Final = HERE / "java" / "SendOrders.java"
JARS: Final = HERE.parent / "build" / "demo-java"
GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
START_S: Final = 30.0
# The client writes its log below the home of the user, and opens packages of the JDK by reflection.
OPTIONS: Final = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-Drocketmq.client.logLevel=ERROR")


class MissingJavaError(Exception):
    """The Java client cannot run here; the reason."""


class SendingError(Exception):
    """Server or client ended before its time; what they said."""


def jars() -> Path:
    """The directory with the client's jars, which Maven fetches once. Raises MissingJavaError."""
    for program in ("mvn", "javac"):
        if shutil.which(program) is None:
            raise MissingJavaError(f"{program} is not on PATH")
    if not (JARS / "fetched").exists():
        command = ["mvn", "-q", "-B", "-f", str(POM), GOAL, f"-DoutputDirectory={JARS}", "-DincludeScope=runtime"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = next((line for line in done.stdout.splitlines() if "[ERROR]" in line), "Maven does not say why")
            raise MissingJavaError(f"the jars are not to be had: {said.removeprefix('[ERROR]').strip()}")
        (JARS / "fetched").touch()
    return JARS


@contextlib.contextmanager
def served(store: str, work: Path) -> Iterator[str]:
    """Serve a store with `rmq broker run` for a `with` block; its address. Raises SendingError."""
    port_file, log = work / "served.port", work / "served.log"
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", "broker", "run", store]
    command += ["--listen", "127.0.0.1:0", "--port-file", str(port_file), "--until-stdin-closes"]
    with log.open("wb") as out, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out) as server:
        try:
            until_s = time.monotonic() + START_S
            while not port_file.exists():
                if server.poll() is not None or time.monotonic() > until_s:
                    raise SendingError(f"the store is not served: {log.read_text(errors='replace').strip()}")
                time.sleep(0.05)
            yield port_file.read_text().strip()
        finally:
            assert server.stdin is not None
            server.stdin.close()
            server.wait(START_S)


class JavaProducer:
    """A JVM that sends `count` orders to a topic, the first one at once, the others from `go_on` on, one each
    `pause_ms`; a context manager that ends it.
    """

    def __init__(self, name_server: str, topic: str, count: int, pause_ms: int, work: Path) -> None:
        command = ["java", *OPTIONS, f"-Duser.home={work}", "-cp", f"{jars()}/*", str(SOURCE)]
        self._log = work / "java.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, name_server, topic, str(count), str(pause_ms)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.statuses: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.statuses.append(line.strip())

    def wait_for_the_first(self) -> None:
        """Until one order is sent. Raises SendingError."""
        until_s = time.monotonic() + START_S
        while not self.statuses:
            if not self._thread.is_alive() or time.monotonic() > until_s:
                raise SendingError(f"Java has sent nothing: {self._log.read_text(errors='replace').strip()}")
            time.sleep(0.05)

    def go_on(self) -> None:
        """Send the others."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        """Until all orders are sent. Raises SendingError."""
        self._thread.join()
        if self._process.wait():
            raise SendingError(f"Java has failed: {self._log.read_text(errors='replace').strip()}")

    def __enter__(self) -> JavaProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
