"""Dead letters go back: what people ask of every queue's tools for that, and none of them has as a whole (B15-B20).

Rows are chosen in SQL, looked at in a dry run, moved once whoever calls and however often, with one row of result each.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyspark_rmq
from pyspark_rmq.retry import redrive as redriving
from rmq_store import Message, Store, StoreFullError, UsageError

from ..conftest import SMALL

pytestmark = [pytest.mark.long, pytest.mark.spark]

GROUP = "cg_bills"
DLQ = f"%DLQ%{GROUP}"
RETRY = f"%RETRY%{GROUP}"

COLUMNS = ["queueId", "queueOffset", "msgId", "outcome", "reason", "target"]
COLUMNS += ["targetQueueId", "newQueueOffset", "newCommitLogOffset"]

Run = Callable[..., Any]


class Shop:
    """A store in which orders have died: `Shop(path, {"Orders": 6})` has six dead letters, of which the last three
    have tag TagB.
    """

    def __init__(self, path: Path, orders: dict[str, int], group: str = GROUP) -> None:
        self.path = str(path)
        self.group = group
        with Store.open(path, create=True, config=SMALL) as store:
            for topic, count in orders.items():
                store.create_topic(topic, 2, exist_ok=True)
                for number in range(count):
                    message = Message(
                        topic,
                        f"{topic}-{number}".encode(),
                        tags="TagA" if number < count / 2 else "TagB",
                        keys=f"K{number} C{number % 2}",
                        properties={"customer": f"räk {number}"},
                    )
                    self.kill(store, store.send(message).commit_log_offset)

    def kill(self, store: Store, commit_log_offset: int) -> None:
        store.retry.send_back(self.group, commit_log_offset, delay_level=-1)

    def rows(self, topic: str) -> list[dict[str, Any]]:
        with Store.open(self.path, read_only=True) as store:
            if topic not in store.topics():
                return []
            return [
                row
                for queue_id, limits in store.queue_ranges(topic).items()
                for batch in store.read(topic, queue_id, limits.min_offset, limits.max_offset)
                for row in batch.to_pylist(maps_as_pydicts="strict")
            ]

    def end(self) -> int:
        with Store.open(self.path, read_only=True) as store:
            return store.log_range()[1]


def dead_letters(spark: Any, shop: Shop) -> Any:
    return spark.read.format("rmq").option("path", shop.path).option("dlq", shop.group).load()


def outcomes(results: Any) -> dict[str, int]:
    return dict(Counter(row["outcome"] for row in results.collect()))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "store", {"Orders": 6})


@pytest.fixture
def redrive(shop: Shop) -> Run:
    return lambda df, **options: pyspark_rmq.redrive(df, **({"path": shop.path, "group": GROUP} | options))


def test_dead_letters_can_be_read_because_their_topic_allows_it(spark: Any, shop: Shop) -> None:
    """B15: brokers up to 4.9.1 made it write-only, and people rebuilt the broker to look into it."""
    with Store.open(shop.path, read_only=True) as store:
        assert store.topic(DLQ).perm == 6
    assert dead_letters(spark, shop).count() == 6


@pytest.mark.statement("D06")
def test_dead_letters_chosen_by_sql_come_to_the_group_that_failed_and_to_no_other(
    spark: Any, shop: Shop, redrive: Run, tmp_path: Path
) -> None:
    """B16: "How to set the DLQ back to be consumed?" """
    dead_letters(spark, shop).createOrReplaceTempView("dead")
    results = redrive(spark.sql("SELECT * FROM dead WHERE tags = 'TagB' AND keys LIKE 'K%'"))
    assert outcomes(results) == {"REDRIVEN": 3}
    seen: dict[str, list[Any]] = {GROUP: [], "cg_other": []}
    for group, rows in seen.items():
        frame = spark.readStream.format("rmq").option("path", shop.path).option("subscribe", "Orders")
        query = (
            frame.option("group", group)
            .load()
            .writeStream.foreachBatch(lambda batch, _, rows=rows: rows.extend(batch.collect()))
            .option("checkpointLocation", str(tmp_path / group))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    again = [row for row in seen[GROUP] if row["storeTopic"] == RETRY]
    assert sorted(bytes(row["body"]) for row in again) == [b"Orders-3", b"Orders-4", b"Orders-5"]
    assert {(row["topic"], row["reconsumeTimes"]) for row in again} == {("Orders", 0)}
    assert len(seen[GROUP]) == 6 + 3
    assert len(seen["cg_other"]) == 6


def test_each_message_gets_a_row_that_says_what_became_of_it_and_where_it_is(
    spark: Any, shop: Shop, redrive: Run
) -> None:
    """B17: silent drops reported as success, user properties lost."""
    results = redrive(dead_letters(spark, shop).where("tags = 'TagA'"))
    assert results.columns == COLUMNS
    moved = {row["commitLogOffset"]: row for row in shop.rows(RETRY)}
    dead = {(row["queueId"], row["queueOffset"]): row for row in shop.rows(DLQ)}
    rows = results.collect()
    assert [(row["queueId"], row["queueOffset"]) for row in rows] == [(0, 0), (0, 1), (0, 2)]
    assert len(moved) == 3
    for row in rows:
        assert (row["outcome"], row["target"]) == ("REDRIVEN", RETRY)
        new = moved[row["newCommitLogOffset"]]
        assert (new["queueId"], new["queueOffset"]) == (row["targetQueueId"], row["newQueueOffset"])
        old = dead[row["queueId"], row["queueOffset"]]
        assert new["msgId"] == old["msgId"] == row["msgId"]
        assert new["reconsumeTimes"] == 0
        for kept in ("body", "tags", "keys", "flag", "bornTimestamp", "bornHost"):
            assert new[kept] == old[kept]
        assert new["properties"]["customer"] == old["properties"]["customer"]
        assert new["properties"]["RETRY_TOPIC"] == "Orders"


def test_a_dry_run_moves_nothing_and_says_what_a_run_would_do(spark: Any, shop: Shop, redrive: Run) -> None:
    """B19: `--dry-run` with a histogram of reasons."""
    before, end = shop.rows(DLQ), shop.end()
    results = redrive(dead_letters(spark, shop), dry_run=True)
    assert outcomes(results) == {"WOULD_REDRIVE": 6}
    assert {row["target"] for row in results.collect()} == {RETRY}
    assert (shop.rows(DLQ), shop.rows(RETRY), shop.end()) == (before, [], end)
    assert outcomes(redrive(dead_letters(spark, shop).limit(2))) == {"REDRIVEN": 2}
    assert outcomes(redrive(dead_letters(spark, shop), dry_run=True)) == {"ALREADY_REDRIVEN": 2, "WOULD_REDRIVE": 4}


def test_a_second_call_moves_nothing_twice(spark: Any, shop: Shop, redrive: Run) -> None:
    chosen = dead_letters(spark, shop).where("tags = 'TagB'")
    assert outcomes(redrive(chosen)) == {"REDRIVEN": 3}
    end = shop.end()
    assert outcomes(redrive(chosen)) == {"ALREADY_REDRIVEN": 3}
    assert shop.end() == end
    assert outcomes(redrive(dead_letters(spark, shop))) == {"ALREADY_REDRIVEN": 3, "REDRIVEN": 3}
    assert sorted(row["body"] for row in shop.rows(RETRY)) == [f"Orders-{n}".encode() for n in range(6)]


@pytest.mark.parametrize("chunk_rows", [1, 10_000])
def test_a_queue_is_worked_off_in_portions_by_the_same_call(
    spark: Any, shop: Shop, redrive: Run, monkeypatch: pytest.MonkeyPatch, chunk_rows: int
) -> None:
    monkeypatch.setattr(redriving, "_CHUNK_ROWS", chunk_rows)
    dead = dead_letters(spark, shop)
    assert outcomes(redrive(dead, limit=4, dry_run=True)) == {"WOULD_REDRIVE": 4}
    moved = []
    for _ in range(3):
        found = outcomes(redrive(dead, limit=4))
        moved.append((found.get("REDRIVEN", 0), found.get("ALREADY_REDRIVEN", 0)))
    assert moved == [(4, 0), (2, 4), (0, 6)]
    assert dead.where("redriven").count() == 6
    assert outcomes(redrive(dead.where("NOT redriven"))) == {}


def test_a_call_that_was_interrupted_is_resumed_by_the_same_call(
    spark: Any, shop: Shop, redrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B19: resumable, and committed after it is published."""
    monkeypatch.setattr(redriving, "_CHUNK_ROWS", 2)
    from rmq_store.broker.dlq.redrive import DeadLetters

    calls, real = [], DeadLetters.redrive

    def third_time_full(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise StoreFullError("no space")
        return real(self, *arguments, **options)

    monkeypatch.setattr(DeadLetters, "redrive", third_time_full)
    with pytest.raises(StoreFullError):
        redrive(dead_letters(spark, shop))
    assert len(shop.rows(RETRY)) == 4
    assert outcomes(redrive(dead_letters(spark, shop))) == {"ALREADY_REDRIVEN": 4, "REDRIVEN": 2}
    assert sorted(row["body"] for row in shop.rows(RETRY)) == [f"Orders-{n}".encode() for n in range(6)]


def die_again(shop: Shop) -> None:
    """The group fails once more on all that was redriven."""
    rows = shop.rows(RETRY)
    with Store.open(shop.path) as store:
        for row in rows:
            shop.kill(store, row["commitLogOffset"])


def test_what_dies_again_and_again_is_parked_after_so_many_replays(spark: Any, tmp_path: Path) -> None:
    """B18, B19: caps, a parking queue, and no loop for ever."""
    shop = Shop(tmp_path / "store", {"Orders": 1})
    limits: dict[str, Any] = {"path": shop.path, "group": GROUP, "max_replays": 1}
    assert outcomes(pyspark_rmq.redrive(dead_letters(spark, shop), **limits)) == {"REDRIVEN": 1}
    die_again(shop)
    second = dead_letters(spark, shop).where("queueOffset = 1")
    (refused,) = pyspark_rmq.redrive(second, **limits).collect()
    assert refused["outcome"] == "REFUSED"
    assert "1" in refused["reason"]
    assert refused["newCommitLogOffset"] is None
    (parked,) = pyspark_rmq.redrive(second, parking_topic="ParkedBills", **limits).collect()
    assert (parked["outcome"], parked["target"]) == ("PARKED", "ParkedBills")
    (kept,) = shop.rows("ParkedBills")
    assert (kept["body"], kept["commitLogOffset"]) == (b"Orders-0", parked["newCommitLogOffset"])
    assert len(shop.rows(RETRY)) == 1


def test_they_can_go_to_another_topic_and_to_those_where_they_came_from(spark: Any, tmp_path: Path) -> None:
    """B20: for that, the origin is written down when the message dies."""
    shop = Shop(tmp_path / "store", {"Orders": 2, "Bills": 3})
    dead = dead_letters(spark, shop)
    assert {(row["originTopic"], row["count"]) for row in dead.groupBy("originTopic").count().collect()} == {
        ("Orders", 2), ("Bills", 3),
    }  # fmt: skip
    for topic in ("Orders", "Bills"):
        chosen = dead.where(f"originTopic = '{topic}' AND tags = 'TagA'")
        results = pyspark_rmq.redrive(chosen, path=shop.path, group=GROUP, to_topic=topic)
        assert {row["target"] for row in results.collect()} == {topic}
    assert sorted(row["body"] for row in shop.rows("Orders")) == [b"Orders-0", b"Orders-0", b"Orders-1"]
    assert len(shop.rows("Bills")) == 3 + 2
    assert shop.rows(RETRY) == []


def test_rows_that_are_no_dead_letters_of_this_group_are_refused_and_nothing_is_moved(
    spark: Any, shop: Shop, redrive: Run, tmp_path: Path
) -> None:
    dead = dead_letters(spark, shop)
    other = Shop(tmp_path / "store", {"Orders": 2}, "cg_other")
    orders = spark.read.format("rmq").option("path", shop.path).option("subscribe", "Orders").load()
    end = shop.end()
    wrong = {
        "%DLQ%cg_other.*no dead letters of group 'cg_bills'": dead.unionByName(dead_letters(spark, other)),
        "Orders": orders,
        "storeTopic": dead.select("queueId", "queueOffset"),
        "queueOffset": dead.select("queueId", "storeTopic"),
        "NULL": dead.selectExpr("queueId", "nullif(queueOffset, 3) AS queueOffset", "storeTopic"),
        "foreachBatch": spark.readStream.format("rmq").options(path=shop.path, subscribe=DLQ).load(),
    }
    for words, rows in wrong.items():
        with pytest.raises(UsageError, match=words):
            redrive(rows)
    assert shop.end() == end


def test_rows_of_another_store_are_refused_one_by_one(spark: Any, shop: Shop, redrive: Run, tmp_path: Path) -> None:
    elsewhere = Shop(tmp_path / "elsewhere", {"Orders": 2})
    end = shop.end()
    rows = redrive(dead_letters(spark, elsewhere)).collect()
    assert [(row["outcome"], row["reason"]) for row in rows] == [("REFUSED", "another message is there")] * 2
    assert shop.end() == end


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rate_per_second": 0}, "rate_per_second=0"),
        ({"rate_per_second": "100"}, "rate_per_second='100'"),
        ({"max_replays": -1}, "max_replays=-1"),
        ({"parking_topic": "Parked"}, "max_replays"),
        ({"to_topic": DLQ}, "loop"),
        ({"to_topic": "no such topic"}, "no such topic"),
        ({"limit": 0}, "limit=0"),
        ({"limit": "2"}, "limit='2'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_a_row_is_computed(
    spark: Any, redrive: Run, arguments: dict[str, Any], words: str
) -> None:
    fails = spark.range(1).selectExpr("0 AS queueId", "assert_true(false) AS queueOffset", "'' AS storeTopic")
    with pytest.raises(UsageError, match=words):
        redrive(fails, **arguments)


def test_rows_read_by_subscribing_to_the_dead_letter_topic_are_as_good(spark: Any, shop: Shop, redrive: Run) -> None:
    rows = spark.read.format("rmq").option("path", shop.path).option("subscribe", DLQ).load()
    assert outcomes(redrive(rows.select("queueId", "queueOffset", "topic"))) == {"REDRIVEN": 6}


def test_a_message_that_a_join_has_doubled_is_moved_once(
    spark: Any, shop: Shop, redrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "_CHUNK_ROWS", 2)
    dead = dead_letters(spark, shop)
    tripled = dead.crossJoin(spark.range(3)).where("queueOffset <> 4")
    assert outcomes(redrive(tripled)) == {"REDRIVEN": 5}
    assert len(shop.rows(RETRY)) == 5


def test_no_rows_give_no_rows(spark: Any, shop: Shop, redrive: Run) -> None:
    results = redrive(dead_letters(spark, shop).where("tags = 'none'"))
    assert (results.columns, results.count()) == (COLUMNS, 0)


def test_the_rate_is_kept_over_all_chunks(
    spark: Any, shop: Shop, redrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B17: a rate limit. No clock is asked: what is slept is written down."""
    slept: list[float] = []
    monkeypatch.setattr(redriving, "_CHUNK_ROWS", 2)
    monkeypatch.setattr(redriving, "sleep", slept.append)
    assert outcomes(redrive(dead_letters(spark, shop), rate_per_second=4.0)) == {"REDRIVEN": 6}
    assert 1.0 <= sum(slept) <= 1.5


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_there_is_a_bar_on_a_terminal_and_nothing_in_a_pipe(
    spark: Any, shop: Shop, redrive: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, shown = dead_letters(spark, shop), []
    for screen in (io.StringIO(), Terminal()):
        monkeypatch.setenv("TERM", "xterm-256color")
        with contextlib.redirect_stderr(screen):
            redrive(chosen)
        shown.append(screen.getvalue())
    assert "cg_bills" not in shown[0] and "%" not in shown[0]
    assert "redriving dead letters of cg_bills" in shown[1]
    assert "6/6" in shown[1]


def test_nothing_is_left_behind_and_the_results_stay(
    spark: Any, shop: Shop, redrive: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook's kernel is killed more often than it ends: what is to be cleaned up then stays for ever."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(redriving.tempfile, "tempdir", str(temporary))
    results = redrive(dead_letters(spark, shop))
    assert list(temporary.iterdir()) == []
    assert outcomes(results) == outcomes(results) == {"REDRIVEN": 6}
    with pytest.raises(UsageError):
        redrive(dead_letters(spark, shop).selectExpr("queueId", "queueOffset", "'other' AS storeTopic"))
    assert list(temporary.iterdir()) == []


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Shop]:
    """40,000 dead letters."""
    shop = Shop(tmp_path / "many", {"Orders": 0})
    with Store.open(shop.path) as store:
        count = 40_000
        store.append(pa.record_batch({"body": [b"%d" % number for number in range(count)]}), topic="Orders")
        for queue_id, limits in store.queue_ranges("Orders").items():
            for batch in store.read("Orders", queue_id, 0, limits.max_offset, columns=["commitLogOffset", "msgId"]):
                dead = pa.repeat(pa.scalar(-1, pa.int32()), batch.num_rows)
                none = pa.nulls(batch.num_rows, pa.map_(pa.string(), pa.string()))
                rows = pa.record_batch([*batch.columns, dead, none], [*batch.schema.names, "delayLevel", "properties"])
                store.retry.send_back_all(GROUP, rows)
    yield shop


def test_forty_thousand_dead_letters_are_no_effort(spark: Any, many: Shop) -> None:
    results = pyspark_rmq.redrive(dead_letters(spark, many), path=many.path, group=GROUP)
    summary = results.selectExpr("count(*)", "count(DISTINCT newCommitLogOffset)", "min(outcome)", "max(outcome)")
    assert tuple(summary.first()) == (40_000, 40_000, "REDRIVEN", "REDRIVEN")
    with Store.open(many.path, read_only=True) as store:
        assert sum(limits.max_offset for limits in store.queue_ranges(RETRY).values()) == 40_000
