"""Answers to pulls that the extension takes from a buffer are those that the Python decoder makes of it."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from helpers.cluster.taken_pulls import AREA_BYTES, TakenPulls, is_taken
from rmq_store.format.bytes import native
from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RESPONSE_FLAG, RemotingCommand, SerializeType
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.protocol.wire.pull_answers import FrameArea, PullAnswer, PulledRound, PullTaker

needs_native = pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")

FIELDS = {"suggestWhichBrokerId": "0", "nextBeginOffset": "64", "minOffset": "3", "maxOffset": "900719925474099"}
LATER = {"topicSysFlag": "0", "groupSysFlag": "0", "offsetDelta": "0", "forbiddenType": "1"}


def answer(
    opaque: int = 7, kind: SerializeType = SerializeType.JSON, fields: dict[str, str] = FIELDS, **other: object
) -> bytes:
    given = {"body": b"frames", "flag": RESPONSE_FLAG, "remark": "FOUND", "language": 0, **other}
    return encode_command(RemotingCommand(0, dict(fields), opaque=opaque, serialize_type=kind, **given))  # type: ignore[arg-type]


def json_frame(header: str, body: bytes = b"frames") -> bytes:
    encoded = header.encode()
    return struct.pack(">iI", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


def pieces(data: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = max(next(sizes), 1)
        yield data[at : at + size]
        at += size


def decoded(decoder: FrameDecoder, data: bytes, sizes: Iterator[int]) -> list[RemotingCommand]:
    """The commands of bytes that come in pieces, into the decoder's own memory where it has some."""
    commands = []
    for piece in pieces(data, sizes):
        at = 0
        while at < len(piece) and decoder.failure is None:
            try:
                room = decoder.room()
                if room is None:
                    commands += decoder.feed(piece[at:])
                    break
                size = min(len(room), len(piece) - at)
                room[:size] = piece[at : at + size]
                commands += decoder.fill(size)
                at += size
            except RemotingCommandError:
                break
    return commands


Taken = dict[int, PullAnswer | tuple[int, int, bytes]]


def assert_same(data: bytes, wanted: set[int], sizes: Iterator[int], next_offset: int = 64) -> Taken:
    """Both ways find the same, and refuse the same; what was taken, each opaque once."""
    sizes_again = list(pieces(data, sizes))
    plain, taking = FrameDecoder(), TakenPulls(wanted, next_offset)
    expected = decoded(plain, data, map(len, sizes_again))
    commands = decoded(taking.decoder, data, map(len, sizes_again))
    taken = taking.answers()
    assert str(taking.decoder.failure) == str(plain.failure)
    left, took = iter(commands), dict(taken)
    for command in expected:
        if is_taken(command, took.get(command.opaque)):
            assert command.opaque in wanted and command.is_response
            del took[command.opaque]
        else:
            assert next(left) == command
    assert not took and next(left, None) is None
    return taken


def whole() -> Iterator[int]:
    while True:
        yield 1 << 30


@needs_native
@pytest.mark.parametrize("kind", list(SerializeType))
@pytest.mark.parametrize("fields", [FIELDS, FIELDS | LATER, {"unknown": 'x" y'[:1]} | FIELDS])
def test_usual_answers_are_taken_and_only_those_that_are_wanted(kind: SerializeType, fields: dict[str, str]) -> None:
    data = b"".join(answer(opaque, kind, fields) for opaque in (1, 2, 3))
    placed = 64, 0, b"frames"
    assert assert_same(data, {1, 2, 3}, whole()) == {1: placed, 2: placed, 3: placed}
    assert assert_same(data, {1, 3}, whole()) == {1: placed, 3: placed}
    assert assert_same(data, set(), whole()) == {}
    partial = PullAnswer(0, 64, 3, 900719925474099, 0, b"frames", "FOUND")
    assert assert_same(data, {1, 3}, whole(), next_offset=96) == {1: partial, 3: partial}


@needs_native
def test_answers_for_which_the_area_has_no_room_are_taken_with_their_bytes() -> None:
    sizes = [9000, 9000, 9000, AREA_BYTES, 1990, 1, 9000]
    data = b"".join(answer(opaque, body=bytes([opaque]) * size) for opaque, size in enumerate(sizes))
    taken = assert_same(data, set(range(len(sizes))), whole())
    assert [isinstance(taken[opaque], PullAnswer) for opaque in range(len(sizes))] == [
        False, False, True, True, False, False, True
    ]  # fmt: skip


@needs_native
def test_rounds_of_several_readers_get_their_own_answers_and_each_answer_once() -> None:
    taker, area = PullTaker(), FrameArea(AREA_BYTES)
    rounds = [PulledRound([64] * 3, area), PulledRound([64], area), PulledRound([64, 65], FrameArea(AREA_BYTES))]
    for each, first in zip(rounds, (10, 2_000_000_000, 13), strict=True):
        each.first_opaque = first
    taker.rounds = rounds
    opaques = [13, 11, 14, 2_000_000_000, 12, 10]
    data = b"".join(answer(opaque, body=b"%d" % opaque) for opaque in opaques)
    assert taker.take(data + answer(11), 0) == len(data)
    found, placed = taker.taken()
    assert [(opaque, each.frames) for opaque, each in found] == [(14, b"14")] and placed == 5
    bytes_of = [
        [each.area.data[start:end].tobytes() for start, end in each.places().tolist() if start >= 0] for each in rounds
    ]
    assert bytes_of == [[b"10", b"11", b"12"], [b"2000000000"], [b"13"]]
    assert [each.placed for each in rounds] == [3, 1, 1]
    assert taker.take(answer(15) + answer(9) + answer(0), 0) == 0


@needs_native
def test_more_rounds_than_the_extension_looks_at_are_left_to_python() -> None:
    taker = PullTaker()
    for opaque in range(70):
        taker.rounds.append(PulledRound([64], FrameArea(100)))
        taker.rounds[-1].first_opaque = opaque
    assert taker.take(answer(0) + answer(63) + answer(64), 0) == len(answer(0) + answer(63))


JSON = json.loads(answer()[8:-6])
UNUSUAL = {
    "a code": answer(remark="no") .replace(b'"code":0', b'"code":2'),
    "no remark": answer(remark=None),
    "another remark": answer(remark="FOUNDED"),
    "no messages": answer(body=b""),
    "a request": answer(flag=0),
    "oneway": answer(flag=3),
    **{f"without {name}": answer(fields={key: FIELDS[key] for key in FIELDS if key != name}) for name in FIELDS},
    **{
        f"{name} is {value!r}": answer(kind=kind, fields=FIELDS | LATER | {name: value})
        for kind in SerializeType
        for name in ("nextBeginOffset", "forbiddenType")
        for value in ("", "-1", "+1", " 1", "1.0", "x", "1" * 19, "1" * 20, "\u0663", "9" * 10)
        if not (name == "nextBeginOffset" and value == "9" * 10)
    },
    "white space": json_frame(json.dumps(JSON)),
    "a number of text": json_frame(json.dumps(JSON | {"opaque": "7"}, separators=(",", ":"))),
    "a number with a fraction": json_frame(json.dumps(JSON | {"code": 0.0}, separators=(",", ":"))),
    "a field that is a number": json_frame(
        json.dumps(JSON | {"extFields": FIELDS | {"minOffset": 3}}, separators=(",", ":"))
    ),
    "another member": json_frame(json.dumps(JSON | {"more": 1}, separators=(",", ":"))),
    "null": json_frame(json.dumps(JSON | {"language": None}, separators=(",", ":"))),
    "a member twice": json_frame(answer()[8:-6].decode().replace('"code":0,', '"code":0,"code":2,')),
    "fields twice": json_frame(answer()[8:-6].decode().replace('"flag"', '"extFields":{"n":"1"},"flag"')),
    "a text that ends in the body": answer(kind=SerializeType.ROCKETMQ, fields=FIELDS | {"z": "1"}).replace(
        b"\0\0\0\x011frames", b"\0\0\0\x051frames"
    ),
    "a field twice": json_frame(answer()[8:-6].decode().replace('"minOffset":"3"', '"minOffset":"3","minOffset":"4"')),
    "an escape": json_frame(answer()[8:-6].decode().replace("minOffset", "min\\u004fffset")),
    "leading zero": json_frame(answer()[8:-6].decode().replace('"opaque":7', '"opaque":07')),
    "65 fields": answer(fields=FIELDS | {str(number): "" for number in range(61)}),
    "not ASCII": answer(fields=FIELDS | {"é": ""}),
    "an unknown form": answer()[:4] + b"\x02" + answer()[5:],
    "a header beyond the frame": answer()[:5] + b"\xff" + answer()[6:],
}  # fmt: skip


@needs_native
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_not_usual_is_left_to_python_with_all_behind_it(name: str) -> None:
    assert 7 not in assert_same(answer(1) + UNUSUAL[name], {1, 7}, whole())
    taker = TakenPulls({1, 7}).taker
    assert taker.take(answer(1) + UNUSUAL[name] + answer(7), 0) == len(answer(1))


@needs_native
@pytest.mark.parametrize("seed", range(20))
def test_random_answers_are_the_same_in_whatever_pieces_they_come(seed: int) -> None:
    chance = random.Random(seed)
    frames = []
    for opaque in range(40):
        kind = chance.choice(list(SerializeType))
        names = list(FIELDS | LATER)
        chance.shuffle(names)
        fields = {name: str(chance.randrange(1 << chance.randrange(1, 64))) for name in names}
        fields["nextBeginOffset"] = "64" if chance.random() < 0.5 else fields["nextBeginOffset"]
        if chance.random() < 0.3:
            frames.append(chance.choice(list(UNUSUAL.values())[:-2]))
        else:
            body = chance.randbytes(chance.choice([0, 1, 100, 9000, 400_000 if seed % 10 == 0 else 10]))
            frames.append(answer(opaque, kind, fields, body=body))
    data = b"".join(frames)
    if seed % 3 == 0:
        damaged = bytearray(data)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        data = bytes(damaged)
    largest = chance.choice([50, 700, 1 << 18])
    assert_same(data, set(range(0, 40, 1 + seed % 2)), iter(lambda: chance.randrange(1, largest), None))


@needs_native
@pytest.mark.parametrize("kind", list(SerializeType))
def test_no_damaged_byte_is_read_otherwise_than_by_python(kind: SerializeType) -> None:
    good = answer(1, kind, FIELDS | LATER)
    for place in range(len(good) - len(b"frames")):
        for value in (0, 0x22, 0x30, 0x80, good[place] ^ 1):
            data = good[:place] + bytes([value]) + good[place + 1 :]
            assert_same(data + answer(2, kind), {1, 2}, whole())


@needs_native
def test_each_length_may_be_anything() -> None:
    """Sanitizers and valgrind find a read beyond; the buffer ends where the bytes do."""
    good = answer(1, SerializeType.ROCKETMQ)
    for place in range(0, len(good) - 10):
        for value in (-(1 << 31), -1, 0, len(good), 1 << 24):
            assert_same(good[:place] + struct.pack(">i", value) + good[place + 4 :], {1}, whole())
    for size in range(len(good)):
        assert assert_same(good[:size], {1}, whole()) == {}


@needs_native
@pytest.mark.parametrize("position", [-1, 1, 1 << 40])
def test_a_place_outside_of_the_bytes_is_refused(position: int) -> None:
    with pytest.raises(IndexError):
        native.functions.take_pull_answers(b"", position, [], [])


WORDS, AREA = np.zeros(3 + 4, np.int64), np.full(4, 8, np.int64)


@needs_native
@pytest.mark.parametrize(
    "rounds",
    [[1], [(WORDS,)], [(WORDS[:2], AREA)], [(WORDS[:6], AREA)], [(WORDS, AREA[:0])], [(b"x" * 56, AREA)],
     [(WORDS, AREA.view(np.uint8))], [(WORDS, AREA), (WORDS, None)]],
)  # fmt: skip
def test_what_is_no_round_is_refused(rounds: list[Any]) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        native.functions.take_pull_answers(answer(1), 0, rounds, [])


@needs_native
@pytest.mark.parametrize("used", [-8, 0, 7, 33, 1 << 62])
def test_nothing_is_placed_in_an_area_whose_head_is_wrong(used: int) -> None:
    words, area = np.array([1, 0, 0, 64, -1, 0, 0], np.int64), np.array([used, 0, 0, 0], np.int64)
    taken: list[Any] = []
    assert native.functions.take_pull_answers(answer(1), 0, [(words, area)], taken) == len(answer(1))
    assert len(taken) == 1 and area.tolist() == [used, 0, 0, 0] and words.tolist() == [1, 0, 1, 64, -2, 0, 0]


def test_without_the_extension_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LOADED", False)
    assert assert_same(answer(1) + answer(2), {1, 2}, whole()) == {}
