"""Seeded random changes to good inputs: enough to reach most checks, and the same everywhere for one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

INPUT_BYTES_MAX = 1 << 16

# Lengths and offsets at the edges of what a field can hold, in both byte orders.
_NUMBERS = [
    number.to_bytes(size, order, signed=True)
    for size in (1, 2, 4, 8)
    for number in {-(1 << 8 * size - 1), -1, 0, 1, (1 << 8 * size - 1) - 1}
    for order in ("big", "little")
]
_TEXTS = [
    b"[" * 70, b'{"a":' * 40, b"9" * 5000, b"NaN", b"Infinity", b"1e999", b'"\\ud800"', b"\xed\xa0\x80", b"\xff\xfe",
    b"../", b"\n", b"\0", b"\x01", b"\x02", b"true", b"null", b"-0", "Ⅷ１".encode(), b"(", b"'", b"0x",
]  # fmt: skip


def _flip(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    data[at] ^= 1 << dice.randrange(8)


def _byte(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] = dice.randrange(256)


def _number(data: bytearray, dice: random.Random) -> None:
    number = dice.choice(_NUMBERS)
    at = dice.randrange(len(data))
    data[at : at + len(number)] = number


def _cut(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    del data[at : at + 1 + int(dice.expovariate(1 / 8))]


def _repeat(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    piece = data[at : at + 1 + int(dice.expovariate(1 / 16))]
    data[at:at] = piece * (1 if dice.random() < 0.9 else 50)


def _text(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    data[at:at] = dice.choice(_TEXTS)


def _end(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


_CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip, _flip, _byte, _byte, _number, _number, _cut, _repeat, _text, _end,
)  # fmt: skip


def mutated(corpus: Sequence[bytes], dice: random.Random) -> bytes:
    """A changed input, or two of them joined."""
    data = bytearray(dice.choice(corpus))
    if dice.random() < 0.05:
        other = dice.choice(corpus)
        data[dice.randrange(len(data) + 1) :] = other[dice.randrange(len(other) + 1) :]
    for _ in range(1 + int(dice.expovariate(0.6))):
        if not data:
            data.append(dice.randrange(256))
        dice.choice(_CHANGES)(data, dice)
    return bytes(data[:INPUT_BYTES_MAX])
