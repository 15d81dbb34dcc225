"""`rmq repair` builds queues and index again: what it leaves as it was, what it costs, and a disk without room."""

from __future__ import annotations

import errno
import json
import os
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.cli import commands
from rmq_store.files import durable
from rmq_store.verify import verify_store

Copy = Callable[[Path, Path], Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "store", create=True, config=StoreConfig(65536, 6_000_000, 50, 200)) as store:
        store.create_topic("Orders", 8)
        for number in range(80):
            store.send(Message("Orders", bytes(500), keys=f"k{number}", queue_id=number % 8))
    return tmp_path / "store"


@pytest.fixture(autouse=True)
def no_hook() -> Any:
    yield
    durable.hook = None


def repair(root: Path, *arguments: str) -> tuple[int, Any, str]:
    result = CliRunner().invoke(commands, ["repair", str(root), "--json", *arguments], prog_name="rmq")
    return result.exit_code, json.loads(result.stdout) if result.stdout else None, result.stderr


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:  # holes stay holes
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def first_queue_file(root: Path, topic: str, queue: int = 0) -> Path:
    return sorted((root / "consumequeue" / topic / str(queue)).iterdir())[0]


def test_what_is_kept_of_queues_has_their_holes(root: Path) -> None:
    flip(first_queue_file(root, "Orders"), 7)
    code, done, _ = repair(root, "--yes")
    assert (code, done["after"]["status"]) == (0, "clean")
    kept = [path for path in Path(done["removed"]).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) > 40_000_000
    assert sum(path.stat().st_blocks * 512 for path in kept) < 1_000_000


def test_the_index_is_built_again_without_the_queues(root: Path) -> None:
    queues, index = content(root / "consumequeue"), content(root / "index")
    inodes = {path: path.stat().st_ino for path in (root / "consumequeue").rglob("*")}
    flip(sorted((root / "index").iterdir())[0], 60)
    code, plan, _ = repair(root, "--dry-run")
    assert (code, plan["rebuild"]) == (1, ["index"])
    code, done, _ = repair(root, "--yes")
    assert (code, done["rebuild"], done["after"]["status"]) == (0, ["index"], "clean")
    assert (content(root / "consumequeue"), content(root / "index")) == (queues, index)
    assert {path: path.stat().st_ino for path in (root / "consumequeue").rglob("*")} == inodes


def test_the_dry_run_says_all_that_is_done(root: Path) -> None:
    flip(first_queue_file(root, "Orders"), 7)
    (root / "pyrmq" / "units.json").write_bytes(b"\xff")
    runner = CliRunner()
    planned = runner.invoke(commands, ["repair", str(root), "--dry-run"], prog_name="rmq").stdout
    done = runner.invoke(commands, ["repair", str(root), "--yes"], prog_name="rmq").stdout
    steps = [line.removeprefix("done").strip() for line in done.splitlines() if line.startswith("done ")]
    assert len(steps) == 3
    for step in steps:
        assert step in planned or step.partition(": ")[2] in planned


@pytest.mark.parametrize("failing", ["no room for the index", "no room for the copies"])
def test_a_full_disk_is_named_and_nothing_was_changed(
    root: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(first_queue_file(root, "Orders"), 7)
    before = content(root)
    if failing == "no room for the index":
        monkeypatch.setattr(os, "statvfs", lambda path: namedtuple("Disk", "f_bavail f_frsize")(1, 4096))
    else:

        def refuse(operation: str, path: str) -> None:
            if operation == "write" and "/removed/" in path and path.endswith(f"Orders/3/{0:020d}"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        durable.hook = refuse
    for _ in range(2):
        code, _, said = repair(root, "--yes")
        assert code == 2
        assert str(root) in said
        assert "No space left on device" in said or "are free" in said
        assert content(root) == before
    assert not list(root.glob("pyrmq/removed/*"))
    monkeypatch.undo()
    durable.hook = None
    assert repair(root, "--yes")[0] == 0


def test_a_brokers_index_and_delivery_times_stay_as_it_wrote_them(
    golden: Path, scratch: Path, copy_store: Copy
) -> None:
    """Its broker.conf, with other delays and sizes than the defaults, is not at hand."""
    root = copy_store(golden / "store", scratch / "store")
    queues, index = content(root / "consumequeue"), content(root / "index")
    flip(first_queue_file(root, "OrderTopic"), 7)
    code, done, _ = repair(root, "--yes")
    assert (code, done["rebuild"], done["after"]["status"]) == (0, ["queues"], "clean")
    assert content(root / "index") == index
    delayed = {path: data for path, data in queues.items() if path.startswith("SCHEDULE_TOPIC_XXXX/")}
    after = content(root / "consumequeue")
    assert delayed
    assert all(after[path].rstrip(b"\0") == data.rstrip(b"\0") for path, data in delayed.items())
    known = StoreFile.load(root)
    assert known is not None
    assert (known.config.max_hash_slot_num, known.config.max_index_num) == (1000, 4000)


def test_a_brokers_index_is_built_with_its_own_geometry(golden: Path, scratch: Path, copy_store: Copy) -> None:
    root = copy_store(golden / "store", scratch / "store")
    before = content(root / "index")
    flip(sorted((root / "index").iterdir())[0], 4060)
    assert verify_store(root).status == "damaged"
    code, done, _ = repair(root, "--yes")
    assert (code, done["rebuild"], done["after"]["status"]) == (0, ["index", "queues"], "clean")
    assert {len(data) for data in content(root / "index").values()} == {84_040}
    assert len(content(root / "index")) == len(before)
    with Store.open(root) as store:
        assert store.config.message_index_tags


def test_a_brokers_settings_can_be_given(golden: Path, scratch: Path, copy_store: Copy) -> None:
    root = copy_store(golden / "store", scratch / "store")
    flip(first_queue_file(root, "OrderTopic"), 7)
    conf = scratch / "broker.conf"
    conf.write_text("messageDelayLevel=1s 5s 2s\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n")
    assert repair(root, "--yes", "--config", str(conf))[0] == 0
    known = StoreFile.load(root)
    assert known is not None
    assert known.config.message_delay_level == "1s 5s 2s"


@pytest.mark.parametrize("place", ["", "consumequeue", "index/x", "commitlog", "pyrmq", "pyrmq/removed"])
def test_what_is_taken_out_does_not_go_into_the_store(root: Path, place: str) -> None:
    before = content(root)
    code, _, said = repair(root, "--yes", "--index", "--removed", str(root / place))
    assert (code, "lies in the store itself" in said) == (2, True)
    assert content(root) == before


def test_what_is_taken_out_may_go_below_removed(root: Path) -> None:
    target = root / "pyrmq" / "removed" / "mine"
    assert repair(root, "--yes", "--index", "--removed", str(target))[0] == 0
    assert (target / "index").is_dir()
