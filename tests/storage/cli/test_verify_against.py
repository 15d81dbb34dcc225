"""`rmq verify --against`: a replica beside its master."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from rmq_store import Store
from rmq_store.cli import commands
from rmq_store.replica import master as master_module
from rmq_store.replica.follow import Follower
from rmq_store.replica.master import Master

from ..replica.conftest import CONFIG, fill
from ..replica.ha_master import FollowedMaster, HAMaster


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "master", create=True, config=CONFIG) as store:
        store.create_topic("Orders", queue_count=2)
        fill(store, 30)
        yield store


@pytest.fixture
def ha(master: Store) -> Iterator[HAMaster]:
    served = HAMaster(master)
    yield served
    served.close()


@pytest.fixture
def asked(ha: HAMaster, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How each master was named."""
    made: list[dict[str, Any]] = []

    class Asked(FollowedMaster):
        def __enter__(self) -> Asked:
            return self

        def __exit__(self, *_: object) -> None: ...

    def make(settings: Any, **given: Any) -> FollowedMaster:
        made.append({"name_servers": settings.name_servers, **given})
        return Asked.of(ha, CONFIG)

    monkeypatch.setattr(master_module, "Master", make)
    return made


@pytest.fixture
def replica(tmp_path: Path, ha: HAMaster) -> Path:
    followed = cast(Master, FollowedMaster.of(ha, CONFIG))
    Follower(tmp_path / "replica", followed, should_stop=lambda seconds: bool(time.sleep(seconds))).run(once=True)
    return tmp_path / "replica"


def verify(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(commands, ["verify", str(root), *arguments])


def test_a_replica_is_its_master(replica: Path, asked: list[dict[str, Any]], master: Store) -> None:
    end = master.log_range()[1]
    fill(master, 1)
    result = verify(replica, "--against", "rmq://ns1:9876")
    assert result.exit_code == 0, result.output
    assert f"against   bytes 0 to {end} of the log are the master's\n" in result.stdout
    behind = f"against   bytes {end} to {master.log_range()[1]} are at the master alone: the replica does not have them"
    assert behind in result.stdout
    assert asked == [{"name_servers": ("ns1:9876",), "broker": "broker-a", "ha_address": ""}]
    found = json.loads(verify(replica, "--against", "rmq://ns1:9876", "--broker", "broker-a", "--json").stdout)
    assert found["status"] == "clean"
    assert found["against"]["isEqual"] is True and found["against"]["compared"] == [[0, end]]


def test_a_difference_is_named_and_has_the_exit_code_of_damage(
    replica: Path, asked: list[dict[str, Any]], ha: HAMaster
) -> None:
    """The replica is sound: the master is another one now."""
    ha.spoil = lambda offset, data: data[:300] + b"?" + data[301:] if offset == 1 else data
    result = verify(replica, "--against", "rmq://ns1:9876", "--ha", "10.0.0.1:10912")
    assert result.exit_code == 1
    assert ": clean\n" in result.stdout
    assert "differs   other bytes from 289 on, in message 0 of Orders-0, at 0\n" in result.stdout
    assert asked[0]["ha_address"] == "10.0.0.1:10912"


def test_a_master_that_cannot_be_asked_is_no_difference(replica: Path) -> None:
    result = verify(replica, "--against", "rmq://127.0.0.1:1", "--timeout", "0.2")
    assert result.exit_code == 2
    assert result.stderr.startswith("rmq: ")


def test_options_that_lack_the_master(replica: Path, master: Store) -> None:
    assert "they need --against" in verify(replica, "--broker", "broker-a").stderr
    assert "say with --broker NAME" in verify(Path(master.path), "--against", "rmq://127.0.0.1:1").stderr
