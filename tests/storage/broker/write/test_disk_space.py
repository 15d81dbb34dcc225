"""When a store refuses writes. Rules: CleanCommitLogService#isSpaceToDelete."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig, StoreFullError
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.broker.write import disk_space
from rmq_store.broker.write.disk_space import LOOK_INTERVAL_S, usage_percent
from rmq_store.client import ConsumeFromWhere, SimpleConsumer
from rmq_store.format.properties.property_string import DELAY_TIME_LEVEL
from rmq_store.log.core.units import UnitRecord
from rmq_store.protocol.errors import MQBrokerError, ResponseCode


def statvfs(monkeypatch: pytest.MonkeyPatch, blocks: int, free: int, available: int) -> None:
    found = SimpleNamespace(f_blocks=blocks, f_bfree=free, f_bavail=available)
    monkeypatch.setattr(os, "statvfs", lambda path: found)


@pytest.mark.real_disk
@pytest.mark.parametrize(
    ("blocks", "free", "available", "percent"),
    [
        (1000, 1000, 1000, 0),
        (1000, 999, 999, 1),  # rounded up
        (1000, 100, 100, 90),
        (1000, 99, 99, 91),
        (1000, 150, 50, 95),  # what only root may use is no room: 850 of 900
        (1000, 0, 0, 100),
        (0, 0, 0, None),
    ],
)
def test_usage_is_what_a_broker_computes(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, free: int, available: int, percent: int | None
) -> None:
    """UtilAll#getDiskPartitionSpaceUsedPercent."""
    statvfs(monkeypatch, blocks, free, available)
    assert usage_percent(scratch) == percent


@pytest.mark.real_disk
def test_the_fuller_one_of_two_disks_counts(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("commitlog", "consumequeue"):
        (scratch / name).mkdir()
    full = {"commitlog": 500, "consumequeue": 100}
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_blocks=1000, f_bfree=full[path.name], f_bavail=full[path.name])
    )
    assert usage_percent(scratch) == 90


@pytest.mark.real_disk
def test_what_cannot_be_asked_is_unknown(scratch: Path) -> None:
    assert usage_percent(scratch / "missing") is None


def test_the_disk_of_the_host_decides_no_other_test(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the mark `real_disk`: see tests/conftest.py. One test failed on a host whose disk was 76 % full."""
    statvfs(monkeypatch, 1000, 50, 50)
    assert usage_percent(scratch) == 10


def appends(store: Store) -> Iterator[tuple[str, Callable[[], object]]]:
    row = pa.RecordBatch.from_pydict({"body": pa.array([b"x"], pa.binary())})
    yield "send", lambda: store.send(Message("T", b"x"))
    yield "send_all", lambda: store.send_all([Message("T", b"x")])
    yield "append", lambda: store.append(row, "T")
    writer = store._writer
    assert writer is not None
    yield "put", lambda: writer.put(writer._one.encode(Message("T", b"x"), 0, store.clock(), 0)[0])
    yield "append_once", lambda: writer.append_once([], UnitRecord("sink", "once", 2))
    yield "commit_staged", lambda: store.commit_staged([], key="q", value=2)


@pytest.mark.statement("G15")
def test_above_the_warning_level_nothing_is_written_and_everything_is_read(shop: Any) -> None:
    with shop.open() as store:
        store.send(Message("T", b"%08d" % 0))
        store.send(Message("T", b"%08d" % 1, properties={DELAY_TIME_LEVEL: "1"}))
        assert store.commit_staged([], key="q", value=1).committed
        store._writer._space._next_look_s = 0  # type: ignore[union-attr]
        end = store.log_range()
        shop.usage = 91
        for name, append in appends(store):
            with pytest.raises(StoreFullError, match=r"91 % full.*90 %.*diskSpaceWarningLevelRatio.*rmq retention run"):
                append()
            assert store.log_range() == end, name
        shop.now_ms += 1000
        with pytest.raises(StoreFullError):
            store.schedule.deliver_due()
        assert not store.commit_staged([], key="q", value=1).committed  # done before
        assert shop.numbers(store) == [0]
        store.commit_offsets("cg", {("T", 0): 1})
        shop.usage = 90
        assert store.schedule.deliver_due().delivered == 1  # at once
        for name, append in appends(store):
            append()
            assert store.log_range() > end, name
    assert shop.is_sound()


def test_the_level_is_a_setting_that_other_processes_see_and_100_never_refuses(shop: Any) -> None:
    with shop.open() as store, shop.open() as other:
        shop.usage = 95
        with pytest.raises(StoreFullError):
            store.send(Message("T", b"x"))
        other.retention.configure(disk_space_warning_level_ratio=95)
        store.send(Message("T", b"x"))
        other.retention.configure(disk_space_warning_level_ratio=100)
        store._writer._space._next_look_s = 0  # type: ignore[union-attr]
        shop.usage = 100
        store.send(Message("T", b"x"))


def test_an_unknown_usage_refuses_nothing(shop: Any) -> None:
    shop.usage = None
    with shop.open() as store:
        store.send(Message("T", b"x"))


def test_the_disk_is_looked_at_once_a_second(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [1000.0], []
    monkeypatch.setattr(disk_space.real_time, "monotonic", lambda: now[0])
    monkeypatch.setattr(disk_space, "usage_percent", lambda root: looks.append(now[0]) or 10)
    with shop.open() as store:
        for _ in range(30):
            store.send(Message("T", b"x"))
            now[0] += 0.1
    assert looks == pytest.approx([1000.0, 1001.0, 1002.0])
    assert LOOK_INTERVAL_S == 1


def test_a_warning_is_given_once_while_the_disk_fills(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with shop.open() as store:
        for shop.usage in (75, 76, 80, 75, 77):
            store._writer._space._next_look_s = 0  # type: ignore[union-attr]
            store.send(Message("T", b"x"))
    assert [record.args[1] for record in caplog.records if "diskMaxUsedSpaceRatio" in record.msg] == [76, 77]


def test_retention_makes_room_on_a_full_disk_and_keeps_the_markers(shop: Any) -> None:
    """What it must write before it deletes is not refused."""
    with shop.open() as store:
        store.commit_staged([], key="q", value=7)
        shop.fill(store, 4)
        shop.usage = 99
        store._writer._space._next_look_s = 0  # type: ignore[union-attr]
        with pytest.raises(StoreFullError):
            store.send(Message("T", b"x"))
        report = store.retention.run()
        assert len(report.removed) == 3
        assert report.units == 1
        assert store.last_unit("sink", "q") == 7


def test_a_client_is_answered_service_not_available(shop: Any) -> None:
    with shop.open() as store:
        store.create_topic("T", queue_count=1)
        broker = LocalBroker("shop-a", store)
        shop.usage = 91
        with pytest.raises(MQBrokerError) as caught:
            broker.send(Message("T", b"x"), 0, 3000, "pg")
        assert caught.value.response_code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_consumer_goes_on_receiving(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    with shop.open() as store:
        store.send(Message("T", b"now"))
        store.send(Message("T", b"later", properties={DELAY_TIME_LEVEL: "1"}))
        store._writer._space._next_look_s = 0  # type: ignore[union-attr]
        shop.now_ms += 1000
        shop.usage = 91
        first, at_once = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, timedelta(0)
        with SimpleConsumer("cg", store, {"T": "*"}, await_duration=at_once, consume_from_where=first) as consumer:
            received = consumer.receive(16, timedelta(seconds=30))
            assert [view.body for view in received] == [b"now"]
            assert "delivers no delayed messages" in caplog.text
            shop.usage = 50
            received = consumer.receive(16, timedelta(seconds=30))
            assert [view.body for view in received] == [b"later"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB; needs the right to mount one."""
    target = tmp_path / "disk"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(target)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    yield target
    subprocess.run(["umount", "-l", str(target)], check=True)


@pytest.mark.real_disk
def test_a_real_disk_fills_is_refused_cleaned_and_written_again(small_disk: Path, another_hour: str) -> None:
    config = StoreConfig(
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=64,
        max_index_num=1000,
        delete_commit_log_files_interval=0,
        delete_when=another_hour,
    )
    with Store.open(small_disk / "store", create=True, config=config) as store:
        store.commit_staged([], key="q", value=7)
        sent = 0
        with pytest.raises(StoreFullError, match=r"9[1-9] % full"):
            while sent < 1000:
                store._writer._space._next_look_s = 0  # type: ignore[union-attr]
                store.send(Message("T", b"." * 8000))
                sent += 1
        assert 300 < sent < 1000
        report = store.retention.run()  # nothing is expired: the disk is what matters
        assert report.plan.trigger == "disk"
        assert len(report.removed) == 10
        store.send(Message("T", b"." * 8000))
        assert store.last_unit("sink", "q") == 7
