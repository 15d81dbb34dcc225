"""Positions as users write them, and as a checkpoint keeps them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rmq.position.fingerprint import Fingerprint
from pyspark_rmq.position.position import (
    Position,
    Queue,
    StreamPosition,
    describe,
    new_query_id,
    parse_assign,
    parse_offsets,
    parse_timestamps,
)
from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.errors import UsageError

WORDS = ("earliest", "latest", "group")
QUEUES = st.builds(Queue, st.text(min_size=1, max_size=5), st.integers(0, 2**31 - 1))
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 2**63 - 1), max_size=4)


MARKS = st.builds(Fingerprint, st.integers(0, 2**63 - 1), st.none() | st.integers(-(2**63), 2**63 - 1))


@given(
    st.text(max_size=8), OFFSETS, st.dictionaries(QUEUES, MARKS, max_size=4), OFFSETS, OFFSETS,
    st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 2**63 - 1), max_size=2),
)  # fmt: skip
def test_a_stream_position_survives_the_checkpoint(store: str, following, after, began, closed, since) -> None:  # type: ignore[no-untyped-def]
    position = StreamPosition(store, following, after, began, closed, since)
    assert StreamPosition.from_json(json.loads(json.dumps(position.to_json()))) == position


def test_positions_of_the_checkpoints_of_today_stay_readable() -> None:
    kept = json.loads((Path(__file__).parents[2] / "data" / "own_formats" / "stream_positions.json").read_text())
    queues = [Queue("Orders", queue_id) for queue_id in range(3)]
    assert [StreamPosition.from_json(value) for value in kept] == [
        StreamPosition(
            "7a0c1f52-6f0e-4b34-9d5a-0f5d0d0e5a11", {queues[0]: 5, queues[1]: 7},
            {queues[0]: Fingerprint(2044, 1700000000000), queues[1]: Fingerprint(2500, 1700000000001)}, {queues[0]: 0},
        ),
        StreamPosition("", {queues[0]: 5}, {queues[0]: Fingerprint(2044)}, {}, {queues[2]: 9}),
        StreamPosition(
            "cluster:c", {Queue("Orders", BrokerQueueId("broker-a", 0)): 5},
            since={"*": 1_795_945_790_949, "Bills": 1_700_000_000_000},
        ),
    ]  # fmt: skip
    assert [StreamPosition.from_json(value).to_json() for value in kept] == kept


@given(OFFSETS)
def test_equal_positions_give_equal_text_because_spark_compares_text(offsets: dict[Queue, int]) -> None:
    backwards = dict(reversed(offsets.items()))
    assert json.dumps(StreamPosition("s", offsets).to_json()) == json.dumps(StreamPosition("s", backwards).to_json())


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"partition": 3},
        {"version": 3, "store": "", "topics": {}},
        {"version": [2], "store": "", "topics": {}},
        {"version": 1, "store": 3, "topics": {}},
        {"version": 1, "store": "", "topics": []},
        {"version": 1, "store": "", "topics": {"T": {"0": -1}}},
        {"version": 1, "store": "", "topics": {"T": {"0": True}}},
        {"version": 1, "store": "", "topics": {"T": {"0": 1.0}}},
        {"version": 1, "store": "", "topics": {"T": {"x": 1}}},
        {"version": 1, "store": "", "topics": {"T": {"²": 1}}},
        {"version": 1, "store": "", "topics": {"T": {"99999999999": 1}}},
        {"version": 1, "store": "", "topics": {"T": {"0": 2**63}}},
        {"version": 1, "store": "", "topics": {}, "after": 1},
        {"version": 1, "store": "", "topics": {}, "closed": {"T": {"0": -1}}},
        {"version": 1, "store": "", "topics": {}, "stored": []},
        {"version": 1, "store": "", "topics": {}, "stored": {"T": {"0": "1"}}},
        {"version": 1, "store": "", "topics": {}, "stored": {"T": {"0": 2**63}}},
        {"version": 4, "store": "", "topics": {}, "since": {"*": 5}},
        {"version": 3, "store": "", "topics": {}, "since": {}},
        {"version": 2, "store": "", "topics": {}, "since": {"*": 5}},
        {"version": 3, "store": "", "topics": {}, "since": [5]},
        {"version": 3, "store": "", "topics": {}, "since": {"T": -1}},
        {"version": 1, "store": "", "topics": {}, "query": 5},
        {"version": 1, "store": "", "topics": {}, "query": "#1"},
        {"version": 3, "store": "", "topics": {}, "since": {"T": "5"}},
        {"version": 4, "store": "", "topics": {}},
        {"version": 4, "store": "", "topics": {}, "blind": True, "source": []},
        {"version": 5, "store": "", "topics": {}, "blind": 1},
        {"version": 1, "store": "", "topics": {}, "source": {"group": 5}},
    ],
)
def test_a_checkpoint_that_is_not_ours_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="checkpoint"):
        StreamPosition.from_json(value)


def test_a_position_need_not_say_when_messages_were_stored() -> None:
    old = {"version": 1, "store": "s", "topics": {"T": {"0": 5}}, "after": {"T": {"0": 400}}}
    position = StreamPosition.from_json(old)
    assert position.after == {Queue("T", 0): Fingerprint(400)}
    assert position.to_json() == old


def test_a_position_has_the_version_that_says_what_an_older_release_would_not_understand() -> None:
    queues = {Queue("T", 0): 5}
    assert StreamPosition("s", queues, closed=queues, since={"*": 1, "A": 2}).to_json() == {
        "version": 3, "store": "s", "topics": {"T": {"0": 5}}, "closed": {"T": {"0": 5}}, "since": {"*": 1, "A": 2},
    }  # fmt: skip
    assert StreamPosition("s", queues, began=queues).to_json()["version"] == 1
    assert StreamPosition("s", queues, closed={Queue("T", 1): 3}).to_json()["version"] == 2


def test_a_position_that_was_planned_blindly_has_a_version_of_its_own() -> None:
    """An older release would believe its `began`, and read everything again."""
    first, later = Queue("T", 0), Queue("T", 1)
    place = {"path": "/data", "group": "cg"}
    position = StreamPosition("s", {first: 9, later: 4}, began={first: 0, later: 0}, blind=True, source=place)
    assert position.to_json() == {
        "version": 4, "store": "s", "topics": {"T": {"0": 9, "1": 4}}, "began": {"T": {"0": 0, "1": 0}}, "blind": 1,
        "source": {"group": "cg", "path": "/data"},
    }  # fmt: skip
    assert StreamPosition.from_json(json.loads(json.dumps(position.to_json()))) == position
    assert position.began_behind(None) == {first: 0, later: 0}
    assert position.began_behind(StreamPosition("s", {first: 5})) == {later: 0}
    assert position.began_behind(StreamPosition("s", {first: 5}, closed={later: 2})) == {}
    assert StreamPosition("s", {}, since={"*": 1}, blind=True).to_json()["version"] == 4
    assert StreamPosition("s", {}, source=place).to_json()["version"] == 1


def test_the_id_of_a_query_is_of_any_version_and_left_out_if_there_is_none() -> None:
    query = new_query_id()
    position = StreamPosition("cluster:c", {Queue("T", 0): 5}, query=query)
    assert position.to_json() == {"version": 1, "store": "cluster:c", "topics": {"T": {"0": 5}}, "query": query}
    assert StreamPosition.from_json(position.to_json()) == position
    assert "query" not in StreamPosition("s", {}).to_json() and new_query_id() != query


@pytest.mark.parametrize(
    ("mark", "other", "may_be"),
    [
        (Fingerprint(4, 7), Fingerprint(4, 7), True),
        (Fingerprint(4, 7), Fingerprint(4, 8), False),
        (Fingerprint(4, 7), Fingerprint(5, 7), False),
        (Fingerprint(4), Fingerprint(4, 7), True),
        (Fingerprint(4), Fingerprint(5), False),
    ],
)
def test_a_mark_is_known_by_place_and_time(mark: Fingerprint, other: Fingerprint, may_be: bool) -> None:
    assert mark.may_be(other) is other.may_be(mark) is may_be


def test_offsets_are_words_or_numbers_per_queue() -> None:
    assert parse_offsets(" Earliest ", "startingOffsets", WORDS) == Position("earliest")
    assert parse_offsets('{"T":{"0":23,"1":-2},"U":{"0":-1}}', "startingOffsets", WORDS) == Position(
        "offsets", {Queue("T", 0): 23, Queue("T", 1): -2, Queue("U", 0): -1}
    )
    assert parse_timestamps('{"T":{"0":1700000000000}}', "x").values == {Queue("T", 0): 1700000000000}
    assert parse_assign('{"T":[2,0],"U":[1]}') == {"T": (0, 2), "U": (1,)}


@pytest.mark.parametrize(
    "text",
    [
        "first",
        "",
        "[1]",
        "{",
        '{"T":3}',
        '{"T":{"0":"3"}}',
        '{"T":{"0":null}}',
        '{"T":{"0":-3}}',
        '{"T":{"0":NaN}}',
        '{"T":{"-1":3}}',
        '{"T":{"0":3,"0":4}}',
        '{"T":{"0":3},"T":{"1":4}}',
        '{"a":' * 100_000,
    ],
)
def test_malformed_offsets_are_refused_and_name_the_option(text: str) -> None:
    with pytest.raises(UsageError, match="startingOffsets"):
        parse_offsets(text, "startingOffsets", WORDS)


def test_earliest_is_no_end() -> None:
    with pytest.raises(UsageError, match=r"endingOffsets: -2 \(earliest\) for queue T-0"):
        parse_offsets('{"T":{"0":-2}}', "endingOffsets", ("latest",))
    with pytest.raises(UsageError, match="endingOffsets"):
        parse_offsets("earliest", "endingOffsets", ("latest",))


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"T":0}', '{"T":[]}', '{"T":["0"]}', '{"T":[-1]}', '{"T":[0,0]}', '{"T":[true]}']
)
def test_malformed_assignments_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="assign"):
        parse_assign(text)


def test_ranges_are_described_half_open() -> None:
    assert describe([("T", 1, 0, 7), ("T", 0, 12, 40)]) == "T-0 [12, 40), T-1 [0, 7)"
