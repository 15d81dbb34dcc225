"""Stores with dead letters of every kind, their archives, and ways to be killed at work."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rmq_store import ArchiveReport, Message, Store, StoreConfig, failure

GROUP, OTHER = "cg_orders", "cg-2"
DLQ = f"%DLQ%{GROUP}"
SMALL = StoreConfig(
    mapped_file_size_commit_log=16384,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=64,
    max_index_num=200,
    flush_interval_commit_log=10**9,
)
NOW_MS = 1_700_000_000_000
# What a store gives a message anew, whatever its properties say.
NEW = {"queueOffset", "msgId", "storeTimestamp", "storeHost", "commitLogOffset"}


def open_store(root: Path, **options: Any) -> Store:
    return Store.open(root, create=True, config=options.pop("config", SMALL), clock=lambda: NOW_MS, **options)


def bury(store: Store, count: int, group: str = GROUP, first: int = 0) -> None:
    """`count` dead letters of one queue, of every kind that a consumer sends back."""
    store.create_topic(f"%DLQ%{group}", 1, exist_ok=True)
    for number in range(first, first + count):
        properties = {
            "RETRY_TOPIC": "Orders",
            "ORIGIN_MESSAGE_ID": f"{number:032X}",
            failure.ERROR_CLASS: "ValueError",
            failure.ERROR_MESSAGE: f"no price in {number} – schade",
            failure.ORIGIN_QUEUE_ID: str(number % 4),
            failure.ORIGIN_QUEUE_OFFSET: str(number * 10),
            failure.FIRST_FAILURE_MS: str(NOW_MS - 5000),
            failure.LAST_FAILURE_MS: "later" if number % 5 == 0 else str(NOW_MS),
        }
        body = b"" if number % 7 == 3 else b"%06d" % number + b"." * (number % 50)
        sys_flag = 0
        if number % 3 == 1:
            body, sys_flag = zlib.compress(body), 0x1 | 0x300
        tags = None if number % 2 else "TagA"
        message = Message(f"%DLQ%{group}", body, tags=tags, keys=None, properties=properties, flag=number, queue_id=0)
        store.send(message, sys_flag=sys_flag, as_given=True)


def fill(store: Store, count: int) -> None:
    for number in range(count):
        store.send(Message("Filler", b"." * 200 + b"%d" % number))


def dead_letters(store: Store, group: str = GROUP, *, raw: bool = True) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for queue, (first, last) in store.queue_ranges(f"%DLQ%{group}").items():
        for batch in store.read(f"%DLQ%{group}", queue, first, last, raw_body=raw):
            rows += batch.to_pylist()
    return rows


def archived(directory: Path, group: str = GROUP) -> list[dict[str, Any]]:
    return [row for path in sorted((directory / group).glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def archive_all(store: Store, directory: Path, groups: list[str] | None = None) -> ArchiveReport:
    return store.archive(directory).archive_up_to(store.log_range()[1], groups)


def kept(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a restored message has in common with the one that was archived."""
    return [
        {
            **{name: value for name, value in row.items() if name not in NEW | {"brokerName"}},
            "msgId": row["msgId"] if "UNIQ_KEY" in dict(row["properties"]) else None,
        }
        for row in rows
    ]


def damage(store: Store, queue_offset: int, position: int) -> None:
    """Flip a bit of one dead letter's record."""
    offset = store.commit_log_offset_before(DLQ, 0, queue_offset + 1) + position
    size = SMALL.mapped_file_size_commit_log
    with (store.path / "commitlog" / f"{offset // size * size:020d}").open("r+b") as file:
        file.seek(offset % size)
        byte = file.read(1)[0]
        file.seek(offset % size)
        file.write(bytes([byte ^ 0x10]))


def set_back(fast: Path) -> None:
    shutil.rmtree(fast / "store")
    (fast / "copy").rename(fast / "store")


def in_child(work: Callable[[], object]) -> bool:
    """Whether the work, in a child, came to its end; False if it was killed."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code == 0


def count_down(k: int, act: Callable[[], None], below: Path = Path("/")) -> Callable[[str, str], None]:
    count = itertools.count(1)

    def hook(operation: str, path: str) -> None:
        if Path(path).is_relative_to(below) and next(count) == k:
            act()

    return hook


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
