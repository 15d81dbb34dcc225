"""The store as its callers see it: what is there after which call, for whom, and how durable."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmq_store
from rmq_store import (
    LeaseHeldError,
    Message,
    OffsetOutOfRangeError,
    Store,
    StoreConfig,
    StoreFailedError,
    StoreLockedError,
    UnknownTopicError,
    UsageError,
)
from rmq_store.broker.store import open_store
from rmq_store.clock import ClockFile
from rmq_store.files import durable
from rmq_store.log.recovery import opening
from rmq_store.verify import verify_store

TOPIC = "Shop"


def rows_of(store: Store, topic: str = TOPIC, **options: object) -> list[dict]:
    return [
        row
        for queue_id, (first, last) in store.queue_ranges(topic).items()
        for batch in store.read(topic, queue_id, first, last, **options)
        for row in batch.to_pylist()
    ]


@pytest.fixture
def root(scratch: Path, small: StoreConfig) -> Path:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic(TOPIC, queue_count=2)
    return scratch / "store"


@pytest.mark.parametrize("name", ["rmq_sys_mine", "SCHEDULE_TOPIC_XXXX", "TBW102"])
def test_names_of_system_topics_are_not_for_users(scratch: Path, name: str) -> None:
    with Store.open(scratch / "s", create=True) as store, pytest.raises(UsageError, match="system topic"):
        store.create_topic(name, exist_ok=True)


def test_a_message_sent_can_be_read_at_once_by_everybody_and_after_a_reopen(root: Path) -> None:
    with Store.open(root) as store, Store.open(root) as second, Store.open(root, read_only=True) as reader:
        sent = store.send(
            Message(
                TOPIC, b"tea", tags="TagA", keys=["K1", "K2"], properties={"note": "händig ☕"}, flag=-7, queue_id=1
            )
        )
        assert (sent.topic, sent.queue_id, sent.queue_offset, sent.commit_log_offset) == (TOPIC, 1, 0, 0)
        for each in (store, second, reader):
            (row,) = rows_of(each)
            assert (row["body"], row["tags"], row["keys"], row["flag"]) == (b"tea", "TagA", "K1 K2", -7)
            assert dict(row["properties"]) == {
                "UNIQ_KEY": sent.msg_id, "KEYS": "K1 K2", "TAGS": "TagA", "note": "händig ☕",
            }  # fmt: skip
            assert (row["msgId"], row["commitLogOffset"], row["brokerName"]) == (sent.msg_id, 0, "rmq-embedded")
    with Store.open(root) as store:
        assert len(rows_of(store)) == 1
    assert verify_store(root).status == "clean"


def test_a_new_store_has_an_identity_and_keeps_its_settings(scratch: Path) -> None:
    config = StoreConfig(mapped_file_size_commit_log=1 << 20, broker_name="shop-a", broker_host="10.0.0.7:20911")
    with Store.open(scratch / "deep" / "store", create=True, config=config) as store:
        identity = store.identity
        assert len(identity) == 36
        store.send(Message(TOPIC, b"x"))
    with Store.open(scratch / "deep" / "store", create=True) as store:
        assert (store.identity, store.config, store.broker_name) == (identity, config, "shop-a")
        (row,) = rows_of(store)
        assert (row["brokerName"], row["storeHost"]) == ("shop-a", "10.0.0.7:20911")
    assert (scratch / "deep").stat().st_mode & 0o777 == 0o700


CREATE = """
import sys, time
from rmq_store import Message, Store, StoreConfig
config = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=1000, max_index_num=1000)
print("ready", flush=True)
moments = [float(moment) for moment in sys.stdin.readline().split()]
for number, moment in enumerate(moments):
    while time.monotonic() < moment:
        pass
    with Store.open(f"{sys.argv[1]}/{number}", create=True, config=config) as store:
        store.send(Message("Made", b"x"))
        print(store.identity, flush=True)
"""


def test_processes_that_create_one_store_at_once_all_get_the_same(scratch: Path) -> None:
    rounds, count = 15, 3
    environment = {**os.environ, "PYTHONPATH": str(Path(rmq_store.__file__).parents[1])}
    command, pipe = [sys.executable, "-c", CREATE, str(scratch)], subprocess.PIPE
    workers = [
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(count)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        first_s = time.monotonic() + 0.05
        moments = " ".join(str(first_s + 0.1 * number) for number in range(rounds))
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{moments}\n")
            worker.stdin.flush()
        answers = [_answer(worker) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    for number in range(rounds):
        with Store.open(scratch / str(number), read_only=True) as store:
            assert {answer[number] for answer in answers} == {store.identity}
            assert len(rows_of(store, "Made")) == count
        assert verify_store(scratch / str(number)).status == "clean"


def _answer(worker: subprocess.Popen[str]) -> list[str]:
    output, error = worker.communicate(timeout=60)
    assert worker.returncode == 0, error
    return output.split()


def test_the_clock_file_of_a_store_rules_its_store_timestamps(root: Path) -> None:
    clock = ClockFile.create(root / "pyrmq" / "clock", 1_000_000)
    with Store.open(root) as store:
        store.send(Message(TOPIC, b"early", queue_id=0))
        clock.advance(5000)
        store.append(pa.record_batch({"body": [b"late"], "queueId": pa.array([0], pa.int32())}), topic=TOPIC)
        assert [store.store_timestamp(TOPIC, 0, n) for n in range(2)] == [1_000_000, 1_005_000]
        assert store.offset_by_time(TOPIC, 0, 1_002_000) == 1
        with Store.open(root) as second:
            second.send(Message(TOPIC, b"from elsewhere", queue_id=0))
        assert store.store_timestamp(TOPIC, 0, 2) == 1_005_000


def test_topics_are_made_on_first_use_unless_that_is_switched_off(scratch: Path, small: StoreConfig) -> None:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.send(Message("Fresh", b"x"))
        store.append(pa.record_batch({"topic": ["Fresher"], "body": [b"x"]}))
        assert {store.topic(name).write_queue_nums for name in ("Fresh", "Fresher")} == {4}
    strict = StoreConfig(auto_create_topic_enable=False)
    with Store.open(scratch / "strict", create=True, config=strict) as store:
        with pytest.raises(UnknownTopicError, match="Fresh"):
            store.send(Message("Fresh", b"x"))
        with pytest.raises(UnknownTopicError, match="Fresh"):
            store.append(pa.record_batch({"topic": ["Fresh"], "body": [b"x"]}))
        assert "Fresh" not in store.topics()
        assert store.log_range() == (0, 0)


def test_an_append_of_nothing_does_nothing(root: Path) -> None:
    with Store.open(root) as store:
        result = store.append(pa.record_batch({"body": pa.array([], pa.binary())}), topic=TOPIC)
        assert (result.row_count, result.start_offset, result.end_offset) == (0, 0, 0)


@pytest.mark.statement("G02")
def test_one_batch_may_be_larger_than_segments_and_encoding_steps(scratch: Path, small: StoreConfig) -> None:
    count = 70_000
    numbers = pa.array(range(count)).cast(pa.string()).cast(pa.binary())
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic(TOPIC, queue_count=3)
        result = store.append(pa.record_batch({"body": numbers}), topic=TOPIC)
        assert result.row_count == count
        assert len(list((scratch / "store" / "commitlog").iterdir())) > 5
        rows = rows_of(store, columns=["body", "queueOffset", "queueId"])
        assert sorted(int(row["body"]) for row in rows) == list(range(count))
        for queue_id in range(3):  # rows keep their order within a queue
            bodies = [int(row["body"]) for row in rows if row["queueId"] == queue_id]
            assert bodies == sorted(bodies)
    assert verify_store(scratch / "store").status == "clean"


def test_batches_of_a_read_stay_in_order_and_restricted_to_the_columns_asked_for(root: Path) -> None:
    bodies = [b"%06d" % n * 100 for n in range(4000)]
    with Store.open(root) as store:
        store.append(pa.record_batch({"body": bodies, "queueId": pa.array([1] * 4000, pa.int32())}), topic=TOPIC)
        batches = list(store.read(TOPIC, 1, 100, 3900, columns=["queueOffset", "body"]))
        assert len(batches) > 1  # one for each segment at least
        assert {tuple(batch.schema.names) for batch in batches} == {("queueOffset", "body")}
        table = pa.Table.from_batches(batches)
        assert table.column("queueOffset").to_pylist() == list(range(100, 3900))
        assert table.column("body").to_pylist() == bodies[100:3900]
        with pytest.raises(OffsetOutOfRangeError) as raised:
            store.read(TOPIC, 1, 0, 4001)
        error = raised.value
        assert (error.requested, error.minimum, error.maximum) == (4001, 0, 4000)


@pytest.mark.statement("G01", "G11")
def test_under_sync_flush_a_message_is_on_disk_before_send_returns(
    scratch: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StoreConfig(
        **{name: getattr(small, name) for name in small.geometry().__slots__}, flush_disk_type="SYNC_FLUSH"
    )
    synced: list[str] = []
    with Store.open(scratch / "store", create=True, config=config) as store:
        store.create_topic(TOPIC, queue_count=1)
        monkeypatch.setattr(durable, "hook", lambda operation, path: synced.append(f"{operation} {path}"))
        for call in (
            lambda: store.send(Message(TOPIC, b"x")),
            lambda: store.append(pa.record_batch({"body": [b"y"]}), topic=TOPIC),
            lambda: store.commit_staged([], key="q", value=1),
        ):
            synced.clear()
            call()
            assert any(entry.startswith("fsync ") and "/commitlog/" in entry for entry in synced)
            with Store.open(store.path, read_only=True) as reader:
                assert reader.log_range() == store.log_range()
        assert [row["body"] for row in rows_of(store, columns=["body"])] == [b"x", b"y"]


def test_under_sync_flush_nothing_is_shown_that_a_failed_flush_left_unknown(
    scratch: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StoreConfig(
        **{name: getattr(small, name) for name in small.geometry().__slots__},
        flush_disk_type="SYNC_FLUSH",
        flush_interval_commit_log=100_000,
    )

    def fail(operation: str, path: str) -> None:
        if operation == "fsync" and "/commitlog/" in path:
            raise OSError(5, "Input/output error")

    store = Store.open(scratch / "store", create=True, config=config)
    store.create_topic(TOPIC, queue_count=1)
    store.send(Message(TOPIC, b"safe"))
    monkeypatch.setattr(durable, "hook", fail)
    with pytest.raises(StoreFailedError):
        store.send(Message(TOPIC, b"unknown"))
    monkeypatch.setattr(durable, "hook", None)
    assert [row["body"] for row in rows_of(store)] == [b"safe"]
    with pytest.raises(StoreFailedError, match="writes are refused"):
        store.send(Message(TOPIC, b"refused"))
    with pytest.raises(StoreFailedError):
        store.close()
    with Store.open(scratch / "store") as again:
        assert [row["body"] for row in rows_of(again)][:1] == [b"safe"]
        again.send(Message(TOPIC, b"works again"))
    assert verify_store(scratch / "store").status == "clean"


def test_threads_of_one_store_send_and_append_without_losing_anything(root: Path) -> None:
    each, failures, interval_s = 100, [], sys.getswitchinterval()

    def work(store: Store, name: int) -> None:
        try:
            for n in range(each):
                if n % 10 == 0:
                    store.append(pa.record_batch({"body": [b"%d-%d-b" % (name, n)] * 3}), topic=TOPIC)
                else:
                    store.send(Message(TOPIC, b"%d-%d" % (name, n)))
                rows_of(store, columns=["queueOffset"]) if n % 25 == 0 else None
        except Exception as error:
            failures.append(error)

    with Store.open(root) as store:
        threads = [threading.Thread(target=work, args=(store, name)) for name in range(4)]
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval_s)
        assert failures == []
        bodies = [row["body"] for row in rows_of(store, columns=["body"])]
        assert len(bodies) == 4 * (each * 9 // 10 + each // 10 * 3)
        assert len(set(bodies)) == 4 * each
        assert len({row["msgId"] for row in rows_of(store, columns=["msgId"])}) == len(bodies)
    assert verify_store(root).status == "clean"


def test_a_reader_with_an_older_end_does_not_mislead_a_writer_in_another_thread(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader leaves a hint of where the queue ended for it, just when a writer has proved its own."""
    with Store.open(root) as store:
        old_end = store.send(Message(TOPIC, b"first", queue_id=0)) and store.log_range()[1]
        store.send(Message(TOPIC, b"second", queue_id=0))
        log, asked = store._log, store._log.is_record_of

        def interrupted(*record: object) -> bool:
            answer = asked(*record)
            monkeypatch.undo()
            assert log.queue_max(TOPIC, 0, old_end) == 1
            return answer

        monkeypatch.setattr(log, "is_record_of", interrupted)
        assert store.send(Message(TOPIC, b"third", queue_id=0)).queue_offset == 2
        assert [row["body"] for row in rows_of(store)] == [b"first", b"second", b"third"]


def test_a_store_that_nobody_closed_is_recovered_by_the_next_opener(
    root: Path, working_copy: Callable[[Path], Path]
) -> None:
    with Store.open(root) as store:
        for n in range(50):
            store.send(Message(TOPIC, b"%d" % n, keys=f"K{n}"))
        abandoned = working_copy(root)  # as if all processes had died here, on another machine
    with Store.open(abandoned, read_only=True) as reader:
        assert len(rows_of(reader)) == 50
    with Store.open(abandoned) as again:
        assert again.recovery is not None
        assert (again.recovery.trust, again.recovery.removed_bytes) == ("COPY", 0)
        assert len(rows_of(again)) == 50
    report = verify_store(abandoned)
    assert (report.status, report.messages, report.unindexed_keys) == ("clean", 50, 0)


def test_who_makes_a_store_beside_another_one_keeps_its_wishes_and_the_report_of_its_recovery(
    root: Path, small: StoreConfig, scratch: Path, working_copy: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process made the store with other settings and died, between our look for settings and our recovery. The
    store is then opened again, with the settings that hold. It forgot what was asked for, and what the recovery found.
    """
    shutil.rmtree(root)
    made_with = replace(small, flush_disk_type="SYNC_FLUSH")
    with Store.open(root, create=True, config=made_with) as store:
        store.create_topic(TOPIC, queue_count=1)
        store.send(Message(TOPIC, b"theirs"))
        abandoned = working_copy(root)
    settings_of, recover = open_store.settings_that_hold, opening.open_for_writing
    wishes = []

    def settings_before_the_other_came(at: Path, known: object, *given: Any, **more: Any) -> StoreConfig:
        found = settings_of(at, known, *given, **more)
        if known is None:
            shutil.copytree(abandoned, at, dirs_exist_ok=True)
        return found

    def recorded(*log: Any, **asked: Any) -> object:
        wishes.append((asked["options"].keep, asked["options"].rebuild))
        return recover(*log, **asked)

    monkeypatch.setattr(open_store, "settings_that_hold", settings_before_the_other_came)
    monkeypatch.setattr(opening, "open_for_writing", recorded)
    with Store.open(scratch / "new", create=True, config=small, on_corruption="keep", rebuild_views=True) as store:
        assert store.config.flush_disk_type == "SYNC_FLUSH"
        assert store.recovery is not None
        assert (store.recovery.record_count, store.recovery.removed_bytes) == (1, 0)
        assert (store.recovery.trust, wishes) == ("COPY", [(True, True)] * 2)
    monkeypatch.setattr(opening, "open_for_writing", recover)
    shutil.rmtree(scratch / "new")
    with Store.open(scratch / "new", create=True, config=small) as store:
        assert store.recovery is not None
        assert store.recovery.trust == "COPY", "the second recovery found a store that was stopped cleanly"
        assert [row["body"] for row in rows_of(store)] == [b"theirs"]


@pytest.mark.statement("G02")
def test_views_deleted_by_hand_come_back_as_they_were(root: Path, working_copy: Callable[[Path], Path]) -> None:
    with Store.open(root) as store:
        columns = {"body": [b"x" * 300] * 9000, "keys": [f"K{n}" for n in range(9000)], "tags": ["A", "B", None] * 3000}
        store.append(pa.record_batch(columns), topic=TOPIC)
    bare = working_copy(root)
    for name in ("consumequeue", "index"):
        shutil.rmtree(bare / name)
    with Store.open(bare):
        pass
    for name in ("consumequeue", "index"):
        files = {path.relative_to(root): path.read_bytes() for path in (root / name).rglob("*") if path.is_file()}
        assert len(files) > 2
        assert {
            path.relative_to(bare): path.read_bytes() for path in (bare / name).rglob("*") if path.is_file()
        } == files


def test_a_reader_of_a_store_at_rest_sees_more_only_after_a_refresh(root: Path) -> None:
    with Store.open(root, read_only=True) as reader:
        assert rows_of(reader) == []
        with Store.open(root) as store:
            store.send(Message(TOPIC, b"x"))
        reader.refresh()
        assert len(rows_of(reader)) == 1


BROKER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
file.write(b"lock")
file.flush()
print("running", flush=True)
sys.stdin.read()
"""


def test_a_broker_on_the_store_keeps_writers_out_and_lets_readers_in(root: Path) -> None:
    """As a broker does: a POSIX lock on byte 0 of `lock`, where it writes `lock`."""
    with Store.open(root) as store:
        store.send(Message(TOPIC, b"x"))
    command = [sys.executable, "-c", BROKER, str(root / "lock")]
    broker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline() == "running\n"
        with Store.open(root, read_only=True) as reader:
            assert len(rows_of(reader)) == 1
        with pytest.raises(StoreLockedError, match=rf"process {broker.pid} holds .*read_only=True") as raised:
            Store.open(root)
        assert raised.value.pid == broker.pid
    finally:
        broker.communicate(timeout=10)
    with Store.open(root) as store:
        assert store.recovery is not None
        assert store.recovery.trust.startswith("BROKER")
        assert len(rows_of(store)) == 1


def test_writers_keep_a_broker_out(root: Path) -> None:
    with Store.open(root), (root / "lock").open("r+b") as file, pytest.raises(BlockingIOError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def test_a_group_on_a_topic_belongs_to_one_holder_at_a_time(root: Path) -> None:
    with Store.open(root) as store, Store.open(root) as second:
        lease = store.lease("cg_bills", TOPIC, "query bills, pid 1")
        with pytest.raises(LeaseHeldError, match="query bills, pid 1"):
            second.lease("cg_bills", TOPIC, "query two")
        second.lease("cg_other", TOPIC, "query two").release()
        lease.release()
        second.lease("cg_bills", TOPIC, "query two").release()


@pytest.mark.statement("G08")
def test_offsets_of_groups_are_kept_apart_and_survive(root: Path) -> None:
    with Store.open(root) as store:
        store.commit_offsets("cg_a", {(TOPIC, 0): 5, (TOPIC, 1): 6})
        store.commit_offsets("cg_a", {(TOPIC, 1): 2})
        store.commit_offsets("cg_b", {(TOPIC, 0): 1})
        with Store.open(root, read_only=True) as reader:
            assert reader.committed_offsets("cg_a") == {(TOPIC, 0): 5, (TOPIC, 1): 2}
    with Store.open(root) as store:
        assert store.committed_offsets("cg_b") == {(TOPIC, 0): 1}
        assert store.committed_offsets("cg_none") == {}
        assert {"cg_a", "cg_b"} <= store.all_committed_offsets().keys()


def test_a_forked_child_cannot_use_the_store_of_its_parent(root: Path) -> None:
    with Store.open(root) as store:
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                store.send(Message(TOPIC, b"from the child"))
                os.write(tell, b"sent")
            except BaseException as error:
                os.write(tell, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(tell)
        with os.fdopen(told) as answer:
            assert answer.read() == f"UsageError: {root} is closed in this process; open it again"
        store.send(Message(TOPIC, b"x"))


def test_the_settings_of_a_store_are_its_own(scratch: Path, small: StoreConfig) -> None:
    with Store.open(scratch / "s", create=True, config=replace(small, flush_disk_type="SYNC_FLUSH")) as store:
        identity = store.identity
    with Store.open(scratch / "s", config=StoreConfig(max_hash_slot_num=small.max_hash_slot_num)) as store:
        assert (store.config.flush_disk_type, store.identity) == ("SYNC_FLUSH", identity)
    with pytest.raises(UsageError, match="enabled_append_prop_crc"):
        Store.open(scratch / "s", config=StoreConfig(enabled_append_prop_crc=False))


def test_a_send_after_another_thread_has_closed_the_store_writes_nothing(scratch: Path, small: StoreConfig) -> None:
    root = scratch / "s"
    at_the_clock, go_on = threading.Event(), threading.Event()
    outcome: list[BaseException] = []

    def clock() -> int:
        if threading.current_thread() is sender:
            at_the_clock.set()
            go_on.wait(60)
        return 1_700_000_000_000

    def send() -> None:
        with contextlib.suppress(UsageError):
            try:
                store.send(Message("T", b"late"))
            except UsageError as error:
                outcome.append(error)
                raise

    sender = threading.Thread(target=send)
    store = Store.open(root, create=True, config=small, clock=clock)
    store.create_topic("T", queue_count=1)
    sender.start()
    assert at_the_clock.wait(60)
    store.close()
    go_on.set()
    sender.join()
    assert "closed" in str(outcome[0])
    with Store.open(root, read_only=True) as reader:
        assert reader.queue_range("T", 0).max_offset == 0
