"""What the tests of replicas share: a master's store, and a replica without messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store import CommitResult, Message, StagingArea, Store, StoreConfig
from rmq_store.broker.store.directory import make_root
from rmq_store.broker.store.open_store import OpenRequest, open_store
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.replica_role import Feeder, ReplicaRole

SEGMENT_BYTES = 1 << 16
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT_BYTES,
    mapped_file_size_consume_queue=20 * 100,
    max_hash_slot_num=100,
    max_index_num=400,
    enabled_append_prop_crc=False,  # as of a broker
)
ROLE = ReplicaRole("DefaultCluster", "broker-a", "", "127.0.0.1:10911", "127.0.0.1:10912", "earliest", 0)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Store]:
    """A store of ours in the place of a broker's, with small segments."""
    with Store.open(tmp_path / "master", create=True, config=CONFIG) as store:
        store.create_topic("Orders", queue_count=2)
        yield store


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Store]:
    """A replica without messages, open in its feeder."""
    root = tmp_path / "replica"
    make_root(root)
    feeder = Feeder(root)
    feeder.take()
    store = open_store(OpenRequest(root, False, True, CONFIG, None, None, "refuse", False, "", feeder, ROLE), Store)
    yield store
    store.close()
    feeder.close()


def fill(store: Store, count: int, size: int = 300, tag: str = "a") -> None:
    """Send messages to both queues of Orders, with keys."""
    for number in range(count):
        body = bytes([number % 251]) * size
        store.send(Message("Orders", body, tags=tag, keys=f"k{number}", queue_id=number % 2))


def commit_unit(store: Store, value: int, count: int, size: int = 300) -> CommitResult:
    """Append one unit of `count` messages."""
    with StagingArea.for_task(store.path, f"w{value}", 0, 0, topic="Orders") as area:
        bodies = [b"u%d" % value + bytes(size)] * count
        area.write(pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())}))
        staged = area.finish()
    assert staged is not None
    return store.commit_staged([staged], key="query", value=value)


def views_of(root: Path) -> dict[str, bytes]:
    """The bytes of all queue files of a store, without files of zeros."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.glob("consumequeue/*/*/*")}
    return {name: content for name, content in found.items() if any(content)}


def log_bytes(log: CommitLog, start: int, end: int) -> bytes:
    """The bytes of a log, across segments."""
    found = b""
    while start < end:
        base = log.segments.base_of(start)
        stop = min(end, base + log.segments.size_bytes)
        found += log.segments.open(base).map[start - base : stop - base]
        start = stop
    return found

