"""Rows that go to a broker in one request, and how rows become such chunks. Pure, data plane.

Rows of a target (a topic, or one queue of it) keep their order. The rows of a chunk have one header:
with a row that needs another one a new chunk begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_store.format.batches.batch_bodies import KEY_BYTES
from rmq_store.format.batches.row_entries import Entries
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import ClientError
from rmq_store.protocol.messages import MessageQueue

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

CHUNK_BYTES: Final = 512 << 10
"""A chunk is not longer, unless a single row is."""

CHUNK_ROWS_MAX: Final = 16_384
"""The answer to a request names each message, in 40 bytes or 60."""

PENDING_BYTES_MAX: Final = 32 << 20


class TargetQueue(NamedTuple):
    """The target of rows: any writable queue of the topic, or the one that their sharding key or the caller has chosen.
    """

    topic: str
    queue: MessageQueue | None


class Shared(NamedTuple):
    """The header of a request, as far as it is about its rows. `born_ms` 0: the time of the request. `single`: rows go
    one by one, because a broker takes them in no batch.
    """

    sys_flag: int
    born_ms: int
    single: bool


@dataclass(slots=True)
class Chunk:
    """n rows of one request. `keys` (KEY_BYTES * n) and `checks` (n,) are those of `content_keys`; empty without keys.

    `ends` (n,): where the entries end in `body`. `first_row`: the number of its first row in the task, for errors.
    `number`: those of a task count up in the order in which they are sent first. `was_busy`: why it was not stored.
    `was_away`: it waits longer, for a broker. `doubt`: a try after which it may be stored, and nobody has looked.
    """

    target: TargetQueue
    shared: Shared
    body: bytes
    ends: Int64
    keys: Bytes
    checks: UInt64
    first_row: int
    number: int = 0
    tries: int = 0
    deadline_ms: float = 0.0
    last_broker: str | None = None
    last_reason: str = ""
    was_busy: bool = False
    was_away: bool = False
    not_before_ms: float = 0.0
    doubt: ClientError | None = None

    @property
    def row_count(self) -> int:
        """How many rows these are."""
        return len(self.ends)

    def without(self, found: npt.NDArray[np.bool_]) -> Chunk | None:
        """The rows that are not among `found` (n,); None if there are none."""
        kept = np.flatnonzero(~found)
        if not len(kept):
            return None
        starts = np.concatenate(([0], self.ends[:-1]))
        body = b"".join(self.body[starts[row] : self.ends[row]] for row in kept.tolist())
        ends = np.cumsum(self.ends[kept] - starts[kept])
        keys = self.keys.reshape(-1, KEY_BYTES)[kept].ravel()
        return replace(self, body=body, ends=ends, keys=keys, checks=self.checks[kept])


@dataclass(slots=True)
class Rows:
    """n rows of one target, in their order: entries one behind another, and `shared` for all of them."""

    target: TargetQueue
    shared: Shared
    sizes: Int64
    entries: Bytes
    keys: Bytes
    checks: UInt64
    first_row: int
    _ends: Int64 = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._ends = np.cumsum(self.sizes)

    def made(self, start: int, end: int) -> Entries:
        """The entries of the rows [start, end)."""
        first = int(self._ends[start - 1]) if start else 0
        ends = self._ends[start:end] - first
        body = self.entries[first : first + int(ends[-1])].tobytes()
        keys = self.keys[KEY_BYTES * start : KEY_BYTES * end]  # empty without keys
        return Entries(body, ends, keys, self.checks[start:end])


@dataclass(slots=True)
class RowsToMake:
    """As `Rows`, of rows whose entries `make` makes: of [start, end), once, and all in their order."""

    target: TargetQueue
    shared: Shared
    sizes: Int64
    make: Callable[[int, int], Entries]
    first_row: int

    def made(self, start: int, end: int) -> Entries:
        """As `Rows.made`."""
        return self.make(start, end)


@dataclass(slots=True)
class _Pending:
    shared: Shared
    first_row: int
    pieces: list[Entries] = field(default_factory=list)
    bytes: int = 0
    rows: int = 0

    def add(self, piece: Entries) -> None:
        self.pieces.append(piece)
        self.bytes += len(piece.body)
        self.rows += len(piece.ends)

    def chunk(self, target: TargetQueue) -> Chunk:
        pieces = self.pieces
        first = pieces[0]
        if len(pieces) == 1:
            return Chunk(target, self.shared, first.body, first.ends, first.keys, first.checks, self.first_row)
        starts = np.cumsum([0, *(len(piece.body) for piece in pieces)])
        return Chunk(
            target, self.shared, b"".join([piece.body for piece in pieces]),
            np.concatenate([piece.ends + start for piece, start in zip(pieces, starts.tolist(), strict=False)]),
            np.concatenate([piece.keys for piece in pieces]), np.concatenate([piece.checks for piece in pieces]),
            self.first_row,
        )  # fmt: skip


class ChunkMaker:
    """Collects the rows of each target until a chunk is full. Holds PENDING_BYTES_MAX at most, and what one `add`
    brings.
    """

    def __init__(self) -> None:
        self._targets: dict[TargetQueue, _Pending] = {}
        self._bytes = 0

    def add(self, rows: Rows | RowsToMake) -> Iterator[Chunk]:
        """Yield the chunks that these rows complete, each before the rows behind it are made."""
        if rows.shared.single:
            yield from self._flush(rows.target)
            for row in range(len(rows.sizes)):
                pending = _Pending(rows.shared, rows.first_row + row)
                pending.add(rows.made(row, row + 1))
                yield pending.chunk(rows.target)
            return
        known = self._targets.get(rows.target)
        if known is not None and known.shared != rows.shared:
            yield from self._flush(rows.target)
            known = None
        before_bytes, before_rows = (known.bytes, known.rows) if known is not None else (0, 0)
        for start, end in pairwise([0, *_cuts(rows.sizes, before_bytes, before_rows), len(rows.sizes)]):
            if start or start == end:
                yield from self._flush(rows.target)
            if start == end:
                continue
            pending = self._targets.setdefault(rows.target, _Pending(rows.shared, rows.first_row + start))
            piece = rows.made(start, end)
            pending.add(piece)
            self._bytes += len(piece.body)
        if self._bytes > PENDING_BYTES_MAX:
            yield from self.flush()

    def flush(self) -> Iterator[Chunk]:
        """Yield what is left, as chunks that are not full."""
        for target in list(self._targets):
            yield from self._flush(target)

    def _flush(self, target: TargetQueue) -> Iterator[Chunk]:
        pending = self._targets.pop(target, None)
        if pending is not None:
            self._bytes -= pending.bytes
            yield pending.chunk(target)


def _cuts(sizes: Int64, before_bytes: int, before_rows: int) -> list[int]:
    """Before which rows a new chunk begins, if so much waits for the first one already."""
    ends = np.cumsum(sizes)
    cuts: list[int] = []
    start, sent_bytes, bytes_left, rows_left = 0, 0, CHUNK_BYTES - before_bytes, CHUNK_ROWS_MAX - before_rows
    while True:
        cut = min(int(np.searchsorted(ends, sent_bytes + bytes_left, side="right")), start + rows_left)
        if cut == start and not (before_rows and not start):
            cut += 1  # a row that is larger than a chunk
        if cut >= len(sizes):
            return cuts
        cuts.append(cut)
        start, sent_bytes, bytes_left, rows_left = cut, int(ends[cut - 1]) if cut else 0, CHUNK_BYTES, CHUNK_ROWS_MAX
        before_rows = 0
