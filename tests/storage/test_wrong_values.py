"""Whatever a caller passes to a public method, an error is one of ours, and the store is unharmed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

import rmq_store
from rmq_store import (
    ClockFile,
    Lease,
    Message,
    NotAStoreError,
    StagingArea,
    Store,
    StoreConfig,
    StoreError,
    SubscriptionGroup,
    TopicConfig,
    UsageError,
)
from rmq_store.broker.pop.pop_messages import ConsumeInitMode
from rmq_store.broker.transactions.half_queue import PendingHalf
from rmq_store.verify import verify_store

WRONG: list[Any] = [
    None, b"x", "x", "", "0", 1.5, float("nan"), float("inf"), True, -1, 0, 2**31, 2**63, 2**70, [], [1], ["x"], [None],
    {}, {"x": 1}, {("T", 0): "x"}, {("T", -1): 0}, {("T", 0, 0): 0}, object(), "\ud800", "a\0b", "x" * 5000, (1, 2),
    np.int64(0), np.int8(100), np.float64(1.5), np.array([1.5]), np.array([[1]]), np.array([2, 1]),
    pd.DataFrame({"body": [b"x"]}), pa.array([1]), pa.table({"body": [b"x"]}),
    Path("x"), Path("a\0b"), Message("T", b"x"), Exception("x"),
]  # fmt: skip


def columns(**given: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(given)


def try_each(call: Callable[..., Any], right: Mapping[str, Any]) -> None:
    """Call with each argument wrong in each way, the others right: it works, or the error is one of ours."""
    call(**right)
    for name in right:
        for wrong in WRONG:
            try:
                found = call(**{**right, name: wrong})
                if inspect.isgenerator(found) or hasattr(found, "__next__"):
                    list(found)
            except StoreError:
                pass
            except Exception as error:
                raise AssertionError(f"{call}: {name}={wrong!r}") from error


@pytest.fixture
def store(scratch: Path) -> Iterator[Store]:
    config = StoreConfig(
        mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=6000, max_hash_slot_num=64,
        max_index_num=10_000, flush_interval_commit_log=10**9,
    )  # fmt: skip
    with Store.open(scratch / "store", create=True, config=config) as store:
        store.create_topic("T", queue_count=2)
        store.create_group(SubscriptionGroup("g"))
        for number in range(3):
            store.send(Message("T", b"%d" % number, queue_id=0, keys="k"))
        yield store
        written = store.send(Message("T", b"afterwards", queue_id=0))
        (row,) = next(store.read("T", 0, written.queue_offset, written.queue_offset + 1)).to_pylist()
        assert row["body"] == b"afterwards"
    assert not verify_store(store.path).problems
    with Store.open(store.path) as again:
        assert [*again.read("T", 0, *again.queue_range("T", 0))]


T0 = {"topic": "T", "queue_id": 0}
NO_FAILED = columns(commitLogOffset=pa.array([], "int64"), msgId=pa.array([], "string"))
NO_DEAD = columns(queueId=pa.array([], "int32"), queueOffset=pa.array([], "int64"))
HALF = PendingHalf(0, 0, 0, "T", 0, "g", "U", 0, 0, 0, 6000, True)
RIGHT: dict[str, dict[str, Any]] = {
    "send": {"message": Message("T", b"x"), "sys_flag": 0, "lock_timeout_ms": 1000, "flush_timeout_ms": 1000},
    "send_all": {"messages": [Message("T", b"x")], "lock_timeout_ms": 1000, "flush_timeout_ms": 1000},
    "send_batch": {"topic": "T", "body": bytes.fromhex("00000016") + bytes(18), "queue_id": 0, "born_timestamp_ms": 1,
                   "lock_timeout_ms": 1000, "flush_timeout_ms": 1000},
    "append": {"batch": columns(body=[b"x"]), "topic": "T"},
    "commit_staged": {"files": [], "purpose": "p", "key": "k", "value": 1, "repeatable": True, "consume_files": False},
    "append_unit": {"batches": [], "purpose": "p", "key": "k", "value": 1, "expect": None, "detail": {"n": 1},
                    "keep_unique_key": True},
    "last_unit": {"purpose": "p", "key": "k"},
    "newest_unit": {"purpose": "p", "key": "k"},
    "topic": {"name": "T"},
    "find_topic": {"name": "T"},
    "create_topic": {"name": "T2", "queue_count": 2, "perm": 6, "exist_ok": True},
    "create_group": {"group": SubscriptionGroup("g"), "exist_ok": True},
    "update_group": {"group": SubscriptionGroup("g")},
    "committed_offsets": {"group": "g"},
    "commit_offsets": {"group": "g", "offsets": {("T", 0): 1}},
    "queue_range": T0,
    "queue_ranges": {"topic": "T"},
    "read": {**T0, "start": 0, "end": 2, "columns": ["body"], "tags": "a", "raw_body": False, "only": np.array([0, 1]),
             "two_threads": True},
    "queue_entries": {**T0, "start": 0, "end": 2},
    "bytes_between": {**T0, "start": 0, "end": 2},
    "lost_offsets": {**T0, "start": 0, "end": 2, "tags": "a"},
    "offset_after_bytes": {**T0, "start": 0, "end": 2, "limit_bytes": 100},
    "read_frames": {**T0, "start": 0, "entries_max": 2, "count_max": 2, "bytes_max": 1000, "tags": "a",
                    "settings": TopicConfig("T")},
    "commit_log_offset_before": {**T0, "queue_offset": 1},
    "store_timestamp": {**T0, "queue_offset": 1},
    "tags_code": {**T0, "queue_offset": 1},
    "offset_by_time": {**T0, "timestamp_ms": 5, "boundary": "lower"},
    "message_at": {"commit_log_offset": 0},
    "frame_at": {"commit_log_offset": 0},
    "has_not_grown": {"end": 0},
    "pin": {"start_offset": 0, "end_offset": 10},
    "archive": {"directory": "/nowhere"},
    "lease": {"group": "g", "topic": "other", "owner": "me"},
    "query.by_key": {"topic": "T", "key": "k", "begin_ms": 0, "end_ms": 2**60, "max_num": 10},
    "query.by_unique_key": {"topic": "T", "unique_key": "k", "begin_ms": 0, "end_ms": 2**60, "max_num": 10},
    "query.find": {"topic": "T", "keys": ["k"], "begin_ms": 0, "end_ms": 2**60, "unique": False, "within": (0, 2**60)},
    "query.by_queue_offset": {**T0, "offset": 1},
    "query.by_time": {**T0, "timestamp_ms": 5, "boundary": "lower"},
    "schedule.deliver_due": {"limit": 1},
    "retry.send_back": {"group": "g", "commit_log_offset": 0, "delay_level": 1, "max_reconsume_times": 3,
                        "properties": {}},
    "retry.send_back_all": {"group": "g", "rows": NO_FAILED,
                            "max_reconsume_times": 3, "key": "k", "value": 1, "reconsume_times": None},
    "retry.send_to_retry": {"group": "g", "message": Message("T", b"x"), "reconsume_times": 0,
                            "max_reconsume_times": 3, "n_plus_one": True, "delay_level": 2, "sys_flag": 1},
    "retry.set_max_reconsume_times": {"group": "g", "times": 3},
    "retry.prepare": {"group": "g", "max_reconsume_times": 3},
    "retry.make_topics": {"files": []},
    "dead_letters.plan": {"group": "g", "rows": NO_DEAD,
                          "to_topic": "T", "max_replays": 3, "parking_topic": "P"},
    "dead_letters.redrive": {"group": "g", "rows": NO_DEAD,
                             "to_topic": "T", "max_replays": 3, "parking_topic": "P", "rate_per_second": 5.0},
    "dead_letters.redriven": {"group": "g"},
    "dead_letters.record_moved": {"group": "g", "queue_id": 0, "queue_offsets": [0]},
    "redriven": {"group": "g"},
    "pop.receive": {"group": "g", "topic": "T", "max_messages": 1, "invisible_duration_ms": 10, "tags": "a",
                    "accepts": None, "init_mode": ConsumeInitMode.MAX, "max_delivery_attempts": 3, "bytes_max": 10,
                    "queue_id": 0, "in_order": False, "attempt_id": "a"},
    "pop.ack_all": {"group": "g", "topic": "T", "receipt_handles": []},
    "pop.peek": {"group": "g", "topic": "T", "max_messages": 1, "queue_id": 0, "bytes_max": 10},
    "pop.rest": {"group": "g", "topic": "T", "queue_id": 0, "in_order": False, "attempt_id": "a"},
    "transactions.prepare": {"message": Message("T", b"x"), "queue_id": 0, "group": "g", "sys_flag": 0},
    "transactions.half_message": {"half": HALF},
    "transactions.asked": {"half": HALF},
    "transactions.renew": {"half": HALF},
    "transactions.give_up": {"half": HALF},
    "transactions.carry": {"log_offset": 0},
    "transactions.take_over": {"half": HALF},
    "retention.plan": {"manual": False, "file_reserved_time": 1, "drop_waiting": False},
    "retention.run": {"manual": False, "file_reserved_time": 1, "drop_waiting": False},
    "admin.plan_topic_deletion": {"name": "T"},
    "admin.plan_group_deletion": {"name": "g", "remove_offsets": False},
    "admin.leftover_count": {"topic": "T"},
    "admin.update_topic": {"name": "T3", "change": lambda topic: topic, "default": TopicConfig("T3", 1, 1)},
    "admin.update_group": {"name": "g3", "change": lambda group: group, "default": SubscriptionGroup("g3")},
}  # fmt: skip

# What they refuse is another test's business, or they have no arguments.
ELSEWHERE = {
    "open", "close", "pop.ack", "pop.change_invisible_duration", "query.by_offset_id", "dead_letters.restore",
    "retention.configure", "admin.delete_topic", "admin.delete_group",
    "transactions.end", "transactions.resume", "recall_message", "sent_requests",
}  # fmt: skip


def method(store: Store, name: str) -> Callable[..., Any]:
    found: Any = store
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", RIGHT)
def test_a_wrong_value_is_an_error_of_ours_and_leaves_the_store_as_it_was(store: Store, name: str) -> None:
    def call(**arguments: Any) -> Any:
        found = method(store, name)(**arguments)
        if name in ("pin", "lease"):
            found.release()
        return found

    try_each(call, RIGHT[name])


@pytest.mark.parametrize("name", ["admin.delete_topic", "admin.delete_group"])
def test_nothing_is_deleted_for_a_wrong_value(store: Store, name: str) -> None:
    topics, groups = store.topics(), store.groups()
    for wrong in WRONG:
        with pytest.raises(StoreError):
            method(store, name)(wrong)
    if name == "admin.delete_group":
        for wrong in WRONG:
            if type(wrong) is not bool:
                with pytest.raises(UsageError, match=r"^remove_offsets.*True or False is expected"):
                    store.admin.delete_group("g", remove_offsets=wrong)
    assert (store.topics(), store.groups()) == (topics, groups)


def test_every_public_method_that_takes_something_is_tried(store: Store) -> None:
    names = ("query", "schedule", "retry", "dead_letters", "pop", "transactions", "retention", "admin")
    parts = {"": store} | {name: getattr(store, name) for name in names}
    taken = {
        f"{part}.{name}".removeprefix(".")
        for part, found in parts.items()
        for name, one in inspect.getmembers(type(found), inspect.isfunction)
        if not name.startswith("_") and len(inspect.signature(one).parameters) > 1
    }
    assert taken - ELSEWHERE == set(RIGHT)


@pytest.mark.parametrize("way", ["send", "send_all"])
@pytest.mark.parametrize("field", Message.__dataclass_fields__)
def test_a_message_with_a_wrong_value_is_refused_by_an_error_of_ours(store: Store, field: str, way: str) -> None:
    for wrong in WRONG:
        try:
            message = Message(**{"topic": "T", "body": b"x", field: wrong})
            store.send(message) if way == "send" else store.send_all([message])
        except StoreError:
            pass


@pytest.mark.parametrize(
    "key", [("T", True), ("T", "0"), ("T", 1.0), ("T", None), (b"T", 0), ("\ud800", 0), "T", ("T",)]
)
def test_a_key_that_names_no_queue_is_refused(store: Store, key: Any) -> None:
    with pytest.raises(UsageError, match=r"^offsets=.*in it is expected|^offsets=.*is expected"):
        store.commit_offsets("g", {key: 1})
    assert store.committed_offsets("g") == {}


def test_numbers_of_numpy_are_numbers(store: Store) -> None:
    """Small ones would overflow in sums, and none can be written as JSON."""
    store.commit_offsets("g", {("T", np.int8(0)): np.uint64(2)})  # type: ignore[dict-item]
    assert store.committed_offsets("g") == {("T", 0): 2}
    zero: Any = np.int8(0)
    end: Any = np.uint8(3)
    assert sum(part.num_rows for part in store.read("T", zero, zero, end)) == 3
    end = np.uint64(1 << 63)
    with pytest.raises(UsageError, match="end: an integer of 64 bits is expected"):
        store.read("T", 0, 0, end)


@pytest.mark.parametrize(
    ("rows", "way"),
    [
        (pd.DataFrame({"body": [b"x"]}), "got DataFrame; pyarrow.RecordBatch.from_pandas(frame, preserve_index=False)"),
        ({"body": [b"x"]}, "pyarrow.RecordBatch.from_pydict(columns)"),
        ([{"body": b"x"}], "pyarrow.RecordBatch.from_pylist(rows)"),
        ([Message("T", b"x")], "Store.send_all takes a list of Message"),
        (pa.table({"body": [b"x"]}), "got Table; table.to_batches()"),
        (None, "batch=None: a RecordBatch is expected; pyarrow makes one"),
    ],
    ids=["pandas", "dict", "list", "messages", "table", "None"],
)
def test_rows_in_another_form_are_refused_with_what_makes_a_batch_of_them(store: Store, rows: Any, way: str) -> None:
    with pytest.raises(UsageError, match=re.escape(way)):
        store.append(rows, topic="T")


def test_the_way_that_is_named_for_a_frame_works(store: Store) -> None:
    frame = pd.DataFrame({"body": [b"x", b"y"], "tags": ["a", None]})
    assert store.append(pa.RecordBatch.from_pandas(frame, preserve_index=False), topic="T").row_count == 2


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"store", "path=b'store': a path is expected"),
        (5, "path=5: a path is expected"),
        (None, "path=None: a path is expected"),
        ("", "path='': a path that is not empty is expected"),
        ("a\0b", r"path='a\\x00b': a path without NUL is expected"),
        ("\ud800", r"path='\\ud800': a path without lone surrogates is expected"),
        ("x" * 256, "with names of at most 255 is expected"),
        ("x/" * 2048, "at most 4095 bytes"),
    ],
    ids=["bytes", "int", "None", "empty", "NUL", "surrogate", "long name", "long path"],
)
@pytest.mark.parametrize("options", [{}, {"create": True}, {"read_only": True}], ids=str)
def test_what_is_no_path_of_a_store_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, text: str, options: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(text) if "\\" not in text else text):
        Store.open(path, **options)
    assert not [*tmp_path.iterdir()]


def test_a_name_that_is_no_utf_8_is_a_path(scratch: Path) -> None:
    Store.open(f"{scratch}/caf\udce9", create=True).close()
    with Store.open(scratch / "caf\udce9", read_only=True) as store:
        assert store.topics()


def test_wrong_values_of_open_are_refused_by_errors_of_ours(scratch: Path) -> None:
    def opened(**arguments: Any) -> None:
        Store.open(scratch / "store", **arguments).close()

    right = {
        "read_only": False, "create": True, "config": StoreConfig(), "clock": None, "broker_name": "b",
        "on_corruption": "refuse", "rebuild_views": False,
    }  # fmt: skip
    try_each(opened, right)
    with pytest.raises(NotAStoreError):
        Store.open(scratch / "nothing")


@pytest.mark.parametrize(("kind", "fixed"), [(StoreConfig, {}), (SubscriptionGroup, {"group_name": "g5"})], ids=str)
def test_wrong_settings_are_refused_by_errors_of_ours(store: Store, kind: Any, fixed: dict[str, Any]) -> None:
    for field in kind.__dataclass_fields__:
        for wrong in WRONG:
            try:
                made = kind(**{**fixed, field: wrong})
                if kind is SubscriptionGroup:
                    store.create_group(made, exist_ok=True)
                    store.update_group(made)
            except StoreError:
                pass


def test_wrong_values_of_the_other_public_parts_are_refused_by_errors_of_ours(store: Store, tmp_path: Path) -> None:
    root = store.path

    def leased(**arguments: Any) -> None:
        lease = Lease(arguments["root"], arguments["group"], arguments["name"])
        lease.acquire(arguments["owner"])
        lease.write_topics(arguments["topics"])
        lease.release()

    def staged(**arguments: Any) -> None:
        with StagingArea.for_task(root, **{name: arguments[name] for name in arguments if name != "batch"}) as area:
            area.write(arguments["batch"])

    def timed(**arguments: Any) -> None:
        clock = ClockFile(tmp_path / "clock")
        clock.advance(arguments["duration_ms"])
        clock.set(max(clock(), arguments["time_ms"]) if type(arguments["time_ms"]) is int else arguments["time_ms"])

    ClockFile.create(tmp_path / "clock", 5)
    try_each(leased, {"root": str(root), "group": "g", "name": "n", "owner": "me", "topics": ["T"]})
    try_each(staged, {"write_id": "w", "partition_id": 0, "attempt": 0, "topic": "T", "batch": columns(body=[b"x"])})
    try_each(timed, {"duration_ms": 1, "time_ms": 100})
    try_each(rmq_store.live_leases, {"root": str(root), "group": "g"})
    try_each(rmq_store.recorded_losses, {"path": str(root)})
    try_each(rmq_store.record_losses, {"path": str(root), "losses": []})
    try_each(rmq_store.sweep, {"path": str(root), "write_ids": ["w"], "older_than_ms": 1 << 60, "is_over": None})
    try_each(rmq_store.store_clock, {"root": str(root)})
    for wrong in WRONG:
        with pytest.raises(StoreError):
            rmq_store.backup(root, wrong) if not isinstance(wrong, str | Path) else rmq_store.backup(wrong, wrong)
