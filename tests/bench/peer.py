"""The released RocketMQ as a yardstick: JVMs that do one thing at a time when told, so that pairs can be interleaved.

bench/java holds the program; Maven fetches the jars and builds it once, into bench/java/target. Its commands and their
fields are described there (`Main.java` and the classes that add commands).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PROJECT = Path(__file__).parent / "java"
TARGET = PROJECT / "target"
STAMP = TARGET / "built"

STORE_HEAP = ("-Xms2g", "-Xmx2g")
NAME_SERVER_HEAP = ("-Xmx128m",)
BROKER_HEAP = ("-Xms2g", "-Xmx2g")
CLIENT_HEAP = ("-Xms1g", "-Xmx3g")

Answer = dict[str, Any]


class PeerError(Exception):
    """The yardstick could not be had, or said that it failed; one line for people."""


class Process:
    """One JVM. It ends with its input, and so with us whatever happens."""

    def __init__(self, home: Path, heap: tuple[str, ...]) -> None:
        self._log: IO[str] = tempfile.TemporaryFile("w+", dir=home)
        command = [
            "java",
            *heap,
            "-XX:+UseG1GC",
            # RocketMQ puts logs and whatever else below the user's home.
            f"-Duser.home={home}",
            "-Duser.timezone=UTC",
            # A broker makes a certificate for its port otherwise, which takes seconds.
            "-Dtls.server.mode=disabled",
            "-cp",
            f"{TARGET / 'classes'}:{TARGET / 'lib'}/*",
            "rmqbench.Main",
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8"
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._log.close()

    def ask(self, command: str, **fields: object) -> Answer:
        """What the program answers. Raises `PeerError` if it failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": command} | fields) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        answer: Answer = json.loads(line) if line else {"error": f"the JVM ended. {self._last_words()}"}
        if "error" in answer:
            raise PeerError(f"{command}: {answer['error']}")
        done: Answer = answer["ok"]
        return done

    def _last_words(self) -> str:
        self._log.seek(0)
        return " ".join(self._log.read().splitlines()[-3:])


@dataclass(frozen=True, slots=True)
class Cluster:
    """Name server, broker and client on loopback, in JVMs of their own. `ha_address`: where slaves of the broker dial.
    """

    name_server: str
    broker_name: str
    ha_address: str
    broker: Process
    client: Process


class Peer:
    """The store in a JVM that lives as long as this object; further processes for as long as they are wanted.

    Making one starts nothing. The first use builds the program; if that fails, this one and all later ones raise a
    `PeerError` that says why.
    """

    def __init__(self) -> None:
        self._ends = contextlib.ExitStack()
        self._store: Process | None = None
        self._failure: PeerError | None = None
        self._home: Path | None = None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def ask(self, command: str, **fields: object) -> Answer:
        """Let the long-lived JVM do something."""
        if self._store is None:
            self._store = self._ends.enter_context(self.process(STORE_HEAP))
        return self._store.ask(command, **fields)

    @contextlib.contextmanager
    def store(self, directory: Path, **settings: object) -> Iterator[None]:
        """A new store in the long-lived JVM, removed afterwards; `settings` are those of a broker.conf."""
        self.ask("store.open", directory=str(directory), settings=settings)
        try:
            yield
        finally:
            self.ask("store.close")
            shutil.rmtree(directory)

    def process(self, heap: tuple[str, ...]) -> Process:
        """A JVM of its own, to be used in a `with`."""
        if self._failure is not None:
            raise self._failure
        if self._home is None:
            try:
                build()
            except PeerError as error:
                self._failure = error
                raise
            self._home = Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="rmq-bench-java-")))
        return Process(self._home, heap)

    @contextlib.contextmanager
    def cluster(self, directory: Path, **settings: object) -> Iterator[Cluster]:
        """A broker with its store in `directory`; `settings` are those of the store in a broker.conf."""
        with (
            self.process(NAME_SERVER_HEAP) as name_server,
            self.process(BROKER_HEAP) as broker,
            self.process(CLIENT_HEAP) as client,
        ):
            address = f"127.0.0.1:{free_port()}"
            name_server.ask("namesrv.start", port=int(address.rpartition(":")[2]))
            started = broker.ask(
                "broker.start", port=free_port(), namesrv=address, directory=str(directory), settings=settings
            )
            yield Cluster(address, started["broker"], f"127.0.0.1:{started['haPort']}", broker, client)


def build() -> None:
    """Fetch the jars and compile, unless that was done. Raises `PeerError`."""
    built(PROJECT, STAMP, "the released RocketMQ")


def built(project: Path, stamp: Path, product: str, properties: Sequence[str] = ()) -> None:
    """Let Maven do what a project says, unless that was done: `stamp` says when. `properties` (`name=value`) replace
    those of the project. Of several processes one does it, and the others wait. Raises `PeerError`.
    """
    sources = [project / "pom.xml", *(project / "src").rglob("*.*")]
    stamp.parent.mkdir(exist_ok=True)
    with (stamp.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or any(source.stat().st_mtime > stamp.stat().st_mtime for source in sources):
            _build(project, product, properties)
            stamp.touch()


def _build(project: Path, product: str, properties: Sequence[str]) -> None:
    for program in ("mvn", "java"):
        if shutil.which(program) is None:
            raise PeerError(f"{product} is not to be had: there is no {program} on PATH")
    command = ["mvn", "-q", "-B", "process-classes", *(f"-D{name}" for name in properties)]
    # Offline first: an update check would fail where only the local repository is left.
    if subprocess.run([*command, "-o"], cwd=project, capture_output=True).returncode != 0:
        online = subprocess.run(command, cwd=project, capture_output=True, text=True)
        if online.returncode != 0:
            said = next((line for line in online.stdout.splitlines() if "[ERROR]" in line), "Maven does not say why")
            raise PeerError(f"{product} is not to be had: {said.strip()}")


def free_port() -> int:
    """A port of loopback; a broker uses the one two below it as well."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError):
                second.bind(("127.0.0.1", port - 2))
                return port
