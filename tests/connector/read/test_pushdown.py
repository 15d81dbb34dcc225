"""Filters that Spark leaves to the source: less is read, and no row more or less comes out in the end."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import datasource as spark_filters
from pyspark.sql.types import StructType

from pyspark_rmq.options.options import Lookup, source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.schema.row_filters import MatchesLookup
from pyspark_rmq.schema.schema import READABLE, SOURCE_SCHEMA
from pyspark_rmq.source import DefaultSource
from rmq_store import Message, Store, StoreConfig

from ..spark_lacks import module_needs_spark

module_needs_spark("filter pushdown")

from pyspark_rmq.read.pushdown import PushingReader  # noqa: E402

NOW_MS = 1_700_000_000_000
NOT = spark_filters.Not
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three topics, values that are NULL, and a clock that was set back."""
    root = tmp_path_factory.mktemp("pushdown") / "store"
    now = [NOW_MS]
    config = StoreConfig(
        mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=40
    )
    with Store.open(root, create=True, config=config, clock=lambda: now[0]) as store:
        for topic, queues in (("Alpha", 2), ("Beta", 1), ("%DLQ%cg", 1)):
            store.create_topic(topic, queues)
        for number in range(60):
            now[0] += -5000 if number == 30 else 100
            store.send(
                Message(
                    ("Alpha", "Alpha", "Beta")[number % 3],
                    b"body %d" % number,
                    tags=(None, "TagA", "TagB")[number % 3],
                    keys=(None, f"k{number}" if number < 56 else " ", f"k{number} all", "AaAa", "BBBB")[number % 5],
                    flag=number % 4,
                    born_timestamp_ms=NOW_MS + 7 * number,
                )
            )
        for topic in ("Alpha", "Beta"):
            store.send(Message("%DLQ%cg", b"dead", keys="k1", properties={"RETRY_TOPIC": topic}), as_given=True)
    return root


def reader(path: Path, kind: type[RmqReader] = PushingReader, **options: str) -> Any:
    given = {"path": str(path)} | ({} if "dlq" in options else {"subscribe": "Alpha,Beta"}) | options
    return kind(source_options(given, "batch read", NOW_MS), READABLE if "dlq" in options else SOURCE_SCHEMA)


def rows_of(reader: RmqReader) -> Rows:
    """Through pickles, as tasks get them."""
    pickle = CloudPickleSerializer()
    partitions = reader.partitions()
    reader = pickle.loads(pickle.dumps(reader))
    rows = [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["commitLogOffset"])


def on(kind: str, column: str, *value: Any) -> Any:
    """One of Spark's filters."""
    return getattr(spark_filters, kind)((column,), *value)


# What Spark makes of the filters of these names: SQL, in which NULL is neither true nor false.
COMPARE = {
    "EqualTo": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "StringStartsWith": str.startswith,
    "StringEndsWith": str.endswith,
    "StringContains": operator.contains,
}


def sql(pushed: Any, row: dict[str, Any]) -> bool | None:
    name = type(pushed).__name__
    if name == "Not":
        answer = sql(pushed.child, row)
        return None if answer is None else not answer
    value = row[pushed.attribute[0]]
    if name in ("IsNull", "IsNotNull"):
        return (value is None) == (name == "IsNull")
    if name == "EqualNullSafe":
        return value == pushed.value
    if value is None:
        return None
    if name == "In":
        return True if value in pushed.value else None if None in pushed.value else False
    return None if pushed.value is None else COMPARE[name](value, pushed.value)


def where(rows: Rows, filters: Any) -> Rows:
    return [row for row in rows if all(sql(pushed, row) for pushed in filters)]


def filters(rows: Rows) -> st.SearchStrategy[Any]:
    """Filters on all columns, mostly about values that are there."""

    def about(name: str) -> st.SearchStrategy[Any]:
        values = sorted({row[name] for row in rows} - {None}) or [b""]
        if isinstance(values[0], bool | int):
            more: Any = st.integers(min(values) - 1, max(values) + 1) | st.sampled_from([-1, 2**31, 2**62])
        elif isinstance(values[0], datetime):
            more = st.sampled_from(values).map(lambda time: time + timedelta(microseconds=1))
        elif isinstance(values[0], str):
            more = st.sampled_from(["", " ", "all", "k7", "nobody", "AaAa k1"])
        else:
            more = st.just(b"body 7")
        value = st.sampled_from(values) | more
        kinds = ["EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]
        if isinstance(values[0], str):
            kinds += ["StringStartsWith", "StringEndsWith", "StringContains"]
        compared = st.builds(lambda kind, value: on(kind, name, value), st.sampled_from(kinds), value)
        several = st.lists(value | st.none(), min_size=1, max_size=3).map(tuple)
        listed = st.builds(lambda wanted: on("In", name, wanted), several)
        nulls = st.sampled_from([on("IsNull", name), on("IsNotNull", name)])
        return compared | listed | nulls

    names = [name for name in SOURCE_SCHEMA.names if name != "properties"]
    plain = st.sampled_from(names).flatmap(about)
    return plain | plain.map(NOT)


@settings(max_examples=50)
@given(st.data())
def test_pushed_filters_change_no_result(path: Path, data: Any) -> None:
    """Partly in the source and partly in Spark, or all in Spark: the same rows."""
    dead = data.draw(st.sampled_from([False, False, False, True]))
    options = {"dlq": "cg"} if dead else data.draw(st.sampled_from([{}, {}, {"key": "all AaAa"}, {"tags": "TagA"}]))
    everything = rows_of(reader(path, RmqReader, **options))
    pushed = data.draw(st.lists(filters(everything), min_size=1, max_size=4))
    pushing = reader(path, **options)
    left = list(pushing.pushFilters(pushed))
    assert all(any(one is other for other in pushed) for one in left), "by reference, as Spark wants it"
    assert where(rows_of(pushing), left) == where(everything, pushed)


@pytest.mark.parametrize(
    ("pushed", "count"),
    [
        (NOT(on("LessThan", "queueOffset", 15)), 15),
        (on("In", "queueOffset", (3, 6)), 6),
        (NOT(on("In", "queueOffset", (3, 6))), 54),
        (NOT(on("EqualTo", "keys", "AaAa")), 36),
        (NOT(on("In", "keys", ("AaAa", "BBBB"))), 24),
        (NOT(on("EqualNullSafe", "keys", "AaAa")), 48),
        (NOT(on("In", "tags", ("TagA",))), 20),
        (NOT(on("EqualNullSafe", "tags", "TagA")), 40),
        (NOT(on("StringStartsWith", "tags", "Tag")), 0),
        (on("EqualTo", "keys", " "), 1),
        (on("In", "keys", (" ", "k1")), 2),
    ],
)
def test_negation_null_and_keys_without_a_key(path: Path, pushed: Any, count: int) -> None:
    pushing = reader(path)
    assert list(pushing.pushFilters([pushed])) == []
    assert rows_of(pushing) == where(rows_of(reader(path, RmqReader)), [pushed])
    assert len(rows_of(pushing)) == count


# -- what is taken, and what it saves ---------------------------------------------------------------------------------

def planned(path: Path, *pushed: Any, **options: str) -> list[Any]:
    pushing = reader(path, **options)
    assert list(pushing.pushFilters(list(pushed))) == []
    return pushing.partitions()


def slices(partitions: list[Any]) -> list[tuple[str, int, int, int]]:
    return [tuple(partition.part) for partition in partitions]


def test_places_narrow_the_plan(path: Path) -> None:
    assert slices(planned(path, on("EqualTo", "topic", "Beta"))) == [("Beta", 0, 0, 20)]
    assert slices(planned(path, on("In", "queueId", (1, 7)), on("IsNotNull", "queueId"))) == [("Alpha", 1, 0, 20)]
    assert slices(planned(path, on("EqualTo", "topic", "nobody"))) == []
    assert slices(planned(path, NOT(on("EqualTo", "queueId", 0)))) == [("Alpha", 1, 0, 20)]
    bounds = on("GreaterThan", "queueOffset", 4), on("LessThanOrEqual", "queueOffset", 9)
    assert slices(planned(path, *bounds, on("EqualTo", "topic", "Beta"))) == [("Beta", 0, 5, 10)]
    assert slices(planned(path, on("In", "queueOffset", (3, 6)), on("EqualTo", "topic", "Beta"))) == [("Beta", 0, 3, 7)]


@pytest.mark.parametrize(
    ("pushed", "count"),
    [
        (on("EqualTo", "keys", "k7 all"), 1),
        (on("In", "keys", ("k7 all", "k1", "nobody")), 2),
        (on("EqualNullSafe", "keys", "k7 all"), 1),
    ],
)
def test_keys_that_are_equal_to_something_are_looked_up(path: Path, pushed: Any, count: int) -> None:
    partitions = planned(path, on("IsNotNull", "keys"), pushed)
    assert sum(len(partition.rows) for partition in partitions) == count


def test_ids_are_looked_up_and_an_option_goes_first(path: Path) -> None:
    row = rows_of(reader(path))[17]
    (partition,) = planned(path, on("EqualTo", "msgId", row["msgId"]))
    assert list(partition.rows) == [row["queueOffset"]]
    pushing = reader(path, key="all")
    pushing.pushFilters([on("EqualTo", "msgId", row["msgId"])])
    assert pushing._lookup == Lookup("key", ("all",))
    assert [found["msgId"] for found in rows_of(pushing)] == [row["msgId"]]


def test_bodies_are_read_only_where_the_filter_holds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Store.read
    bodies: list[int] = []

    def watched(store: Store, *place: Any, **options: Any) -> Iterator[Any]:
        for batch in read(store, *place, **options):
            bodies.append(batch.num_rows * ("body" in batch.schema.names))
            yield batch

    monkeypatch.setattr(Store, "read", watched)
    time = datetime.fromtimestamp(NOW_MS / 1000, UTC) + timedelta(milliseconds=7 * 55)
    pushing = reader(path)
    assert list(pushing.pushFilters([on("GreaterThan", "bornTimestamp", time)])) == []
    assert len(rows_of(pushing)) == sum(bodies) == 4
    bodies.clear()
    options = source_options({"path": str(path), "subscribe": "Alpha,Beta"}, "batch read", NOW_MS)
    light = PushingReader(options, StructType([SOURCE_SCHEMA["flag"]]))
    light.pushFilters([on("EqualTo", "flag", 3)])
    assert [batch.to_pydict() for partition in light.partitions() for batch in light.read(partition)]
    assert sum(bodies) == 0


def test_times_do_not_narrow_the_plan_because_a_clock_may_be_set_back(path: Path) -> None:
    everything = rows_of(reader(path))
    times = [row["storeTimestamp"] for row in everything]
    assert times != sorted(times)
    middle = sorted(times)[len(times) // 2]
    pushing = reader(path)
    assert list(pushing.pushFilters([on("GreaterThan", "storeTimestamp", middle)])) == []
    assert rows_of(pushing) == [row for row in everything if row["storeTimestamp"] > middle]


@pytest.mark.parametrize(
    "pushed",
    [
        on("EqualTo", "body", b"body 7"),
        on("EqualTo", "properties", {}),
        spark_filters.EqualTo(("properties", "KEYS"), "k1"),
        on("EqualTo", "keys", None),
        on("In", "flag", (1, None)),
        on("GreaterThan", "tags", "TagA"),
        on("EqualTo", "flag", True),
        on("EqualTo", "flag", 2**70),
        on("EqualTo", "storeTimestamp", datetime(2026, 1, 1)),
        on("EqualTo", "originTopic", "Alpha"),
        NOT(NOT(on("IsNull", "keys"))),
    ],
)
def test_what_cannot_be_decided_for_certain_is_left_to_spark(path: Path, pushed: Any) -> None:
    pushing = reader(path)
    assert list(pushing.pushFilters([pushed])) == [pushed]
    assert len(rows_of(pushing)) == 60


def test_the_topic_of_a_dead_letter_is_not_that_of_its_queue(path: Path) -> None:
    pushing = reader(path, dlq="cg")
    pushed = on("EqualTo", "topic", "Alpha")
    assert list(pushing.pushFilters([pushed])) == [pushed]
    assert [row["topic"] for row in rows_of(pushing)] == ["Alpha", "Beta"]


def test_a_reader_takes_filters_only_if_asked_to(path: Path) -> None:
    """Spark refuses one that could where its setting is off: DATA_SOURCE_PUSHDOWN_DISABLED."""
    asked = {"path": str(path), "subscribe": "Alpha"}
    assert type(DefaultSource(asked).reader(SOURCE_SCHEMA)) is RmqReader
    assert type(DefaultSource(asked | {"filterPushdown": "true"}).reader(SOURCE_SCHEMA)) is PushingReader


@pytest.mark.parametrize("by", ["unique key", "id"])
def test_a_message_of_a_batch_is_sought_by_its_own_id_and_by_the_batchs(by: str) -> None:
    rows = {
        "msgId": ["own", "other", "7F00000100002A9F0000000000000000"],
        "javaMsgId": ["batch", "other", "7F00000100002A9F0000000000000000"],
        "properties": pa.array([[("UNIQ_KEY", "own")], [("UNIQ_KEY", "other")], []], pa.map_(pa.string(), pa.string())),
        "storeHost": ["127.0.0.1:10911"] * 3,
        "commitLogOffset": [10, 20, 0],
    }
    for texts, expected in (
        (("own",), [True, False, False]), (("batch",), [True, False, False]), (("other", "none"), [False, True, False]),
        (("7F00000100002A9F0000000000000000",), [False, False, by == "id"]),
    ):  # fmt: skip
        sought = MatchesLookup(Lookup(by, texts))  # type: ignore[arg-type]
        assert set(sought.columns) <= rows.keys()
        assert sought.holds(pa.RecordBatch.from_pydict(rows)).tolist() == expected
