"""Batches about certain messages (`key`, `uniqKey`, `msgId`), against a read of everything that is filtered here.

Rules: IndexService (buildIndex, load: what it keeps, and what it loses), MQAdminImpl#viewMessage (which takes offset
ids and unique keys).
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.serializers import CloudPickleSerializer

from pyspark_rmq.options.options import source_options
from pyspark_rmq.read import lookup
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.read.task import SlicePartition
from pyspark_rmq.schema.origin_columns import offset_message_ids
from pyspark_rmq.schema.schema import READABLE, SOURCE_SCHEMA
from rmq_store import Message, Store, StoreConfig, recorded_losses
from rmq_store.errors import CorruptionError, CorruptRecordError, DataLossError, UsageError

spark_pickle = CloudPickleSerializer()
NOW_MS = 1_700_000_000_000
TINY = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=40
)
# Aa and BB have the same Java hash, and so have all texts made of them.
KEYS = ("AaAa", "AaBB", "BBBB", "k", "K", "Schlüssel", "😀")


class Shop:
    """One store; time stands still until `now_ms` is changed."""

    def __init__(self, root: Path, config: StoreConfig = TINY) -> None:
        self.root = root
        self.config = config
        self.now_ms = NOW_MS

    def open(self) -> Store:
        return Store.open(self.root, create=True, config=self.config, clock=lambda: self.now_ms)

    def reader(self, **options: str) -> RmqReader:
        given = {"path": str(self.root)}
        given |= {} if {"subscribePattern", "assign", "dlq"} & options.keys() else {"subscribe": "Alpha,Beta"}
        schema = READABLE if "dlq" in options else SOURCE_SCHEMA
        return RmqReader(source_options(given | options, "batch read", self.now_ms), schema)

    def read(self, **options: str) -> list[dict[str, Any]]:
        return rows_of(self.reader(**options))


def rows_of(reader: RmqReader) -> list[dict[str, Any]]:
    """All rows, by queue and offset. Within a partition they are in that order already."""
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        own = [row for batch in reader.read(partition) for row in batch.to_pylist()]
        assert own == sorted(own, key=place_of)
        rows += own
    return sorted(rows, key=place_of)


def place_of(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["topic"], row["queueId"], row["queueOffset"]


def offset_id(row: dict[str, Any]) -> str:
    return offset_message_ids(pa.array([row["storeHost"]]), pa.array([row["commitLogOffset"]]))[0].as_py()


def sought(option: str, texts: set[str]) -> Callable[[dict[str, Any]], bool]:
    """What the three options mean."""
    return {
        "key": lambda row: bool(texts & set((row["keys"] or "").split(" "))),
        "uniqKey": lambda row: dict(row["properties"]).get("UNIQ_KEY") in texts,
        "msgId": lambda row: row["msgId"] in texts or offset_id(row) in texts,
    }[option]


def send_some(store: Store, topic: str = "Alpha", count: int = 150, **fields: Any) -> None:
    for number in range(count):
        store.send(Message(topic, b"." * 40, keys=f"k{number} all", **fields))


@pytest.fixture
def shop(scratch: Path) -> Iterator[Shop]:
    yield Shop(scratch / "store")


# -- against a look at every message ----------------------------------------------------------------------------------


def no_change(shop: Shop) -> None:
    pass


def as_copied_in_use(shop: Shop) -> None:
    """Nothing vouches for the index."""
    (shop.root / "pyrmq" / "progress").unlink(missing_ok=True)
    (shop.root / "abort").touch()
    for page in (shop.root / "pyrmq").glob("state*"):
        page.unlink()


def index_files(shop: Shop) -> list[Path]:
    return sorted((shop.root / "index").iterdir())


def of_a_broker(shop: Shop) -> None:
    """Whose files are taken as they are."""
    (shop.root / "lock").write_bytes(b"lock")


def without_the_first(shop: Shop) -> None:
    of_a_broker(shop)
    index_files(shop)[0].unlink()


def without_the_last(shop: Shop) -> None:
    of_a_broker(shop)
    index_files(shop)[-1].unlink()


def without_one_between(shop: Shop) -> None:
    """IndexService#load of an unclean start, and no dispatch of what it held (messageIndexSafe=false)."""
    of_a_broker(shop)
    files = index_files(shop)
    files[len(files) // 2].unlink()


def without_any(shop: Shop) -> None:
    of_a_broker(shop)
    shutil.rmtree(shop.root / "index")


def killed(shop: Shop) -> None:
    """A copy of a running broker's store: the file that it wrote to is torn, here without its slots."""
    of_a_broker(shop)
    (shop.root / "abort").touch()
    with index_files(shop)[-1].open("r+b") as file:
        file.seek(40)
        file.write(bytes(4 * TINY.max_hash_slot_num))


STATES = (
    no_change, as_copied_in_use, of_a_broker, without_the_first, without_the_last, without_one_between, without_any,
    killed,
)  # fmt: skip

messages = st.lists(
    st.tuples(
        st.sampled_from(["Alpha", "Beta"]),
        st.lists(st.sampled_from(KEYS), max_size=3),
        st.sampled_from([None, "TagA", "TagB"]),
        st.sampled_from([0, 0, 0, 1]),
    ),
    min_size=1,
    max_size=60,
)
bounds = st.fixed_dictionaries(
    {},
    optional={
        "tags": st.sampled_from(["TagA", "TagA || TagB"]),
        "startingTimestamp": st.integers(NOW_MS - 500, NOW_MS + 2500).map(str),
        "endingTimestamp": st.integers(NOW_MS - 500, NOW_MS + 2500).map(str),
        "minPartitions": st.sampled_from(["1", "7"]),
    },
)


@settings(max_examples=8)
@given(
    st.lists(messages, min_size=1, max_size=3),
    st.sets(st.sampled_from([*KEYS, "nobody"]), min_size=1),
    st.sampled_from(STATES),
    st.sampled_from([0, lookup._READ_WHILE_PLANNING_ROWS]),
    bounds,
    st.data(),
)
def test_what_is_found_is_what_a_filtered_read_of_everything_finds(
    batches: Any, wanted: set[str], change: Callable[[Shop], None], look_at: int, bounds: dict[str, str], data: Any
) -> None:
    directory = Path(tempfile.mkdtemp())
    shop = Shop(directory / "store")
    usual = lookup._READ_WHILE_PLANNING_ROWS
    try:
        with shop.open() as store:
            for topic in ("Alpha", "Beta"):
                store.create_topic(topic, 2)
            for batch in batches:
                shop.now_ms += 700
                for topic, keys, tags, level in batch:
                    store.send(Message(topic, b"x", keys="  ".join(keys) or None, tags=tags, delay_level=level))
            shop.now_ms += 1000
            store.schedule.deliver_due()  # messages come to their real topic, with their keys
        change(shop)
        lookup._READ_WHILE_PLANNING_ROWS = look_at
        everything = shop.read()
        ids = [name(row) for row in everything for name in (offset_id, lambda row: row["msgId"])]
        chosen = data.draw(st.sets(st.sampled_from([*ids, "nobody", "AB" * 16]), min_size=1))
        scope = shop.read(**bounds)
        for option, texts in (("key", wanted), ("uniqKey", chosen), ("msgId", chosen)):
            expected = [row for row in scope if sought(option, texts)(row)]
            assert shop.read(**bounds, **{option: " ".join(texts)}) == expected
    finally:
        lookup._READ_WHILE_PLANNING_ROWS = usual
        shutil.rmtree(directory)


@pytest.mark.parametrize("change", STATES)
def test_no_key_is_missed_at_the_border_of_what_the_index_covers(
    shop: Shop, change: Callable[[Shop], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files begin and end between the keys of one message; each message is asked for, in one question for all."""
    count = 30
    with shop.open() as store:
        store.create_topic("Alpha", 2)
        for number in range(count):
            keys = [f"{part}-{number}" for part in ("a", "b", "c", "d", "e")]
            store.send(Message("Alpha", b"", keys=keys))
        assert len(index_files(shop)) > 4
    change(shop)
    ids = [row["msgId"] for row in shop.read(subscribe="Alpha")]
    for look_at in (0, lookup._READ_WHILE_PLANNING_ROWS):
        monkeypatch.setattr(lookup, "_READ_WHILE_PLANNING_ROWS", look_at)
        for part in ("a", "e"):
            found = shop.read(subscribe="Alpha", key=" ".join(f"{part}-{number}" for number in range(count)))
            assert [row["msgId"] for row in found] == ids
        assert [row["msgId"] for row in shop.read(subscribe="Alpha", uniqKey=" ".join(ids))] == ids


def test_a_brokers_messages_are_found(golden: Path, copy_store: Callable[..., Path], scratch: Path) -> None:
    shop = Shop(copy_store(golden / "store", scratch / "store"))
    shop.now_ms = 1_900_000_000_000
    everything = shop.read(subscribe="OrderTopic")
    texts = set(sorted({key for row in everything for key in (row["keys"] or "").split(" ") if key})[::7])
    expected = [row for row in everything if sought("key", texts)(row)]
    assert len(expected) > 300
    assert shop.read(subscribe="OrderTopic", key="\n".join(sorted(texts))) == expected
    ids = {offset_id(row).lower() for row in expected[:5]} | {row["msgId"] for row in expected[5:10]}
    assert shop.read(subscribe="OrderTopic", msgId=" ".join(ids)) == expected[:10]


# -- what is read, and what is not ------------------------------------------------------------------------------------


def test_only_the_messages_that_were_found_are_read(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.open() as store:
        store.create_topic("Alpha", 2)
        send_some(store)
        assert len(index_files(shop)) > 3
    reader = shop.reader(subscribe="Alpha", key="k3 k77 k140 k141 nobody")
    partitions = reader.partitions()
    assert sum(len(partition.rows) for partition in partitions) == 4
    assert len(partitions) <= 2, "a task for each queue that has any"
    read = Store.read
    entries: list[int] = []

    def watched(store: Store, *place: Any, only: Any = None, **options: Any) -> Any:
        assert not options["two_threads"], "Spark runs a task for each processor"
        entries.append(place[-1] - place[-2] if only is None else len(only))
        return read(store, *place, only=only, **options)

    monkeypatch.setattr(Store, "read", watched)
    rows = [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]
    assert sorted(row["keys"] for row in rows) == ["k140 all", "k141 all", "k3 all", "k77 all"]
    assert sum(entries) == 4
    assert shop.reader(subscribe="Alpha", key="nobody").partitions() == []


def test_times_and_offsets_bound_the_search(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Index files without a record of the range are not walked."""
    times = []
    with shop.open() as store:
        store.create_topic("Alpha", 1)
        for _ in range(4):
            times.append(shop.now_ms)
            send_some(store, count=50)
            shop.now_ms += 10_000
    walked: list[object] = []
    from rmq_store.log.views import index_search

    chains = index_search.IndexMap.chains
    monkeypatch.setattr(
        index_search.IndexMap, "chains", lambda view, *arguments: (walked.append(view), chains(view, *arguments))[1]
    )
    assert len(shop.read(subscribe="Alpha", key="k7")) == 4
    files, walked[:] = len(walked), []
    assert files == len(index_files(shop)) > 8
    for bounds, found in (
        ({"startingTimestamp": str(times[3])}, 1),
        ({"endingTimestamp": str(times[1])}, 1),
        ({"startingTimestamp": str(times[1]), "endingTimestamp": str(times[2])}, 1),
        ({"startingOffsets": '{"Alpha":{"0":150}}'}, 1),
        ({"endingOffsets": '{"Alpha":{"0":8}}'}, 1),
        ({"startingOffsets": '{"Alpha":{"0":8}}', "endingOffsets": '{"Alpha":{"0":57}}'}, 0),
    ):
        assert len(shop.read(subscribe="Alpha", key="k7", **bounds)) == found
        assert 0 < len(walked) <= files // 2
        walked.clear()


def test_ten_thousands_of_keys_are_looked_up_together_and_cut_by_rows(shop: Shop) -> None:
    shop.config = replace(
        TINY, mapped_file_size_commit_log=1 << 24, max_hash_slot_num=50_000, max_index_num=200_000,
        mapped_file_size_consume_queue=20_000,
    )  # fmt: skip
    with shop.open() as store:
        store.create_topic("Alpha", 1)
        count = 60_000
        keys = [f"k{number}" for number in range(count)]
        store.append(pa.record_batch({"body": pa.array([b""] * count), "keys": keys}), "Alpha")
    wanted = [f"k{number}" for number in range(0, count, 2)] + [f"other-{number}" for number in range(20_000)]
    reader = shop.reader(subscribe="Alpha", key="\n".join(wanted), minPartitions="4")
    partitions = reader.partitions()
    assert [len(partition.rows) for partition in partitions] == [7500] * 4
    found = [batch.column("keys") for partition in partitions for batch in reader.read(partition)]
    assert pa.chunked_array(found).to_pylist() == wanted[: count // 2]


@pytest.mark.parametrize("look_at", [0, 10_000])
def test_a_store_that_keeps_no_index_is_read_and_says_so(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, look_at: int
) -> None:
    """Few messages are looked at while planning, many by the tasks."""
    monkeypatch.setattr(lookup, "_READ_WHILE_PLANNING_ROWS", look_at)
    shop.config = replace(TINY, message_index_enable=False)
    with shop.open() as store:
        store.create_topic("Alpha", 2)
        send_some(store)
    with caplog.at_level(logging.WARNING):
        found = shop.read(subscribe="Alpha", key="k3 k77")
    assert sorted(row["keys"] for row in found) == ["k3 all", "k77 all"]
    assert "messageIndexEnable=false" in caplog.text
    assert "all messages of Alpha have to be looked at" in caplog.text


def test_a_queue_that_was_made_again_has_only_its_new_messages(shop: Shop) -> None:
    """As a broker deletes a topic: the next one of its name begins again at 0, and the log still has both."""
    with shop.open() as store:
        store.create_topic("Alpha", 2)
        store.send(Message("Alpha", b"", keys="first all", queue_id=1))
        send_some(store, count=20, queue_id=0)
        shutil.rmtree(shop.root / "consumequeue" / "Alpha" / "0")
        store._log.files.clear()
        store._log.views._queues.clear()
        for _ in range(5):
            store.send(Message("Alpha", b"", keys="new all", queue_id=0))
        assert store.query.find("Alpha", ["all"]).num_rows == 26
    found = shop.read(subscribe="Alpha", key="all k2 k7")
    assert [row["keys"] for row in found] == ["new all"] * 5 + ["first all"]
    assert shop.read(subscribe="Alpha", key="k2 k7") == []


def test_dead_letters_are_found_by_their_keys(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("Alpha", 1)
        send_some(store, count=9)
        store.create_topic("%DLQ%cg", 1)
        for number in (1, 2):
            store.send(Message("%DLQ%cg", b"", keys=f"k{number}", properties={"RETRY_TOPIC": "Alpha"}), as_given=True)
    (row,) = shop.read(dlq="cg", key="k2")
    assert (row["topic"], row["storeTopic"], row["queueOffset"]) == ("Alpha", "%DLQ%cg", 1)


def test_the_id_of_another_brokers_message_finds_nothing(shop: Shop) -> None:
    for host, name in (("10.1.2.3:10911", "a"), ("[2001:db8::7]:10911", "b")):
        own = Shop(shop.root.with_name(name), replace(TINY, broker_host=host))
        with own.open() as store:
            for topic in ("Alpha", "Beta"):
                store.create_topic(topic, 1)
                sent = store.send(Message(topic, b""))
            store.send(Message("Beta", b"", keys="the last one is always looked at"))
        assert len(own.read(subscribe="Beta", msgId=sent.offset_msg_id)) == 1
        assert own.read(subscribe="Beta", msgId=sent.offset_msg_id.replace("00002A9F", "00002A9E")) == []
        assert own.read(subscribe="Alpha", msgId=sent.offset_msg_id) == []
        assert own.read(subscribe="Beta", msgId=f"{int(sent.offset_msg_id, 16) + 1:0{len(sent.offset_msg_id)}X}") == []
        assert own.read(subscribe="Beta", uniqKey=sent.offset_msg_id) == []


# -- loss and damage --------------------------------------------------------------------------------------------------


def segments(shop: Shop) -> list[Path]:
    return sorted((shop.root / "commitlog").iterdir())


def expire(shop: Shop, count: int) -> None:
    for path in segments(shop)[:count]:
        os.utime(path, (0, 0))
    with shop.open() as store:
        assert len(store.retention.run(manual=True).removed) == count


def test_what_retention_takes_after_the_planning_is_a_loss_of_exactly_that(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("Alpha", 1)
        send_some(store)
    asked = {"subscribe": "Alpha", "key": "k0 k1 k2 k7 k140"}
    strict, lenient = shop.reader(**asked), shop.reader(**asked, failOnDataLoss="false")
    ((partition,), _) = strict.partitions(), lenient.partitions()
    expire(shop, 1)
    with pytest.raises(DataLossError, match=r"Alpha-0 \[0, 3\), Alpha-0 \[7, 8\)"):
        list(strict.read(partition))
    rows = [row for batch in lenient.read(partition) for row in batch.to_pylist()]
    assert [row["keys"] for row in rows] == ["k140 all"]
    assert [(loss.start, loss.end) for loss in recorded_losses(shop.root)] == [(0, 3), (7, 8)]
    assert [row["keys"] for row in shop.read(**asked)] == ["k140 all"]


def damage(shop: Shop, number: int, at: int = 100) -> None:
    """Change bytes of a message of Alpha-0: of its body, or `at` of its header."""
    with Store.open(shop.root, read_only=True) as store:
        place = store.commit_log_offset_before("Alpha", 0, number + 1)
    with segments(shop)[place // TINY.mapped_file_size_commit_log].open("r+b") as file:
        file.seek(place % TINY.mapped_file_size_commit_log + at)
        file.write(b"\xff" * 8)


def test_a_damaged_message_is_an_error_or_left_out_and_reported(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("Alpha", 1)
        send_some(store, count=40)
    damage(shop, 7)
    with pytest.raises(CorruptRecordError):
        shop.read(subscribe="Alpha", key="k6 k7 k8")
    assert [row["keys"] for row in shop.read(subscribe="Alpha", key="k6 k8")] == ["k6 all", "k8 all"]
    damage(shop, 7, at=0)
    found = shop.read(subscribe="Alpha", key="k6 k7 k8", failOnDataLoss="false", onCorruption="skip")
    assert [row["keys"] for row in found] == ["k6 all", "k8 all"]
    assert [(loss.start, loss.end, loss.reason) for loss in recorded_losses(shop.root)] == [(7, 8, "corruption")]


def test_lost_messages_might_have_had_the_key(shop: Shop) -> None:
    """The index of a store whose damage was kept knows nothing of what is lost: a read of everything fails, too."""
    with shop.open() as store:
        store.create_topic("Alpha", 1)
        send_some(store, count=40)
    damage(shop, 7)
    shutil.rmtree(shop.root / "index")  # the log is looked at again from its start
    with Store.open(shop.root, on_corruption="keep", clock=lambda: shop.now_ms) as store:
        assert store.recovery is not None and store.recovery.bad_ranges
    with pytest.raises(CorruptRecordError, match="lost"):
        shop.read(subscribe="Alpha", key="k6 k9")
    run_in_thread = {"subscribe": "Alpha", "key": "k6 k9", "startingOffsets": '{"Alpha":{"0":8}}'}
    assert [row["keys"] for row in shop.read(**run_in_thread)] == ["k9 all"]
    found = shop.read(subscribe="Alpha", key="k6 k9", failOnDataLoss="false", onCorruption="skip")
    assert [row["keys"] for row in found] == ["k6 all", "k9 all"]


def test_a_damaged_index_is_an_error_and_not_an_empty_answer(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.open() as store:
        store.create_topic("Alpha", 1)
        send_some(store, count=40)
    oldest = index_files(shop)[0]
    data = bytearray(oldest.read_bytes())
    data[40 : 40 + 4 * TINY.max_hash_slot_num] = b"\x7f" * (4 * TINY.max_hash_slot_num)
    oldest.write_bytes(data)
    with pytest.raises(CorruptionError, match="rmq repair --index"):
        shop.read(subscribe="Alpha", key="k6")
    found = shop.read(subscribe="Alpha", key="k6", failOnDataLoss="false", onCorruption="skip")
    assert [row["keys"] for row in found] == ["k6 all"]


def test_rows_of_one_queue_come_once_from_a_living_store(shop: Shop) -> None:
    """The writer is in the middle of its index file; nothing that is visible is missed."""
    with shop.open() as store:
        store.create_topic("Alpha", 1)
        for number in range(90):
            store.send(Message("Alpha", b"", keys=f"k{number}"))
            if number % 10 == 9:
                found = shop.read(subscribe="Alpha", key=f"k{number} k{number - 1} k0")
                assert [row["queueOffset"] for row in found] == [0, number - 1, number]


# -- what makes no sense ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "use", "message"),
    [
        ({"key": "a", "uniqKey": "b"}, "batch read", "options key and uniqKey are not possible together"),
        ({"uniqKey": "a", "msgId": "b"}, "batch read", "options uniqKey and msgId are not possible together"),
        ({"key": " \n"}, "batch read", "option key is empty"),
        ({"key": "a"}, "stream read", "option key is not possible for a stream read, only for a batch read"),
        ({"uniqKey": "a"}, "stream read", "option uniqKey is not possible for a stream read"),
        ({"msgId": "a"}, "stream read", "option msgId is not possible for a stream read"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], use: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        source_options({"path": "/s", "subscribe": "T"} | options, use, NOW_MS)


def test_partitions_are_sent_to_tasks_as_numbers(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("Alpha", 1)
        send_some(store, count=30)
    reader = shop.reader(subscribe="Alpha", key="all")
    reader, (partition,) = spark_pickle.loads(spark_pickle.dumps((reader, reader.partitions())))
    assert isinstance(partition, SlicePartition)
    assert sum(batch.num_rows for batch in reader.read(partition)) == 30
