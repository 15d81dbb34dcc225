"""The newest unit of each key: what makes a repeated commit a no-op.

The truth is the unit topic in the log. `pyrmq/units.json` caches what was read of it, together with the place of the
last record read: if that record is not there any more (a power cut, another store copied over this one), the cache
is forgotten and the topic read again.

    {"format": 1, "queue_offset": n, "log_offset": x, "newest": {"purpose/key": {"value": v, "rows": r, "content": c}}}
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from rmq_store.broker.queue_reader import QueueReader
from rmq_store.errors import CorruptConfigError
from rmq_store.files import durable
from rmq_store.log.commit_log import CommitLog
from rmq_store.log.units import END_TAG, UNITS_QUEUE, UNITS_TOPIC, UnitRecord

_FORMAT = 1
_CACHE_BYTES_MAX = 64 << 20

# Units read since the cache was written; above this it is written again. It costs two fsyncs.
_SAVE_AFTER = 64


@dataclass(slots=True)
class _Cache:
    queue_offset: int = 0
    log_offset: int = -1
    newest: dict[str, dict[str, int]] = field(default_factory=dict)


class UnitTable:
    """Looks units up; the caller holds the append lock of a store open for writing, or reads a store at rest."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._path = log.own / "units.json"
        self._reader = QueueReader(log, "", body_limit_bytes=1 << 20)
        self._cache: _Cache | None = None
        self._saved = 0

    def newest(self, purpose: str, key: str, end: int) -> UnitRecord | None:
        """The newest whole unit of this purpose and key below `end`. Work is in proportion to the units since the
        last call.
        """
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
        found = cache.newest.get(f"{purpose}/{key}")
        return UnitRecord(purpose, key, found["value"], found["rows"], found["content"]) if found else None

    def _still_there(self, cache: _Cache, end: int) -> bool:
        if cache.queue_offset == 0:
            return True
        if cache.queue_offset > self._log.queue_max(UNITS_TOPIC, UNITS_QUEUE, end):
            return False
        try:
            offset, size, _ = self._log.views.queue(UNITS_TOPIC, UNITS_QUEUE).entry(cache.queue_offset - 1)
        except FileNotFoundError:
            return cache.log_offset < self._log.start()
        return offset == cache.log_offset and self._log.is_whole_entry(
            UNITS_TOPIC, UNITS_QUEUE, offset, size, cache.queue_offset - 1
        )

    def _read_on(self, cache: _Cache, end: int) -> None:
        queue = self._log.views.queue(UNITS_TOPIC, UNITS_QUEUE)
        last = self._log.queue_max(UNITS_TOPIC, UNITS_QUEUE, end)
        first = max(cache.queue_offset, queue.min_offset(self._log.start(), last))
        if first >= last:
            return
        entries = queue.entries(first, last)
        columns = ["tags", "body"]
        for batch in self._reader.read(UNITS_TOPIC, UNITS_QUEUE, first, entries, columns, tags=None, raw_body=True):
            for tag, body in zip(batch.column("tags").to_pylist(), batch.column("body").to_pylist(), strict=True):
                unit = UnitRecord.parse(body) if tag == END_TAG else None
                if unit is not None and unit.key is not None and unit.value is not None:
                    cache.newest[f"{unit.purpose}/{unit.key}"] = {
                        "value": unit.value, "rows": unit.row_count, "content": unit.content_sum,
                    }  # fmt: skip
        cache.queue_offset = last
        cache.log_offset = int(entries["commit_log_offset"][-1])

    def _load(self) -> _Cache:
        try:
            data: Any = json.loads(durable.read_limited(self._path, _CACHE_BYTES_MAX))
            cache = _Cache(data["queue_offset"], data["log_offset"], data["newest"])
            numbers = [cache.queue_offset, cache.log_offset]
            numbers += [row[name] for row in cache.newest.values() for name in ("value", "rows", "content")]
            if data["format"] == _FORMAT and all(isinstance(number, int) for number in numbers):
                return cache
        except (FileNotFoundError, CorruptConfigError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return _Cache()  # only a cache: the topic is read from its beginning
        return _Cache()

    def _save(self, cache: _Cache) -> None:
        content = {
            "format": _FORMAT, "queue_offset": cache.queue_offset, "log_offset": cache.log_offset,
            "newest": cache.newest,
        }  # fmt: skip
        durable.write_atomically(self._path, json.dumps(content).encode())
        self._saved = cache.queue_offset
