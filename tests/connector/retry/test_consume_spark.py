"""Retries in Spark: a handler that fails, the ladder of delays, dead letters, killed drivers, floods."""

from __future__ import annotations

import importlib.metadata
import os
import runpy
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import pyspark_rmq
from pyspark_rmq import FloodBreaker
from pyspark_rmq.query import foreach_batch
from rmq_store import ClockFile, NotAStoreError, Store, UsageError

from ..spark_lacks import run_in_batches

pytestmark = [pytest.mark.long, pytest.mark.spark]

Make = Callable[..., Any]
NOW_MS = 1_700_000_000_000


@pytest.fixture
def orders(make_store: Make, add_messages: Make) -> Callable[[int], tuple[Path, ClockFile]]:
    """Make a store whose clock stands at NOW_MS until the test moves it: `orders(10)` has Orders-0 to Orders-9."""

    def make(count: int) -> tuple[Path, ClockFile]:
        path = make_store(Orders=0)
        clock = ClockFile.create(path / "pyrmq" / "clock", NOW_MS)
        add_messages(path, "Orders", 0, count)
        return path, clock

    return make


def stream(spark: Any, path: Path, **options: str) -> Any:
    chosen = {"path": str(path), "subscribe": "Orders", "group": "cg"} | options
    return spark.readStream.format("rmq").options(**chosen).load()


def dead_letters(spark: Any, path: Path) -> Any:
    return spark.read.format("rmq").option("path", str(path)).option("dlq", "cg").load()


def consume(spark: Any, path: Path, handler: Any, checkpoint: Path, **given: Any) -> Any:
    query = pyspark_rmq.consume(stream(spark, path), handler, group="cg", path=str(path), **given)
    return query.option("checkpointLocation", str(checkpoint))


def committed(path: Path) -> dict[str, int]:
    """Messages that the group has committed, by topic."""
    with Store.open(path, read_only=True) as store:
        sums: dict[str, int] = {}
        for (topic, _), offset in store.committed_offsets("cg").items():
            sums[topic] = sums.get(topic, 0) + offset
        return sums


def waiting(path: Path) -> int:
    """Messages that were ever parked for a delay."""
    with Store.open(path, read_only=True) as store:
        if "SCHEDULE_TOPIC_XXXX" not in store.topics():
            return 0
        return sum(store.queue_range("SCHEDULE_TOPIC_XXXX", queue).max_offset for queue in range(18))


def fail_at_seven(row: Any) -> str:
    if row.body.endswith(b"7"):
        raise ValueError("seven")
    return pyspark_rmq.SUCCESS


def all_is_well(row: Any) -> str:
    return pyspark_rmq.SUCCESS


def wait_for(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.05)


@pytest.mark.statement("B03", "B05", "B06", "B09", "B14", "C13", "D01", "D04")
def test_a_failing_message_walks_the_ladder_inside_a_job_and_ends_as_a_dead_letter(
    spark: Any, orders: Make, tmp_path: Path
) -> None:
    # B05, B06: at most 3 retries are 4 deliveries, after 10 s, 30 s and 1 minute
    path, clock = orders(20)
    seen: list[Any] = []

    def look(rows: Any, batch_id: int) -> None:
        columns = ["body", "topic", "storeTopic", "reconsumeTimes", "result", "storeTimestamp", "originQueueOffset"]
        seen.extend(rows.select(*columns).collect())

    running = consume(spark, path, fail_at_seven, tmp_path / "c", max_reconsume_times=3, on_results=look).start()
    try:
        wait_for(lambda: len(seen) == 20)
        for retries, gap_ms in enumerate((10_000, 30_000, 60_000), 1):
            wait_for(lambda retries=retries: waiting(path) == 2 * retries)
            clock.advance(gap_ms - 1)
            clock.advance(1)
            wait_for(lambda retries=retries: len(seen) == 20 + 2 * retries)
        wait_for(lambda: dead_letters(spark, path).count() == 2)
        wait_for(lambda: committed(path) == {"Orders": 20, "%RETRY%cg": 6})
    finally:
        running.stop()
    ladder = [row for row in seen if bytes(row["body"]) == b"Orders-17"]
    assert [row["reconsumeTimes"] for row in ladder] == [0, 1, 2, 3]
    assert [row["storeTopic"] for row in ladder] == ["Orders"] + ["%RETRY%cg"] * 3
    assert {row["topic"] for row in ladder} == {"Orders"}
    assert [row["result"] for row in ladder] == ["RECONSUME_LATER"] * 3 + ["DLQ"]
    times = [row["storeTimestamp"].timestamp() for row in ladder]
    assert [round(later - earlier) for earlier, later in pairwise(times)] == [10, 30, 60]
    assert len({row["originQueueOffset"] for row in ladder}) == 1
    assert len(seen) == 20 + 2 * 3  # and the others came once

    dead = {bytes(row["body"]): row for row in dead_letters(spark, path).collect()}
    assert set(dead) == {b"Orders-7", b"Orders-17"}
    row = dead[b"Orders-17"]
    assert (row["topic"], row["reconsumeTimes"]) == ("Orders", 4)
    assert (row["errorClass"], row["errorMessage"]) == ("ValueError", "seven")
    assert row["stackHash"] == dead[b"Orders-7"]["stackHash"]
    first, last = row["firstFailureTime"].timestamp(), row["lastFailureTime"].timestamp()
    assert (first, last) == (NOW_MS / 1000, NOW_MS / 1000 + 100)
    assert (row["originTopic"], row["originQueueOffset"]) == ("Orders", ladder[0]["originQueueOffset"])
    assert row["properties"]["PYRMQ_QUERY_ID"] == str(running.id)
    with Store.open(path, read_only=True) as store:
        assert store.groups()["cg"].retry_max_times == 3


@pytest.mark.statement("B03")
@pytest.mark.slow
def test_a_driver_killed_between_send_back_and_sparks_commit_sends_nothing_back_twice(
    spark: Any, orders: Make, tmp_path: Path, bodies: Make, run_until_killed: Make
) -> None:
    path, clock = orders(20)
    run_until_killed("killed_consumer.py", path, tmp_path / "c", "after")
    assert waiting(path) == 2
    assert not (tmp_path / "c" / "commits" / "0").exists()  # Spark does not know
    seen: list[int] = []

    def look(rows: Any, batch_id: int) -> None:
        seen.append(rows.count())

    run_in_batches(consume(spark, path, fail_at_seven, tmp_path / "c", on_results=look))
    assert (tmp_path / "c" / "commits" / "0").exists()
    assert sum(seen) == 0  # the batch was done: no handler saw it again
    assert waiting(path) == 2
    assert committed(path)["Orders"] == 20
    clock.advance(10_000)
    run_in_batches(consume(spark, path, all_is_well, tmp_path / "c", on_results=look))
    assert sum(seen) == 2
    assert bodies(path, "%RETRY%cg") == ["Orders-17", "Orders-7"]


@pytest.mark.slow
def test_a_driver_killed_before_the_send_back_repeats_the_batch(
    spark: Any, orders: Make, tmp_path: Path, run_until_killed: Make
) -> None:
    path, _ = orders(20)
    run_until_killed("killed_consumer.py", path, tmp_path / "c", "before")
    assert (waiting(path), committed(path).get("Orders", 0)) == (0, 0)
    seen: list[int] = []
    given = {"on_results": lambda rows, batch: seen.append(rows.count())}
    run_in_batches(consume(spark, path, fail_at_seven, tmp_path / "c", **given))
    assert (sum(seen), waiting(path), committed(path)["Orders"]) == (20, 2, 20)


def test_a_checkpoint_that_was_set_back_is_an_error_and_loses_no_failure(
    spark: Any, orders: Make, add_messages: Make, tmp_path: Path
) -> None:
    path, _ = orders(10)
    checkpoint = tmp_path / "c"
    consume(spark, path, fail_at_seven, checkpoint).trigger(availableNow=True).start().awaitTermination()
    wait_for(lambda: committed(path).get("Orders") == 10)  # by a listener, where the source cannot
    # a backup from before the batch was planned: it is planned anew, with more rows
    for log in ("offsets", "commits"):
        for name in ("0", ".0.crc"):
            (checkpoint / log / name).unlink()
    add_messages(path, "Orders", 10, 20)
    with Store.open(path) as store:
        store.commit_offsets("cg", {("Orders", queue): 0 for queue in range(4)})
    with pytest.raises(Exception, match=r"MarkerError.*batch 0 of query .* other rows than now.*set back or copied"):
        run_in_batches(consume(spark, path, fail_at_seven, checkpoint))
    assert (waiting(path), committed(path)["Orders"]) == (1, 0)
    run_in_batches(consume(spark, path, fail_at_seven, tmp_path / "new"))
    assert (waiting(path), committed(path)["Orders"]) == (3, 20)


@pytest.mark.slow
@pytest.mark.statement("B03", "D06")
def test_the_example_runs_to_its_end(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).resolve().parents[3] / "examples" / "retry.py"), run_name="__main__")
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|Orders")]
    assert [[cell.strip() for cell in line.strip("|").split("|")[:5]] for line in sorted(shown)] == [
        ["Orders", "NULL", "1", "DLQ", "returned by the h..."],
        ["Orders", "ORD-7", "3", "LookupError", "no such customer"],
    ]


@pytest.mark.statement("B15")
def test_a_pandas_handler_gets_batches_and_only_the_guilty_rows_fail(
    spark: Any, orders: Make, tmp_path: Path, bodies: Make
) -> None:
    path, clock = orders(40)
    calls = tmp_path / "calls"
    calls.mkdir()

    def handler(rows: Any) -> Any:
        (calls / f"{os.getpid()}-{time.monotonic_ns()}").write_text(str(len(rows)))
        if rows["body"].isin([b"Orders-3", b"Orders-4"]).any():
            raise KeyError("one of them")
        return rows["keys"].map(lambda key: -1 if key == "K9" else "SUCCESS")

    found: list[Any] = []
    given = {"mode": "pandas", "reasons": False, "on_results": lambda rows, batch: found.extend(rows.collect())}
    run_in_batches(consume(spark, path, handler, tmp_path / "c", **given))
    failed = {bytes(row["body"]): row for row in found if row["result"] != "SUCCESS"}
    assert len(found) == 40
    assert {body: (row["result"], row["errorClass"]) for body, row in failed.items()} == {
        b"Orders-3": ("RECONSUME_LATER", "KeyError"),
        b"Orders-4": ("RECONSUME_LATER", "KeyError"),
        b"Orders-9": ("DLQ", "DLQ"),
    }
    assert max(int(call.read_text()) for call in calls.iterdir()) == 10  # four queues, a task each
    clock.advance(10_000)
    with Store.open(path) as store:
        store.schedule.deliver_due()
    assert bodies(path, "%RETRY%cg") == ["Orders-3", "Orders-4"]
    (dead,) = dead_letters(spark, path).collect()
    assert not [name for name in dead["properties"] if name.startswith("PYRMQ")]  # reasons=False
    assert (dead["errorClass"], dead["originTopic"], dead["originQueueId"]) == (None, "Orders", None)


def test_the_flood_breaker_stops_the_query_before_anything_is_sent_back(
    spark: Any, orders: Make, tmp_path: Path
) -> None:
    path, _ = orders(20)
    asked: list[int] = []
    given = {"max_reconsume_times": 0, "on_results": lambda rows, batch: asked.append(batch)}
    few = consume(spark, path, fail_at_seven, tmp_path / "c", breaker=FloodBreaker(max_percent=5), **given)
    with pytest.raises(Exception, match=r"FloodBreakerError: .*2 of 20 rows of the batch \(10.0 %, limit 5 %\)"):
        run_in_batches(few)
    slow = consume(spark, path, fail_at_seven, tmp_path / "c", breaker=FloodBreaker(max_per_minute=1), **given)
    with pytest.raises(Exception, match=r"FloodBreakerError: .*2 rows within a minute, .* \(limit 1\)"):
        run_in_batches(slow)
    assert asked == [], "the breaker was asked too late"
    assert dead_letters(spark, path).count() == 0
    assert committed(path).get("Orders", 0) == 0
    breaker = FloodBreaker(max_percent=10, max_per_minute=2)
    run_in_batches(consume(spark, path, fail_at_seven, tmp_path / "c", breaker=breaker, max_reconsume_times=0))
    assert dead_letters(spark, path).count() == 2
    assert committed(path)["Orders"] == 20


def test_a_handler_that_answers_nonsense_fails_the_query_and_nothing_is_sent_back(
    spark: Any, orders: Make, tmp_path: Path
) -> None:
    path, _ = orders(4)
    with pytest.raises(Exception, match="UsageError: the handler answered 'ok' for a row"):
        run_in_batches(consume(spark, path, lambda row: "ok", tmp_path / "c"))
    assert waiting(path) == 0


def test_a_failing_callback_fails_the_batch_and_nothing_is_sent_back(spark: Any, orders: Make, tmp_path: Path) -> None:
    path, _ = orders(10)

    def broken(rows: Any, batch_id: int) -> None:
        raise RuntimeError("the table is locked")

    with pytest.raises(Exception, match="the table is locked"):
        run_in_batches(consume(spark, path, fail_at_seven, tmp_path / "c", on_results=broken))
    assert waiting(path) == 0
    run_in_batches(consume(spark, path, fail_at_seven, tmp_path / "c"))
    assert waiting(path) == 1


def test_consume_without_pandas_says_what_needs_it(spark: Any, orders: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = orders(1)
    read = stream(spark, path)

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    for version, words in ((missing, "it is not installed"), (lambda name: "2.1.4", "this is 2.1.4")):
        monkeypatch.setattr(foreach_batch.metadata, "version", version)
        with pytest.raises(UsageError, match=f"consume needs pandas 2.2 or newer, and {words}"):
            pyspark_rmq.consume(read, all_is_well, group="cg", path=str(path), mode="arrow")


def test_consume_says_what_it_cannot_use(spark: Any, orders: Make) -> None:
    path, _ = orders(1)
    read = stream(spark, path)
    batch = spark.read.format("rmq").options(path=str(path), subscribe="Orders").load()
    for frame, given, message in (
        (batch, {}, "needs a stream"),
        (read.drop("msgId"), {}, "needs the column msgId string as it was read; given: topic"),
        (read.selectExpr("cast(commitLogOffset as string) commitLogOffset"), {}, "commitLogOffset bigint .* it is str"),
        (read.withColumnRenamed("tags", "result"), {}, "has a column 'result'"),
        (read, {"mode": "rows"}, "none of row, pandas, arrow"),
        (read, {"max_reconsume_times": -1}, "max_reconsume_times=-1 is no integer of at least 0"),
        (read, {"max_reconsume_times": "3"}, "max_reconsume_times='3' is no integer"),
        (read, {"handler": None}, "handler=None of consume cannot be called"),
        (read, {"group": "%RETRY%cg"}, "option group: '%RETRY%cg' is a topic; its group is 'cg'"),
        (read, {"path": "hdfs://host/store"}, "a store cannot be on hdfs"),
        (read, {"path": path / "elsewhere"}, "no RocketMQ store is here"),
    ):
        with pytest.raises((ValueError, NotAStoreError), match=message):
            pyspark_rmq.consume(frame, **{"handler": all_is_well, "group": "cg", "path": str(path)} | given)


@pytest.mark.parametrize("unlike", ["group", "no group", "commitOffsets", "path"])
def test_a_stream_that_would_never_see_its_failures_again_is_refused(
    spark: Any, orders: Make, make_store: Make, tmp_path: Path, unlike: str
) -> None:
    path, _ = orders(3)
    read = {"path": str(path), "subscribe": "Orders", "startingOffsets": "earliest", "group": "cg"}
    if unlike == "no group":
        del read["group"]
    else:
        read |= {"group": {"group": "cg_other"}, "commitOffsets": {"commitOffsets": "false"}}.get(unlike, {})
    to = make_store("other", Orders=0) if unlike == "path" else path
    query = pyspark_rmq.consume(
        spark.readStream.format("rmq").options(**read).load(), fail_at_seven, group="cg", path=to
    )
    with pytest.raises(Exception, match=r"nobody reads as group 'cg' in .*: what fails here would never come back"):
        run_in_batches(query.option("checkpointLocation", str(tmp_path / "c")))
    assert waiting(to) == 0


def test_a_query_can_be_stopped_while_a_handler_works(spark: Any, orders: Make, tmp_path: Path) -> None:
    """Spark's own look at the long error of an interrupted job ends in a StackOverflowError, and not in "Stopped"."""
    path, _ = orders(1)
    begun = tmp_path / "begun"

    def slow(row: Any) -> str:
        begun.touch()
        time.sleep(60)
        return pyspark_rmq.SUCCESS

    read = stream(spark, path, startingOffsets="earliest")
    query = pyspark_rmq.consume(read, slow, group="cg", path=path).option("checkpointLocation", str(tmp_path / "c"))
    running = query.start()
    deadline = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.stop()
    assert running.status["message"] == "Stopped"
    assert running.exception() is None
    assert committed(path).get("Orders", 0) == 0


def test_a_path_means_the_same_in_an_option_and_in_a_call(spark: Any, orders: Make, tmp_path: Path) -> None:
    path, _ = orders(1)
    url = f"file://{path}"
    read = spark.readStream.format("rmq").options(path=url, subscribe="Orders", group="cg").load()
    run_in_batches(
        pyspark_rmq.consume(read, lambda row: pyspark_rmq.DLQ, group="cg", path=url)
        .option("checkpointLocation", str(tmp_path / "c"))
    )  # fmt: skip
    (moved,) = pyspark_rmq.redrive(dead_letters(spark, path), path=url, group="cg").collect()
    assert moved["outcome"] == "REDRIVEN"


@pytest.mark.statement("D01")
def test_rows_already_judged_are_sent_back_by_a_sink(
    spark: Any, orders: Make, tmp_path: Path, bodies: Make
) -> None:
    path, clock = orders(10)
    bad = stream(spark, path).where("keys in ('K2', 'K5')")
    results = bad.selectExpr("*", "if(keys = 'K5', -1, 0) delayLevel", "'no price' errorMessage")
    query = results.writeStream.format("rmq").options(path=str(path), sendBack="cg", maxReconsumeTimes="3")
    run_in_batches(query.option("checkpointLocation", str(tmp_path / "c")))
    clock.advance(10_000)
    with Store.open(path) as store:
        store.schedule.deliver_due()
    assert bodies(path, "%RETRY%cg") == ["Orders-2"]
    (dead,) = dead_letters(spark, path).collect()
    assert (dead["body"], dead["errorMessage"], dead["originQueueOffset"]) == (b"Orders-5", "no price", 1)
    # a batch write, and rows that do not say which message they are
    again = dead_letters(spark, path).where("errorMessage = 'no price'")
    again.write.format("rmq").mode("append").options(path=str(path), sendBack="cg").save()
    assert waiting(path) == 2
    for frame in (again.drop("msgId"), again.selectExpr("msgId", "cast(null as bigint) commitLogOffset")):
        with pytest.raises(Exception, match=r"sendBack needs the column msgId|column 'commitLogOffset' is null"):
            frame.write.format("rmq").mode("append").options(path=str(path), sendBack="cg").save()
    assert waiting(path) == 2
