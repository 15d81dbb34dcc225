"""`rmq follow` over a master in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rmq_store import Store
from rmq_store.replica import master as replica_master
from storage.replica.conftest import CONFIG, fill
from storage.replica.ha_master import FollowedMaster, HAMaster

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected" / "follow.txt"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HAMaster]:
    """A master that any address leads to."""
    with Store.open(tmp_path / "master", create=True, config=CONFIG) as store:
        store.create_topic("Orders", queue_count=2)
        fill(store, 30)
        ha = HAMaster(store)
        made: list[dict[str, Any]] = []

        class Master(FollowedMaster):
            def __new__(cls, settings: object, **given: Any) -> Master:  # type: ignore[misc]
                made.append(given)
                found = FollowedMaster.of(ha, CONFIG)
                found.__class__ = Master
                return found  # type: ignore[return-value]

            def __init__(self, settings: object, **given: Any) -> None:
                pass

            def __enter__(self) -> Master:
                return self

            def __exit__(self, *_: object) -> None:
                pass

        monkeypatch.setattr(replica_master, "Master", Master)
        ha.made = made  # type: ignore[attr-defined]
        yield ha
        ha.close()


def test_once_prints_what_was_copied(run: Run, served: HAMaster, scratch: Path) -> None:
    place = str(scratch / "replica")
    result = run("follow", "--master", "10.0.0.7:10911", place, "--once")
    assert (result.exit_code, result.stderr) == (0, "")
    end = served.store.log_range()[1]
    text = result.stdout.replace(place, "REPLICA").replace(str(end), "END").replace(str(end - 1), "BYTES")
    assert text == EXPECTED.read_text(encoding="utf-8")
    given = {"broker": "", "address": "10.0.0.7:10911", "ha_address": "", "broker_conf": None}
    assert served.made == [given]  # type: ignore[attr-defined]


def test_a_cluster_and_a_name_and_json(run: Run, served: HAMaster, scratch: Path) -> None:
    place = str(scratch / "replica")
    words = ["follow", "rmq://ns1:9876", "--broker", "broker-a", place, "--once", "--json", "--ha", "10.0.0.8:10912"]
    result = run(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert (found["path"], found["messages"], found["behind_bytes"]) == (place, 30, 0)
    given = {"broker": "broker-a", "address": "", "ha_address": "10.0.0.8:10912", "broker_conf": None}
    assert served.made == [given]  # type: ignore[attr-defined]


def test_a_replica_is_kept_aside(run: Run, served: HAMaster, scratch: Path) -> None:
    words = ["follow", "--master", "10.0.0.7:10911", str(scratch / "replica"), "--once"]
    assert run(*words).exit_code == 0
    result = run(*words, "--resync")
    assert result.exit_code == 0
    assert "the replica that was there is" in result.stderr
    assert len(list(scratch.glob("replica.*"))) == 1


def test_without_a_broker_it_says_what_is_missing(run: Run, scratch: Path) -> None:
    result = run("follow", str(scratch / "replica"))
    assert result.exit_code == 2
    assert "which broker?" in result.stderr
    result = run("follow", "--master", "10.0.0.7", str(scratch / "replica"))
    assert result.exit_code == 2
    assert not (scratch / "replica").exists()


def test_the_replica_gets_settings_of_its_own(run: Run, served: HAMaster, scratch: Path) -> None:
    words = ["follow", "--master", "10.0.0.7:10911", str(scratch / "replica"), "--once"]
    assert run(*words, "--set", "fileReservedTime=720", "--set", "deleteWhen=05").exit_code == 0
    with Store.open(scratch / "replica", read_only=True) as store:
        assert (store.config.file_reserved_time, store.config.delete_when) == (720, "05")
    for text, reason in {
        "fileReservedTime": "expected NAME=VALUE", "fileReservdTime=1": "fileReservedTime",
        "messageDelayLevel=1s": "is its broker's to say", "fileReservedTime=soon": "is no int",
    }.items():  # fmt: skip
        result = run(*words, "--set", text)
        assert result.exit_code == 2 and reason in result.stderr, result.stderr


def test_a_broker_conf_is_read(run: Run, served: HAMaster, scratch: Path) -> None:
    conf = scratch / "broker.conf"
    conf.write_text("# ours\nmappedFileSizeCommitLog = 65536\nbrokerName=broker-a\n")
    words = ["follow", "--master", "10.0.0.7:10911", str(scratch / "replica"), "--once", "--broker-conf", str(conf)]
    assert run(*words).exit_code == 0
    (given,) = served.made  # type: ignore[attr-defined]
    assert given["broker_conf"] == {"mappedFileSizeCommitLog": "65536", "brokerName": "broker-a"}


def test_a_store_of_its_own_is_no_place(run: Run, served: HAMaster, scratch: Path) -> None:
    Store.open(scratch / "own", create=True).close()
    result = run("follow", "--master", "10.0.0.7:10911", str(scratch / "own"), "--once")
    assert result.exit_code == 2
    assert "a store of its own" in result.stderr
