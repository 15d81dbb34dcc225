"""Rows as objects: the extension makes what Python makes, late, and is not led out of its buffers."""

from __future__ import annotations

import contextlib
import copy
import gc
import sys
from dataclasses import FrozenInstanceError, fields, replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store.format.bytes import native
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.protocol import stored_messages
from rmq_store.protocol.messages import MessageExt
from rmq_store.protocol.stored_messages import NATIVE_ROWS_MIN, MessageRows, messages_of

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

SLOTS = tuple(getattr(MessageExt, field.name) for field in fields(MessageExt))


def rows(count: int, random: Random, hosts: tuple[str, ...] = ("127.0.0.1:10911", "10.0.0.2:10911")) -> pa.RecordBatch:
    """Messages with all kinds of values."""
    texts = ["", "a", "grün", "x" * 300, "\U0001f375", "a\0b"]

    def row(number: int) -> dict[str, Any]:
        named = {random.choice(["A", "B", "UNIQ_KEY", "Ä"]): random.choice(texts) for _ in range(random.randrange(9))}
        return {
            "topic": random.choice(["T", "%RETRY%g", "Ü"]),
            "queueId": random.randrange(1 << 31),
            "queueOffset": number * 3,
            "msgId": random.choice(texts),
            "body": random.randbytes(random.randrange(40)),
            "properties": list(named.items()),
            "reconsumeTimes": random.randrange(-1, 20),
            "flag": random.randrange(-(1 << 31), 1 << 31),
            "sysFlag": random.randrange(1 << 8),
            "bornTimestamp": random.randrange(1 << 40) * 1000,
            "bornHost": random.choice(["1.2.3.4:5", "[fe80::1]:10911", ""]),
            "storeTimestamp": random.randrange(1 << 40) * 1000,
            "storeHost": random.choice(hosts),
            "commitLogOffset": random.randrange(1 << 62),
            "brokerName": "other",
        }

    return pa.RecordBatch.from_pylist([row(number) for number in range(count)], MESSAGE_SCHEMA)


@pytest.mark.parametrize("hosts", [("127.0.0.1:10911",), ("[fe80::1]:10911",), ("1.2.3.4:1", "[fe80::1]:10911")])
@pytest.mark.parametrize("seed", range(4))
def test_the_extension_makes_the_objects_that_python_makes(hosts: tuple[str, ...], seed: int) -> None:
    """Of slices of columns as well, with hosts of one kind or of both, and in the order of the properties."""
    batch = rows(NATIVE_ROWS_MIN + 40, Random(seed), hosts).slice(13 * seed)
    expected = stored_messages._made(batch, "b")
    for message in expected:
        message.properties.update(A="added", MIN_OFFSET="0")  # type: ignore[attr-defined]
    found = MessageRows(batch, "b", {"A": "other", "MIN_OFFSET": "0"})
    assert (found._columns is None) is (len(hosts) == 2 or not native.LOADED)
    taken = found.take(0, 7, {"A": "added"}) + found.take(7, len(found), {"A": "added"})
    assert taken == expected
    assert [list(one.properties.items()) for one in taken] == [list(one.properties.items()) for one in expected]


def test_of_few_rows_python_makes_the_objects() -> None:
    """To make columns ready for the extension would take longer."""
    batch = rows(NATIVE_ROWS_MIN, Random(1))
    assert MessageRows(batch.slice(1), "b")._columns is None
    assert (MessageRows(batch, "b")._columns is not None) is native.LOADED


def test_rows_know_their_offsets_and_the_bytes_of_their_bodies() -> None:
    batch = rows(80, Random(2)).slice(3)
    found = MessageRows(batch, "b")
    assert [found.queue_offset(row) for row in range(len(found))] == [3 * number for number in range(3, 80)]
    bodies = batch.column("body").to_pylist()
    assert found.body_bytes(5, 9) == sum(map(len, bodies[5:9]))
    assert found.body_bytes(0, 77) == sum(map(len, bodies))


def test_a_message_is_a_value_and_its_properties_are_its_own() -> None:
    """Whoever made it: frozen, hashable by none, copied by `replace` and `copy`, and without a part of its pull."""
    for message, other in (messages_of(rows(count, Random(3)), "b")[:2] for count in (2, NATIVE_ROWS_MIN)):
        assert type(message) is MessageExt
        with pytest.raises(FrozenInstanceError):
            message.topic = "other"  # type: ignore[misc]
        assert copy.deepcopy(message) == replace(message) == message != other
        assert repr(message).startswith("MessageExt(topic=")
        assert message.properties is not other.properties
        held = [each for each in gc.get_referents(message) if each is not MessageExt]
        assert all(type(each) in (str, bytes, int, dict) for each in held)


@needs_native
def test_names_of_properties_are_those_that_a_program_asks_for() -> None:
    """Interned: to find them costs no comparison of texts, and a message has none of its own."""
    one, other = messages_of(rows(NATIVE_ROWS_MIN, Random(4)), "b")[:2]
    names = [name for message in (one, other) for name in message.properties]
    assert names and all(sys.intern(name) is name for name in names)


def given_rows() -> tuple[Any, Any]:
    """What the extension is given."""
    columns = stored_messages._native_columns(rows(3, Random(5), ("1.2.3.4:5",)), "b")
    assert columns is not None
    return columns


def with_other_numbers(value: Any, random: Random, is_far: bool) -> Any:
    """The same nest of tuples with some numbers changed."""
    if isinstance(value, tuple):
        return tuple(with_other_numbers(part, random, is_far) for part in value)
    if not isinstance(value, np.ndarray):
        return value
    changed = value.copy()
    for place in range(len(changed)):
        if random.random() < 0.04:
            changed[place] = random.choice([-(1 << 31), -1, (1 << 31) - 1] if is_far else range(-3, 12))
    return changed


@needs_native
def test_no_number_leads_the_maker_of_objects_out_of_its_buffers() -> None:
    """Objects of something, or an error; each value is a slice of what was given."""
    random, in_order = Random(7), given_rows()
    made_count = 0
    for number in range(2000):
        columns, properties = with_other_numbers(in_order, random, is_far=number % 2 == 0)
        with contextlib.suppress(IndexError, ValueError):
            made = native.functions.make_messages(MessageExt, SLOTS, columns, properties, 3, 0, 3, {})
            assert all(message.body in columns[1][1].to_pybytes() for message in made)
            made_count += 1
    assert 0 < made_count < 2000


@needs_native
def test_the_maker_of_objects_refuses_what_does_not_fit_together() -> None:
    columns, properties = given_rows()

    def make(made_class: Any = MessageExt, slots: Any = SLOTS, columns: Any = columns, first: int = 0, behind: int = 3,
             properties: Any = properties) -> list[Any]:  # fmt: skip
        return native.functions.make_messages(made_class, slots, columns, properties, 3, first, behind, {})

    class Other:
        __slots__ = ("a",)

    assert len(make()) == 3 and make(first=3) == []
    for class_of_its_own_making in (dict, int, pa.RecordBatch):
        with pytest.raises(TypeError, match="made as an object is"):
            make(class_of_its_own_making)
    with pytest.raises(TypeError, match="doesn't apply"):
        make(Other)
    with pytest.raises(TypeError, match="slots of a class"):
        make(slots=(*SLOTS[:-1], MessageExt.tags))
    with pytest.raises(ValueError, match="a field for each column"):
        make(slots=SLOTS[1:])
    for first, behind in ((-1, 3), (2, 1), (0, 4)):
        with pytest.raises(IndexError, match="no such rows"):
            make(first=first, behind=behind)
    with pytest.raises(ValueError, match="expected 3 items, got 2"):
        make(columns=(*columns[:3], columns[3][:2], *columns[4:]))
    with pytest.raises(UnicodeDecodeError):
        make(columns=((np.array([0, 1, 1, 1], np.int32), b"\xff", True), *columns[1:]))
