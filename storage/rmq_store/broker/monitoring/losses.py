"""Losses: messages that queries could not read and skipped (failOnDataLoss=false), in `pyrmq/dataloss.json`.

    {"format": 1, "losses": [{"time_ms": ..., "group": ..., "query": ..., "batch": ..., "topic": ..., "queue": ...,
     "start": ..., "end": ..., "reason": ...}, ...]}

The newest 10,000 are kept. A batch that Spark repeats loses the same range again, or a larger one. A range within an
earlier loss of the same reader, queue and reason is no new loss. If this file is lost, only the report is lost, and no
message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rmq_store.arguments import checked
from rmq_store.broker.metadata.json_table import LOCK_TIMEOUT_MS
from rmq_store.clock import store_clock
from rmq_store.errors import CorruptConfigError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.locks.locked_call import call_locked
from rmq_store.lazy.dataclasses import dataclass

_FORMAT = 1
_KEPT = 10_000
_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages `[start, end)` of a queue that a reader skipped; `end` is None if unknown.

    `reason`: retention, rolled back, deleted topic, closed queue, or corruption. `group`, `query` and `batch` are None
    if the reader has none, or does not know them. `time_ms`: when the loss was recorded.
    """

    topic: str
    queue_id: int
    start: int
    end: int | None
    reason: str
    group: str | None = None
    query: str | None = None
    batch: int | None = None
    time_ms: int = 0


@checked
def record_losses(path: str | Path, losses: Sequence[Loss]) -> list[Loss]:
    """Add losses to the report of the store at `path`, durably, and return the new ones, with the time. A store that
    was made by a broker, or that cannot be written, gets no report; then all losses are returned.

    Raises:
        StoreLockedError, StoreFullError, StoreFailedError: as a change of a table under `config/`.
        CorruptConfigError: the report is damaged; delete it.
    """
    root = Path(path)
    now_ms = store_clock(root)()
    stamped = [_at(loss, now_ms) for loss in losses]
    if not os.access(root / "pyrmq" / "store.json", os.W_OK):
        return stamped

    def record() -> list[Loss]:
        known = recorded_losses(root)
        new = []
        for loss in stamped:
            if not any(_covers(other, loss) for other in known):
                known = [*(other for other in known if not _covers(loss, other)), loss]
                new.append(loss)
        if new:
            file = _path(root)
            durable.remove_leftovers(file)
            rows = [_row(loss) for loss in known[-_KEPT:]]
            durable.write_atomically(file, json.dumps({"format": _FORMAT, "losses": rows}).encode())
        return new

    return call_locked(OfdLock(root / "pyrmq" / "config.lock"), LOCK_TIMEOUT_MS, record)


@checked
def recorded_losses(path: str | Path) -> list[Loss]:
    """The report of the store at `path`, oldest first; changes nothing. CorruptConfigError: damaged; delete it."""
    file = _path(Path(path))
    try:
        data: Any = json.loads(durable.read_limited(file, _BYTES_MAX))
        if data["format"] != _FORMAT:
            raise CorruptConfigError(str(file), 0, f"format {data['format']!r}: written by a newer version")
        losses = [_loss(row) for row in data["losses"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptConfigError(str(file), 0, f"not a report of losses ({error}); delete it") from error
    return losses


_NAMES = {"queue_id": "queue"}
_TYPES: dict[str, tuple[type, ...]] = {
    "topic": (str,), "queue_id": (int,), "start": (int,), "end": (int, type(None)), "reason": (str,),
    "group": (str, type(None)), "query": (str, type(None)), "batch": (int, type(None)), "time_ms": (int,),
}  # fmt: skip


def _path(root: Path) -> Path:
    return root / "pyrmq" / "dataloss.json"


def _reader(loss: Loss) -> tuple[object, ...]:
    # The process that plans for a group does not know the query.
    return loss.group, loss.query if loss.group is None else None, loss.topic, loss.queue_id, loss.reason


def _covers(loss: Loss, other: Loss) -> bool:
    """True if `loss` includes `other`."""
    if _reader(loss) != _reader(other):
        return False
    if loss.end is None or other.end is None:
        return (loss.start, loss.end) == (other.start, other.end)
    return loss.start <= other.start and other.end <= loss.end


def _at(loss: Loss, now_ms: int) -> Loss:
    return Loss(**(asdict(loss) | {"time_ms": now_ms}))


def _row(loss: Loss) -> dict[str, Any]:
    return {_NAMES.get(name, name): value for name, value in asdict(loss).items() if value is not None}


def _loss(row: dict[str, Any]) -> Loss:
    values: dict[str, Any] = {field.name: row.get(_NAMES.get(field.name, field.name)) for field in fields(Loss)}
    for name, value in values.items():
        if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
            raise ValueError(f"{name}: {value!r}")
    return Loss(**values)
