"""Kafka's broker, with a small program in its place: where it listens, when it ends, and what is said when it fails."""

from __future__ import annotations

import socket
import stat
import sys
from pathlib import Path

import pytest

from bench import kafka_broker
from bench.kafka_broker import broker
from bench.peer import PeerError

# It formats unless `broken` is there, and listens where its settings say unless `deaf` is.
FAKE = f"""#!{sys.executable}
import pathlib, re, socket, sys, time
home = pathlib.Path(__file__).parent
settings = pathlib.Path(sys.argv[-1]).read_text()
if "kafka.tools.StorageTool" in sys.argv:
    print("no such disk")
    sys.exit((home / "broken").exists())
port = int(re.search("^listeners=PLAINTEXT://127.0.0.1:([0-9]+),", settings, re.MULTILINE)[1])
if not (home / "deaf").exists():
    server = socket.create_server(("127.0.0.1", port))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "bin"
    home.mkdir()
    program = home / "java"
    program.write_text(FAKE)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")
    monkeypatch.setattr(kafka_broker, "built", lambda *_: None)
    return home


def test_a_broker_listens_for_the_block_and_no_longer(java: Path, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), broker(tmp_path) as address:
        host, _, port = address.partition(":")
        socket.create_connection((host, int(port))).close()
        raise ZeroDivisionError
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_storage_that_cannot_be_formatted_is_told(java: Path, tmp_path: Path) -> None:
    (java / "broken").touch()
    with pytest.raises(PeerError, match=r"^Kafka: its storage could not be formatted\. no such disk$"):
        broker(tmp_path).__enter__()


def test_a_broker_that_does_not_listen_is_told(java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (java / "deaf").touch()
    monkeypatch.setattr(kafka_broker, "START_S", 2)
    with pytest.raises(PeerError, match=r"^Kafka: it did not listen within 2 s\. no such disk ready$"):
        broker(tmp_path).__enter__()


def test_without_maven_the_reason_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_broker, "STAMP", tmp_path / "built")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerError, match=r"^the released Kafka is not to be had: there is no mvn on PATH$"):
        broker(tmp_path).__enter__()
