"""A power cut in a pass of retention that archives dead letters first, on a simulated disk.

Whatever of the pass has reached the disk: the log begins at one of its files and has no hole, what was on disk before
and was not deleted is there, what a sink has committed is known, and each dead letter is in the store or the archive.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crash.conftest import SEED
from crash.disk_image import Disk, Image, Operation
from crash.part import TEETH_SEEDS
from crash.recorded_disk import Recorder
from crash.store_life import SLOTS, UNIT, Workplace, engine
from rmq_store import Message, Store, StoreConfig, StoreError
from rmq_store.broker.store.unit_markers import UnitMarkers
from rmq_store.broker.write import disk_space
from rmq_store.files import durable
from rmq_store.log.core.units import UnitRecord
from rmq_store.verify import verify_store

pytestmark = pytest.mark.harness

DEAD = "%DLQ%cg"
IMAGES = 120
CONFIG = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=SLOTS,
    max_index_num=40,
    default_topic_queue_nums=1,
    flush_interval_commit_log=10**9,
)


class Past(NamedTuple):
    """What was done. `sent`: bodies and their places in the log by topic, in queue order; `safe`: how many of each had
    been on disk when the pass began, which is at operation `begun`. `deleted`: by the pass.
    """

    operations: list[Operation]
    begun: int
    sent: dict[str, list[tuple[int, bytes]]]
    safe: dict[str, int]
    deleted: tuple[int, ...]


def live(place: Workplace) -> Past:
    """Fill a store, and delete its oldest files."""
    recorder = Recorder(place.root, place.keep)
    now_ms = 1_700_000_000_000
    with (
        recorder.recording(),
        patch.object(disk_space, "usage_percent", lambda root: 10),
        # Only what lies in the store is recorded: its archive has to, too.
        patch.object(durable, "refuse_inside", lambda path, root: None),
    ):
        config = StoreConfig(**{**_fields(CONFIG), "dlq_archive_path": str(place.root / "dead")})
        store = Store.open(place.root, create=True, config=config, clock=lambda: now_ms)
        store._retention._sleep = lambda seconds: None
        sent: dict[str, list[tuple[int, bytes]]] = {"T": [], DEAD: []}

        def send(count: int) -> None:
            for number in range(count):
                topic = DEAD if number % 3 == 0 else "T"
                body = b"%06d" % len(sent[topic]) + b"." * 300
                sent[topic].append((store.send(Message(topic, body, queue_id=0)).commit_log_offset, body))

        store.create_topic("T", 1)
        store.create_topic(DEAD, 1)
        send(3)
        assert store._writer is not None
        store._writer.append_unit([], UnitRecord(*UNIT, 7), expect=None)
        send(50)
        store.flush()
        safe = {topic: len(rows) for topic, rows in sent.items()}
        send(4)
        for path in sorted((place.root / "commitlog").iterdir()):
            os.utime(path, (0, 0))
        recorder.catch_up()
        begun = len(recorder.operations)
        report = store.retention.run(manual=True)
        recorder.catch_up()
        store._closed = True
        store._log.close()
    return Past(recorder.operations, begun, sent, safe, report.removed)


def _fields(config: StoreConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in StoreConfig.__slots__}


def _on_two_disks(operations: list[Operation], begun: int) -> tuple[list[Operation], int]:
    """The same operations, as if the archive lay on a disk of its own: syncfs(2) of the store's does not reach it."""
    found: list[Operation] = []
    names: dict[str, int] = {}
    directories, begin = [""], 0
    for number, operation in enumerate(operations):
        begin = len(found) if number == begun else begin
        if operation[0] == "syncfs":
            found += [("fsync", inode) for path, inode in names.items() if not path.startswith("dead/")]
            found += [("fsync_directory", path) for path in directories if not path.startswith("dead")]
            continue
        found.append(operation)
        if operation[0] == "mkdir":
            directories.append(operation[1])
        elif operation[0] in ("rename", "unlink"):
            del names[operation[1]]
        if operation[0] in ("name", "rename"):
            names[operation[-2]] = operation[-1]
    return found, begin


def images(past: Past, chance: random.Random) -> set[Image]:
    """Disks that a cut in the pass may leave."""
    operations, begun = _on_two_disks(past.operations, past.begun)
    disk, done, found = Disk(None), 0, set()
    for moment in sorted(chance.randint(begun, len(operations)) for _ in range(IMAGES)):
        for operation in operations[done:moment]:
            disk.apply(operation)
        done = moment
        found.add(disk.image(chance))
    return found


def check(place: Workplace, past: Past) -> int:
    """AssertionError or StoreError: a violation. Returns where the log begins."""
    with Store.open(place.root, clock=lambda: 1_700_000_000_000) as store:
        start = store.log_range()[0]
        assert start in (*past.deleted, past.deleted[-1] + 4096)
        assert store.last_unit(*UNIT) == 7
        for topic, sent in past.sent.items():
            first, last = store.queue_range(topic, 0)
            assert last >= past.safe[topic]
            assert first == sum(place < start for place, _ in sent)
            rows = {
                int(offset): body
                for part in store.read(topic, 0, first, last, columns=["queueOffset", "body"])
                for offset, body in zip(part.column(0).to_pylist(), part.column(1).to_pylist(), strict=True)
            }
            if topic == DEAD:
                for path in (place.root / "dead").glob("cg/[0-9]*.parquet"):
                    table = pq.read_table(path, columns=["queueOffset", "body"]).to_pylist()
                    rows |= {row["queueOffset"]: row["body"] for row in table}
                assert set(rows) >= set(range(last))
            assert all(body == sent[offset][1] for offset, body in rows.items())
    report = verify_store(place.root)
    assert report.status == "clean", report.problems[:2]
    return start


def violations(directory: Path, seed: int = SEED) -> tuple[list[str], set[int]]:
    """What is wrong on disks that a power cut may leave, and where their logs begin."""
    place, wrong, starts = Workplace(directory), [], set()
    with engine(place, str(seed)):
        past = live(place)
        assert len(past.deleted) > 2
        for image in images(past, random.Random(seed)):
            place.lay_out(image)
            place.reboot()
            try:
                starts.add(check(place, past))
            except (AssertionError, StoreError, OSError, pa.ArrowException) as error:
                wrong.append(repr(error))
    return wrong, starts


def test_whatever_a_pass_has_written_nothing_is_gone_but_what_it_deletes(fast_directory: Path) -> None:
    wrong, starts = violations(fast_directory)
    assert wrong == []
    assert len(starts) > 3  # cut before, in and after the pass


def _names_unsynced(directory: str) -> AbstractContextManager[Any]:
    sync = durable.fsync_directory
    return patch.object(durable, "fsync_directory", lambda path: Path(path).name == directory or sync(path))


def _archive_unsynced() -> AbstractContextManager[Any]:
    sync = durable.fsync_file
    return patch.object(
        durable, "fsync_file", lambda fd, path: str(path).endswith(".parquet.tmp") or sync(fd, path)
    )


@pytest.fixture(
    params={
        "names of segments": lambda: _names_unsynced("commitlog"),
        "names of archived files": lambda: _names_unsynced("cg"),
        "archived files": _archive_unsynced,
        "units": lambda: patch.object(UnitMarkers, "carry", lambda *arguments: 0),
    }.items(),
    ids=lambda param: param[0],
)
def without(request: pytest.FixtureRequest) -> Iterator[None]:
    """Something is not written, or not to the disk."""
    with request.param[1]():
        yield


@pytest.mark.usefixtures("without")
@pytest.mark.teeth
def test_it_would_be_noticed(fast_directory: Path) -> None:
    for number in range(TEETH_SEEDS):
        (fast_directory / str(number)).mkdir()
        if violations(fast_directory / str(number), SEED + number)[0]:
            return
    pytest.fail("nobody noticed")
