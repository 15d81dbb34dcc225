"""Rules of the query service that only a contrived store shows: each test fails if its rule is taken out.

Sources: as test_query.py, whose stores these are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Message, OffsetOutOfRangeError, Store, StoreConfig, StoredMessage, UsageError
from rmq_store.broker.read import key_search
from rmq_store.broker.read import query as query_module
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.read.records import FrameRun
from rmq_store.errors import CorruptIndexError, CorruptQueueError, CorruptRecordError
from rmq_store.format.views.consume_queue import ENTRY_BYTES, PRE_BLANK_SIZE
from rmq_store.log.core.commit_log import CommitLog

from .test_query import Shop, offsets


@pytest.fixture
def shop(scratch: Path, tiny: StoreConfig) -> Shop:
    return Shop(scratch / "store", tiny)


def test_a_key_is_one_of_the_words_and_no_part_of_one(shop: Shop) -> None:
    """BBBB brings the message into the chain of AaAa, and its other key holds that text."""
    with shop.open() as store:
        store.create_topic("T", 1)
        store.send(Message("T", b"", keys="BBBB xAaAax"))
        assert store.query.by_key("T", "AaAa") == []
        assert store.query.find("T", ["AaAa"]).num_rows == 0
        assert store.query.by_key("T", "BBBB")


def test_the_error_of_an_offset_that_is_not_there_says_what_is(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        for _ in range(40):
            store.send(Message("T", b"." * 600))
        for path in sorted((shop.root / "commitlog").iterdir())[:1]:
            os.utime(path, (0, 0))
        assert store.retention.run(manual=True).removed
        first, last = store.queue_range("T", 0)
        assert 0 < first < last == 40
        for wanted in (first - 1, last):
            with pytest.raises(OffsetOutOfRangeError, match=f"message {wanted} was asked for") as caught:
                store.query.by_queue_offset("T", 0, wanted)
            assert (caught.value.requested, caught.value.minimum, caught.value.maximum) == (wanted, first, last)
        assert store.query.by_queue_offset("T", 0, first).queue_offset == first


def test_a_message_that_is_there_is_found_without_a_look_at_the_whole_queue(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        for _ in range(3):
            store.send(Message("T", b""))
        monkeypatch.setattr(Queues, "range", None)
        assert [store.query.by_queue_offset("T", 0, offset).queue_offset for offset in range(3)] == [0, 1, 2]


def test_a_message_above_the_visible_end_is_not_there(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry is, while it is being appended."""
    with shop.open() as store:
        store.create_topic("T", 1)
        first, second = (store.send(Message("T", b"")) for _ in range(2))
        monkeypatch.setattr(Queues, "end", lambda _: second.commit_log_offset)
        assert store.query.by_queue_offset("T", 0, 0).commit_log_offset == first.commit_log_offset
        with pytest.raises(OffsetOutOfRangeError, match=r"message 1 was asked for, the queue has \[0, 1\)"):
            store.query.by_queue_offset("T", 0, 1)


@pytest.mark.parametrize("blank", [bytes(ENTRY_BYTES), bytes(8) + PRE_BLANK_SIZE.to_bytes(4, "big") + bytes(8)])
def test_a_blank_entry_does_not_lead_to_the_first_message_of_the_log(shop: Shop, blank: bytes) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        assert store.send(Message("T", b"")).commit_log_offset == 0
        with (shop.root / "consumequeue" / "T" / "0" / f"{0:020d}").open("r+b") as file:
            file.write(blank)
    with shop.open(read_only=True) as store, pytest.raises((OffsetOutOfRangeError, CorruptQueueError)):
        store.query.by_queue_offset("T", 0, 0)


@pytest.mark.parametrize("window", [{"begin_ms": 0.5}, {"end_ms": "2026-11-24"}])
def test_a_time_that_is_no_whole_number_is_the_callers_fault(shop: Shop, window: dict[str, Any]) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = store.send(Message("T", b"", keys="k"))
        for ask in (
            lambda: store.query.by_key("T", "k", **window),
            lambda: store.query.by_unique_key("T", sent.msg_id, **window),
            lambda: store.query.find("T", ["k"], **window),
        ):
            with pytest.raises(UsageError, match=r"^(begin|end)_ms=.*: an integer( or None)? is expected$"):
                ask()


@pytest.mark.parametrize("place", [("T", -1, 0), ("../T", 0, 0)])
def test_a_place_that_no_queue_has_is_the_callers_fault(shop: Shop, place: tuple[str, int, int]) -> None:
    with shop.open() as store, pytest.raises(UsageError):
        store.query.by_queue_offset(*place)


@pytest.mark.parametrize("other", ["offset", "queue", "topic"])
def test_a_queue_entry_that_leads_to_another_message_is_an_error(shop: Shop, other: str) -> None:
    """A whole message, of the right size; only its own words say that it is another one."""
    with shop.open() as store:
        places = {}
        for topic in ("Tea", "Tee"):
            store.create_topic(topic, 2)
            for queue_id in (0, 1):
                for offset in range(10):
                    sent = store.send(Message(topic, b"same size", queue_id=queue_id))
                    places[topic, queue_id, offset] = sent.commit_log_offset
        wrong = places[{"offset": ("Tea", 0, 0), "queue": ("Tea", 1, 1), "topic": ("Tee", 0, 1)}[other]]
        assert store.query.by_queue_offset("Tea", 0, 1).queue_offset == 1
        with (shop.root / "consumequeue" / "Tea" / "0" / f"{0:020d}").open("r+b") as file:
            file.seek(ENTRY_BYTES)
            file.write(wrong.to_bytes(8, "big"))
        with pytest.raises(CorruptQueueError, match=rf"entry 1 of Tea-0 .* points at another message \({wrong}\)"):
            store.query.by_queue_offset("Tea", 0, 1)


def test_a_queue_entry_that_leads_nowhere_is_an_error_of_the_queue(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        for _ in range(3):
            store.send(Message("T", b"same size"))
        nowhere = store.queue_entries("T", 0, 1, 2)["commit_log_offset"][0] + 8
        with (shop.root / "consumequeue" / "T" / "0" / f"{0:020d}").open("r+b") as file:
            file.seek(ENTRY_BYTES)
            file.write(int(nowhere).to_bytes(8, "big"))
        words = f"entry 1 of T-0 .* points at byte {nowhere} of the log, where no message begins"
        with pytest.raises(CorruptQueueError, match=words):
            store.query.by_queue_offset("T", 0, 1)


@pytest.mark.parametrize("error", [UsageError("no message"), CorruptRecordError("log", 0, "missing")])
def test_a_message_that_retention_takes_during_the_look_up_is_not_there(
    shop: Shop, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        for _ in range(40):
            store.send(Message("T", b"." * 600))

        def taken_meanwhile(*_: object) -> None:
            os.utime(min((shop.root / "commitlog").iterdir()), (0, 0))
            assert store.retention.run(manual=True).removed
            raise error

        monkeypatch.setattr(query_module, "message_at", taken_meanwhile)
        with pytest.raises(OffsetOutOfRangeError, match="message 0 was asked for, the queue has"):
            store.query.by_queue_offset("T", 0, 0)


# -- whether the index of a store that is only read has all keys ------------------------------------------------------


def test_a_reader_asks_once_for_each_end_of_the_log(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that was whole may lack keys later, of a writer that died: see test_query.py."""
    asked = []
    is_whole = key_search.index_is_whole
    monkeypatch.setattr(key_search, "index_is_whole", lambda log: (asked.append(1), is_whole(log))[1])
    with shop.open() as store:
        store.create_topic("T", 1)
        first = store.send(Message("T", b"", keys="k")).commit_log_offset
    with shop.open(read_only=True) as reader:
        for _ in range(3):
            assert offsets(reader.query.by_key("T", "k")) == [first]
            assert reader.query.find("T", ["k"]).num_rows == 1
        assert len(asked) == 1
        with shop.open() as store:
            store.send(Message("T", b"", keys="k"))
            assert not asked[1:]
            reader.refresh()
            assert len(reader.query.by_key("T", "k")) == 2
        assert len(asked) == 2


def test_an_index_of_ours_that_is_gone_is_not_one_that_was_never_kept(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = store.send(Message("T", b"", keys="k")).commit_log_offset
    shutil.rmtree(shop.root / "index")
    with shop.open(read_only=True) as store, pytest.raises(CorruptIndexError, match="open it for writing once"):
        store.query.find("T", ["k"])
    with shop.open() as store:
        assert offsets(store.query.by_key("T", "k")) == [sent]


def test_a_broker_that_has_stored_nothing_yet_is_a_store_without_messages(
    golden: Path, copy_store: Callable[[Path, Path], Path], scratch: Path
) -> None:
    root = copy_store(golden / "store", scratch / "store")
    for kind in ("index", "commitlog"):
        for path in (root / kind).iterdir():
            path.unlink()
    for path in (root / "consumequeue").rglob("*"):
        if path.is_file():
            path.unlink()
    with Store.open(root, read_only=True) as store:
        assert store.query.find("OrderTopic", ["ORD-000123"]).num_rows == 0
        assert store.query.by_key("OrderTopic", "ORD-000123") == []


def test_find_looks_at_a_part_of_the_log_if_it_is_told(shop: Shop) -> None:
    """Parts as a reader has them who reads the rest himself: [start, end), in several files of the index."""
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = [store.send(Message("T", b"", keys="k")).commit_log_offset for _ in range(120)]
        assert len(list((shop.root / "index").iterdir())) > 2
        for first, last in ((0, 120), (10, 20), (59, 60), (110, 119), (30, 30)):
            found = store.query.find("T", ["k"], within=(sent[first], sent[last] if last < 120 else 1 << 40))
            assert found["commit_log_offset"].to_pylist() == sent[first:last]
        assert store.query.find("T", ["k"], within=(sent[10] + 1, sent[12] + 1)).num_rows == 2


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_candidates_are_looked_at_in_blocks(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the size that bounds memory, and none of them twice."""
    monkeypatch.setattr(key_search, "_BLOCK_ROWS", 30)
    seen: list[int] = []
    with shop.open() as store:
        store.create_topic("T", 1)
        rows = 200
        batch = {"topic": ["T"] * rows, "body": pa.array([b""] * rows, pa.binary()), "keys": ["k"] * rows}
        store.append(pa.record_batch(batch))
        matches = store.query._keys._matches
        monkeypatch.setattr(store.query._keys, "_matches", lambda *a: (seen.append(len(a[1])), matches(*a))[1])
        assert store.query.find("T", ["k"]).num_rows == rows
    assert sum(seen) == rows
    assert len(seen) > 3
    # A file of the index has 39 entries, half of them of unique keys; a piece is a step of all chains of one file.
    assert max(seen) < 30 + 40


def test_an_unanswerable_question_says_of_which_place(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = [store.send(Message("T", b"", keys="k")).commit_log_offset for _ in range(3)]
        index = store._log.views.index
        index.put_one([query_module.index_hash(query_module.java_hash("T#k"))], sent[2] + 5, shop.now_ms)
        for ask in (lambda: store.query.find("T", ["k"]), lambda: store.query.by_key("T", "k")):
            with pytest.raises(CorruptIndexError, match=f"points at {sent[2] + 5} of the log"):
                ask()
        with pytest.raises(UsageError, match="keys='k': a list is expected"):
            store.query.find("T", "k")


# -- segments that are gone -------------------------------------------------------------------------------------------


def test_a_segment_that_is_lost_is_no_damage_of_the_index(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = [store.send(Message("T", b"." * 300, keys=f"k{number}")).commit_log_offset for number in range(100)]
    lost = sorted((shop.root / "commitlog").iterdir())[1]
    number = next(n for n, offset in enumerate(sent) if offset >= int(lost.name))
    with shop.open(read_only=True) as store:
        lost.unlink()
        for ask in (lambda: store.query.find("T", [f"k{number}"]), lambda: store.query.by_key("T", f"k{number}")):
            with pytest.raises(CorruptRecordError, match=lost.name):
                ask()
        assert offsets(store.query.by_key("T", "k0")) == sent[:1]


def test_a_segment_that_retention_takes_under_our_hands_is_no_error(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it was found that the log still has the place."""
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = [store.send(Message("T", b"." * 300, keys="k")).commit_log_offset for _ in range(60)]
        for path in sorted((shop.root / "commitlog").iterdir())[:1]:
            os.utime(path, (0, 0))
        look = query_module.message_at

        def late(log: CommitLog, end: int, offset: int) -> StoredMessage:
            if offset == sent[0]:
                assert store.retention.run(manual=True).removed
                raise log.missing_segment(offset)
            return look(log, end, offset)

        monkeypatch.setattr(query_module, "message_at", late)
        assert offsets(store.query.by_key("T", "k")) == sent[:0:-1]
        assert store.log_range()[0] > sent[0]


def test_a_segment_that_retention_takes_between_sizes_and_records_is_no_error(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = [store.send(Message("T", b"." * 300, keys="k")).commit_log_offset for _ in range(60)]
        for path in sorted((shop.root / "commitlog").iterdir())[:1]:
            os.utime(path, (0, 0))
        frames = store.query._keys._frames
        runs = frames.runs

        def late(*places: np.ndarray) -> Iterator[FrameRun]:
            monkeypatch.setattr(frames, "runs", runs)
            assert store.retention.run(manual=True).removed
            raise FileNotFoundError
            yield

        monkeypatch.setattr(frames, "runs", late)
        left = store.query.find("T", ["k"])["commit_log_offset"].to_pylist()
        assert left == [offset for offset in sent if offset >= store.log_range()[0]]
        assert 0 < len(left) < 60
