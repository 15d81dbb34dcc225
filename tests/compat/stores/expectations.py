"""What has to happen to each kind of store: read in full, in part or not at all, written or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, Store, StoreKindError, TopicKindError, UsageError
from rmq_store.verify import verify_store

from . import reading
from .reading import Manifest

BROKER_NAME = "fixture-a"
Check = Callable[[Store, Manifest], object]
LOG_CHECKS: tuple[Check, ...] = (
    reading.check_ranges, reading.check_messages, reading.check_times, reading.check_queries, reading.check_waiting,
    reading.check_broker_backlog,
)  # fmt: skip
TABLE_CHECKS: tuple[Check, ...] = (reading.check_tables, reading.check_offsets_and_lags)


@dataclass(frozen=True)
class Expectation:
    """`unreadable`: what the refusal of a reader says, "" if it reads. `unwritable`: the same of a writer.

    `log`: the directories of a log elsewhere. `without`: checks of what nobody can look at in this
    kind; `extra`: those in their place. `topics`: those that are another matter, and the check of each.
    """

    unreadable: str = ""
    unwritable: str = ""
    log: tuple[str, ...] = ()
    without: tuple[Check, ...] = ()
    topics: Mapping[str, Check] = field(default_factory=dict)
    extra: tuple[Check, ...] = ()


def refused(topic: str, sentence: str) -> Check:
    """The topic is neither read nor written."""

    def check(store: Store, manifest: Manifest) -> None:
        with pytest.raises(TopicKindError, match=sentence):
            reading.rows_of(store, topic, 0)

    return check


def static_queue(store: Store, manifest: Manifest) -> None:
    """Queue and offsets are those of this broker, without what the mapping adds."""
    said = manifest["queues"]["Static"]["0"]
    rows = reading.rows_of(store, "Static", 0)
    assert [row["queueOffset"] for row in rows] == [
        offset - 1000 for offset in range(said["minOffset"], said["maxOffset"])
    ]
    assert [row["keys"] for row in rows] == [message["keys"] for message in said["messages"]]


def no_index(store: Store, manifest: Manifest) -> None:
    with pytest.raises(UsageError, match="keeps no index"):
        store.query.by_key("Orders", "shared")


_ROCKSDB = Expectation(unwritable="storeType=defaultRocksDB", without=TABLE_CHECKS)
_DOUBLE = Expectation(unwritable="rocksdbCQDoubleWriteEnable")
_SEVERAL = Expectation(unwritable="storePathCommitLog", log=("log-a", "log-b"))
_NO_INDEX = Expectation(without=(reading.check_queries,), extra=(no_index,))

EXPECTATIONS: dict[str, Expectation] = {
    "batch-queues": Expectation(topics={"Inner": refused("Inner", "Inner.*batches")}),
    "compaction": Expectation(topics={"Compacted": refused("Compacted", "Compacted.*last message of each key")}),
    "static-topic": Expectation(topics={"Static": static_queue}),
    "controller": Expectation(unwritable="enableControllerMode"),
    "dledger": Expectation("enableDLegerCommitLog", "enableDLegerCommitLog"),
    "double-write": _DOUBLE,
    "double-write-separate": _DOUBLE,
    "index-off": _NO_INDEX,
    "index-off-4.9.7": _NO_INDEX,
    "rocksdb-services": _NO_INDEX,
    "rocksdb": _ROCKSDB,
    "rocksdb-exported": Expectation(unwritable="storeType=defaultRocksDB"),
    "several-paths": _SEVERAL,
    "several-paths-4.9.7": _SEVERAL,
    "log-elsewhere": Expectation(unwritable="storePathCommitLog", log=("log-a",)),
    "tables-v2": Expectation(unwritable="RocksDB", without=TABLE_CHECKS),
}


def expectation(kind: str) -> Expectation:
    return EXPECTATIONS.get(kind, Expectation())


def common_part(kind: str, manifest: Manifest) -> Manifest:
    """The manifest without what the kind keeps in a way of its own."""
    topics = expectation(kind).topics
    queues = {topic: queues for topic, queues in manifest["queues"].items() if topic not in topics}
    queries = [query for query in manifest["queries"] if query["topic"] not in topics]
    return {**manifest, "queues": queues, "queries": queries}


def open_store(root: Path, kind: str, *, read_only: bool) -> Store:
    options: dict[str, Any] = {}
    if read_only and (paths := expectation(kind).log):
        options["commit_log_paths"] = ",".join(str(root / path) for path in paths)
    return Store.open(root / "store", read_only=read_only, broker_name=BROKER_NAME, **options)


def check_reading(root: Path, kind: str, manifest: Manifest) -> None:
    """All that a reader is asked for, or its refusal."""
    wanted = expectation(kind)
    if wanted.unreadable:
        for find_kinds in (lambda: open_store(root, kind, read_only=True), lambda: verify_store(root / "store")):
            with pytest.raises(StoreKindError, match=wanted.unreadable):
                find_kinds()
        return
    with open_store(root, kind, read_only=True) as store:
        for check in (*LOG_CHECKS, *TABLE_CHECKS):
            if check not in wanted.without:
                check(store, common_part(kind, manifest))
        for check in (*wanted.extra, *wanted.topics.values()):
            check(store, manifest)
    if wanted.log:
        with pytest.raises(StoreKindError, match="storePathCommitLog"):
            verify_store(root / "store")
        return
    report = verify_store(root / "store")
    assert (report.status, report.problems) == ("clean", [])


def write(root: Path, kind: str) -> None:
    """What a user of ours does to it: sends, one of the messages late, and a group that goes on."""
    with open_store(root, kind, read_only=False) as store:
        store.send(Message("Orders", b"ours", tags="TagA", keys="OURS", queue_id=0))
        store.send(Message("Late", b"ours, late", keys="OURS-LATE", queue_id=0, delay_level=18))
        store.commit_offsets("cg_partial", {("Orders", 0): 4})


# What `write` has to change: the log, the queues it appends to, the index, offsets, marks of who had the store last.
TOUCHED = re.compile(
    r"store/(commitlog/\d{20}|consumequeue/(Orders/0|SCHEDULE_TOPIC_XXXX/17)/\d{20}|index/\d{17}|lock|checkpoint|abort(\.bak)?"
    r"|config/(consumerOffset|lmqConsumerOffset)\.json(\.bak)?|pyrmq(/.*)?)"
)


def contents(root: Path) -> dict[str, bytes]:
    """Each file without its holes' end, and each directory, by name."""
    return {
        str(path.relative_to(root)): path.read_bytes().rstrip(b"\0") if path.is_file() else b"/"
        for path in sorted(root.rglob("*"))
        if path.name != "timerwheel"
    }


def changed(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    """What is different and should not be: files of nobody's business, and bytes that were written before."""
    wrong = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    append_only = ("store/commitlog/", "store/consumequeue/")
    return sorted(
        name
        for name in wrong
        if not TOUCHED.fullmatch(name)
        or (name.startswith(append_only) and not after.get(name, b"").startswith(before.get(name, b"")))
    )


OURS = {("Orders", 0): 1, ("SCHEDULE_TOPIC_XXXX", 17): 1}


def check_unchanged(store: Store, kind: str, manifest: Manifest) -> None:
    """After `write`: all that was there is there, queues have grown by what we sent, groups are where they were."""
    wanted = expectation(kind)
    common = common_part(kind, manifest)
    for topic, queue_id, queue in reading.queues_of(common):
        grown = OURS.get((topic, queue_id), 0)
        assert tuple(store.queue_range(topic, queue_id)) == (queue["minOffset"], queue["maxOffset"] + grown)
    if reading.check_queries not in wanted.without:
        reading.check_queries(store, common)
    for check in (*wanted.extra, *wanted.topics.values()):
        check(store, manifest)
    assert store.committed_offsets("cg_partial")["Orders", 0] == 4
    orders = manifest["tables"]["offsets"]["offsetTable"]["Orders@cg_orders"]
    assert store.committed_offsets("cg_orders").items() >= {("Orders", int(q)): o for q, o in orders.items()}.items()
