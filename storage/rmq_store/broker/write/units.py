"""The newest unit of each key. It makes a repeated commit a no-op.

The unit topic in the log decides. `pyrmq/units.json` caches the units read from the topic, with the offset and the
fingerprint of the last record read. If that record is gone (a power cut, or another store was copied over this one),
the cache is dropped and the topic is read again. The offset alone is not enough: after a power cut, another unit of the
same size may lie there.

    {"crc": c, "format": 2, "queue_offset": n, "log_offset": x, "last": "<storeTimestamp> <SHA-256 of the body>",
     "newest": {"purpose/key": {"value": v, "rows": r, "content": c, "offset": o, "seen": ms
                                [, "detail": {name: number}]}}}

`crc` is the CRC-32 of the JSON without `crc`: a damaged value would commit a batch twice, or never. `offset` is the
commit-log offset of the unit's last record, `seen` the time when the unit was appended. Before retention deletes that
record, it writes the record again (`unit_markers`). A key stays in the table even if another program deleted the
record.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

import numpy as np

from rmq_store.broker.read.queue_reader import QueueReader
from rmq_store.broker.read.read_request import ReadRequest
from rmq_store.errors import REPAIR_MOVES_IT_AWAY, CorruptConfigError, CorruptionError, development_version
from rmq_store.files import durable
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import END_TAG, UNITS_QUEUE, UNITS_TOPIC, UnitRecord

_FORMAT = 2
FORMAT_OF_DEVELOPMENT = 1
_CACHE_BYTES_MAX = 64 << 20

# Units read since the cache was written; above this it is written again. It costs two fsyncs.
_SAVE_AFTER = 64


@dataclass(slots=True)
class _Cache:
    queue_offset: int = 0
    log_offset: int = -1
    last: str = ""
    newest: dict[str, dict[str, Any]] = field(default_factory=dict)


class UnitTable:
    """Looks units up. The caller holds the append lock of a store open for writing, or reads a store that no process
    writes.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._path = log.own / "units.json"
        self._reader = QueueReader(log, "", body_limit_bytes=1 << 20)
        self._cache: _Cache | None = None
        self._saved = 0

    def newest(self, purpose: str, key: str, end: int) -> UnitRecord | None:
        """The newest complete unit of this purpose and key below `end`. The cost is proportional to the units since the
        last call.
        """
        found = self._up_to(end).newest.get(f"{purpose}/{key}")
        if found is None:
            return None
        return UnitRecord(purpose, key, found["value"], found["rows"], found["content"], found.get("detail", {}))

    def below(self, log_offset: int, end: int) -> list[UnitRecord]:
        """The newest units of all keys whose last records lie below `log_offset`, each with the time of its first
        append, for a log that ends at `end`.
        """
        found = []
        for name, row in self._up_to(end).newest.items():
            if row["offset"] < log_offset:
                purpose, _, key = name.partition("/")
                detail = row.get("detail", {})
                found.append(UnitRecord(purpose, key, row["value"], row["rows"], row["content"], detail, row["seen"]))
        return found

    def forget(self, units: Iterable[UnitRecord]) -> None:
        """Forget units that `below` returned, here and in units.json. Other processes may keep them in their caches
        without harm.
        """
        assert self._cache is not None
        names = [f"{unit.purpose}/{unit.key}" for unit in units]
        for name in names:
            self._cache.newest.pop(name, None)
        if names:
            self._save(self._cache)

    def renew(self, end: int) -> int:
        """Read the topic of a log that ends at `end` from its beginning, whatever units.json says, and write that file
        if the store is open for writing. Returns how many keys there are. StoreFullError, StoreFailedError.
        """
        cache = self._cache = _Cache()
        self._read_on(cache, end)
        if self._log.writable:
            self._save(cache)
        return len(cache.newest)

    def _up_to(self, end: int) -> _Cache:
        """The units in the log below `end`."""
        cache = self._cache
        if cache is None or not self._still_there(cache, end):
            cache = self._load()
            self._saved = cache.queue_offset
            if not self._still_there(cache, end):
                cache, self._saved = _Cache(), 0
        self._read_on(cache, end)
        self._cache = cache
        if self._log.writable and cache.queue_offset - self._saved >= _SAVE_AFTER:
            self._save(cache)
        return cache

    def _still_there(self, cache: _Cache, end: int) -> bool:
        if cache.queue_offset <= 0:
            return cache == _Cache()
        if cache.queue_offset > self._log.queue_max(UNITS_TOPIC, UNITS_QUEUE, end):
            return False
        try:
            entries = self._log.views.queue(UNITS_TOPIC, UNITS_QUEUE).entries(
                cache.queue_offset - 1, cache.queue_offset
            )
        except FileNotFoundError:
            return cache.log_offset < self._log.start()
        if entries["commit_log_offset"][0] != cache.log_offset:
            return False
        if cache.log_offset < self._log.start():
            return True  # retention took the record
        try:
            return [row[2] for row in self._records(cache.queue_offset - 1, entries)] == [cache.last]
        except CorruptionError:
            return False

    def _read_on(self, cache: _Cache, end: int) -> None:
        queue = self._log.views.queue(UNITS_TOPIC, UNITS_QUEUE)
        last = self._log.queue_max(UNITS_TOPIC, UNITS_QUEUE, end)
        first = max(cache.queue_offset, self._log.queue_min(UNITS_TOPIC, UNITS_QUEUE, self._log.segments.span(), last))
        if first >= last:
            return
        entries = queue.entries(first, last)
        # Units whose last record lies in damage that was kept are forgotten; the others count.
        whole = np.flatnonzero(~self._log.accepted_damage.mask(entries["commit_log_offset"].astype(np.int64)))
        if not len(whole):
            return
        last, entries = first + int(whole[-1]) + 1, entries[: int(whole[-1]) + 1]
        for tag, body, cache.last, offset, stored_ms in self._records(first, entries):
            unit = UnitRecord.parse(body) if tag == END_TAG else None
            if unit is not None and unit.key is not None and unit.value is not None:
                cache.newest[f"{unit.purpose}/{unit.key}"] = {
                    "value": unit.value, "rows": unit.row_count, "content": unit.content_sum,
                    "offset": offset, "seen": unit.seen_ms or stored_ms,
                }  # fmt: skip
                if unit.detail:
                    cache.newest[f"{unit.purpose}/{unit.key}"]["detail"] = dict(unit.detail)
        cache.queue_offset = last
        cache.log_offset = int(entries["commit_log_offset"][-1])

    def _records(self, first: int, entries: np.ndarray) -> Iterator[tuple[str | None, bytes, str, int, int]]:
        """(tag, body, fingerprint, commit-log offset, storeTimestamp) of the records of the unit topic at queue offsets
        from `first` on.
        """
        columns = ["tags", "body", "commitLogOffset", "storeTimestamp"]
        end = first + len(entries)
        request = ReadRequest(UNITS_TOPIC, UNITS_QUEUE, first, end, columns, raw_body=True, skip_lost=True)
        for batch in self._reader.read(request, entries):
            times = batch.column("storeTimestamp").cast("int64").to_pylist()
            others = (batch.column(name).to_pylist() for name in columns[:3])
            for tag, body, offset, time in zip(*others, times, strict=True):
                yield tag, body, f"{time // 1000} {hashlib.sha256(body).hexdigest()}", offset, time // 1000

    def _load(self) -> _Cache:
        try:
            data: Any = json.loads(durable.read_limited(self._path, _CACHE_BYTES_MAX))
            if data["format"] == FORMAT_OF_DEVELOPMENT:
                raise development_version(self._path, f"format {data['format']}", REPAIR_MOVES_IT_AWAY)
            if data.pop("crc") != _crc(data):
                return _Cache()
            cache = _Cache(data["queue_offset"], data["log_offset"], data["last"], data["newest"])
            numbers = [cache.queue_offset, cache.log_offset]
            for row in cache.newest.values():
                numbers += [row[name] for name in ("value", "rows", "content", "offset", "seen")]
                numbers += row.get("detail", {}).values()
            if data["format"] == _FORMAT and all(isinstance(number, int) for number in numbers):
                return cache
        except (FileNotFoundError, CorruptConfigError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return _Cache()  # only a cache: the topic is read from its beginning
        return _Cache()

    def _save(self, cache: _Cache) -> None:
        content = {
            "format": _FORMAT, "queue_offset": cache.queue_offset, "log_offset": cache.log_offset,
            "last": cache.last, "newest": cache.newest,
        }  # fmt: skip
        durable.write_atomically(self._path, json.dumps({"crc": _crc(content), **content}).encode())
        self._saved = cache.queue_offset


def _crc(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content).encode())
