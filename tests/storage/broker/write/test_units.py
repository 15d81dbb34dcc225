"""Looking units up: only whole ones count, and only the newest of each key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.write.units import UnitTable
from rmq_store.files import durable
from rmq_store.log.core.units import UNITS_QUEUE, UNITS_TOPIC, UnitRecord


@pytest.fixture
def store(scratch: Path, tiny: StoreConfig) -> Iterator[Store]:
    with Store.open(scratch / "store", create=True, config=tiny) as opened:
        yield opened


def value_of(store: Store, key: str, end: int | None = None) -> int | None:
    found = UnitTable(store._log).newest("sink", key, store.log_range()[1] if end is None else end)
    return None if found is None else found.value


def test_a_store_without_units_has_none(store: Store) -> None:
    assert value_of(store, "q") is None
    assert not (store.path / "pyrmq" / "units.json").exists()


def test_a_look_up_sees_the_units_below_its_end_only(store: Store) -> None:
    ends = []
    for value in range(3):
        store.commit_staged([], key="q", value=value)
        ends.append(store.log_range()[1])
    assert [value_of(store, "q", end) for end in [0, *ends]] == [None, 0, 1, 2]
    # The last record of a unit is what counts: without its last byte the unit is none.
    assert value_of(store, "q", ends[2] - 1) == 1


def test_a_table_follows_the_topic_and_forgets_what_is_gone(store: Store) -> None:
    table = UnitTable(store._log)
    store.commit_staged([], key="q", value=1)
    end = store.log_range()[1]
    store.commit_staged([], key="q", value=2)
    later = store.log_range()[1]
    for looked_at, value in ((later, 2), (end, 1), (later, 2)):
        found = table.newest("sink", "q", looked_at)
        assert found is not None
        assert found.value == value


def test_keys_may_be_any_text(store: Store) -> None:
    keys = ["q", "", "a/b", "ключ ☕", "x" * 1000, '"quoted"\n', "sink/q"]
    for value, key in enumerate(keys):
        assert store.commit_staged([], key=key, value=value).committed
    assert [store.last_unit("sink", key) for key in keys] == list(range(len(keys)))
    with Store.open(store.path) as other:
        assert [other.last_unit("sink", key) for key in keys] == list(range(len(keys)))


def test_values_may_be_negative_and_large(store: Store) -> None:
    for value in (-5, 0, (1 << 63) - 1):
        assert store.commit_staged([], key="q", value=value).committed
        assert store.last_unit("sink", "q") == value


def test_the_cache_is_written_now_and_then_only_and_a_look_up_goes_on_from_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[str] = []
    monkeypatch.setattr(durable, "hook", lambda name, path: renamed.append(path) if name == "rename" else None)
    for value in range(100):
        store.commit_staged([], key=f"q{value % 2}", value=value)
    path = store.path / "pyrmq" / "units.json"
    assert renamed.count(str(path)) == 3  # two records a unit, 64 records a time
    cached = json.loads(path.read_text())
    read: list[int] = []
    entries = type(store._log.views.queue(UNITS_TOPIC, UNITS_QUEUE)).entries
    monkeypatch.setattr(
        "rmq_store.log.views.consume_queue.ConsumeQueue.entries",
        lambda queue, start, stop: read.append(stop - start) or entries(queue, start, stop),
    )
    assert value_of(store, "q1") == 99
    assert sum(read) == 200 - cached["queue_offset"] + 1  # and the one that proves the cache


def test_a_record_in_the_topic_that_is_no_unit_is_passed_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker, or somebody with its tools, wrote into the topic."""
    store.commit_staged([], key="q", value=1)
    monkeypatch.setattr("rmq_store.broker.rules.routing.is_sent_by_broker_only", lambda topic: False)
    for body in (b"", b"{}", b"[]", b"\xff", b"[" * 5000, b'{"purpose":"sink","key":"q","value":"9"}'):
        store.send(Message(UNITS_TOPIC, body, tags="end", queue_id=0))
    unit = b'{"purpose":"sink","key":"q","value":9,"rows":0,"content":0}'
    store.send(Message(UNITS_TOPIC, unit, tags="begin", queue_id=0))
    assert value_of(store, "q") == 1
    store.commit_staged([], key="q", value=2)
    assert value_of(store, "q") == 2


def test_a_units_further_numbers_outlive_the_cache_and_are_outlived_by_it(store: Store) -> None:
    assert store._writer is not None
    units = [UnitRecord("timer", "0", value, detail={"scanned_end": 2 * value}) for value in range(40)]
    for unit in units:
        store._writer.append_unit([], unit, expect=unit.value - 1 if unit.value else None)
    path = store.path / "pyrmq" / "units.json"
    cached = json.loads(path.read_text())["newest"]["timer/0"]
    assert cached["detail"] == {"scanned_end": 2 * cached["value"]}
    end = store.log_range()[1]
    assert UnitTable(store._log).newest("timer", "0", end) == units[-1]
    for content in (None, json.dumps({**json.loads(path.read_text()), "newest": {"timer/0": {**cached, "detail": 1}}})):
        path.unlink()
        if content is not None:
            path.write_text(content)
        assert UnitTable(store._log).newest("timer", "0", end) == units[-1]
