"""The same promises over the API of each Spark: no message is lost or doubled, and the group is where the query is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_rmq.access import spark_api
from rmq_store import Store
from rmq_store.errors import UsageError

from .micro_batches import Api, Kill, Query

KILLS: tuple[Kill, ...] = ("before the sink", "before the commit entry", "behind the commit entry")
Make = Callable[..., Query]
Committed = Callable[[Path], int]


def orders(count: int) -> list[str]:
    return sorted(f"Orders-{number}" for number in range(count))


def read_all(query: Query, runs: int = 3) -> None:
    """As many runs as a Spark needs that reads one batch a run."""
    for _ in range(runs):
        query.run()


def test_a_new_query_reads_all_and_then_only_what_is_new(
    api: Api, make_store: Callable[..., Path], add_messages: Callable[..., None], query: Make, committed: Committed
) -> None:
    path = make_store(Orders=100)
    one = query(api, path)
    assert one.run()[0] == 100
    assert sum(one.run()) == 0
    add_messages(path, "Orders", 100, 150)
    assert sum(one.run()) == 50
    one.run()
    assert one.checkpoint.rows == orders(150)
    assert committed(path) == 150


@pytest.mark.parametrize("kill", KILLS)
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_killed_first_batch_is_repeated_as_it_was(
    api: Api, kill: Kill, start: str, make_store: Callable[..., Path], add_messages: Callable[..., None], query: Make,
    committed: Committed,
) -> None:  # fmt: skip
    """`latest` is another place at the next start."""
    path = make_store(Orders=100)
    one = query(api, path, startingOffsets=start)
    one.run(kill=kill)
    before = committed(path)
    assert before in (0, 100 if start == "latest" else 0)
    add_messages(path, "Orders", 100, 140)
    read_all(one)
    first = 100 if start == "latest" else 0
    assert one.checkpoint.rows == sorted(f"Orders-{number}" for number in range(first, 140))
    assert committed(path) == 140


@pytest.mark.parametrize("kill", KILLS)
def test_a_killed_later_batch_is_repeated_as_it_was(
    api: Api, kill: Kill, make_store: Callable[..., Path], add_messages: Callable[..., None], query: Make,
    committed: Committed,
) -> None:  # fmt: skip
    path = make_store(Orders=100)
    one = query(api, path)
    one.run()
    add_messages(path, "Orders", 100, 140)
    one.run(kill=kill)
    assert committed(path) in (0, 100)  # never the batch that has no commit entry
    planned = list(one.checkpoint.planned)
    add_messages(path, "Orders", 140, 150)
    one.run()
    assert one.checkpoint.planned[: len(planned)] == planned
    read_all(one)
    assert one.checkpoint.rows == orders(150)
    assert committed(path) == 150


def test_a_limit_holds_for_each_batch_of_processing_time(
    api: Api, make_store: Callable[..., Path], add_messages: Callable[..., None], query: Make, committed: Committed
) -> None:
    path = make_store(Orders=300)
    one = query(api, path, maxOffsetsPerTrigger=120)
    assert [count for count in one.run("processingTime") if count] == [120, 120, 60]
    add_messages(path, "Orders", 300, 430)
    assert [count for count in one.run("processingTime") if count] == [120, 10]
    assert one.checkpoint.rows == orders(430)
    assert committed(path) == 430


def test_a_limited_batch_that_was_killed_is_repeated(
    api: Api, make_store: Callable[..., Path], query: Make, committed: Committed
) -> None:
    path = make_store(Orders=300)
    one = query(api, path, maxOffsetsPerTrigger=120)
    one.run("processingTime", kill="before the commit entry")
    one.run("processingTime")
    assert one.checkpoint.rows == orders(300)
    assert committed(path) == 300


def test_a_query_that_looks_at_no_row_goes_on_too(
    api: Api, make_store: Callable[..., Path], query: Make, committed: Committed
) -> None:
    """Spark asks for the partitions when somebody reads the rows, and a function of `foreachBatch` may read none."""
    path = make_store(Orders=500)
    one = query(api, path, maxOffsetsPerTrigger=120)
    assert one.run("processingTime", triggers=1) == [120]
    one.reads_rows = False
    assert len(one.run("processingTime")) >= 4
    assert committed(path) == 500


def test_a_run_that_looks_at_no_row_ends_and_the_next_one_goes_on(
    api: Api, make_store: Callable[..., Path], query: Make, committed: Committed
) -> None:
    path = make_store(Orders=50)
    one = query(api, path)
    one.reads_rows = False
    for _ in range(3):
        one.run()
    assert one.checkpoint.rows == []
    assert committed(path) == 50


def test_queues_that_were_added_are_read_from_their_first_message(
    api: Api, make_store: Callable[..., Path], add_messages: Callable[..., None], query: Make, committed: Committed
) -> None:
    """Also by a run whose first answer knows no start, and with `latest`, which is their end by then."""
    path = make_store(Orders=100)
    one = query(api, path, startingOffsets="latest")
    one.options = {name: text for name, text in one.options.items() if name != "subscribe"}
    one.options |= {"subscribePattern": "Orders.*"}
    one.run()
    with Store.open(path) as store:
        store.create_topic("OrdersAgain", 4)
    add_messages(path, "OrdersAgain", 0, 60)
    read_all(one)
    assert one.checkpoint.rows == sorted(f"OrdersAgain-{number}" for number in range(60))
    assert committed(path) == 160


def test_what_a_limit_does_with_available_now(
    untold: Api, make_store: Callable[..., Path], query: Make, committed: Committed, caplog: pytest.LogCaptureFixture
) -> None:
    """It caps the run, which is said; with Spark's wrapper it is refused before Spark writes its log."""
    path = make_store(Orders=300)
    one = query(untold, path, maxOffsetsPerTrigger=120)
    if untold == "4.1 with wrapper":
        with pytest.raises(UsageError, match=r"maxOffsetsPerTrigger with availableNow.*triggerAvailableNowWrapper"):
            one.run()
        assert not one.checkpoint.planned
        one.run("processingTime", triggers=2)
        planned = len(one.checkpoint.planned)
        with pytest.raises(UsageError, match="maxOffsetsPerTrigger with availableNow"):
            one.run()
        assert len(one.checkpoint.planned) == planned
        return
    assert [one.run(), one.run(), one.run()] == [[120], [120], [60]]
    assert "maxOffsetsPerTrigger caps the whole run" in caplog.text
    assert one.checkpoint.rows == orders(300)


def test_a_first_answer_is_marked_and_the_next_ones_are_not(
    untold: Api, make_store: Callable[..., Path], add_messages: Callable[..., None], query: Make
) -> None:
    path = make_store(Orders=100)
    one = query(untold, path)
    one.run("processingTime")
    add_messages(path, "Orders", 100, 120)
    one.run("processingTime")
    versions = [(position["version"], position.get("blind")) for position in one.checkpoint.planned]
    assert versions[0] == (4, 1)
    assert set(versions[1:]) == {(1, None)}
    source = {"group": "cg", "path": str(path)}
    assert all(position["source"] == source for position in one.checkpoint.planned)
    assert one.checkpoint.planned


def test_a_first_answer_commits_nothing_although_it_is_that_to_a_new_query(
    untold: Api, make_store: Callable[..., Path], add_messages: Callable[..., None], query: Make, committed: Committed
) -> None:
    """A new query would begin at the end of the queues, and commit that."""
    path = make_store(Orders=100)
    one = query(untold, path, startingOffsets="latest")
    one.run(kill="before the sink")
    add_messages(path, "Orders", 100, 140)
    one.run(kill="before the sink")
    assert committed(path) in (0, 100)
    read_all(one)
    assert one.checkpoint.rows == sorted(f"Orders-{number}" for number in range(100, 140))


def test_a_query_moves_to_a_newer_spark_and_back(
    make_store: Callable[..., Path], add_messages: Callable[..., None], query: Make, committed: Committed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = make_store(Orders=100)
    one = query("4.0", path)
    for number, api in enumerate(("4.0", "4.3", "4.0", "4.2", "4.1 with wrapper", "4.3")):
        one.api = api
        monkeypatch.setattr(spark_api, "TELLS_STARTS", api in ("4.2", "4.3"))
        one.run(kill="before the commit entry" if number % 2 == 0 else None)
        add_messages(path, "Orders", 100 + 10 * number, 110 + 10 * number)
    read_all(one)
    assert one.checkpoint.rows == orders(160)
    assert committed(path) == 160
