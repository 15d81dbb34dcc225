"""Answers to pulls as record batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from helpers.undecodable import KINDS, undecodable
from rmq_store.errors import CorruptRecordError, UsageError
from rmq_store.format.batches.answer_batches import AnswerRequest, answer_batches
from rmq_store.format.frames.compression import compress
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.format.text.host import Host

HOST = Host.parse("10.0.0.3:10911")
ALL = tuple(MESSAGE_SCHEMA.names)


def frame(queue_offset: int, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "Orders",
        "body": b"body %d" % queue_offset,
        "properties": b"TAGS\x01Tag%d\x02UNIQ_KEY\x01U%d" % (queue_offset % 2, queue_offset),
        "queue_id": 3,
        "queue_offset": queue_offset,
        "commit_log_offset": 10_000 + 1000 * queue_offset,
        "born_timestamp_ms": 1,
        "born_host": HOST,
        "store_timestamp_ms": 2,
        "store_host": HOST,
    }
    return encode_frame(**{**fields, **changes})


def rows(answers: Sequence[bytes], columns: Sequence[str] = ("queueOffset", "body"), **options: Any) -> pa.Table:
    given = {name: options.pop(name) for name in ("only", "batch_rows", "batch_bytes") if name in options}
    request = AnswerRequest("broker-a", "Orders", 3, columns, **options)
    batches = list(answer_batches(answers, request, **given))
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in columns})


def test_many_answers_become_one_batch_with_all_columns() -> None:
    answers = [frame(0) + frame(1), frame(2), b"", frame(3) + frame(4)]
    request = AnswerRequest("broker-a", "Orders", 3, ALL)
    (batch,) = answer_batches(answers, request)
    assert batch.schema.names == list(ALL)
    assert batch.column("queueOffset").to_pylist() == [0, 1, 2, 3, 4]
    assert batch.column("body").to_pylist() == [b"body %d" % number for number in range(5)]
    assert batch.column("commitLogOffset").to_pylist() == [10_000 + 1000 * number for number in range(5)]
    assert set(batch.column("brokerName").to_pylist()) == {"broker-a"}
    assert batch.column("msgId").to_pylist() == [f"U{number}" for number in range(5)]
    assert list(answer_batches([], request)) == list(answer_batches([b""], request)) == []


@pytest.mark.parametrize(("options", "sizes"), [({"batch_rows": 2}, [2, 2, 1]), ({"batch_bytes": 1}, [2, 1, 2])])
def test_batches_are_bounded(options: dict[str, int], sizes: list[int]) -> None:
    answers = [frame(0) + frame(1), frame(2), frame(3) + frame(4)]
    batches = list(answer_batches(answers, AnswerRequest("b", "Orders", 3, ["queueOffset"]), **options))
    assert [batch.num_rows for batch in batches] == sizes


def test_an_answer_is_decoded_before_the_next_ones_are_asked_for() -> None:
    asked: list[int] = []

    def pulls() -> Any:
        for number in range(3):
            asked.append(number)
            yield frame(number)

    batches = answer_batches(pulls(), AnswerRequest("b", "Orders", 3, ["body"]), batch_bytes=1)
    next(batches)
    assert asked == [0]


def test_bodies_are_decompressed_unless_they_are_wanted_raw() -> None:
    packed, flags = compress(b"x" * 1000, "zlib")
    answer = frame(0, body=packed, sys_flag=flags)
    assert rows([answer], ["body"]).column("body").to_pylist() == [b"x" * 1000]
    assert rows([answer], ["body"], raw_body=True).column("body").to_pylist() == [packed]
    limited = rows([answer], ["body", "sysFlag"], body_limit_bytes=10)
    assert limited.to_pylist() == [{"body": packed, "sysFlag": flags}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_that_cannot_be_inflated_keeps_nothing_beside_it(kind: str) -> None:
    body, flags = undecodable()[kind]
    answer = frame(0) + frame(1, body=body, sys_flag=flags) + frame(2)
    got = rows([answer], ["queueOffset", "body", "sysFlag"]).to_pydict()
    assert got["queueOffset"] == [0, 1, 2] and got["body"][1] == body and got["sysFlag"] == [0, flags, 0]


def test_a_body_with_a_wrong_crc_is_damaged() -> None:
    answer = bytearray(frame(0, body=b"not zlib", sys_flag=1))
    answer[answer.index(b"zlib")] ^= 1
    with pytest.raises(CorruptRecordError, match=r"broker broker-a: .*does not have the CRC that the header gives"):
        rows([bytes(answer)], ["body"])


def test_bodies_that_are_too_large_together_come_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    from rmq_store.format.batches import frame_decoder

    monkeypatch.setattr(frame_decoder, "DECOMPRESSED_BYTES_MAX", 2500)
    packed = [compress(b"%d" % number * 1000, "zlib") for number in range(4)]
    answers = [frame(number, body=body, sys_flag=flags) for number, (body, flags) in enumerate(packed)]
    batches = list(answer_batches(answers, AnswerRequest("b", "Orders", 3, ["body"])))
    assert [body for batch in batches for body in batch.column(0).to_pylist()] == [b"%d" % n * 1000 for n in range(4)]
    assert len(batches) > 1


def test_tags_are_compared_as_texts() -> None:
    """A broker compares hashes: "Aa" and "BB" have the same one."""
    answers = [frame(0, properties=b"TAGS\x01Aa") + frame(1, properties=b"TAGS\x01BB") + frame(2, properties=b"")]
    kept = rows(answers, keep_tags=lambda tags: pc.is_in(tags, pa.array(["Aa"])))
    assert kept.column("queueOffset").to_pylist() == [0] and kept.schema.names == ["queueOffset", "body"]
    assert rows(answers, keep_tags=lambda tags: pc.is_in(tags, pa.array(["C"]))).num_rows == 0


def test_just_some_offsets_are_kept() -> None:
    answers = [frame(number) for number in range(0, 20, 2)]
    wanted = np.array([4, 5, 18], np.int64)
    assert rows(answers, only=wanted).column("queueOffset").to_pylist() == [4, 18]
    assert rows(answers, only=wanted, batch_bytes=1).column("queueOffset").to_pylist() == [4, 18]


def test_the_topic_is_shown_without_its_namespace() -> None:
    request = AnswerRequest("b", "ns%Orders", 3, ["topic", "queueId"], shown_topic="Orders")
    (batch,) = answer_batches([frame(0, topic="ns%Orders")], request)
    assert batch.to_pydict() == {"topic": ["Orders"], "queueId": [3]}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([frame(0, topic="Other")], r"at byte 10000: queue 3 of Orders: it has a message of \['Other', 3, 0\]"),
        ([frame(0, queue_id=1)], r"it has a message of \['Orders', 1, 0\]"),
        ([frame(1), frame(1)], "not in queue order"),
        ([frame(1) + frame(0)], "not in queue order"),
        ([frame(0)[:-1]], "an answer to a pull has"),
        ([frame(0) + b"\0" * 100], "an answer to a pull has"),
    ],
)
@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_answers_that_are_not_of_the_queue_are_refused(answers: list[bytes], reason: str, batch_bytes: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"^broker broker-a: .*{reason}"):
        rows(answers, batch_bytes=batch_bytes)


def test_a_damaged_body_is_found() -> None:
    damaged = bytearray(frame(0) + frame(1))
    damaged[damaged.index(b"body 1")] ^= 1
    with pytest.raises(CorruptRecordError, match="an answer to a pull has"):
        rows([bytes(damaged)])


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(UsageError, match="no such message column: 'nope'"):
        rows([frame(0)], ["nope"])
