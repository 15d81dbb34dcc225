"""Name server, broker and client of any released version, each a process, on a loopback that nobody else sees."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent
BUILD = HERE / "java" / "target"
CHECKSUMS = HERE / "checksums"
CLIENTS_ALONE = frozenset({"4.9.8"})
"""Versions whose client is in the registry, and whose server is not."""
_PROXY = "-proxy"
LISTEN_PORT = 10911
NAME_SERVER_PORT = 9876
START_SECONDS = 90

# What old brokers reach for by reflection, to unmap files; a newer Java refuses it otherwise.
OPEN_PACKAGES = [
    argument
    for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang", "java.util")
    for argument in (
        "--add-opens",
        f"java.base/{package}=ALL-UNNAMED",
        "--add-exports",
        f"java.base/{package}=ALL-UNNAMED",
    )
]
JVM = [
    "-Xms32m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Duser.timezone=UTC",
    *OPEN_PACKAGES,
]

# Log settings under all names that the versions look for.
LOGBACK = """\
<configuration>
  <appender name="stderr" class="{package}.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%level %logger{{0}} %msg%n%ex{{8}}</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="stderr"/></root>
</configuration>
"""

# Small files and few threads: a store of some kilobytes once its holes are packed.
SMALL_FILES = {
    "brokerClusterName": "fixtures",
    "brokerName": "fixture-a",
    "brokerId": 0,
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "listenPort": LISTEN_PORT,
    "namesrvAddr": f"127.0.0.1:{NAME_SERVER_PORT}",
    "mappedFileSizeCommitLog": 65536,
    "mapedFileSizeCommitLog": 65536,  # as older versions spell it
    "mappedFileSizeConsumeQueue": 1200,
    "mapedFileSizeConsumeQueue": 1200,
    "maxHashSlotNum": 200,
    "maxIndexNum": 800,
    "mappedFileSizeTimerLog": 65536,
    "mappedFileSizeConsumeQueueExt": 65536,
    "mapperFileSizeBatchConsumeQueue": 4600,
    "maxMessageSize": 32768,
    "fileReservedTime": 87600,
    "diskMaxUsedSpaceRatio": 99,
    "diskFallRecorded": "false",
    "enablePropertyFilter": "true",
    "transactionCheckInterval": 3600000,
    "transactionTimeOut": 3600000,
    "sendMessageThreadPoolNums": 1,
    "pullMessageThreadPoolNums": 2,
    "adminBrokerThreadPoolNums": 2,
    "useReentrantLockWhenPutMessage": "true",
}


class JarsChangedError(Exception):
    """The registry serves other bytes than those that the recipes were made with."""


def _run(command: list[str], **options: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:6])} ... failed:\n{done.stdout}{done.stderr}")


def proxy_of(version: str) -> str:
    """What `jars` and the others call the proxy of a version of 5.x, which has a class path of its own."""
    return f"{version}{_PROXY}"


def jars(version: str) -> Path:
    """The class path of a version: fetched once by Maven, then held against the pinned checksums."""
    target = BUILD / version / "lib"
    if not (BUILD / version / "fetched").exists():
        _fetch(version, target)
        check_jars(version, target)
        (BUILD / version / "fetched").touch()
    return target


def _fetch(version: str, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
    pom = "client.xml" if version in CLIENTS_ALONE else "proxy.xml" if version.endswith(_PROXY) else "pom.xml"
    released = version.removesuffix(_PROXY)
    options = [f"-Drocketmq.version={released}", f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    _run(["mvn", "-q", "-B", "-f", str(HERE / "java" / pom), goal, *options])


def sums_of(directory: Path) -> dict[str, str]:
    """SHA-256 of each jar."""
    return {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in sorted(directory.glob("*.jar"))}


def pin(version: str) -> None:
    """Fetch the jars of a version and write down what they are. For a new version only."""
    _fetch(version, BUILD / version / "lib")
    CHECKSUMS.mkdir(exist_ok=True)
    lines = [f"{total}  {name}\n" for name, total in sums_of(BUILD / version / "lib").items()]
    (CHECKSUMS / f"{version}.sha256").write_text("".join(lines))


def check_jars(version: str, directory: Path) -> None:
    pinned = CHECKSUMS / f"{version}.sha256"
    lines = (line.split("  ") for line in pinned.read_text().splitlines())
    expected = {name: total for total, name in lines}
    found = sums_of(directory)
    if found != expected:
        different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise JarsChangedError(f"RocketMQ {version}: {', '.join(different)} are not the jars that {pinned} names")


def driver_classes(version: str) -> Path:
    """The client, compiled against the jars of this version."""
    source, target = HERE / "java" / "Driver.java", BUILD / version / "classes"
    compiled = target / "Driver.class"
    if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
        target.mkdir(parents=True, exist_ok=True)
        _run(["javac", "-nowarn", "-d", str(target), "-cp", f"{jars(version)}/*", str(source)])
    return target


class Broker:
    """A running broker with its name server and a client; a context manager.

    `work` gets configuration and logs; `store` is the store's directory. `settings` are those of broker.conf, over
    SMALL_FILES.
    """

    def __init__(
        self, version: str, store: Path, work: Path, settings: Mapping[str, object], *, client: str = "",
        name_server: Mapping[str, str] | None = None, settle_seconds: int = 0,
    ) -> None:  # fmt: skip
        self.version = version
        self.client_version = client or version
        self.name_server = name_server or {}
        self.settle_seconds = settle_seconds
        self.store = store
        self.work = work
        paths = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        self.settings = {**SMALL_FILES, **paths, **settings}
        self._processes: list[subprocess.Popen[str]] = []
        self._namespace: list[str] = []
        self._client: subprocess.Popen[str] | None = None
        self._broker: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.work.mkdir(parents=True, exist_ok=True)
        home = self.work / "home"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        for name in ("logback_broker.xml", "logback_namesrv.xml"):
            (home / "conf" / name).write_text(LOGBACK.format(package="ch.qos.logback"))
        shaded = LOGBACK.format(package="org.apache.rocketmq.logging.ch.qos.logback")
        for name in ("rmq.broker.logback.xml", "rmq.namesrv.logback.xml", "rmq.client.logback.xml", "rmq.logback.xml"):
            (home / "conf" / name).write_text(shaded)
        conf = self.work / "broker.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        names = self.work / "namesrv.conf"
        names.write_text("".join(f"{name}={value}\n" for name, value in self.name_server.items()))
        self._enter_namespace()
        try:
            self._java("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", ["-c", str(names)], heap="128m")
            self._await("namesrv", "Name Server boot success")
            self._broker = self._java(
                "broker", "org.apache.rocketmq.broker.BrokerStartup", ["-c", str(conf)], heap="384m"
            )
            self._await("broker", "boot success")
            addresses = [f"127.0.0.1:{NAME_SERVER_PORT}", f"127.0.0.1:{LISTEN_PORT}"]
            time.sleep(self.settle_seconds)
            self._client = self._java("client", "Driver", addresses, heap="192m", piped=True)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _enter_namespace(self) -> None:
        """Old brokers bind all addresses, so they get a network of their own that has nothing but a loopback."""
        command = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 3600"]
        holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert holder.stdout is not None
        self._processes.append(holder)
        if holder.stdout.readline() != "up\n":
            self._end()
            raise RuntimeError("brokers run in a network namespace of their own: needs root, unshare and ip")
        self._namespace = ["nsenter", "-t", str(holder.pid), "-n"]

    def _java(
        self, name: str, main: str, arguments: list[str], *, heap: str, piped: bool = False
    ) -> subprocess.Popen[str]:
        home = self.work / "home"
        version = self.client_version if name == "client" else self.version
        path = f"{home}/conf:{driver_classes(version)}:{jars(version)}/*"
        logs = (self.work / f"{name}.log").open("w")
        command = [
            *self._namespace, "java", f"-Xmx{heap}", *JVM, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}",
            "-Drocketmq.client.logUseSlf4j=true", "-Dtls.server.mode=disabled", "-cp", path, main, *arguments,
        ]  # fmt: skip
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else logs,
            stderr=logs,
            text=True,
            cwd=home,
            env={**os.environ, "ROCKETMQ_HOME": str(home)},
        )
        logs.close()
        self._processes.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.work / f"{name}.log").read_text(errors="replace")

    def _await(self, name: str, text: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        process = self._processes[-1]
        while text not in self.log(name):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"RocketMQ {self.version}: {name} did not start:\n{self.log(name)[-6000:]}")
            time.sleep(0.05)

    def ask(self, do: str, **fields: Any) -> Any:
        """One instruction to the client; its answer."""
        assert self._client is not None and self._client.stdin is not None and self._client.stdout is not None
        self._client.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self._client.stdin.flush()
        answer = self._client.stdout.readline()
        if not answer:
            raise RuntimeError(f"the client of {self.version} failed at {do} {fields}:\n{self.log('client')[-6000:]}")
        return json.loads(answer)

    def stop(self) -> None:
        """End client and broker cleanly, so that the store is as a broker leaves it."""
        assert self._client is not None and self._client.stdin is not None and self._broker is not None
        self._client.stdin.close()
        self._client.wait(60)
        self._broker.send_signal(signal.SIGTERM)
        self._broker.wait(90)
        self._end()

    def _end(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._processes.clear()
