"""Damage that was kept, and is gone because the intact file was put back: `rmq repair` keeps it no longer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig
from rmq_store.cli import commands
from rmq_store.log.core.accepted_damage import AcceptedDamage

SEGMENT_BYTES = 8192
COUNT = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", create=True, config=StoreConfig(SEGMENT_BYTES, 2000, 50, 200)) as store:
        for number in range(COUNT):
            store.send(Message("Orders", b"%03d" % number + bytes(500), keys=f"k{number}", queue_id=0))
    return tmp_path / "store"


def repair(root: Path, *arguments: str) -> tuple[int, Any]:
    result = CliRunner().invoke(commands, ["repair", str(root), "--json", *arguments], prog_name="rmq")
    return result.exit_code, json.loads(result.stdout)


def bodies(root: Path) -> list[int]:
    with Store.open(root, read_only=True) as store:
        batches = store.read("Orders", 0, *store.queue_range("Orders", 0), columns=["body"])
        return [int(body[:3]) for batch in batches for body in batch["body"].to_pylist()]


def test_a_segment_that_was_put_back_is_read_again(root: Path) -> None:
    lost = [root / "commitlog" / f"{number * SEGMENT_BYTES:020d}" for number in (1, 3)]
    saved = [path.read_bytes() for path in lost]
    for path in lost:
        path.unlink()
    assert repair(root, "--yes")[0] == 1
    with Store.open(root) as store:
        store.send(Message("Orders", b"%03d" % COUNT, queue_id=0))

    lost[0].write_bytes(saved[0])
    code, done = repair(root, "--yes")
    assert (code, done["after"]["status"], done["after"]["problems"]) == (1, "kept", [])
    assert [Path(bad.file).name for bad in AcceptedDamage.load(root / "pyrmq").ranges] == [lost[1].name]

    lost[1].write_bytes(saved[1])
    code, done = repair(root, "--yes")
    assert (code, done["after"]["status"]) == (0, "clean")
    assert not AcceptedDamage.load(root / "pyrmq")
    assert bodies(root) == [*range(COUNT + 1)]
    assert not repair(root)[1]["needed"]


def test_of_a_file_that_was_put_back_damaged_the_whole_records_are_read(root: Path) -> None:
    path = root / "commitlog" / f"{SEGMENT_BYTES:020d}"
    good = path.read_bytes()
    path.unlink()
    assert repair(root, "--yes")[1]["after"]["messages"] == COUNT - 12
    path.write_bytes(good[:3000] + b"\xff" * 10 + good[3010:])
    code, done = repair(root, "--yes")
    assert (code, done["after"]["status"], done["after"]["messages"]) == (1, "kept", COUNT - 1)
    (bad,) = AcceptedDamage.load(root / "pyrmq").ranges
    assert bad.start <= SEGMENT_BYTES + 3000 < bad.end < SEGMENT_BYTES + 4000
    assert not repair(root)[1]["needed"]
    with Store.open(root) as store:
        assert store.queue_range("Orders", 0) == (0, COUNT)
        store.send(Message("Orders", b"x", queue_id=0))
