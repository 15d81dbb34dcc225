"""Answers to pulls that the extension takes from a buffer are those that the Python decoder makes of it."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator

import pytest

from rmq_store.format.bytes import native
from rmq_store.protocol.errors import RemotingCommandError
from rmq_store.protocol.wire.command import RESPONSE_FLAG, RemotingCommand, SerializeType
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.protocol.wire.pull_answers import PullAnswer, PullTaker

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


def is_taken(command: RemotingCommand, opaque: int, answer: PullAnswer) -> bool:
    try:
        return command.opaque == opaque and PullAnswer.of(command) == answer
    except RemotingCommandError:
        return False


def assert_same(data: bytes, wanted: set[int], sizes: Iterator[int]) -> list[tuple[int, PullAnswer]]:
    """Both ways find the same, and refuse the same; what was taken."""
    sizes_again = list(pieces(data, sizes))
    plain, taker = FrameDecoder(), PullTaker()
    taker.wanted = set(wanted)
    taking = FrameDecoder(take=taker.take)
    expected = decoded(plain, data, map(len, sizes_again))
    commands = decoded(taking, data, map(len, sizes_again))
    taken = taker.taken()
    assert str(taking.failure) == str(plain.failure)
    left, took = iter(commands), list(taken)
    for command in expected:
        if took and is_taken(command, *took[0]):
            assert command.opaque in wanted and command.is_response
            took.pop(0)
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
    expected = PullAnswer(0, 64, 3, 900719925474099, 0, b"frames", "FOUND")
    assert assert_same(data, {1, 2, 3}, whole()) == [(1, expected), (2, expected), (3, expected)]
    assert assert_same(data, {1, 3}, whole()) == [(1, expected), (3, expected)]
    assert assert_same(data, set(), whole()) == []


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
    assert all(opaque != 7 for opaque, _ in assert_same(answer(1) + UNUSUAL[name], {1, 7}, whole()))
    taker = PullTaker()
    taker.wanted = {1, 7}
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
        assert assert_same(good[:size], {1}, whole()) == []


@needs_native
@pytest.mark.parametrize("position", [-1, 1, 1 << 40])
def test_a_place_outside_of_the_bytes_is_refused(position: int) -> None:
    with pytest.raises(IndexError):
        native.functions.take_pull_answers(b"", position, {1}, [])
    with pytest.raises((TypeError, SystemError)):
        native.functions.take_pull_answers(answer(1), 0, [1], [])  # type: ignore[arg-type]


def test_without_the_extension_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LOADED", False)
    assert assert_same(answer(1) + answer(2), {1, 2}, whole()) == []
