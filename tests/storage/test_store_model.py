"""The store against dictionaries: whatever is done in whatever order, it answers as lists of messages would."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmq_store import MESSAGE_SCHEMA, Message, Store, StoreConfig
from rmq_store.format.properties.new_message import ADDED_ON_THE_WAY, IDENTITIES
from rmq_store.format.text.hashing import java_hash
from rmq_store.verify import verify_store

TOPICS = ("Alpha", "Beta", "%RETRY%group")
# AaAa and BBBB have the same Java hash.
TAGS = (None, "TagA", "AaAa", "BBBB", "标签")
COLUMNS = ("body", "tags", "keys", "flag", "queueOffset", "topic", "queueId", "properties", "storeTimestamp")
texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)
bodies = st.one_of(st.binary(max_size=40), st.integers(200, 5000).map(lambda size: b"\xa5" * size))
sharding_keys = st.none() | texts
# A message that asks to wait is not in its queue; delayed messages have a model of their own. A new message loses the
# properties that brokers add on the way (test_new_message.py).
property_names = texts.filter(
    lambda name: name != "DELAY" and not name.startswith("TIMER_") and name not in IDENTITIES | ADDED_ON_THE_WAY
)

Row = dict[str, Any]


class StoreMachine(RuleBasedStateMachine):
    """`rows[topic, queue id]` is the list of messages that the queue must have."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="model-"))
        self.root = self.directory / "store"
        self.now_ms = 1_700_000_000_000
        self.queue_counts: dict[str, int] = {}
        self.rows: dict[tuple[str, int], list[Row]] = {}
        self.committed: dict[str, dict[tuple[str, int], int]] = {}
        self.units: dict[str, int] = {}
        self.end = 0
        self.store: Store

    @initialize(flush=st.sampled_from(["ASYNC_FLUSH", "SYNC_FLUSH"]), crc=st.booleans(), index=st.booleans())
    def create(self, flush: str, crc: bool, index: bool) -> None:
        config = StoreConfig(
            mapped_file_size_commit_log=16384,
            mapped_file_size_consume_queue=400,
            max_hash_slot_num=16,
            max_index_num=50,
            flush_disk_type=flush,
            enabled_append_prop_crc=crc,
            message_index_enable=index,
        )
        self.store = Store.open(self.root, create=True, config=config, clock=self.clock)

    def clock(self) -> int:
        return self.now_ms

    @rule(step_ms=st.integers(1, 3))
    def time_goes_on(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule(topic=st.sampled_from(TOPICS), queue_count=st.integers(1, 3))
    def create_topic(self, topic: str, queue_count: int) -> None:
        made = self.store.create_topic(topic, queue_count, exist_ok=True)
        self.queue_counts.setdefault(topic, queue_count)
        assert made.write_queue_nums == self.queue_counts[topic]

    @rule(topic=st.sampled_from(TOPICS), body=bodies, tags=st.sampled_from(TAGS), keys=st.none() | texts,
          flag=st.integers(-(1 << 31), (1 << 31) - 1), sharding_key=sharding_keys,
          properties=st.dictionaries(property_names, texts, max_size=3))  # fmt: skip
    def send(self, topic: str, body: bytes, tags: str | None, keys: str | None, flag: int, sharding_key: str | None,
             properties: dict[str, str]) -> None:  # fmt: skip
        message = Message(topic, body, tags, keys, properties, flag, sharding_key=sharding_key)
        sent = self.store.send(message)
        self.queue_counts.setdefault(topic, 4)  # made on first use, with as many queues as a client asks for
        if sharding_key is not None:
            assert sent.queue_id == abs(java_hash(sharding_key)) % self.queue_counts[topic]
        queue = self.rows.setdefault((topic, sent.queue_id), [])
        assert (sent.queue_offset, sent.commit_log_offset >= self.end) == (len(queue), True)
        stored = message.stored_properties(sent.msg_id)
        queue.append(self.row(topic, sent.queue_id, len(queue), body, tags, keys, flag, stored))

    @precondition(lambda self: self.queue_counts)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        rows = []
        for _ in range(data.draw(st.integers(0, 30))):
            topic = data.draw(st.sampled_from(sorted(self.queue_counts)))
            queue_id = data.draw(st.integers(0, self.queue_counts[topic] - 1))
            rows.append((topic, queue_id, data.draw(bodies), data.draw(st.sampled_from(TAGS))))
        columns = list(zip(*rows, strict=True)) or [[], [], [], []]
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(columns[0], pa.string()),
                pa.array(columns[1], pa.int32()),
                pa.array(columns[2], pa.binary()),
                pa.array(columns[3], pa.string()),
            ],
            names=["topic", "queueId", "body", "tags"],
        )
        result = self.store.append(batch)
        assert (result.row_count, result.start_offset) == (
            len(rows),
            self.store.log_range()[1] if not rows else self.end,
        )
        for topic, queue_id, body, tags in rows:
            queue = self.rows.setdefault((topic, queue_id), [])
            queue.append(self.row(topic, queue_id, len(queue), body, tags, None, 0, None))

    def row(self, topic: str, queue_id: int, queue_offset: int, body: bytes, tags: str | None, keys: str | None,
            flag: int, properties: dict[str, str] | None) -> Row:  # fmt: skip
        return {
            "body": body, "tags": tags, "keys": keys, "flag": flag, "queueOffset": queue_offset, "topic": topic,
            "queueId": queue_id, "properties": properties, "storeTimestamp": self.now_ms,
        }  # fmt: skip

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), columns=st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True),
          tags=st.none() | st.lists(st.sampled_from(TAGS[1:]), min_size=1))  # fmt: skip
    def read(self, data: st.DataObject, columns: list[str], tags: list[str] | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.rows)))
        start = data.draw(st.integers(0, len(self.rows[key])))
        end = data.draw(st.integers(start, len(self.rows[key])))
        self.compare(self.store, key, start, end, columns, tags)

    def compare(self, store: Store, key: tuple[str, int], start: int, end: int, columns: list[str],
                tags: list[str] | None) -> None:  # fmt: skip
        found = []
        for batch in store.read(*key, start, end, columns=columns, tags=None if tags is None else " || ".join(tags)):
            assert batch.schema == pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
            found += batch.to_pylist()
        expected = [row for row in self.rows[key][start:end] if tags is None or row["tags"] in tags]
        assert len(found) == len(expected)
        for row, right in zip(found, expected, strict=True):
            assert list(row) == columns
            if "storeTimestamp" in row:
                row["storeTimestamp"] = int(row["storeTimestamp"].timestamp() * 1000 + 0.5)
            if "properties" in row:
                row["properties"] = dict(row["properties"]) if right["properties"] is not None else None
            assert row == {name: right[name] for name in columns}

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), ahead_ms=st.integers(-5, 5))
    def search_by_time(self, data: st.DataObject, ahead_ms: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.rows)))
        times = [row["storeTimestamp"] for row in self.rows[key]]
        wanted = data.draw(st.sampled_from(times)) + ahead_ms
        lower = sum(time < wanted for time in times)
        upper = max(sum(time <= wanted for time in times) - 1, 0)
        found = [self.store.offset_by_time(*key, wanted, boundary) for boundary in ("lower", "upper")]
        assert found == [lower, upper]

    @precondition(lambda self: self.rows)
    @rule(group=st.sampled_from(["cg_a", "cg_b"]), data=st.data())
    def commit(self, group: str, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.rows)))
        offset = data.draw(st.integers(0, len(self.rows[key])))
        self.store.commit_offsets(group, {key: offset})
        self.committed.setdefault(group, {})[key] = offset

    @rule(key=st.sampled_from(["q1", "q2"]), repeat=st.booleans())
    def commit_unit(self, key: str, repeat: bool) -> None:
        repeat = repeat and key in self.units
        value = self.units.get(key, 0) + (not repeat)
        assert self.store.commit_staged([], key=key, value=value).committed == (not repeat)
        self.units[key] = value

    @rule()
    def look_beside(self) -> None:
        """A reader without a lock, while the store is open for writing."""
        with Store.open(self.root, read_only=True) as reader:
            self.agrees(reader)

    @rule(views=st.booleans())
    def reopen(self, views: bool) -> None:
        self.store.close()
        if views:
            shutil.rmtree(self.root / "consumequeue", ignore_errors=True)
            shutil.rmtree(self.root / "index", ignore_errors=True)
        with Store.open(self.root, read_only=True) as reader:
            self.agrees(reader)
        self.store = Store.open(self.root, clock=self.clock)
        assert self.store.recovery is not None
        assert (self.store.recovery.removed_bytes, self.store.recovery.dropped_unit) == (0, None)

    @rule()
    def open_a_second_time(self) -> None:
        with Store.open(self.root, clock=self.clock) as second:
            assert second.recovery is None
            self.agrees(second)

    def agrees(self, store: Store) -> None:
        for key, rows in self.rows.items():
            assert store.queue_range(*key) == (0, len(rows))
            self.compare(store, key, 0, len(rows), list(COLUMNS), None)
        for group, offsets in self.committed.items():
            assert store.committed_offsets(group) == offsets

    @invariant()
    def ends_only_grow(self) -> None:
        if hasattr(self, "store"):
            end = self.store.log_range()[1]
            assert end >= self.end
            self.end = end
            for key, rows in self.rows.items():
                assert self.store.queue_range(*key) == (0, len(rows))
            assert {key: self.store.last_unit("sink", key) for key in self.units} == self.units

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.agrees(self.store)
            self.store.close()
            report = verify_store(self.root)
            assert report.status == "clean", report.problems
            # A unit that was not a repetition has two records of its own.
            assert report.messages == sum(map(len, self.rows.values())) + 2 * sum(self.units.values())
        shutil.rmtree(self.directory)


class LongStoreMachine(StoreMachine):
    """The same with more lives."""


lives = settings(stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
StoreMachine.TestCase.settings = settings(lives, max_examples=10)
LongStoreMachine.TestCase.settings = settings(lives, max_examples=50)
TestStoreAgainstDictionaries = StoreMachine.TestCase
TestStoreAgainstDictionariesInManyLives = pytest.mark.slow(LongStoreMachine.TestCase)
