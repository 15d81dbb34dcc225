"""The packages of clients lack what the matrix says that they lack."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

import pytest

from compat.stores import brokers as released
from helpers.interop.clients import BUILT, SOURCES, Place
from helpers.interop.matrix import CANNOT_BE
from interop.conftest import start_client

LACKING = re.compile(r"no `([^`]+)`")
LACKS = [(row, name) for (row, _), cell in CANNOT_BE.items() for name in LACKING.findall(cell.text)]
JAVA_CLASSES = ("client.producer.DefaultMQProducer", "client.consumer.DefaultMQPushConsumer")


@pytest.mark.parametrize(("client", "name"), sorted(set(LACKS)))
def test_a_package_has_no_such_name(client: str, name: str, tmp_path: Path) -> None:
    with start_client(client, Place("127.0.0.1:1", "127.0.0.1:1"), tmp_path):  # so that its package is there
        pass
    names = re.escape(name).replace(r"\.\.\.", r"\w*")
    assert not re.search(rf"\b{names}\b", declared(client))


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("Java 4.9.8", "sendMessageInTransaction"), ("Java 4.9.8", "setConsumeFromWhere"), ("C++", "Subscribe"),
        ("Go", "SendOneWay"), ("Rust gRPC", "pub struct SimpleConsumer"),
    ],
)  # fmt: skip
def test_what_a_package_has_is_found(client: str, name: str) -> None:
    assert re.search(rf"\b{name}\b", declared(client))


@functools.cache
def declared(client: str) -> str:
    """What the package declares: methods of Java, exported C functions, or the source."""
    if client == "Java 4.9.8":
        jars = f"{released.jars('4.9.8')}/*"
        return said("javap", "-cp", jars, *(f"org.apache.rocketmq.{name}" for name in JAVA_CLASSES))
    if client == "C++":
        names = (line.split()[-1] for line in said("nm", "-D", "--defined-only", library()).splitlines())
        return "\n".join(name for name in names if name[0].isupper())
    if client == "Go":
        module = said("go", "list", "-m", "-f", "{{.Dir}}", "github.com/apache/rocketmq-client-go/v2").strip()
        return source(Path(module), "*.go")
    metadata = said("cargo", "metadata", "--locked", "--format-version", "1")
    [manifest] = re.findall(r'"manifest_path":"([^"]*/rocketmq-5\.0\.0/Cargo\.toml)"', metadata)
    return source(Path(manifest).parent / "src", "*.rs")


def library() -> str:
    return str(BUILT / "cpp" / "rocketmq" / "librocketmq.so")


def source(directory: Path, files: str) -> str:
    """Without tests, and without what is made of the definition of the protocol."""
    found = [path for path in sorted(directory.rglob(files)) if "_test" not in path.name and "pb" not in path.parts]
    return "\n".join(path.read_text() for path in found)


def said(*command: str) -> str:
    folder = {"go": SOURCES / "go", "cargo": SOURCES / "rust"}.get(command[0])
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
