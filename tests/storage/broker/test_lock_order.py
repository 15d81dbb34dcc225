"""Locks are taken in the order of docs/design.md section 9, or two processes could wait for each other.

What code says about its locks is not enough: an append under a table's lock may be five calls away. So each lock that a
thread takes while it holds others is written down.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, Store
from rmq_store.broker.pop.pop_messages import ConsumeInitMode
from rmq_store.client.backend.local import LocalBackend
from rmq_store.client.consumer.simple_consumer import SimpleConsumer
from rmq_store.files.locks.lock import LockKind, OfdLock

# Kind of lock -> its place in the table; of one place no two are nested, but for leases and topic uses.
ORDER = {
    "lock": 1, "lease": 2, "use": 2, "retention.lock": 3, "delay.lock": 3, "POP": 3, "config.lock": 4, ".lock": 4,
    "append.lock": 5, "flush.lock": 7,
}  # fmt: skip
SEVERAL = 2


def kind_of(path: Path) -> str:
    if path.suffix in (".lease", ".use"):
        return path.suffix[1:]
    return "POP" if path.name == "lock" and "pop" in path.parts else path.name


def out_of_order(nested: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {
        pair for pair in nested if not ORDER[pair[0]] < ORDER[pair[1]] and {ORDER[kind] for kind in pair} != {SEVERAL}
    }


@pytest.fixture
def nested(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """(kind of a lock that a thread holds, kind of one that it takes meanwhile), of all that happens in the test."""
    found: set[tuple[str, str]] = set()
    held: dict[OfdLock, int] = {}
    take, release = OfdLock._take, OfdLock.release

    def noted_take(lock: OfdLock, kind: LockKind) -> bool:
        taken = take(lock, kind)
        if taken and lock not in held:  # no upgrade
            own = threading.get_ident()
            found.update((kind_of(other.path), kind_of(lock.path)) for other, holder in held.items() if holder == own)
            held[lock] = own
        return taken

    def noted_release(lock: OfdLock) -> None:
        held.pop(lock, None)
        release(lock)

    monkeypatch.setattr(OfdLock, "_take", noted_take)
    monkeypatch.setattr(OfdLock, "release", noted_release)
    return found


def consume(store: Store, shop: Any) -> None:
    """A message is given out, forgotten, and becomes a dead letter; another consumer shares the topic."""
    mode = ConsumeInitMode.MIN
    for given in (1, 0):
        assert len(store.pop.receive("pops", "T", 1, 1, max_delivery_attempts=1, init_mode=mode)) == given
        shop.now_ms += 1000
    backend = LocalBackend({"broker-a": store})
    with SimpleConsumer("simple", backend, {"T": "*"}, await_duration=timedelta(0)) as consumer:
        consumer.receive(1, timedelta(seconds=20))


def test_locks_are_taken_in_one_order(shop: Any, fast: Path, nested: set[tuple[str, str]]) -> None:
    shop.config = replace(shop.config, flush_disk_type="SYNC_FLUSH", dlq_archive_path=str(fast / "archive"))
    with shop.open() as store:
        store.create_topic("T", queue_count=1)
        store.send(Message("T", b"first"))
        consume(store, shop)
        store.send(Message("T", b"later", delay_level=1))
        shop.now_ms += 2000
        assert store.schedule.deliver_due().delivered == 1
        shop.fill(store, 4)
        shop.age(100)
        assert store.retention.run(manual=True).removed
    assert out_of_order(nested) == set()
    assert nested >= {
        ("lock", "config.lock"), ("lock", "append.lock"), ("lock", "flush.lock"), ("lease", "use"),
        ("POP", "config.lock"), ("POP", "append.lock"), ("POP", "flush.lock"), ("delay.lock", "append.lock"),
        ("retention.lock", "append.lock"), ("retention.lock", "flush.lock"), ("retention.lock", ".lock"),
    }  # fmt: skip


def test_a_wrong_order_is_seen(tmp_path: Path, nested: set[tuple[str, str]]) -> None:
    append, table = OfdLock(tmp_path / "append.lock"), OfdLock(tmp_path / "config.lock")
    with append.exclusive(0), table.exclusive(0):
        pass
    assert out_of_order(nested) == {("append.lock", "config.lock")}
    nested.clear()
    with table.exclusive(0), append.exclusive(0):
        pass
    assert nested == {("config.lock", "append.lock")}
    assert out_of_order(nested) == set()
