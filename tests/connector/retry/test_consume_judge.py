"""What a handler says of rows, and what becomes of it: words, levels, exceptions, halves."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import pyspark_rmq
from pyspark_rmq.access.store_location import StoreDirectory
from pyspark_rmq.retry.failure_reason import reason_of
from pyspark_rmq.retry.handler_runner import HandlerRunner
from rmq_store import ClockFile, UsageError

Handler = Callable[[Any], Any]


class ConsumeConcurrentlyStatus(enum.Enum):
    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


def batch(count: int, reconsume_times: int = 0) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "commitLogOffset": pa.array(range(count), pa.int64()),
            "msgId": pa.array([f"id-{n}" for n in range(count)]),
            "reconsumeTimes": pa.array([reconsume_times] * count, pa.int32()),
            "body": pa.array([str(n).encode() for n in range(count)]),
            "properties": pa.array([[("n", str(n))] for n in range(count)], pa.map_(pa.string(), pa.string())),
        }
    )


def handled(handler: Handler, rows: pa.RecordBatch, mode: Any = "row", most: int = 16) -> list[dict[str, Any]]:
    runner = HandlerRunner(handler, mode, StoreDirectory("/no/store"), ("msgId",), most)
    return [row for answer in runner(iter([rows])) for row in answer.to_pylist()]


def verdicts(handler: Handler, rows: pa.RecordBatch, mode: Any = "row", most: int = 16) -> list[tuple[str, int | None]]:
    return [(row["result"], row["delayLevel"]) for row in handled(handler, rows, mode, most)]


OK, LATER = ("SUCCESS", None), ("RECONSUME_LATER", 0)


@pytest.mark.statement("B01", "B02")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (pyspark_rmq.SUCCESS, OK),
        ("CONSUME_SUCCESS", OK),
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, OK),
        (pyspark_rmq.RECONSUME_LATER, LATER),
        (ConsumeConcurrentlyStatus.RECONSUME_LATER, LATER),
        (None, LATER),
        (0, LATER),
        (5, ("RECONSUME_LATER", 5)),
        (np.int64(18), ("RECONSUME_LATER", 18)),
        (pyspark_rmq.DLQ, ("DLQ", -1)),
        (-1, ("DLQ", -1)),
    ],
)
def test_a_handler_answers_in_rocketmqs_words_or_with_a_level(answer: Any, expected: tuple[str, int | None]) -> None:
    # ConsumeMessageConcurrentlyService.processConsumeResult; ConsumeConcurrentlyContext.delayLevelWhenNextConsume
    assert verdicts(lambda row: answer, batch(2)) == [expected, expected]
    assert verdicts(lambda rows: [answer, "SUCCESS"], batch(2), "arrow") == [expected, OK]


@pytest.mark.parametrize("answer", ["ok", True, False, 1.5, -2, 1 << 31, object(), [0], b"SUCCESS"])
def test_an_answer_that_is_no_result_fails_the_query_not_the_row(answer: Any) -> None:
    with pytest.raises(UsageError, match="possible are SUCCESS, RECONSUME_LATER, DLQ, a delay level"):
        handled(lambda row: answer, batch(1))
    with pytest.raises(UsageError, match=r"possible are SUCCESS|for 2 rows"):
        handled(lambda rows: [answer, 0], batch(2), "arrow")


@pytest.mark.statement("B02")
def test_an_exception_fails_its_row_only_and_says_why() -> None:
    def handler(row: Any) -> str:
        if row.body == b"1":
            raise ValueError("no such customer")
        return pyspark_rmq.SUCCESS

    first, second, third = handled(handler, batch(3))
    assert (first["result"], first["errorClass"], first["lastFailureTime"]) == ("SUCCESS", None, None)
    assert third["result"] == "SUCCESS"
    assert (second["result"], second["errorClass"]) == ("RECONSUME_LATER", "ValueError")
    assert second["errorMessage"] == "no such customer"
    assert len(second["stackHash"]) == 16
    # an answer has reasons too, so that those of an earlier failure do not stay
    (answered,) = handled(lambda row: pyspark_rmq.RECONSUME_LATER, batch(1))
    assert (answered["errorClass"], answered["errorMessage"]) == ("RECONSUME_LATER", "returned by the handler")
    assert answered["stackHash"] not in (None, second["stackHash"])


@pytest.mark.parametrize(
    "answers",
    [
        [pyspark_rmq.SUCCESS, None, pyspark_rmq.RECONSUME_LATER],
        pd.Series([pyspark_rmq.SUCCESS, None, pyspark_rmq.RECONSUME_LATER]),
        [pyspark_rmq.SUCCESS, None, 0],
    ],
)
def test_a_row_without_an_answer_has_another_reason_than_one_that_is_to_come_back(answers: Any) -> None:
    """A handler that forgets its `return` fails every row. Its reason read "RECONSUME_LATER, returned by the handler",
    as if somebody had wanted that.
    """
    handlers = [("arrow", lambda rows: answers)]
    if isinstance(answers, list):
        handlers.append(("row", lambda row: answers[int(row.body)]))
    for mode, handler in handlers:
        done, unanswered, wanted = handled(handler, batch(3), mode)
        assert (done["result"], done["errorClass"]) == ("SUCCESS", None)
        assert (unanswered["result"], unanswered["delayLevel"]) == (wanted["result"], wanted["delayLevel"]) == LATER
        assert wanted["errorClass"] == "RECONSUME_LATER"
        assert unanswered["errorClass"] == "NoResult"
        assert "is a return missing?" in unanswered["errorMessage"]
        assert unanswered["stackHash"] != wanted["stackHash"]


def test_integers_with_gaps_are_rows_without_an_answer_too() -> None:
    done, unanswered, again = handled(lambda rows: pd.array([-1, None, 3], dtype="Int64"), batch(3), "arrow")
    assert (done["result"], unanswered["errorClass"], again["errorClass"]) == ("DLQ", "NoResult", "RECONSUME_LATER")
    assert [row["delayLevel"] for row in (done, unanswered, again)] == [-1, 0, 3]


def test_unsigned_answers_are_levels_or_refused_by_their_own_number() -> None:
    small = handled(lambda rows: np.array([0, 3], np.uint64), batch(2), "arrow")
    assert [row["delayLevel"] for row in small] == [0, 3]
    with pytest.raises(UsageError, match="answered 18446744073709551615 for a row"):
        handled(lambda rows: np.array([2**64 - 1], np.uint64), batch(1), "arrow")


def test_a_programs_end_is_not_a_rows_failure() -> None:
    def handler(row: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        handled(handler, batch(1))


@pytest.mark.statement("B05", "D01")
@pytest.mark.parametrize(("times", "most", "result"), [(0, 1, "RECONSUME_LATER"), (1, 1, "DLQ"), (0, 0, "DLQ")])
def test_a_failure_at_the_last_try_is_a_dead_letter(times: int, most: int, result: str) -> None:
    # AbstractSendMessageProcessor.consumerSendMsgBack: reconsumeTimes >= max
    assert verdicts(lambda row: None, batch(1, times), most=most) == [(result, 0)]
    assert verdicts(lambda row: "SUCCESS", batch(1, times), most=most) == [OK]


@pytest.mark.parametrize("mode", ["pandas", "arrow"])
@pytest.mark.parametrize("guilty", [{0}, {6}, {2, 3}, {0, 9}, set(range(10)), set()])
def test_an_exception_of_a_batch_handler_fails_the_guilty_rows_only(mode: str, guilty: set[int]) -> None:
    calls: list[int] = []

    def handler(rows: Any) -> list[int] | None:
        numbers = [int(value) for value in (rows["body"] if mode == "pandas" else rows.column("body").to_pylist())]
        calls.append(len(numbers))
        if guilty & set(numbers):
            raise KeyError(min(guilty & set(numbers)))
        return None

    found = handled(handler, batch(10), mode)
    assert [row["result"] for row in found] == ["RECONSUME_LATER" if n in guilty else "SUCCESS" for n in range(10)]
    assert {row["errorMessage"] for row in found if row["errorClass"] == "KeyError"} == {str(n) for n in guilty}
    assert calls[0] == 10
    assert len(calls) <= 2 * 10 - 1


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, [OK, OK, OK]),
        ("SUCCESS", [OK, OK, OK]),
        (7, [("RECONSUME_LATER", 7)] * 3),
        (pa.array([None, 3, -1]), [LATER, ("RECONSUME_LATER", 3), ("DLQ", -1)]),
        (pa.array([None, None, None]), [LATER] * 3),
        (pa.chunked_array([["SUCCESS"], ["DLQ", None]]), [OK, ("DLQ", -1), LATER]),
        (pa.array(["SUCCESS", "DLQ", None]).dictionary_encode(), [OK, ("DLQ", -1), LATER]),
        (pd.Series([4.0, float("nan"), 0.0]), [("RECONSUME_LATER", 4), LATER, LATER]),
        (pd.Series(["SUCCESS", None, "RECONSUME_LATER"]), [OK, LATER, LATER]),
        (pd.Series(["SUCCESS", "DLQ", "SUCCESS"], dtype="category"), [OK, ("DLQ", -1), OK]),
        (np.array([1, 2, 3]), [("RECONSUME_LATER", n) for n in (1, 2, 3)]),
        (["SUCCESS", 3, None], [OK, ("RECONSUME_LATER", 3), LATER]),
        ([ConsumeConcurrentlyStatus.CONSUME_SUCCESS, None, 2], [OK, LATER, ("RECONSUME_LATER", 2)]),
    ],
)
@pytest.mark.statement("B15")
def test_a_batch_handler_may_answer_for_all_rows_or_for_each(answer: Any, expected: list[tuple[str, int]]) -> None:
    assert verdicts(lambda rows: answer, batch(3), "arrow") == expected


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([0, 0], "answered 2 results for 3 rows"),
        (pa.array([0] * 4), "answered 4 results for 3 rows"),
        (pd.Series([1.5, 0, 0]), r"answered 1.5 for a row"),
        (pa.array([True, True, True]), "answered True for a row"),
        (pa.array([0, 0, -2]), "answered -2 for a row"),
        (["SUCCESS", "done", None], "answered 'done' for a row"),
        (pd.DataFrame({"result": [0, 0, 0]}), "answered a DataFrame for 3 rows"),
        (pa.record_batch({"result": [0, 0, 0]}), "answered a RecordBatch for 3 rows"),
        (pa.table({"result": [0, 0, 0]}), "answered a Table for 3 rows"),
        (np.zeros((3, 1), int), "answered a ndarray for 3 rows"),
        ({"a": 0, "b": 0, "c": 0}, "answered a dict for 3 rows"),
        (b"DLQ", "answered a bytes for 3 rows"),
        (2.0, "answered a float for 3 rows"),
        (object(), "answered a object for 3 rows"),
        (iter([0, 0, 0]), "answered a list_iterator for 3 rows"),
        ([{"result": 0}] * 3, "answered {'result': 0} for a row"),
        (pa.array([{"result": 0}] * 3), "for a row"),
    ],
)
def test_a_batch_handlers_wrong_answer_fails_the_query(answer: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        handled(lambda rows: answer, batch(3), "arrow")


@pytest.mark.parametrize("mode", ["row", "pandas", "arrow"])
def test_several_rows_of_one_message_are_refused_before_the_handler_sees_them(mode: str) -> None:
    """Each would be sent back, and come back as so many rows again: 3 of each message are 3^16 at its last try."""
    seen: list[Any] = []
    exploded = batch(3).take(pa.array([0, 1, 1, 1, 2]))
    with pytest.raises(UsageError, match="3 rows have the commitLogOffset 1: a message is judged as a whole"):
        handled(seen.append, exploded, mode)
    assert seen == []


def test_rows_are_sparks_own_and_maps_are_dicts() -> None:
    seen: list[Any] = []
    handled(lambda row: seen.append(row) or 0, batch(2))
    assert seen[1].asDict() == {
        "commitLogOffset": 1, "msgId": "id-1", "reconsumeTimes": 0, "body": b"1", "properties": {"n": "1"},
    }  # fmt: skip
    handled(lambda rows: seen.append(rows), batch(2), "pandas")
    assert seen[-1]["properties"][1] == {"n": "1"}


def test_the_time_of_a_failure_is_the_stores(tmp_path: Path) -> None:
    (tmp_path / "pyrmq").mkdir()
    ClockFile.create(tmp_path / "pyrmq" / "clock", 1_700_000_000_123)
    runner = HandlerRunner(lambda row: None, "row", StoreDirectory(str(tmp_path)), (), 16)
    (answer,) = runner(iter([batch(1), batch(0)]))
    assert answer.schema.names == [
        "result", "delayLevel", "errorClass", "errorMessage", "stackHash", "lastFailureTime",
    ]  # fmt: skip
    assert answer.column("lastFailureTime")[0].as_py().isoformat() == "2023-11-14T22:13:20.123000+00:00"


def test_failures_at_one_place_have_one_hash_whatever_the_line_and_the_text() -> None:
    def fail(text: str, early: bool) -> None:
        if early:
            raise LookupError(text)
        raise LookupError(text)

    def other() -> None:
        raise LookupError("one")

    found = []
    for call in (lambda: fail("one", True), lambda: fail("two", False), other):
        with pytest.raises(LookupError) as raised:
            call()
        found.append(reason_of(raised.value))
    assert found[0].stack_hash == found[1].stack_hash != found[2].stack_hash
    assert [reason.error_message for reason in found] == ["one", "two", "one"]


@pytest.mark.parametrize("mode", ["row", "arrow"])
def test_a_text_that_is_no_utf_8_does_not_fail_the_query(mode: str) -> None:
    """os.listdir gives such names, and errors that name a file have them in their text."""

    def handler(rows: Any) -> None:
        raise FileNotFoundError("no file 'order-\udcff.json'")

    (answer,) = handled(handler, batch(1), mode)
    assert (answer["result"], answer["errorMessage"]) == ("RECONSUME_LATER", "no file 'order-?.json'")


def test_an_exception_without_a_text_does_not_fail_the_query() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def handler(row: Any) -> None:
        raise Broken

    (answer,) = handled(handler, batch(1))
    assert answer["result"] == "RECONSUME_LATER"
    assert "RuntimeError in __str__" in answer["errorMessage"]

    def empty(row: Any) -> None:
        raise ValueError

    (answer,) = handled(empty, batch(1))
    assert (answer["errorClass"], answer["errorMessage"]) == ("ValueError", "ValueError")
