"""The messages of `send_all` and `send_batch` are stored as single ones and as rows are, to the byte; and all of them,
or none.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_store import Message, Store
from rmq_store.broker.write import writer
from rmq_store.errors import StoreError, StoreFullError, UsageError
from rmq_store.files import durable
from rmq_store.format.bytes import native
from rmq_store.format.frames.frame_check import BLANK_MAGIC
from rmq_store.format.properties.property_string import encode_properties
from rmq_store.log.views.consume_queue import ConsumeQueue
from rmq_store.protocol.results import result_of_batch

if TYPE_CHECKING:
    from .conftest import CountDown, Lab

TOPICS = ("Alpha", "Beta")
NOW_MS = 1_700_000_000_000
OPERATIONS_MAX = 400


def messages(lab: Lab, count: int, *, delayed: bool = False) -> list[Message]:
    numbers = range(lab.written, lab.written + count)
    lab.written += count
    return [
        Message(
            TOPICS[number % 2], b"%08d" % number + b"." * 300, tags=f"Tag{number % 3}", keys=f"K{number} L{number % 5}",
            properties={"UNIQ_KEY": f"{number:032X}"}, queue_id=number // 2 % 2,
            delay_level=number % 3 if delayed else 0,
        )
        for number in numbers
    ]  # fmt: skip


def test_the_bytes_are_those_of_messages_that_are_sent_one_by_one(lab: Lab, tmp_path: Path) -> None:
    sent = messages(lab, 60, delayed=True)
    with lab.open(clock=lambda: NOW_MS) as store:
        one_by_one = [store.send(message, as_given=True) for message in sent]
    found = lab.files()
    lab.root = tmp_path / "other"
    with lab.open(clock=lambda: NOW_MS) as store:
        together = store.send_all(sent, as_given=True)
    assert together == one_by_one
    assert found == lab.files()
    assert len([name for name in found if name.startswith("commitlog")]) > 2
    assert b"".join(found.values()).count(BLANK_MAGIC.to_bytes(4, "big", signed=True)) > 2
    assert lab.verify().status == "clean"


def batch_body(messages: list[Message]) -> bytes:
    """As a client encodes them."""
    parts = []
    for message in messages:
        properties = encode_properties(message.stored_properties())
        head = struct.pack(">iiiii", 22 + len(message.body) + len(properties), 0, 0, message.flag, len(message.body))
        parts += [head, message.body, len(properties).to_bytes(2, "big"), properties]
    return b"".join(parts)


def in_one_queue(lab: Lab, count: int) -> list[Message]:
    return [replace(each, topic="Alpha", queue_id=1, born_timestamp_ms=NOW_MS) for each in messages(lab, count)]


@pytest.mark.parametrize("way", ["native", "python"])
def test_a_batch_is_stored_as_its_messages_are_one_by_one(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    sent = in_one_queue(lab, 60)
    with lab.open(clock=lambda: NOW_MS) as store:
        one_by_one = [store.send(message, as_given=True) for message in sent]
    found = lab.files()
    lab.root = tmp_path / "other"
    if way == "python":
        monkeypatch.setattr(native, "LOADED", False)
    elif native.LOADED:
        monkeypatch.setattr(writer, "read_batch", None)
    with lab.open(clock=lambda: NOW_MS) as store:
        batches = [
            store.send_batch("Alpha", batch_body(part), 1, born_timestamp_ms=NOW_MS) for part in (sent[:40], sent[40:])
        ]
    assert batches == [result_of_batch(one_by_one[:40]), result_of_batch(one_by_one[40:])]
    assert found == lab.files()
    assert len([name for name in found if name.startswith("commitlog")]) > 2
    assert lab.verify().status == "clean"


def test_a_batch_with_a_message_that_waits_is_stored_message_by_message(lab: Lab) -> None:
    ordinary, delayed = in_one_queue(lab, 2)
    with lab.open() as store:
        sent = store.send_batch("Alpha", batch_body([ordinary, replace(delayed, delay_level=3)]), 1)
        assert len(sent.msg_id.split(",")) == 2 and sent.recall_handle is None
        assert store.queue_range("Alpha", 1) == (0, 1)
        assert store.queue_range("SCHEDULE_TOPIC_XXXX", 2) == (0, 1)
    assert lab.verify().status == "clean"


def test_a_batch_that_cannot_be_stored_is_refused_whole(lab: Lab) -> None:
    good, bad = in_one_queue(lab, 2)
    too_large = replace(bad, body=bytes(9000))
    with lab.open() as store:
        for body, words in (
            (b"", "a batch without a message"),
            (batch_body([good, bad])[:-1], f"torn at byte {len(batch_body([good]))}"),
            (batch_body([good, too_large]), "does not fit a segment"),
        ):
            with pytest.raises(UsageError, match=words):
                store.send_batch("Alpha", body, 1)
        assert store.log_range() == (0, 0)


@pytest.mark.parametrize("failure", ["full disk", "interrupt"])
def test_a_batch_whose_kth_operation_fails_leaves_the_store_as_it_was(
    lab: Lab, fail_at: Callable[..., CountDown], failure: str
) -> None:
    def act() -> None:
        if failure == "full disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise KeyboardInterrupt

    with lab.open() as store:
        store.send_batch("Alpha", batch_body(in_one_queue(lab, 7)), 1)
        for k in range(1, OPERATIONS_MAX):
            before, log_range, body = lab.files(), store.log_range(), batch_body(in_one_queue(lab, 30))
            hook = fail_at(k, act)
            try:
                store.send_batch("Alpha", body, 1)
            except (StoreError, KeyboardInterrupt) as error:
                assert failure != "full disk" or isinstance(error, StoreFullError)
            durable.hook = None
            if not hook.reached:
                break
            assert store.log_range() == log_range
            assert lab.files() == before
        assert 5 < k < OPERATIONS_MAX - 1
        assert store.queue_range("Alpha", 1) == (0, 37)
    assert lab.verify().status == "clean"


def test_queues_go_on_where_they_are_whoever_has_written_meanwhile(lab: Lab) -> None:
    with lab.open() as store, lab.open() as other:
        for opened in (store, other, other, store, store):
            opened.send_all(messages(lab, 7))
            opened.send(messages(lab, 1)[0])
        assert lab.numbers(store) == lab.numbers(other) == list(range(40))
    assert lab.verify().status == "clean"


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("failure", ["full disk", "no memory", "interrupt"])
def test_an_append_whose_kth_operation_fails_leaves_the_store_as_it_was(
    lab: Lab, fail_at: Callable[..., CountDown], failure: str, every: int
) -> None:
    def act() -> None:
        if failure == "full disk":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise MemoryError if failure == "no memory" else KeyboardInterrupt

    with lab.open() as store:
        store.send_all(messages(lab, 7))
        for k in range(1, OPERATIONS_MAX, every):
            before, seen, log_range, written = lab.files(), lab.numbers(store), store.log_range(), lab.written
            hook = fail_at(k, act)
            try:
                store.send_all(messages(lab, 30))
            except (StoreError, MemoryError, KeyboardInterrupt) as error:
                assert failure != "full disk" or isinstance(error, StoreFullError)
            durable.hook = None
            if not hook.reached:
                break
            assert (lab.numbers(store), store.log_range()) == (seen, log_range)
            assert lab.files() == before
            lab.written = written
            store.send_all(messages(lab, 2))
            assert lab.numbers(store) == list(range(lab.written))
        assert 20 < k < OPERATIONS_MAX - 1
    assert lab.verify().status == "clean"


def test_nobody_sees_some_of_the_messages(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    put = ConsumeQueue.put

    def putting(*given: object) -> None:
        put(*given)  # type: ignore[arg-type]
        seen.append(lab.numbers(reader))

    with lab.open() as store, Store.open(lab.root, read_only=True) as reader:
        store.send_all(messages(lab, 4))
        monkeypatch.setattr(ConsumeQueue, "put", putting)
        store.send_all(messages(lab, 8))
        assert seen == [[0, 1, 2, 3]] * 4
        assert lab.numbers(reader) == list(range(12))


def test_one_message_that_cannot_be_stored_refuses_all_and_is_named(lab: Lab) -> None:
    with lab.open() as store:
        good = messages(lab, 2)
        too_large = Message("Alpha", bytes(9000), queue_id=0)
        for bad, words in ((too_large, "does not fit a segment"), (Message("Alpha", b"x", tags="\x01"), "message 2: ")):
            with pytest.raises(UsageError, match=words):
                store.send_all([*good, bad])
        assert store.log_range() == (0, 0)
        assert store.send_all([]) == []
