"""Messages in one pass: the answers of the decoder by columns, and never a look outside of the buffers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import pyarrow as pa
import pytest

from rmq_store.errors import CorruptRecordError
from rmq_store.format.batches.frame_decoder import NotOwnedError, Owner, decode_frames
from rmq_store.format.batches.native_decoder import _EVERYWHERE, decode_ordinary
from rmq_store.format.bytes import native
from rmq_store.format.frames.compression import compress
from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.format.text.host import Host
from rmq_store.memory import BatchMemory

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

BASE = 1 << 40
V4, V6 = Host.parse("10.108.115.217:10911"), Host.parse("[fe80::1234]:10911")
UNIQUE = b"UNIQ_KEY\x01AC11\x02"
PROPERTIES = [
    UNIQUE, UNIQUE[:-1], UNIQUE + b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02", b"TAGS\x01TagB\x02" + UNIQUE + b"a\x01b\x02",
    UNIQUE + b"UNIQ_KEY\x01DC11\x02TAGS\x01first\x02TAGS\x01last\x02", UNIQUE + b"__CRC32#\x011234567890\x02",
    UNIQUE + "name\x01中文\U0001f600\x02".encode(), UNIQUE + b"".join(b"n%d\x01v\x02" % n for n in range(60)),
    UNIQUE + b"\x01\x01x\x02\x02y\x01\x02", UNIQUE + b"a value\x01" + b"v" * 300 + b"\x02",
]  # fmt: skip
STRANGE_PROPERTIES = {
    "no unique key": b"TAGS\x01TagA\x02",
    "no properties": b"",
    "malformed UTF-8": UNIQUE + b"a\x01\xff\x02",
    "very many": UNIQUE + b"".join(b"n%d\x01v\x02" % n for n in range(64)),
}


@contextmanager
def python_only() -> Iterator[None]:
    """As on a machine without the extension."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LOADED", False)
        yield


class Frames:
    """Frames of one queue, one behind another."""

    def __init__(self, frames: Sequence[dict[str, Any]]) -> None:
        self.data = bytearray()
        places = [0]
        for number, changes in enumerate(frames):
            fields: dict[str, Any] = {
                "topic": "Topic", "body": b"Hello", "properties": UNIQUE, "queue_id": 3, "queue_offset": 100 + number,
                "born_timestamp_ms": 1_700_000_000_123, "born_host": V4, "store_timestamp_ms": 1_700_000_001_000,
                "store_host": V4,
            }  # fmt: skip
            self.data += encode_frame(**{**fields, "commit_log_offset": BASE + len(self.data), **changes})
            places.append(len(self.data))
        self.positions = np.array(places[:-1], np.int64)
        self.sizes = np.diff(places).astype(np.int64)
        self.owner = Owner("Topic", 3, 100 + np.arange(len(frames)))

    def ordinary(
        self, columns: Sequence[str] = MESSAGE_SCHEMA.names, *, raw_body: bool = False, memory: Any = None
    ) -> pa.RecordBatch | None:
        return decode_ordinary(
            np.frombuffer(bytes(self.data), np.uint8), self.positions, self.sizes, base_offset=BASE, columns=columns,
            broker_name="b", raw_body=raw_body, owner=self.owner, memory=memory or BatchMemory(),
        )  # fmt: skip

    def answer(self, columns: Sequence[str], *, raw_body: bool, owner: Owner | None) -> pa.RecordBatch | str:
        try:
            batch = decode_frames(
                pa.py_buffer(bytes(self.data)), self.positions, self.sizes.astype(np.int32), base_offset=BASE,
                columns=columns, broker_name="b", raw_body=raw_body, body_limit_bytes=1 << 20, owner=owner,
            )  # fmt: skip
        except (CorruptRecordError, NotOwnedError) as error:
            return f"{type(error).__name__} {error}"
        batch.validate(full=True)
        return batch


def ordinary_frames(chance: random.Random) -> Frames:
    return Frames(
        [
            {
                "body": chance.randbytes(chance.choice([0, 1, 16, 31, 33, 100, 5000])), "flag": chance.randrange(-9, 9),
                "properties": chance.choice(PROPERTIES), "reconsume_times": chance.randrange(20),
                "born_host": chance.choice([V4, Host.parse("1.2.3.4:5")]),
            }
            for _ in range(chance.randrange(1, 40))
        ]
    )  # fmt: skip


@pytest.mark.parametrize("body_bytes", [600, 3000])
def test_bodies_of_large_batches_are_copied_past_the_caches_byte_for_byte(body_bytes: int) -> None:
    """Around the size from which they are (native/stream.h), wherever in a line they begin and end."""
    chance = random.Random(body_bytes)
    sizes = [*range(200, 400), 0, 1, 63, 64, 65, *(chance.randrange(2 * body_bytes) for _ in range(2000))]
    bodies = [chance.randbytes(size) for size in sizes]
    batch = Frames([{"body": body} for body in bodies]).ordinary(["body"])
    assert batch is not None
    assert batch.column("body").nbytes > 1 << 20
    assert batch.column("body").to_pylist() == bodies


@contextmanager
def passes() -> Iterator[MagicMock]:
    """Counts how often the extension goes through frames."""
    copy = native.functions.copy_messages
    with patch.object(native.functions, "copy_messages", wraps=copy) as made:
        yield made


LONG = UNIQUE + b"TAGS\x01" + b"t" * 90 + b"\x02KEYS\x01" + b"k" * 900 + b"\x02name\x01" + b"v" * 900 + b"\x02"


@pytest.mark.parametrize("turn", [1, 2, 3, 8, 16, 17])
def test_rows_from_everywhere_tell_how_much_room_texts_need(turn: int) -> None:
    """Also where messages of several kinds come in turn. One pass over the sample, one over all."""
    frames = Frames([{"properties": LONG if row % turn == turn - 1 else UNIQUE} for row in range(4096)])
    with passes() as made:
        found = frames.ordinary()
    assert made.call_count == 2
    with python_only():
        assert found is not None and found.equals(frames.answer(MESSAGE_SCHEMA.names, raw_body=False, owner=None))


@pytest.mark.parametrize(
    ("count", "body_bytes"), [(20_000, 10), (1500, 2000), (256, 9000), (40, 100_000), (3, 1 << 20)]
)
def test_a_batch_takes_one_area_hardly_larger_than_its_bodies_and_texts(count: int, body_bytes: int) -> None:
    """However few messages it has. What the sample needed is no part of it, and is not kept."""
    properties = UNIQUE + b"TAGS\x01TagA\x02KEYS\x01k1\x02"
    frames = Frames([{"body": bytes(body_bytes), "properties": properties}] * count)
    memory = MagicMock(wraps=BatchMemory())
    found = frames.ordinary(memory=memory)
    assert found is not None
    texts_bytes = sum(found.column(name).nbytes for name in MESSAGE_SCHEMA.names if name != "body")
    [call] = memory.carve.call_args_list
    assert sum(call.args[0].values()) < len(frames.data) + 1.5 * texts_bytes + 50_000


def test_texts_that_are_longer_than_those_of_the_sample_cost_another_pass() -> None:
    """All that are long come at the end, between the last two rows that were asked."""
    last, end = sorted((_EVERYWHERE * 2**15).astype(int).tolist())[-1], 2**15
    frames = Frames([{"properties": LONG if last < row < end else UNIQUE} for row in range(end)])
    with passes() as made:
        found = frames.ordinary()
    assert made.call_count == 3
    with python_only():
        assert found is not None and found.equals(frames.answer(MESSAGE_SCHEMA.names, raw_body=False, owner=None))


@pytest.mark.parametrize("column", ["msgId", "tags", "keys", "properties"])
def test_only_who_wants_texts_from_properties_needs_a_sample(column: str) -> None:
    frames = Frames([{"properties": LONG}] * 4096)
    with passes() as made:
        assert frames.ordinary(["body", "storeHost", "queueOffset"]) is not None
        assert made.call_count == 1
        assert frames.ordinary([column]) is not None
        assert made.call_count == 3


def test_a_batch_is_left_to_python_as_soon_as_a_row_of_the_sample_is_not_ordinary() -> None:
    frames = Frames([{"born_host": V6}] * 4096)
    with passes() as made:
        assert frames.ordinary() is None
    assert made.call_count == 1


@pytest.mark.parametrize("seed", range(50))
def test_ordinary_messages_are_decoded_in_one_pass_as_by_python(seed: int) -> None:
    chance = random.Random(seed)
    frames = ordinary_frames(chance)
    columns = chance.sample(MESSAGE_SCHEMA.names, chance.randrange(1, len(MESSAGE_SCHEMA.names) + 1))
    found = frames.ordinary(columns)
    assert found is not None
    found.validate(full=True)
    with python_only():
        assert found.equals(frames.answer(columns, raw_body=False, owner=frames.owner))


@pytest.mark.parametrize("seed", range(300))
def test_damaged_and_foreign_messages_are_decoded_or_refused_as_by_python(seed: int) -> None:
    chance = random.Random(seed)
    frames = ordinary_frames(chance)
    for _ in range(chance.choice([0, 1, 1, 2])):
        frames.data[chance.randrange(len(frames.data))] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
    row = chance.randrange(len(frames.positions))
    if chance.random() < 0.2:
        frames.positions[row] += chance.choice([-1, 1, 91, -(1 << 62), 1 << 62])
    if chance.random() < 0.2:
        frames.sizes[row] = chance.choice([-1, 0, 90, 91, 1000, -(1 << 31), (1 << 31) - 1])
    if chance.random() < 0.2:
        frames.owner.queue_offsets[row] += 1
    owners = [None, frames.owner, frames.owner._replace(topic="TopiC"), frames.owner._replace(queue_id=4)]
    given = {"raw_body": chance.random() < 0.5, "owner": chance.choice(owners)}
    columns = chance.sample(MESSAGE_SCHEMA.names, 5)
    with python_only():
        expected = frames.answer(columns, **given)
    found = frames.answer(columns, **given)
    assert found.equals(expected) if isinstance(found, pa.RecordBatch) else found == expected


@pytest.mark.parametrize("properties", STRANGE_PROPERTIES.values(), ids=STRANGE_PROPERTIES.keys())
def test_strange_properties_are_left_to_python(properties: bytes) -> None:
    frames = Frames([{}, {"properties": properties}])
    assert frames.ordinary(["msgId"] if b"UNIQ" not in properties else ["properties"]) is None
    assert frames.ordinary(["body", "queueOffset"]) is not None, "nobody asked for properties"
    with python_only():
        expected = frames.answer(MESSAGE_SCHEMA.names, raw_body=False, owner=None)
    assert isinstance(expected, pa.RecordBatch) and expected.equals(
        frames.answer(MESSAGE_SCHEMA.names, raw_body=False, owner=None)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "Other"},
        {"topic": "TopiC"},
        {"queue_id": 4},
        {"queue_offset": 7},
        {"born_host": V6},
        {"store_host": V6},
        {"born_timestamp_ms": 1 << 60},
        {"store_timestamp_ms": -(1 << 60)},
        {"body": compress(b"a" * 100, "zlib")[0], "sys_flag": int(SysFlag.COMPRESSED)},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_what_is_not_ordinary_is_left_to_python(changes: dict[str, Any]) -> None:
    frames = Frames([{}, changes, {}])
    assert frames.ordinary() is None
    assert Frames([{}, {}, {}]).ordinary() is not None
    for owner in (None, frames.owner):
        with python_only():
            expected = frames.answer(MESSAGE_SCHEMA.names, raw_body=False, owner=owner)
        found = frames.answer(MESSAGE_SCHEMA.names, raw_body=False, owner=owner)
        assert found.equals(expected) if isinstance(found, pa.RecordBatch) else found == expected


def test_compressed_bodies_are_copied_if_they_stay_as_they_are() -> None:
    frames = Frames([{"body": b"\x00", "sys_flag": int(SysFlag.COMPRESSED)}])
    found = frames.ordinary(["body", "sysFlag"], raw_body=True)
    assert found is not None and found.to_pylist() == [{"body": b"\x00", "sysFlag": 1}]


def test_whose_messages_they_must_be_is_said_of_the_first_that_is_not() -> None:
    frames = Frames([{}, {"queue_id": 4, "queue_offset": 9}, {"topic": "Other"}])
    for switch in (python_only, contextmanager(lambda: iter([None]))):
        with switch(), pytest.raises(NotOwnedError) as caught:
            decode_frames(
                pa.py_buffer(bytes(frames.data)), frames.positions, frames.sizes.astype(np.int32), base_offset=BASE,
                columns=["body"], broker_name="b", raw_body=False, body_limit_bytes=1 << 20, owner=frames.owner,
            )  # fmt: skip
        assert (caught.value.row, caught.value.found) == (1, ("Topic", 4, 9))


# -- what would lead it out of its buffers ----------------------------------------------------------------------------


def call(frames: Frames, **changes: Any) -> object:
    count = len(frames.positions)
    names = (b"UNIQ_KEY", b"__CRC32#", b"TAGS", b"KEYS")
    body = np.empty(count + 1, np.int32), np.empty(len(frames.data), np.uint8), None
    pieces = [np.empty(size, kind) for size, kind in zip([count + 1, 9, 99, 9, 99], "iiBiB", strict=True)]
    given: dict[str, Any] = {
        "data": np.frombuffer(bytes(frames.data), np.uint8), "positions": frames.positions, "sizes": frames.sizes,
        "base": BASE, "raw": False, "owner": (b"Topic", 3, frames.owner.queue_offsets), "names": names,
        "numbers": (np.empty(count, np.int32), *[None] * 7), "texts": (body, *[None] * 5), "map": tuple(pieces),
        "ends": np.empty(9, np.int64),
    }  # fmt: skip
    return native.functions.copy_messages(*(given | changes).values())


def test_buffers_that_are_too_small_are_refused() -> None:
    frames = Frames([{}, {}, {}])
    assert call(frames) == b"Topic"
    short = np.empty(2, np.int32), np.empty(99, np.uint8), None
    no_bits = np.empty(4, np.int32), np.empty(9, np.uint8), np.empty(0, np.uint8)
    unlike = [np.empty(size, kind) for size, kind in zip([4, 9, 9, 8, 9], "iiBiB", strict=True)]
    for changes in (
        {"sizes": frames.sizes[:2]},
        {"owner": (b"Topic", 3, np.arange(2))},
        {"numbers": (np.empty(2, np.int32), *[None] * 7)},
        {"texts": (short, *[None] * 5)},
        {"texts": (None, None, None, no_bits, None, None)},
        {"map": (np.empty(3, np.int32), *[np.empty(9, kind) for kind in "iBiB"])},
        {"map": tuple(unlike)},
        {"ends": np.empty(8, np.int64)},
    ):
        with pytest.raises(ValueError, match="expected"):
            call(frames, **changes)


def test_where_there_is_no_room_nothing_is_made() -> None:
    frames = Frames([{}, {}, {}])
    for room in range(15):
        body = np.empty(4, np.int32), np.empty(room, np.uint8), None
        assert call(frames, texts=(body, *[None] * 5)) is None
    for pieces in (1, 3):
        arrays = [np.empty(size, kind) for size, kind in zip([4, pieces, 99, pieces, 99], "iiBiB", strict=True)]
        assert call(frames, map=tuple(arrays)) is None


def test_frames_from_anywhere_in_a_log_are_decoded_in_one_pass_without_a_base_offset() -> None:
    frames = Frames([{"commit_log_offset": offset, "properties": UNIQUE} for offset in (1 << 50, 9, 70_000)])
    data = np.frombuffer(bytes(frames.data), np.uint8)

    def decoded(base_offset: int | None) -> pa.RecordBatch | None:
        return decode_ordinary(
            data, frames.positions, frames.sizes, base_offset=base_offset, columns=MESSAGE_SCHEMA.names,
            broker_name="b", raw_body=False, owner=frames.owner, memory=BatchMemory(),
        )  # fmt: skip

    batch = decoded(None)
    assert batch is not None
    assert batch.column("commitLogOffset").to_pylist() == [1 << 50, 9, 70_000]
    assert decoded(BASE) is None
