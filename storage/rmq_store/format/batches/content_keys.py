"""Unique keys that are made of what a message says, so that whoever sends it again gives it the same key (data plane).

    key (16 bytes)     tag (2) | digest (11) | ordinal (3)
    digest             BLAKE2b of: seed (128) | place (16) | flag | sysFlag | reconsumeTimes | body, topic, properties

The seed names what is sent together (a query, its batch, a partition), the tag is a hash of the seed: it tells most
foreign messages at a glance. The place is what a caller asks for besides: a queue, a born time. The ordinal counts
equal messages under one seed, so it does not matter in which order they come. In a message the key is UNIQ_KEY, in 32
upper-case hex digits; unlike the keys of Java's clients it holds no time.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import UsageError
from rmq_store.format.batches.batch_bodies import KEY_BYTES, MessageParts, message_parts
from rmq_store.format.bytes import native
from rmq_store.format.bytes.gather import value_bytes
from rmq_store.format.frames.frame_check import BODY_POSITIONS
from rmq_store.format.properties.property_string import UNIQUE_KEY

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

SEED_BYTES = 128
PLACE_BYTES = 16
TAG_BYTES = 2
ORDINALS_MAX = 1 << 24

_DIGEST_BYTES = 16
_KEPT_DIGEST_BYTES = 11
_ORDINAL_BYTES = 3
_SLOTS_MIN = 1 << 10
_SLOT_BYTES = 24
_PREFIX = f"{UNIQUE_KEY}\x01".encode()


def seed_of(names: Sequence[str]) -> bytes:
    """The seed of what these names name together: SEED_BYTES. Other names, another seed."""
    hashed = hashlib.blake2b()
    for name in names:
        raw = name.encode()
        hashed.update(len(raw).to_bytes(8, "big") + raw)
    return hashed.digest().ljust(SEED_BYTES, b"\0")


def tag_of(seed: bytes) -> bytes:
    """The first bytes of all keys under a seed."""
    return hashlib.blake2b(seed, digest_size=TAG_BYTES).digest()


def content_digests(frames: pa.LargeBinaryArray, seed: bytes, places: Bytes) -> Bytes:
    """(16 * n,): the digests of frames (n,) of the encoder's; `places` (PLACE_BYTES * n)."""
    offsets, data = value_bytes(frames)
    digests = np.empty(_DIGEST_BYTES * len(frames), np.uint8)
    if native.LOADED:
        native.functions.content_digests(data, offsets, BODY_POSITIONS[0], seed, places, digests)
        return digests
    seeded = hashlib.blake2b(seed, digest_size=_DIGEST_BYTES)
    for row in range(len(frames)):
        parts = message_parts(data[offsets[row] : offsets[row + 1]].tobytes())
        hashed = seeded.copy()
        hashed.update(places[PLACE_BYTES * row : PLACE_BYTES * (row + 1)].tobytes())
        hashed.update(b"".join(n.to_bytes(4, "big", signed=True) for n in _numbers(parts)))
        hashed.update(parts.content)
        digests[_DIGEST_BYTES * row : _DIGEST_BYTES * (row + 1)] = np.frombuffer(hashed.digest(), np.uint8)
    return digests


def _numbers(parts: MessageParts) -> tuple[int, int, int]:
    return parts.flag, parts.sys_flag, parts.reconsume_times


class KeyMaker:
    """Makes the keys of the messages under one seed, batch after batch. Holds 24 to 96 bytes for each different one."""

    def __init__(self, seed: bytes) -> None:
        self.seed = seed
        self.tag = tag_of(seed)
        self._slots = np.zeros(3 * _SLOTS_MIN, np.uint64)
        self._used = 0

    def keys(self, digests: Bytes) -> Bytes:
        """(KEY_BYTES * n,): the keys of messages with these `content_digests`.

        Raises:
            UsageError: more than 16,777,216 equal messages.
        """
        count = len(digests) // _DIGEST_BYTES
        ordinals = np.empty(count, np.int64)

        def number(slots: UInt64, used: int, ordinals_max: int) -> int:
            used = _number(digests.view(np.uint64), slots, used, ordinals)
            return -1 if count and int(ordinals.max()) >= ordinals_max else used

        self.number(count, number)
        keys = np.empty((count, KEY_BYTES), np.uint8)
        keys[:, :TAG_BYTES] = np.frombuffer(self.tag, np.uint8)
        keys[:, TAG_BYTES:-_ORDINAL_BYTES] = digests.reshape(-1, _DIGEST_BYTES)[:, :_KEPT_DIGEST_BYTES]
        ordinal_bytes = ordinals.astype(">i8").view(np.uint8).reshape(-1, 8)
        keys[:, -_ORDINAL_BYTES:] = ordinal_bytes[:, -_ORDINAL_BYTES:]
        return keys.ravel()

    def number(self, count: int, number: Callable[[UInt64, int, int], int]) -> None:
        """Let `number` count so many digests in the table of this maker. It gets the slots, how many of them are used,
        and what no ordinal may reach; it returns how many are used then, -1: an ordinal is too high.

        Raises:
            UsageError: as `keys`.
        """
        self._make_room(count)
        used = number(self._slots, self._used, ORDINALS_MAX)
        if used < 0:
            raise UsageError(
                f"more than {ORDINALS_MAX} messages of a partition are equal: write them without replayCheck"
            )
        self._used = used

    def has_made(self, keys: Bytes) -> npt.NDArray[np.bool_]:
        """(n,): which of `keys` (KEY_BYTES * n) this maker has made; meant for few keys."""
        given = keys.reshape(-1, KEY_BYTES)
        lows = np.ascontiguousarray(given[:, TAG_BYTES : TAG_BYTES + 8]).view(np.uint64).ravel()
        known = self._slots.reshape(-1, 3)
        known = known[(known[:, 2] > 0) & np.isin(known[:, 0], lows)]
        counts: dict[bytes, int] = {}
        for low, high, count in known.tolist():
            digest = low.to_bytes(8, sys.byteorder) + high.to_bytes(8, sys.byteorder)
            counts[digest[:_KEPT_DIGEST_BYTES]] = count
        of_digests = [counts.get(key[TAG_BYTES:-_ORDINAL_BYTES].tobytes(), 0) for key in given]
        ordinals = [int.from_bytes(key[-_ORDINAL_BYTES:].tobytes(), "big") for key in given]
        is_tagged = (given[:, :TAG_BYTES] == np.frombuffer(self.tag, np.uint8)).all(axis=1)
        made: npt.NDArray[np.bool_] = is_tagged & (np.array(ordinals, np.int64) < np.array(of_digests, np.int64))
        return made

    def _make_room(self, count: int) -> None:
        size = len(self._slots) // 3
        if 2 * (self._used + count) <= size:
            return
        while 2 * (self._used + count) > size:
            size *= 2
        # Arrow's memory pool keeps large pieces; numpy's would come from the kernel, page by page.
        slots = np.frombuffer(pa.allocate_buffer(_SLOT_BYTES * size), np.uint64)
        _move(self._slots, slots)
        self._slots = slots


class FoundKeys:
    """Keys that were found in queues, and what is known of their messages. Holds about 100 bytes for each.

    `checks` (n,) uint64: the CRC of the stored body above its length, as `keys_in_frames` answers. `repeated`: how
    often a key was found once more.
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[Bytes, UInt64]] = []
        self._slots = np.zeros(3 * 2, np.uint64)
        self._checks = np.zeros(0, np.uint64)
        self._is_ready = True
        self.repeated = 0

    def __len__(self) -> int:
        self._make_ready()
        return len(self._checks) - self.repeated

    @property
    def keys(self) -> Bytes:
        """(KEY_BYTES * n,): all that was found, in its order, also what was found more than once."""
        pieces = [keys for keys, _ in self._pieces]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.uint8)

    @property
    def checks(self) -> UInt64:
        """(n,): the checks of `keys`."""
        pieces = [checks for _, checks in self._pieces]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.uint64)

    def add(self, keys: Bytes, checks: UInt64) -> None:
        """Remember keys (KEY_BYTES * n) and their checks (n,)."""
        if len(checks):
            self._pieces.append((keys.copy(), checks.copy()))
            self._is_ready = False

    def find(self, keys: Bytes) -> tuple[npt.NDArray[np.bool_], UInt64]:
        """(n,) each: which of `keys` were found, and their checks, 0 for the others."""
        self._make_ready()
        numbers = np.zeros(len(keys) // KEY_BYTES, np.uint64)
        if len(self._checks):
            _find(np.ascontiguousarray(keys).view(np.uint64), self._slots, numbers)
        found = numbers > 0
        checks = np.zeros(len(numbers), np.uint64)
        checks[found] = self._checks[numbers[found].astype(np.int64) - 1]
        return found, checks

    def _make_ready(self) -> None:
        if self._is_ready:
            return
        keys = np.concatenate([piece for piece, _ in self._pieces])
        self._checks = np.concatenate([checks for _, checks in self._pieces])
        self._pieces = [(keys, self._checks)]
        count = len(self._checks)
        self._slots = np.zeros(3 << int(2 * count + 2).bit_length(), np.uint64)
        _store(keys.view(np.uint64), self._slots, np.arange(1, count + 1, dtype=np.uint64))
        self.repeated = count - int(np.count_nonzero(self._slots.reshape(-1, 3)[:, 2]))
        self._is_ready = True


def body_checks(frames: pa.LargeBinaryArray) -> UInt64:
    """(n,): what `keys_in_frames` answers as the check of these frames of the encoder's, when they are stored."""
    offsets, data = value_bytes(frames)
    starts = offsets[:-1]
    return _words(data, starts + 8) << np.uint64(32) | _words(data, starts + BODY_POSITIONS[0] - 4)


def _words(data: Bytes, positions: Int64) -> UInt64:
    words = np.zeros(len(positions), np.uint64)
    for byte in range(4):
        words = words << np.uint64(8) | data[positions + byte].astype(np.uint64)
    return words


def keys_in_frames(data: Bytes, positions: Int64, tag: bytes) -> tuple[Bytes, UInt64, Int64]:
    """Keys (KEY_BYTES * m), checks (m,) and rows (m,) of the sound frames at `positions` (n,) that have a key of `tag`.

    The first UNIQ_KEY of a message counts. A check is the CRC of the stored body above its length.
    """
    count = len(positions)
    keys, checks, rows = np.empty(KEY_BYTES * count, np.uint8), np.empty(count, np.uint64), np.empty(count, np.int64)
    if native.LOADED:
        found = native.functions.keys_in_frames(data, positions, tag, keys, checks, rows)
        return keys[: KEY_BYTES * found], checks[:found], rows[:found]
    found = 0
    for row, position in enumerate(positions.tolist()):
        size = int.from_bytes(data[position : position + 4].tobytes(), "big")
        frame = data[position : position + size].tobytes()
        header_bytes = BODY_POSITIONS[int.from_bytes(frame[36:40], "big") >> 4 & 3]
        parts = MessageParts(frame, header_bytes)
        key = _key_of(parts.properties)
        if key is not None and key.startswith(tag):
            keys[KEY_BYTES * found : KEY_BYTES * (found + 1)] = np.frombuffer(key, np.uint8)
            checks[found] = int.from_bytes(frame[8:12], "big") << 32 | len(parts.body)
            rows[found] = row
            found += 1
    return keys[: KEY_BYTES * found], checks[:found], rows[:found]


def _key_of(properties: bytes) -> bytes | None:
    for piece in properties.split(b"\x02"):
        if piece.startswith(_PREFIX):
            text = piece[len(_PREFIX) :]
            is_ours = len(text) == 2 * KEY_BYTES and all(byte in b"0123456789ABCDEF" for byte in text)
            return bytes.fromhex(text.decode()) if is_ours else None
    return None


def _number(digests: UInt64, slots: UInt64, used: int, ordinals: Int64) -> int:
    if native.LOADED:
        return native.functions.number_digests(digests, slots, used, ordinals)
    table = slots.reshape(-1, 3)
    for row, (low, high) in enumerate(digests.reshape(-1, 2).tolist()):
        place = _place(table, low, high)
        used += table[place, 2] == 0
        ordinals[row] = table[place, 2]
        table[place] = low, high, table[place, 2] + np.uint64(1)
    return int(used)


def _store(digests: UInt64, slots: UInt64, numbers: UInt64) -> None:
    if native.LOADED:
        native.functions.store_digests(digests, slots, numbers)
        return
    table = slots.reshape(-1, 3)
    for (low, high), number in zip(digests.reshape(-1, 2).tolist(), numbers.tolist(), strict=True):
        table[_place(table, low, high)] = low, high, number


def _move(known: UInt64, slots: UInt64) -> None:
    """Put all that is in one table into a larger one, and nothing else."""
    if native.LOADED:
        native.functions.move_slots(known, slots)
        return
    slots[:] = 0
    table = known.reshape(-1, 3)
    table = table[table[:, 2] > 0]
    _store(np.ascontiguousarray(table[:, :2]).ravel(), slots, np.ascontiguousarray(table[:, 2]))


def _find(digests: UInt64, slots: UInt64, numbers: UInt64) -> None:
    if native.LOADED:
        native.functions.find_digests(digests, slots, numbers)
        return
    table = slots.reshape(-1, 3)
    for row, (low, high) in enumerate(digests.reshape(-1, 2).tolist()):
        numbers[row] = table[_place(table, low, high), 2]


def _place(table: npt.NDArray[np.uint64], low: int, high: int) -> int:
    """The slot of a digest, or the empty one where it would be."""
    place = low & (len(table) - 1)
    while table[place, 2] and (table[place, 0] != low or table[place, 1] != high):
        place = (place + 1) & (len(table) - 1)
    return place
