"""One name server or broker of a released RocketMQ as a process: killed, suspended, restarted, and gone with us."""

from __future__ import annotations

import functools
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat.stores import brokers as released
from helpers.server_process import Server

VERSIONS = ("4.9.7", "5.5.0")
CLIENTS = {"4.9.7": "4.9.8", "5.5.0": "5.5.0"}
"""The newest released client of the line of each version."""
HOST = "127.0.0.1"
# Long enough to find the reason of a failure, short enough to read.
LOG_LINES = 40


class JavaProcess(Server):
    """A Java program that listens on a port of loopback. Its directory holds settings, log and (of a broker) store.

    `files` are written below the directory before the first start; `{directory}` in them is that directory.
    """

    package = "rocketmq"
    system_user = None
    client = "rmq_store"
    stop_signal = signal.SIGTERM
    # A JVM needs seconds of a processor, and a machine that tests other things, too, may not have them for minutes.
    start_s = 400.0

    def __init__(
        self, name: str, version: str, main: str, port: int, *, heap: str, files: Mapping[str, str],
        options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        self.name = name  # type: ignore[misc]
        self.version = version
        self.port = port
        self._main = main
        self._heap = heap
        self._files = files
        self._options = options

    @property
    def address(self) -> str:
        """`host:port`; the same one after a restart."""
        return f"{HOST}:{self.port}"

    def programs(self) -> list[Path | None]:
        """Java; the jars come from Maven."""
        java = shutil.which("java")
        return [None if java is None else Path(java)]

    def missing(self) -> str | None:
        """As `Server.missing`; Maven fetches the jars of a version once."""
        return without_jars(self.version)

    def url(self, database: str = "") -> str:
        """The address."""
        return self.address

    def log(self) -> str:
        """The end of what the process wrote: warnings, errors and its greeting."""
        lines = (self.directory / "log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def configure(self, **settings: object) -> None:
        """Change lines of the settings, as an operator does with an editor; the next start reads them."""
        file = self.directory / "settings.conf"
        lines = dict(line.split("=", 1) for line in file.read_text().splitlines())
        lines |= {name: str(value) for name, value in settings.items()}
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def _initialise(self, directory: Path) -> None:
        conf = directory / "conf"
        conf.mkdir()
        for name in ("logback_broker.xml", "logback_namesrv.xml"):
            (conf / name).write_text(released.LOGBACK.format(package="ch.qos.logback"))
        shaded = released.LOGBACK.format(package="org.apache.rocketmq.logging.ch.qos.logback")
        for name in ("rmq.broker.logback.xml", "rmq.namesrv.logback.xml", "rmq.client.logback.xml", "rmq.logback.xml"):
            (conf / name).write_text(shaded)
        for name, text in self._files.items():
            path = directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace("{directory}", str(directory)))

    def _command(self, directory: Path) -> list[str]:
        path = f"{directory}/conf:{released.jars(self.version)}/*"
        return [
            "java", f"-Xmx{self._heap}", *released.JVM, f"-Duser.home={directory}",
            f"-Drocketmq.home.dir={directory}", "-Drocketmq.client.logUseSlf4j=true",
            *(option.replace("{directory}", str(directory)) for option in self._options),
            "-cp", path, self._main, *self._arguments(directory),
        ]  # fmt: skip

    def _arguments(self, directory: Path) -> list[str]:
        return ["-c", str(directory / "settings.conf")]

    def _connect_once(self) -> None:
        socket.create_connection((HOST, self.port), 1).close()


@functools.cache
def without_jars(version: str) -> str | None:
    """Why this machine cannot run brokers of a version; None if it can. Fetches the jars, once for all processes."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"released RocketMQ brokers need {program}, which is not on PATH"
    try:
        released.jars(version)
    except RuntimeError as error:
        said = next((line for line in str(error).splitlines() if "[ERROR]" in line), "Maven does not say why")
        return f"the jars of RocketMQ {version} are not to be had: {said.strip()}"
    return None
