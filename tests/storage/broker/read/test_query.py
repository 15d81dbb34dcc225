"""The query service, against what a broker answered and against a look at every message.

Rules: IndexService#queryOffset, DefaultMessageStore#queryMessage, MQAdminImpl#queryMessage.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store import Message, OffsetOutOfRangeError, Store, StoreConfig, UsageError
from rmq_store.broker.repair import repair
from rmq_store.errors import CorruptIndexError, CorruptRecordError
from rmq_store.format.text.hashing import index_hash, java_hash
from rmq_store.log.views import index_search

NOW_MS = 1_700_000_000_000


@dataclass
class Shop:
    """One store; every append gets the time `now_ms`."""

    root: Path
    config: StoreConfig
    now_ms: int = NOW_MS

    def clock(self) -> int:
        return self.now_ms

    def open(self, **options: Any) -> Store:
        if options.get("read_only"):
            return Store.open(self.root, clock=self.clock, **options)
        return Store.open(self.root, create=True, config=self.config, clock=self.clock, **options)


@pytest.fixture
def shop(scratch: Path, tiny: StoreConfig) -> Shop:
    return Shop(scratch / "store", tiny)


def keys_of(row: dict[str, Any]) -> list[str]:
    return [key for key in (row["keys"] or "").split(" ") if key]


def all_rows(store: Store) -> Iterator[dict[str, Any]]:
    for topic in store.topics():
        for queue_id, span in store.queue_ranges(topic).items():
            for batch in store.read(topic, queue_id, *span):
                yield from batch.to_pylist()


def places(table: pa.Table) -> list[tuple[str, int, int, int]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def offsets(messages: list[Any]) -> list[int]:
    return [message.commit_log_offset for message in messages]


# -- what a broker answered -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifest(golden: Path) -> dict[str, Any]:
    return json.loads((golden / "manifest.json").read_text())


@pytest.fixture(scope="module")
def golden_store(golden: Path) -> Iterator[Store]:
    with Store.open(golden / "store", read_only=True) as store:
        yield store


@pytest.mark.statement("F01", "F12")
def test_queries_by_key_answer_as_the_broker_did(golden_store: Store, manifest: dict[str, Any]) -> None:
    """Keys with one message, many and none, keys of one hash, and windows before, around and after a message."""
    counts = []
    for query in manifest["keyQueries"]:
        window = {"begin_ms": query["begin"], "end_ms": query["end"], "max_num": query["maxNum"]}
        found = golden_store.query.by_key(query["topic"], query["key"], **window)
        assert [message.offset_msg_id for message in reversed(found)] == query["offsetMsgIds"], query
        everything = golden_store.query.find(query["topic"], [query["key"]])["commit_log_offset"].to_pylist()
        assert set(offsets(found)) <= set(everything)
        counts.append(len(found))
    assert {0, 1, 2} < set(counts)
    assert any(query["begin"] or query["end"] < 2**62 for query in manifest["keyQueries"])


@pytest.mark.statement("F01")
def test_queries_by_unique_key_answer_as_the_broker_did(golden_store: Store, manifest: dict[str, Any]) -> None:
    for query in manifest["uniqKeyQueries"]:
        window = {"begin_ms": query["begin"], "end_ms": query["end"], "max_num": query["maxNum"]}
        found = golden_store.query.by_unique_key(query["topic"], query["uniqKey"], **window)
        assert [message.offset_msg_id for message in reversed(found)] == query["offsetMsgIds"], query
        table = golden_store.query.find(query["topic"], [query["uniqKey"]], unique=True)
        assert table["commit_log_offset"].to_pylist() == sorted(offsets(found))


@pytest.mark.statement("F01", "F03")
def test_a_message_is_found_by_its_offset_id_and_by_its_place(golden_store: Store, manifest: dict[str, Any]) -> None:
    for view in manifest["viewByOffsetMsgId"]:
        expected = view["message"]
        place = expected["topic"], expected["queueId"], expected["queueOffset"]
        for found in (
            golden_store.query.by_offset_id(view["offsetMsgId"]),
            golden_store.query.by_offset_id(view["offsetMsgId"].lower()),
            golden_store.query.by_queue_offset(*place),
        ):
            assert (found.topic, found.queue_id, found.queue_offset) == place
            assert found.offset_msg_id == expected["offsetMsgId"]
            assert found.keys == expected["keys"]
            assert len(found.body) == expected["storedBodyLength"]


def test_a_time_is_looked_up_as_the_broker_does(golden_store: Store, manifest: dict[str, Any]) -> None:
    for queue in manifest["offsetByTime"][::4]:
        for probe in queue["probes"]:
            for boundary in ("lower", "upper"):
                found = golden_store.query.by_time(queue["topic"], queue["queueId"], probe["timestamp"], boundary)
                assert found == probe[boundary]


def test_every_key_of_a_brokers_store_is_found(golden_store: Store) -> None:
    """The index of 5.5.0 also holds tags; those are no keys."""
    rows = [row for row in all_rows(golden_store) if row["topic"] == "OrderTopic"]
    wanted = sorted({key for row in rows for key in keys_of(row)})
    expected = {
        (key, row["commitLogOffset"], row["queueId"], row["queueOffset"]) for row in rows for key in keys_of(row)
    }
    found = places(golden_store.query.find("OrderTopic", ["nobody", *wanted, "T#TagA"]))
    assert len(wanted) > 3000
    assert set(found) == expected
    assert len(found) == len(expected), "a key that a message names twice, or an entry that is there twice, counts once"
    assert [key for key, *_ in found] == sorted(key for key, *_ in found), "in the order of the question"


# -- against a look at every message ----------------------------------------------------------------------------------

# Aa and BB have the same Java hash, and so have all texts made of them.
KEYS = ("AaAa", "AaBB", "BBAa", "BBBB", "T#TagA", "k", "Schlüssel", "😀")

batches = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["Alpha", "Beta"]),
            st.lists(st.sampled_from(KEYS), max_size=4),
            st.sampled_from([None, "TagA", "AaAa"]),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=30,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=6)
@given(batches, st.integers(0, 4000), st.integers(0, 4000), st.lists(st.sampled_from([*KEYS, "nobody"]), unique=True))
def test_what_is_found_is_what_a_scan_finds(
    all_batches: list[list[tuple[str, list[str], str | None, int]]], one_ms: int, other_ms: int, wanted: list[str]
) -> None:
    directory = Path(tempfile.mkdtemp())
    config = StoreConfig(
        mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=40
    )
    shop = Shop(directory / "store", config)
    try:
        with shop.open() as store:
            for topic in ("Alpha", "Beta"):
                store.create_topic(topic, 2)
            for batch in all_batches:
                shop.now_ms += 700
                store.append(
                    pa.record_batch(
                        {
                            "topic": [topic for topic, *_ in batch],
                            "body": pa.array([b"." * size for *_, size in batch], pa.binary()),
                            # Spaces in a row make no empty keys.
                            "keys": ["  ".join(keys) or None for _, keys, *_ in batch],
                            "tags": pa.array([tags for _, _, tags, _ in batch], pa.string()),
                        }
                    )
                )
            rows = list(all_rows(store))
            begin, end = sorted((NOW_MS + one_ms, NOW_MS + other_ms))
            for topic in ("Alpha", "Beta"):
                own = [row for row in rows if row["topic"] == topic]
                within = [row for row in own if begin <= row["storeTimestamp"].timestamp() * 1000 <= end]
                for kwargs, scope in (({}, own), ({"begin_ms": begin, "end_ms": end}, within)):
                    expected = [
                        (key, row["commitLogOffset"], row["queueId"], row["queueOffset"])
                        for key in wanted
                        for row in sorted(scope, key=lambda row: row["commitLogOffset"])
                        if key in keys_of(row)
                    ]
                    assert places(store.query.find(topic, wanted, **kwargs)) == expected
                for key in KEYS:
                    newest = sorted((row["commitLogOffset"] for row in own if key in keys_of(row)), reverse=True)
                    assert offsets(store.query.by_key(topic, key)) == newest[:64]
                    assert offsets(store.query.by_key(topic, key, max_num=2)) == newest[:2]
                ids = [row["msgId"] for row in own]
                assert set(places(store.query.find(topic, ids, unique=True))) == {
                    (row["msgId"], row["commitLogOffset"], row["queueId"], row["queueOffset"]) for row in own
                }
                assert store.query.find(topic, ids).num_rows == 0, "a unique key is no key"
    finally:
        shutil.rmtree(directory)


def test_a_half_message_has_no_place_in_a_queue(golden_small: Path) -> None:
    """PREPARED is indexed, ROLLBACK is not (IndexService#buildIndex); neither is in a queue."""
    with Store.open(golden_small / "normal", read_only=True) as store:
        assert offsets(store.query.by_key("HALF", "pk")) == [566]
        assert store.query.by_key("HALF", "rk") == []
        assert store.query.find("HALF", ["pk", "rk"]).num_rows == 0


# -- limits and times -------------------------------------------------------------------------------------------------


@pytest.mark.statement("F12")
def test_by_key_gives_the_newest_64_and_collisions_do_not_count(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        found = [store.send(Message("T", b"", keys="AaAa")).commit_log_offset for _ in range(70)]
        store.append(pa.record_batch({"topic": ["T"] * 90, "body": pa.array([b""] * 90), "keys": ["BBBB"] * 90}))
        assert offsets(store.query.by_key("T", "AaAa", max_num=1000)) == found[:-65:-1]
        assert store.query.find("T", ["AaAa"])["commit_log_offset"].to_pylist() == found
        (unique,) = {message.msg_id for message in store.query.by_key("T", "AaAa", max_num=1)}
        assert offsets(store.query.by_unique_key("T", unique)) == found[-1:]


def test_topics_of_one_hash_are_kept_apart(shop: Shop) -> None:
    with shop.open() as store:
        places_by_topic = {}
        for topic in ("Aa", "BB"):
            store.create_topic(topic, 1)
            sent = store.send(Message(topic, b"", keys="k", properties={"UNIQ_KEY": "u"}), as_given=True)
            places_by_topic[topic] = [sent.commit_log_offset]
        for topic, place in places_by_topic.items():
            assert offsets(store.query.by_key(topic, "k")) == offsets(store.query.by_unique_key(topic, "u")) == place
            for key, unique in (("k", False), ("u", True)):
                found = store.query.find(topic, [key], unique=unique)
                assert found["commit_log_offset"].to_pylist() == place


def test_by_unique_key_gives_the_newest_32(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        same = [
            store.send(Message("T", b"", properties={"UNIQ_KEY": "the-same"}), as_given=True).commit_log_offset
            for _ in range(40)
        ]
        assert offsets(store.query.by_unique_key("T", "the-same", max_num=64)) == same[:-33:-1]
        assert store.query.find("T", ["the-same"], unique=True)["commit_log_offset"].to_pylist() == same


def test_by_key_knows_whole_seconds_and_find_knows_the_time(shop: Shop) -> None:
    """IndexFile#selectPhyOffset: a query that begins at the very time of a message may miss it."""
    with shop.open() as store:
        store.create_topic("T", 1)
        store.send(Message("T", b"", keys="first"))
        shop.now_ms += 1500
        place = store.send(Message("T", b"", keys="second")).commit_log_offset
        at = shop.now_ms
        assert store.query.by_key("T", "second", begin_ms=at) == []
        assert offsets(store.query.by_key("T", "second", begin_ms=at - 500)) == [place]
        assert store.query.find("T", ["second"], begin_ms=at, end_ms=at)["commit_log_offset"].to_pylist() == [place]
        assert store.query.find("T", ["second"], begin_ms=at + 1).num_rows == 0
        assert store.query.find("T", ["second"], end_ms=at - 1).num_rows == 0


def test_find_does_not_believe_the_times_of_the_files(shop: Shop) -> None:
    """A clock that was set back leaves files whose first and last time enclose nothing."""
    with shop.open() as store:
        store.create_topic("T", 1)
        shop.now_ms += 60_000
        store.send(Message("T", b"", keys="high"))
        high = shop.now_ms
        shop.now_ms -= 50_000
        store.send(Message("T", b"", keys="low"))
        assert store.query.find("T", ["high"], begin_ms=high).num_rows == 1


@pytest.mark.statement("F11")
def test_a_unique_key_is_looked_for_from_the_time_inside_it(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = store.send(Message("T", b"", keys="k"))
        assert offsets(store.query.by_unique_key("T", sent.msg_id)) == [sent.commit_log_offset]
        assert store.query.by_unique_key("T", sent.msg_id, end_ms=shop.now_ms - 1000) == []
        shop.now_ms += 40 * 24 * 3_600_000
        assert store.query.by_unique_key("T", sent.msg_id) == [], "as in RocketMQ: older than a month"
        assert offsets(store.query.by_unique_key("T", sent.msg_id, begin_ms=0)) == [sent.commit_log_offset]
        assert store.query.find("T", [sent.msg_id], unique=True).num_rows == 1


# -- what cannot be answered ------------------------------------------------------------------------------------------


def test_questions_that_make_no_sense_are_refused(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        store.send(Message("T", b""))
        for ask in (
            lambda: store.query.find("T", "one text"),
            lambda: store.query.find("T", ["\udcff"]),
            lambda: store.query.find("T", [7]),
            lambda: store.query.by_key("T", ""),
            lambda: store.query.by_key("T", "k", max_num=0),
            lambda: store.query.by_offset_id("7F00"),
        ):
            with pytest.raises(UsageError):
                ask()
        assert store.query.find("T", []).num_rows == 0
        with pytest.raises(OffsetOutOfRangeError, match=r"message 1 was asked for, the queue has \[0, 1\)"):
            store.query.by_queue_offset("T", 0, 1)
        with pytest.raises(OffsetOutOfRangeError):
            store.query.by_queue_offset("T", 7, 0)
    with pytest.raises(UsageError, match="closed"):
        store.query.find("T", [])


def test_a_store_without_an_index_says_so(shop: Shop) -> None:
    shop.config = replace(shop.config, message_index_enable=False)
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = store.send(Message("T", b"", keys="k"))
        for ask in (store.query.by_key, store.query.by_unique_key):
            with pytest.raises(UsageError, match="messageIndexEnable"):
                ask("T", "k")
        with pytest.raises(UsageError, match="messageIndexEnable"):
            store.query.find("T", ["k"])
        assert store.query.by_offset_id(sent.offset_msg_id).keys == "k"
        assert store.query.by_queue_offset("T", 0, 0).keys == "k"


def test_a_broker_that_kept_no_index_is_no_broker_without_messages(
    golden: Path, copy_store: Callable[[Path, Path], Path], scratch: Path
) -> None:
    root = copy_store(golden / "store", scratch / "store")
    shutil.rmtree(root / "index")
    with Store.open(root, read_only=True) as store, pytest.raises(UsageError, match="messageIndexEnable"):
        store.query.find("OrderTopic", ["ORD-000123"])


@pytest.mark.statement("F02")
@pytest.mark.parametrize("host", ["10.1.2.3:10911", "[2001:db8::7]:10911"])
def test_an_offset_id_belongs_to_one_store_host(shop: Shop, host: str) -> None:
    shop.config = replace(shop.config, broker_host=host)
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = store.send(Message("T", b"tea"))
        assert len(sent.offset_msg_id) == (56 if "[" in host else 32)
        assert store.query.by_offset_id(sent.offset_msg_id).body == b"tea"
        other = sent.offset_msg_id.replace("00002A9F", "00002A9E")
        with pytest.raises(UsageError, match=r":10910; the message at 0 .* stored by .*:10911: search the other store"):
            store.query.by_offset_id(other)
        with pytest.raises(UsageError, match="unique id"):
            store.query.by_offset_id(sent.offset_msg_id[:-2] + "01")
        with pytest.raises(UsageError, match="unique id"):
            store.query.by_offset_id("0A6C73D939B318B40AC20CBA5D920000")


# -- ends, crashes, retention, damage ---------------------------------------------------------------------------------


def test_entries_at_or_above_the_end_do_not_count(shop: Shop) -> None:
    """Of an append under way, or one that was killed."""
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = store.send(Message("T", b"", keys="k"))
        (end,) = store.log_range()[1:]
        index = store._log.views.index
        key_hash = index_hash(java_hash("T#k"))
        index.put(np.array([key_hash] * 3, np.int32), np.array([end, end + 200, 2**40]), np.array([shop.now_ms] * 3))
        assert offsets(store.query.by_key("T", "k")) == [sent.commit_log_offset]
        assert store.query.find("T", ["k"])["commit_log_offset"].to_pylist() == [sent.commit_log_offset]


def test_readers_of_a_living_store_find_what_is_visible(shop: Shop) -> None:
    with shop.open() as store, shop.open(read_only=True) as reader:
        store.create_topic("T", 1)
        for number in range(150):
            sent = store.send(Message("T", b"", keys=f"k{number}"))
            assert offsets(reader.query.by_key("T", f"k{number}")) == [sent.commit_log_offset]
        assert reader.query.find("T", [f"k{number}" for number in range(200)]).num_rows == 150
        assert len(list((shop.root / "index").iterdir())) > 1


def test_after_a_crash_the_index_is_whole_again(shop: Shop, working_copy: Callable[[Path], Path]) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = [store.send(Message("T", b"", keys=f"k{number}")).commit_log_offset for number in range(150)]
        killed = working_copy(shop.root)  # what a copy of a store in use is: nothing vouches for its index
    with Store.open(killed, read_only=True) as reader:
        with pytest.raises(CorruptIndexError, match="open it for writing once"):
            reader.query.find("T", ["k0"])
        with pytest.raises(CorruptIndexError, match="open it for writing once"):
            reader.query.by_key("T", "k0")
        assert reader.query.by_queue_offset("T", 0, 149).keys == "k149"
    Store.open(killed).close()
    with Store.open(killed, read_only=True) as reader:
        found = reader.query.find("T", [f"k{number}" for number in range(150)])
    assert found["commit_log_offset"].to_pylist() == sent


def test_what_retention_took_is_not_found(shop: Shop) -> None:
    """Its entries stay in a file that has younger ones; IndexService#deleteExpiredFile."""
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = [store.send(Message("T", b"." * 300, keys="k")).commit_log_offset for _ in range(150)]
        for path in sorted((shop.root / "commitlog").iterdir())[:2]:
            os.utime(path, (0, 0))
        assert len(store.retention.run(manual=True).removed) == 2
        start, _ = store.log_range()
        left = [offset for offset in sent if offset >= start]
        assert 0 < len(left) < 150
        assert store.query.find("T", ["k"])["commit_log_offset"].to_pylist() == left
        assert offsets(store.query.by_key("T", "k")) == left[:-65:-1]


def test_retention_between_the_index_and_the_log_is_no_error(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = [store.send(Message("T", b"." * 300, keys="k")).commit_log_offset for _ in range(150)]
        for path in sorted((shop.root / "commitlog").iterdir())[:2]:
            os.utime(path, (0, 0))

        def late(found: Iterator[Any]) -> Iterator[Any]:
            pieces = list(found)
            assert store.retention.run(manual=True).removed
            yield from pieces

        search = index_search.IndexSearch
        whole, one = search.candidates, search.newest_first
        monkeypatch.setattr(search, "candidates", lambda *arguments: late(whole(*arguments)))
        found = store.query.find("T", ["k"])["commit_log_offset"].to_pylist()
        left = [offset for offset in sent if offset >= store.log_range()[0]]
        assert 0 < len(left) < 150
        assert found == left
        for path in sorted((shop.root / "commitlog").iterdir())[:2]:
            os.utime(path, (0, 0))
        monkeypatch.setattr(search, "newest_first", lambda *arguments: late(one(*arguments)))
        shorter = offsets(store.query.by_key("T", "k"))
        assert shorter == [offset for offset in left[::-1] if offset >= store.log_range()[0]][:64]


def test_a_false_entry_is_an_error_until_the_index_is_repaired(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = store.send(Message("T", b"", keys="k"))
        store.send(Message("T", b""))
    (path,) = (shop.root / "index").iterdir()
    data = path.read_bytes()
    at = data.index(index_hash(java_hash("T#k")).to_bytes(4, "big")) + 4
    path.write_bytes(data[:at] + (77).to_bytes(8, "big") + data[at + 8 :])
    with shop.open(read_only=True) as store:
        for ask in (lambda: store.query.find("T", ["k"]), lambda: store.query.by_key("T", "k")):
            with pytest.raises(CorruptIndexError, match="rmq repair --index"):
                ask()
    repair.carry_out(repair.examine(shop.root, index=True))
    with shop.open(read_only=True) as store:
        assert offsets(store.query.by_key("T", "k")) == [sent.commit_log_offset]


def test_a_damaged_message_is_an_error_and_a_lost_one_that_was_kept_is_not(shop: Shop) -> None:
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = [store.send(Message("T", b"body" * 20, keys="k")).commit_log_offset for _ in range(3)]
    path = shop.root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    at = data.index(b"bodybody", sent[1])
    path.write_bytes(data[:at] + b"X" + data[at + 1 :])
    with shop.open(read_only=True) as store:
        for ask in (lambda: store.query.find("T", ["k"]), lambda: store.query.by_key("T", "k")):
            with pytest.raises(CorruptRecordError):
                ask()
    shutil.rmtree(shop.root / "index")  # the log is looked at again from its start
    with shop.open(on_corruption="keep") as store:
        assert store.recovery.bad_ranges
        assert store.query.find("T", ["k"])["commit_log_offset"].to_pylist() == [sent[0], sent[2]]
        assert offsets(store.query.by_key("T", "k")) == [sent[2], sent[0]]
        store._log.views.index.put_one([index_hash(java_hash("T#lost"))], sent[1], shop.now_ms)
        assert store.query.find("T", ["lost"]).num_rows == 0
        assert store.query.by_key("T", "lost") == []


def test_a_record_that_is_indexed_twice_is_found_once(shop: Shop) -> None:
    """A broker indexes the last record again when it dispatches it again (IndexService#buildIndex)."""
    with shop.open() as store:
        store.create_topic("T", 1)
        sent = [store.send(Message("T", b"", keys="k")).commit_log_offset for _ in range(2)]
        key_hash = index_hash(java_hash("T#k"))
        store._log.views.index.put_one([key_hash, key_hash], sent[1], shop.now_ms)
        assert offsets(store.query.by_key("T", "k", max_num=2)) == sent[::-1]
        assert store.query.find("T", ["k", "k"])["commit_log_offset"].to_pylist() == sent
