"""What the processes of one life share: where databases, store and Redis are, clocks, and words of common memory.

    orders     a business row; its transaction promises a message with the same id
    steps      the last step of a key: the lock that gives two transactions of a key an order
    effects    what a group has written through the connection that it was given; no key keeps it single
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from rmq_store.reliable import Tables

ORDERS, STEPS = "Orders", "Steps"
KEYS = tuple(f"key{number}" for number in range(5))
QUEUES = 4

LEASE_MS = 200
MAX_SEND_COUNT = 5
MAX_RECONSUME_TIMES = 3
# Waits of the store's clock (retries, invisible messages, rebalances) are as many times shorter.
STORE_SPEED = 20
RETRY_LADDER_MS = (500, 1_500, 3_000)
FIRST_WAIT_MS, MAX_WAIT_MS = 600, 2_000
FIRST_RETRY_MS, MAX_RETRY_MS = 100, 400

metadata = sa.MetaData()
orders = sa.Table(
    "orders",
    metadata,
    sa.Column("order_id", sa.String(32), primary_key=True),
    sa.Column("body", sa.String(200), nullable=False),
    sa.Column("key_name", sa.String(32)),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("group_names", sa.String(200), nullable=False),
    sa.Column("kills", sa.Boolean, nullable=False),
)
steps = sa.Table(
    "steps",
    metadata,
    sa.Column("key_name", sa.String(32), primary_key=True),
    sa.Column("step", sa.Integer, nullable=False),
)
effects = sa.Table(
    "effects",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("group_name", sa.String(64), nullable=False),
    sa.Column("order_id", sa.String(32), nullable=False),
    sa.Column("body", sa.String(200), nullable=False),
)


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group. `how`: concurrently, orderly, arrow or simple. `outside`: its effect is a line of a file."""

    name: str
    topic: str
    how: str
    outside: bool = False


class Word(IntEnum):
    """Places in the common memory: ms that were added to the wall clock, and how far the life has got."""

    CLOCK_MS = 0
    SENDERS_END = 1
    ALL_END = 2
    POISON_IS_CURED = 3


class Words:
    """64-bit numbers that forked processes share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def __getitem__(self, word: Word) -> int:
        value: int = struct.unpack_from("<q", self._memory, 8 * word)[0]
        return value

    def __setitem__(self, word: Word, value: int) -> None:
        struct.pack_into("<q", self._memory, 8 * word, value)


@dataclass
class Setting:
    """One life. `effects_url` equals `stubs_url` if both sides have one database."""

    directory: Path
    stubs_url: str
    effects_url: str
    redis_url: str
    groups: Sequence[Group]
    words: Words = field(default_factory=Words)
    begun_s: float = field(default_factory=time.time)

    @property
    def store_path(self) -> Path:
        return self.directory / "store"

    def has_dead_letter(self) -> bool:
        """Whether a group has given up a message."""
        return any((self.store_path / "consumequeue").glob("%DLQ%*"))

    @property
    def is_one_database(self) -> bool:
        return self.stubs_url == self.effects_url

    @cached_property
    def tables(self) -> Tables:
        from rmq_store.reliable import Tables

        return Tables()

    def store_clock(self) -> int:
        """The store's time in ms."""
        return int((self.begun_s + STORE_SPEED * (time.time() - self.begun_s)) * 1000)

    def clock(self, skew_ms: int = 0) -> Callable[[], int]:
        """The clock of one process, by which leases and resends count."""

        def now_ms() -> int:
            return time.time_ns() // 1_000_000 + self.words[Word.CLOCK_MS] + skew_ms

        return now_ms

    def note(self, kind: str, *words: str) -> None:
        """Append a line to a file, which outlives who wrote it."""
        with (self.directory / kind).open("ab", buffering=0) as file:
            file.write((" ".join(words) + "\n").encode())

    def notes(self, kind: str) -> list[list[str]]:
        """The words of all lines of such a file."""
        path = self.directory / kind
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
