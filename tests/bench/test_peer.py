"""The Java process, with a small program of ours in its place: what it answers, and what is said when there is none."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from bench import peer
from bench.peer import Peer, PeerError

FAKE = f"""#!{sys.executable}
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "end":
        sys.exit("out of\\nmemory")
    failed = asked["do"] == "fail"
    print(json.dumps({{"error": "no such store"}} if failed else {{"ok": asked | {{"heap": sys.argv[1]}}}}), flush=True)
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "java"
    program.write_text(FAKE)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(peer, "build", lambda: None)


def test_the_long_lived_process_and_one_of_its_own_answer_what_they_are_asked(java: None) -> None:
    with Peer() as made:
        assert made.ask("put", count=3) == {"do": "put", "count": 3, "heap": "-Xms2g"}
        with made.process(peer.NAME_SERVER_HEAP) as other:
            assert other.ask("start")["heap"] == "-Xmx128m"
        assert made.ask("close")["do"] == "close"


def test_a_command_that_fails_is_an_error_and_the_process_goes_on(java: None) -> None:
    with Peer() as made:
        with pytest.raises(PeerError, match=r"^fail: no such store$"):
            made.ask("fail")
        assert made.ask("put")["do"] == "put"


def test_the_last_words_of_a_process_that_ended_are_told(java: None) -> None:
    with Peer() as made:
        with pytest.raises(PeerError, match=r"^end: the JVM ended\. out of memory$"):
            made.ask("end")
        with pytest.raises(PeerError, match="the JVM ended"):
            made.ask("put")


def test_without_maven_the_reason_is_one_line_and_nothing_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "STAMP", tmp_path / "built")
    monkeypatch.setenv("PATH", str(tmp_path))
    with Peer() as made:
        with pytest.raises(PeerError, match=r"^the released RocketMQ is not to be had: there is no mvn on PATH$"):
            made.ask("put")
        monkeypatch.setattr(peer, "build", lambda: pytest.fail("built again"))
        with pytest.raises(PeerError, match="no mvn on PATH"):
            made.ask("put")


def test_a_store_is_closed_and_removed_whatever_happens(java: None, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    with Peer() as made:
        with pytest.raises(ZeroDivisionError), made.store(directory, flushDiskType="SYNC_FLUSH"):
            directory.mkdir()
            raise ZeroDivisionError
        assert not directory.exists()
