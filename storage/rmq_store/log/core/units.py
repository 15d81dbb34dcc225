"""Units: appends that are all or nothing, across a power cut too.

Two records of the system topic UNITS_TOPIC, queue 0, tags `begin` and `end`, bracket a unit. Both bodies are JSON with
the offset of the unit's first record and its end, as 20 digits, so that the size of a body does not depend on them. The
last body also holds the marker (`UnitRecord`). A unit counts only if its last record exists: recovery drops a unit
without it, and a look-up reads last records only. So a broker that recovered half a unit and appended after it cannot
make the unit look whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from rmq_store.format.batches.frame_decoder import DispatchColumns
from rmq_store.format.frames.stored_message import decode_frame
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core import scan
from rmq_store.log.core.commit_log import CommitLog

UNITS_TOPIC = "rmq_sys_pyrmq_units"
UNITS_QUEUE = 0
BEGIN_TAG = "begin"
END_TAG = "end"


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """The content of the last record of a unit.

    `key` and `value` are a marker: a commit with the same key and value is a repetition. None: the unit cannot be
    repeated. `row_count` and `content_sum` (sum of the stored body CRCs, modulo 2^63) tell a repetition from another
    batch with the same number. `detail`: more numbers of the purpose, by name. `seen_ms`: time of the unit's append, if
    this record is a copy that was written before retention removed the first one; otherwise 0, and the record's
    storeTimestamp counts.
    """

    purpose: str
    key: str | None = None
    value: int | None = None
    row_count: int = 0
    content_sum: int = 0
    detail: Mapping[str, int] = field(default_factory=dict)
    seen_ms: int = 0

    def bodies(self, start: int, end: int) -> tuple[bytes, bytes]:
        """Bodies of the first and the last record."""
        place = {"start": f"{start:020d}", "end": f"{end:020d}"}
        meaning: dict[str, object] = {
            "purpose": self.purpose, "key": self.key, "value": self.value,
            "rows": self.row_count, "content": self.content_sum,
        }  # fmt: skip
        if self.detail:
            meaning["detail"] = dict(self.detail)
        if self.seen_ms:
            meaning["seen"] = self.seen_ms
        return json.dumps(place).encode(), json.dumps({**place, **meaning}).encode()

    @classmethod
    def parse(cls, body: bytes) -> UnitRecord | None:
        """Parse a last record's body; None if it is not one."""
        fields = _fields(body)
        purpose, key, value = fields.get("purpose"), fields.get("key"), fields.get("value")
        if not isinstance(purpose, str) or not isinstance(key, str | None) or not isinstance(value, int | None):
            return None
        rows, content = fields.get("rows"), fields.get("content")
        if not isinstance(rows, int) or not isinstance(content, int):
            return None
        detail = fields.get("detail", {})
        if not isinstance(detail, dict) or not all(isinstance(number, int) for number in detail.values()):
            return None
        seen_ms = fields.get("seen", 0)
        return cls(purpose, key, value, rows, content, detail, seen_ms) if isinstance(seen_ms, int) else None


@dataclass(frozen=True, slots=True)
class OpenUnit:
    """A unit whose last record the scan has not met yet."""

    start: int
    store_timestamp: int


class UnitScan:
    """Tracks units during a walk of the log.

    All records of a unit have one storeTimestamp. If a record with another storeTimestamp follows an open unit, a
    broker appended it after it had recovered half of the unit. That half then counts as ordinary records, and nothing
    after it is dropped.
    """

    def __init__(self) -> None:
        self._open: OpenUnit | None = None

    def split(
        self, log: CommitLog, stretch: scan.Stretch, buffer: pa.Buffer | None = None
    ) -> Iterator[tuple[scan.Stretch, DispatchColumns, OpenUnit | None]]:
        """Cut a stretch before every first record of a unit. Yields pieces that have records, their columns, and the
        unit that begins with the piece. `buffer` as `scan.columns_of`.
        """
        if count := len(stretch.positions):
            columns = scan.columns_of(log, stretch, buffer)
            begun = dict(self._begun(log, stretch, columns, buffer))
            cuts = [*sorted({0, *begun}), count]
            for (low, high), part in zip(pairwise(cuts), columns.parts(cuts), strict=True):
                positions, sizes = stretch.positions[low:high], stretch.sizes[low:high]
                yield stretch._replace(positions=positions, sizes=sizes), part, begun.get(low)
        if stretch.gap:
            self._open = None  # it was on disk; what is left of it is as good as any other record

    def _begun(
        self, log: CommitLog, stretch: scan.Stretch, columns: DispatchColumns, buffer: pa.Buffer | None
    ) -> Iterator[tuple[int, OpenUnit]]:
        """The units that begin in a stretch, and with which row."""
        names = columns.topic.dictionary.to_pylist()
        if self._open is None and UNITS_TOPIC not in names:
            return
        view = memoryview(log.segments.open(stretch.base).map if buffer is None else buffer)
        code = names.index(UNITS_TOPIC) if UNITS_TOPIC in names else -1
        rows = np.flatnonzero(columns.topic.indices.to_numpy(zero_copy_only=False) == code).tolist()
        count = len(stretch.positions)
        self._pass(columns.store_timestamp[: rows[0] if rows else count])
        for row, next_row in pairwise([*rows, count]):
            unit = self._meet(view, stretch, row, int(columns.store_timestamp[row]))
            if unit is not None:
                yield row, unit
            self._pass(columns.store_timestamp[row:next_row])

    def torn(self) -> OpenUnit | None:
        """The unit that was still open at the end of the walk."""
        return self._open

    def _pass(self, store_timestamps: np.ndarray) -> None:
        if self._open is not None and (store_timestamps != self._open.store_timestamp).any():
            self._open = None

    def _meet(self, view: memoryview, stretch: scan.Stretch, row: int, store_timestamp: int) -> OpenUnit | None:
        position, size = int(stretch.positions[row]), int(stretch.sizes[row])
        message = decode_frame(view, position, position + size)
        fields = _fields(message.body)
        start = _offset(fields.get("start"))
        if start == stretch.base + position:  # only the first record of a unit names its own place
            self._open = OpenUnit(start, store_timestamp)
            return self._open
        # By its tag a look-up knows it: where there is no CRC property a torn tail may have cost it that (#7437).
        if self._open is not None and start == self._open.start and message.tags == END_TAG:
            self._open = None
        return None


def _offset(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 20 else None


def _fields(body: bytes) -> dict[str, object]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
