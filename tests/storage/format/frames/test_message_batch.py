"""A batch by one call of the extension: the same frames and hashes as message by message, or it is left to that."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_store.errors import UsageError
from rmq_store.format.batches.frame_patch import patch_frames
from rmq_store.format.bytes import native
from rmq_store.format.frames.message_batch import BatchRules, UniqueIds, encode_batch_body, read_batch
from rmq_store.format.frames.one_frame import Hosts, encode_one
from rmq_store.format.frames.stored_message import complete_frame
from rmq_store.format.text.host import Host

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

V4 = Hosts(Host.parse("10.108.115.217:5"), Host.parse("10.108.115.217:10911"))
V6 = Hosts(Host.parse("[fe80::1]:0"), Host.parse("10.108.115.217:10911"))
V6_STORE = Hosts(Host.parse("[fe80::1]:0"), Host.parse("[fe80::2]:10911"))
RULES = BatchRules((b"DELAY", b"TIMER_DELAY_MS"), 100, 4000, crc_property=True, index_tags=True)
BORN_MS, STORE_MS, LOG_OFFSET, QUEUE_OFFSET = 1_700_000_000_000, 1_700_000_000_001, 1 << 33, 7
KEY = b"UNIQ_KEY\x01U1\x02"
# The last number of 48 bits that an id can have: the one behind it begins anew.
IDS = bytes(range(0x70, 0x7A)), 0xFFFFFFFFFFFE

names = st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"WAIT", b"a", b"__CRC32#", b"", b"DELAY"])
values = st.sampled_from([b"", b"k1 k2", b" k ", b"true", b"false", "中\U0001f600".encode(), b"\xff", b"x\x01y"])
pieces = st.tuples(names, st.sampled_from([b"\x01", b"\x01", b"\x01", b""]), values).map(b"".join)
strings = st.lists(pieces, max_size=6).map(b"\x02".join)
pairs = st.lists(
    st.tuples(st.sampled_from([b"KEYS", b"TAGS", b"a", b"a", b"__CRC32#"]), st.sampled_from([b"k1 k2", b"v", b"  "])),
    max_size=5,
)
good = st.builds(
    lambda key, pairs: key + b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs),
    st.sampled_from([KEY, b"", b"UNIQ_KEY\x01\x02"]),  # a Go client sends none
    pairs,
)


def member(body: bytes, properties: bytes, flag: int = 0, behind: bytes = b"") -> bytes:
    size = 20 + len(body) + 2 + len(properties) + len(behind)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">H", len(properties)) + properties + behind


def given_ids() -> Iterator[str]:
    prefix, first = IDS
    return (f"{prefix.hex().upper()}{number & 0xFFFFFFFFFFFF:012X}" for number in itertools.count(first))


def by_itself(body: bytes, rules: BatchRules, hosts: Hosts = V4) -> tuple[list[bytes], list[int], list[list[int]], str]:
    """What message by message is stored, one behind another, and indexed. UsageError."""
    frames, tags, hashes, keys, end, ids = [], [], [], [], LOG_OFFSET, given_ids()
    for number, message in enumerate(read_batch(body, "Topic", 3, BORN_MS)):
        key = message.properties.get("UNIQ_KEY") or next(ids)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "LOADED", False)
            made = encode_one(
                "Topic", message.body, message.stored_properties(key), hosts, queue_id=3, flag=message.flag, sys_flag=0,
                born_timestamp_ms=BORN_MS, crc_property=rules.crc_property, index_tags=rules.index_tags,
            )  # fmt: skip
            complete_frame(made.frame, QUEUE_OFFSET + number, end, STORE_MS, crc_property=rules.crc_property)
        end += len(made.frame)
        frames.append(bytes(made.frame))
        tags.append(made.tags_hash)
        hashes.append(made.key_hashes)
        keys.append(key)
    return frames, tags, hashes, ",".join(keys)


def together(
    body: bytes, rules: BatchRules, hosts: Hosts = V4
) -> tuple[list[bytes], list[int], list[list[int]], str] | None:
    made = encode_batch_body(body, "Topic", 3, BORN_MS, hosts, rules, IDS)
    if made is None:
        return None
    starts, sizes = made.bounds[:-1], np.diff(made.bounds)
    numbers = np.arange(QUEUE_OFFSET, QUEUE_OFFSET + len(sizes))
    patch_frames(made.frames, starts, sizes, numbers, LOG_OFFSET + starts, STORE_MS, made.crc0)
    frames = [made.frames[at : at + size].tobytes() for at, size in zip(starts, sizes, strict=True)]
    ends = np.cumsum(made.key_counts)
    assert len(made.frames) == made.bounds[-1] and len(made.key_hashes) == ends[-1]
    hashes = [each.tolist() for each in np.split(made.key_hashes, ends[:-1])]
    return frames, made.tags_codes.tolist(), hashes, made.unique_keys


@needs_native
@given(
    st.lists(st.tuples(st.binary(max_size=100), good, st.sampled_from([0, 1, -1, 1 << 30]), st.binary(max_size=3)),
             min_size=1, max_size=8),
    st.booleans(),
    st.booleans(),
    st.sampled_from([V4, V6, V6_STORE]),
)  # fmt: skip
def test_ordinary_messages_are_encoded_together_to_the_same_bytes(
    members: list[tuple[bytes, bytes, int, bytes]], crc_property: bool, index_tags: bool, hosts: Hosts
) -> None:
    body = b"".join(member(*each) for each in members)
    rules = RULES._replace(crc_property=crc_property, index_tags=index_tags)
    assert together(body, rules, hosts) == by_itself(body, rules, hosts)


@needs_native
@given(st.lists(st.tuples(st.binary(max_size=120), strings | good), max_size=4), st.booleans())
@example([(b"", KEY + b"UNIQ_KEY\x01U2\x02")], True)
@example([(b"", b"a\x011\x02b\x012\x02a\x013\x02" + KEY)], True)
def test_what_is_encoded_together_is_what_would_be_stored_by_itself(
    members: list[tuple[bytes, bytes]], has_crc: bool
) -> None:
    body = b"".join(member(*each) for each in members)
    rules = RULES._replace(crc_property=has_crc)
    made = together(body, rules)
    assert made is None or made == by_itself(body, rules)


@needs_native
@given(st.lists(good, min_size=1, max_size=4), st.data())
def test_a_torn_or_changed_body_is_read_as_far_as_it_reaches(strings: list[bytes], data: st.DataObject) -> None:
    """Each length may be anything; sanitizers and valgrind find a read beyond."""
    body = bytearray(b"".join(member(b"tea", each) for each in strings))
    for _ in range(data.draw(st.integers(0, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]))
    torn = bytes(body[: data.draw(st.integers(0, len(body)))])
    made = together(torn, RULES)
    assert made is None or made == by_itself(torn, RULES)


@needs_native
@pytest.mark.parametrize(
    ("body", "change"),
    [
        (b"", {}),
        (member(b"tea", KEY)[:-1], {}),
        (member(b"tea", KEY) + b"\0" * 21, {}),
        (member(b"tea", KEY + b"DELAY\x011\x02"), {}),
        (member(b"tea", KEY + b"TIMER_DELAY_MS\x011\x02"), {}),
        (member(b"tea", KEY + b"WAIT\x01false\x02"), {}),
        (member(b"tea", KEY + b"a\x01b\x01c\x02"), {}),
        (member(b"tea", KEY + b"a\x01\xff\x02"), {}),
        (member(b"tea", KEY + b"".join(b"n%d\x01v\x02" % number for number in range(64))), {}),
        (member(b"t" * 101, KEY), {}),
        (member(b"tea", KEY + b"a\x01" + b"x" * 32_750 + b"\x02"), {"frame_bytes_max": 100_000}),
        (member(b"tea", KEY), {"frame_bytes_max": 120}),
    ],
)
def test_what_is_not_ordinary_is_left_to_python(body: bytes, change: dict[str, Any]) -> None:
    assert together(member(b"tea", KEY), RULES) is not None
    assert together(body, RULES._replace(**change)) is None
    if b"WAIT" not in body and body:
        assert together(member(b"tea", KEY) + body, RULES._replace(**change)) is None


@needs_native
def test_properties_that_reach_into_the_next_message_are_torn() -> None:
    """Behind the last one they would reach out of the body."""
    following = member(b"\x02" + KEY, KEY)
    reaching = struct.pack(">iiiii", 25, 0, 0, 0, 3) + b"tea" + struct.pack(">H", len(following))
    assert together(reaching + following, RULES) is None


@needs_native
def test_only_the_first_message_says_whether_the_batch_waits() -> None:
    body = member(b"tea", KEY) + member(b"tea", KEY + b"WAIT\x01false\x02")
    assert together(body, RULES) == by_itself(body, RULES)


@needs_native
@pytest.mark.parametrize(
    ("topic", "born_ms", "ids"),
    [("x" * 128, BORN_MS, IDS), ("Topic", 1 << 63, IDS), ("Topic", BORN_MS, (bytes(23), 0))],
)
def test_fields_of_another_width_are_left_to_python(topic: str, born_ms: int, ids: UniqueIds) -> None:
    assert encode_batch_body(member(b"tea", KEY), topic, 3, born_ms, V4, RULES, ids) is None


@pytest.mark.parametrize(
    ("tail", "at"), [(b"\0" * 19, 39), (member(b"tea", KEY)[:-1], 39), (member(b"", b"")[:16] + b"\xff" * 6, 39)]
)
def test_a_torn_body_is_named_by_its_byte(tail: bytes, at: int) -> None:
    with pytest.raises(UsageError, match=f"torn at byte {at}"):
        list(read_batch(member(b"tea!!", KEY) + tail, "Topic", 3, None))
