"""How the program of each row is made and started."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from compat.stores import brokers as released
from helpers.cluster.java_process import without_jars
from helpers.interop.program import Program

SOURCES: Final = Path(__file__).parents[2] / "interop"
BUILT: Final = Path(__file__).parents[3] / "build" / "interop-clients"


class Place(NamedTuple):
    """A server: its addresses for both protocols, and the access key and secret key that a client uses. `settings` are
    variables of the client's environment, as `program` describes them.
    """

    remoting: str
    grpc: str
    keys: tuple[str, ...] = ()
    settings: Mapping[str, str] = {}


Start = Callable[[Place, Path], Program]
"""Start the client of a row; the path is a directory of its own. Raises MissingClientError."""


class MissingClientError(Exception):
    """A client or its language is not to be had on this machine; the reason."""


@contextmanager
def building(name: str) -> Iterator[Path]:
    """A directory of which only this process makes the contents now."""
    directory = BUILT / name
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory


def is_newer(source: Path, made: Path) -> bool:
    """Whether a program must be made anew."""
    return not made.exists() or made.stat().st_mtime < source.stat().st_mtime


def run(*command: str | Path, directory: Path | None = None) -> None:
    """Run a tool. Raises MissingClientError with what it said."""
    try:
        done = subprocess.run(
            [str(part) for part in command], cwd=directory, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise MissingClientError(f"{command[0]} is not on PATH") from error
    if done.returncode:
        raise MissingClientError(f"{command[0]} failed: {(done.stderr or done.stdout)[-2000:]}")


def remoting_java(version: str) -> Start:
    """RocketMQ's remoting client of a version."""

    def start(place: Place, home: Path) -> Program:
        if reason := without_jars(version):
            raise MissingClientError(reason)
        source = SOURCES / "java" / "RemotingClient.java"
        jars = f"{released.jars(version)}/*"
        with building(f"java-{version}") as target:
            if is_newer(source, target / "RemotingClient.class"):
                text = source.read_text()
                if not version.startswith("4."):  # 5.x has moved one class
                    text = text.replace(
                        "common.protocol.heartbeat.MessageModel", "remoting.protocol.heartbeat.MessageModel"
                    )
                (target / source.name).write_text(text)
                run("javac", "-nowarn", "-d", target, "-cp", jars, target / source.name)
        options = ("-Xmx192m", *released.JVM, f"-Duser.home={home}", "-Drocketmq.client.logUseSlf4j=true")
        path = f"{target}:{jars}"
        command = ["java", *options, "-cp", path, source.stem, place.remoting, *place.keys]
        return Program(f"the client of {version}", command, home, place.settings)

    return start


def java_grpc(place: Place, home: Path) -> Program:
    """RocketMQ's gRPC client for Java."""
    source, pom = SOURCES / "java" / "GrpcClient.java", SOURCES / "java" / "pom.xml"
    with building("java-grpc") as target:
        jars = target / "lib"
        if is_newer(pom, jars / "fetched"):
            goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
            run("mvn", "-q", "-B", "-f", pom, goal, f"-DoutputDirectory={jars}", "-DincludeScope=runtime")
            (jars / "fetched").touch()
        if is_newer(source, target / "GrpcClient.class"):
            run("javac", "-nowarn", "-d", target, "-cp", f"{jars}/*", source)
    path = f"{target}:{jars}/*"
    options = ("-Xmx192m", *released.JVM, f"-Duser.home={home}", "-Duser.timezone=UTC")
    command: list[str | Path] = ["java", *options, "-cp", path, source.stem, place.grpc, *place.keys]
    return Program("the gRPC client for Java", command, home, place.settings)


def node_grpc(place: Place, home: Path) -> Program:
    """RocketMQ's gRPC client for Node."""
    wanted = SOURCES / "node" / "package.json"
    with building("node") as target:
        packages = target / "node_modules"
        if is_newer(wanted, packages / "fetched"):
            shutil.copy(wanted, target)
            run("npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", directory=target)
            (packages / "fetched").touch()
    command: list[str | Path] = ["node", SOURCES / "node" / "client.js", place.grpc, *place.keys]
    return Program("the client for Node", command, home, {"NODE_PATH": str(packages), "TZ": "UTC", **place.settings})


def python_grpc(place: Place, home: Path) -> Program:
    """RocketMQ's official Python client."""
    command: list[str | Path] = [sys.executable, SOURCES / "python" / "grpc_client.py", place.grpc, *place.keys]
    return Program("the client for Python", command, home, place.settings)


def go_grpc(place: Place, home: Path) -> Program:
    """RocketMQ's gRPC client for Go."""
    command: list[str | Path] = [_built_by_go("grpc"), place.grpc, *place.keys]
    # It signs the time of its zone as one of UTC.
    variables = {"rocketmq.client.logRoot": str(home), "TZ": "UTC", **place.settings}
    return Program("the gRPC client for Go", command, home, variables)


def rust_grpc(place: Place, home: Path) -> Program:
    """RocketMQ's gRPC client for Rust."""
    manifest = SOURCES / "rust" / "Cargo.toml"
    with building("rust") as target:
        run("cargo", "build", "--quiet", "--locked", "--manifest-path", manifest, "--target-dir", target)
    command: list[str | Path] = [target / "debug" / "grpc", place.grpc, *place.keys]
    return Program("the client for Rust", command, home, place.settings)


def cpp_remoting(place: Place, home: Path) -> Program:
    """RocketMQ's C++ client, in a package for Python whose name our environment has for another client."""
    wanted = SOURCES / "cpp" / "requirements.txt"
    with building("cpp") as target:
        if is_newer(wanted, target / "fetched"):
            options = ("--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--upgrade")
            run(sys.executable, "-m", "pip", "install", *options, "--target", target, "--requirement", wanted)
            (target / "fetched").touch()
    command: list[str | Path] = [sys.executable, SOURCES / "cpp" / "client.py", place.remoting, *place.keys]
    return Program("the client for C++", command, home, {"PYTHONPATH": str(target), **place.settings})


def go_remoting(place: Place, home: Path) -> Program:
    """RocketMQ's remoting client for Go."""
    command: list[str | Path] = [_built_by_go("remoting"), place.remoting, *place.keys]
    return Program("the client for Go", command, home, place.settings)


def _built_by_go(name: str) -> Path:
    """A program of the module; Go itself knows what is to be compiled anew."""
    with building("go") as target:
        run("go", "build", "-o", target, f"./{name}", directory=SOURCES / "go")
    return target / name


STARTS: Final[dict[str, Start]] = {
    "Java 4.9.8": remoting_java("4.9.8"),
    "Java 5.5.0": remoting_java("5.5.0"),
    "C++": cpp_remoting,
    "Go": go_remoting,
    "Java gRPC": java_grpc,
    "Go gRPC": go_grpc,
    "Rust gRPC": rust_grpc,
    "Node gRPC": node_grpc,
    "Python gRPC": python_grpc,
}
"""The client of each row."""
