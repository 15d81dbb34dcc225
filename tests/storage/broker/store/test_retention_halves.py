"""Half messages of open transactions outlive the segments that retention deletes, whoever runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Message, Store
from rmq_store.broker.transactions.transactions import Transactions
from rmq_store.errors import CorruptRecordError
from rmq_store.format.batches.frame_encoder import EncodeOptions, encode_batch
from rmq_store.format.text.host import Host
from rmq_store.log.append.append import append, append_lock
from rmq_store.protocol.results import SendResult

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
BROKER = Host.parse("10.1.2.3:10911")


def half(store: Store, body: bytes) -> SendResult:
    return store.transactions.prepare(Message("T", body), 0, "pg")


def end(store: Store, sent: SendResult, *, commit: bool = True) -> bool:
    found = store.transactions.end("pg", sent.queue_offset, sent.commit_log_offset, commit=commit)
    return found is not None


def broker_half(store: Store, key: str) -> None:
    """A half message as a broker leaves it."""
    properties = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": "pg", "REAL_TOPIC": "T", "REAL_QID": "0"}
    rows = pa.RecordBatch.from_pydict({
        "topic": [HALF], "tags": [""], "body": [b"of a broker"],
        "properties": pa.array([[*properties.items()]], pa.map_(pa.string(), pa.string())),
    })  # fmt: skip
    options = EncodeOptions(
        store_host=BROKER, born_host=BROKER, now_ms=store.clock(), crc_property=store._log.crc_property,
        index_tags=store._log.index_tags,
    )  # fmt: skip
    with append_lock(store._log):
        append(store._log, [encode_batch(rows, queue_ids=np.zeros(1, np.int32), options=options)])


def test_a_pending_half_message_is_stored_again_and_can_be_committed(shop: Any) -> None:
    with shop.open() as store:
        waits, ended = half(store, b"77770001"), half(store, b"77770002")
        assert end(store, ended, commit=False)
        shop.fill(store, 4)
        old, log_end = shop.bases()[:2], store.log_range()[1]
        shop.age(100)
        report = store.retention.run(manual=True)
        assert report.removed[:2] == tuple(old) and report.half_messages == 1
        (again,) = store.transactions.pending()
        assert again.transaction_id == waits.msg_id and again.commit_log_offset >= log_end
        assert (again.check_times, again.is_ours) == (0, True)
        assert store.transactions.end("pg", again.queue_offset, again.commit_log_offset, commit=True) is not None
        assert [number for number in shop.numbers(store) if number > 77770000] == [77770001]
    with shop.open() as store:
        assert store.transactions.pending() == []
    assert shop.is_sound()


def test_a_pass_that_deletes_nothing_of_it_stores_no_half_message(shop: Any) -> None:
    with shop.open() as store:
        shop.fill(store, 3)
        half(store, b"77770001")
        shop.age(100, *shop.bases()[:1])
        assert store.retention.run(manual=True).half_messages == 0


@pytest.mark.parametrize("usage", [86, 99])
def test_a_full_disk_is_no_reason_to_lose_half_messages(shop: Any, usage: int) -> None:
    with shop.open() as store:
        half(store, b"77770001")
        shop.fill(store, 3)
        shop.usage = usage
        store._writer._space._next_look_s = 0.0
        report = store.retention.run()
        assert report.removed and report.half_messages == 1
        assert len(store.transactions.pending()) == 1


def test_a_half_message_of_a_broker_is_given_up_and_can_be_resumed(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    with shop.open() as store:
        broker_half(store, "U-1")
        shop.fill(store, 3)
        shop.age(100)
        assert store.retention.run(manual=True).half_messages == 1
        assert any("U-1" in record.message for record in caplog.records)
        assert store.transactions.pending() == []
        (given_up,) = store.transactions.given_up()
        assert given_up.msg_id == "U-1"
        assert store.transactions.resume(given_up)
        assert [one.transaction_id for one in store.transactions.pending()] == ["U-1"]


def test_a_damaged_half_message_keeps_no_segment(
    shop: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with shop.open() as store:
        damaged, other = half(store, b"77770001"), half(store, b"77770002")
        shop.fill(store, 3)
        shop.age(100)
        read = Transactions.half_message

        def half_message(self: Transactions, one: Any) -> Any:
            if one.transaction_id == damaged.msg_id:
                raise CorruptRecordError("000", one.commit_log_offset, "damaged")
            return read(self, one)

        monkeypatch.setattr(Transactions, "half_message", half_message)
        report = store.retention.run(manual=True)
        assert report.removed and report.half_messages == 1
        assert any("cannot be kept" in record.message for record in caplog.records)
        assert [one.transaction_id for one in store.transactions.pending()] == [other.msg_id]


def test_a_pass_that_is_killed_before_it_deletes_leaves_one_half_message(shop: Any) -> None:
    with shop.open() as store:
        sent = half(store, b"77770001")
        shop.fill(store, 3)
    shop.age(100)
    script = """import os, signal, sys
from rmq_store import Store
from rmq_store.log import retention as mechanics
mechanics.make_removable = lambda log, end: os.kill(os.getpid(), signal.SIGKILL)
store = Store.open(sys.argv[1], clock=lambda: int(sys.argv[2]))
store.retention.run(manual=True)
"""
    done = subprocess.run([sys.executable, "-c", script, str(shop.root), str(shop.now_ms)], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    with shop.open() as store:
        assert [one.transaction_id for one in store.transactions.pending()] == [sent.msg_id]
        assert store.retention.run(manual=True).removed
        (again,) = store.transactions.pending()
        assert store.transactions.end("pg", again.queue_offset, again.commit_log_offset, commit=True) is not None
        assert shop.numbers(store).count(77770001) == 1
    assert shop.is_sound()
