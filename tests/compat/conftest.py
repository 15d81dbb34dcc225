"""RocketMQ's released classes as a fixture: built once by Maven, run as `java rmqcompat.Main` (see its comment)."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parent / "java"
TARGET = PROJECT / "target"
STAMP = TARGET / "built"
SOURCES = [PROJECT / "pom.xml", *sorted((PROJECT / "src").rglob("*.*"))]

Answer = dict[str, Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here / "stores"):
            item.add_marker(pytest.mark.compat_stores)
        elif item.path.is_relative_to(here):
            item.add_marker(pytest.mark.compat)


class JavaRefusedError(Exception):
    """RocketMQ says that it cannot open the store (exit code 2)."""


class RocketMQ:
    """Runs one command of the Java program at a time on a store, which it may change."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def command(self, name: str, store: Path, conf: Path, *arguments: object) -> list[str]:
        return [
            "java",
            # Its logs and whatever else goes below the user's home; index files are named by local time.
            f"-Duser.home={self.home}",
            "-Duser.timezone=UTC",
            "-Xmx512m",
            # Short runs: one compiler and collector less halves what they cost.
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            # A broker makes a TLS certificate for its port otherwise, which takes seconds; none is opened.
            "-Dtls.server.mode=disabled",
            "-cp",
            f"{TARGET / 'classes'}:{TARGET / 'lib'}/*",
            "rmqcompat.Main",
            *(str(argument) for argument in (name, store, conf, *arguments)),
        ]

    def run(
        self, name: str, store: Path, conf: Path, *arguments: object, questions: Iterable[Mapping[str, Any]] = ()
    ) -> list[Answer]:
        done = subprocess.run(
            self.command(name, store, conf, *arguments),
            input="".join(json.dumps(question) + "\n" for question in questions),
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        if done.returncode == 2:
            raise JavaRefusedError(done.stderr)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def hold(self, store: Path, conf: Path) -> subprocess.Popen[str]:
        """A started store that stays until the process's standard input is closed; returns when it has the lock."""
        process = subprocess.Popen(
            self.command("hold", store, conf),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"kind": "ready"}
        return process


def _build() -> None:
    """Once, however many processes share the tests."""
    TARGET.mkdir(exist_ok=True)
    with (TARGET / "building").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _build_alone()


def _build_alone() -> None:
    if STAMP.exists() and all(source.stat().st_mtime <= STAMP.stat().st_mtime for source in SOURCES):
        return
    command = ["mvn", "-q", "-B", "process-classes"]
    # Offline first: it is faster, and an update check would fail where only the local repository is left.
    if subprocess.run([*command, "-o"], cwd=PROJECT, capture_output=True, check=False).returncode != 0:
        online = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert online.returncode == 0, f"Maven could not build {PROJECT}:\n{online.stdout}{online.stderr}"
    STAMP.touch()


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> RocketMQ:
    if shutil.which("mvn") is None:
        pytest.skip("needs Maven (mvn) to fetch the released RocketMQ jars")
    _build()
    return RocketMQ(tmp_path_factory.mktemp("java-home"))


def write_conf(path: Path, **settings: object) -> Path:
    """A broker.conf; keys are RocketMQ's names."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path
