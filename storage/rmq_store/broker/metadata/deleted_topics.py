"""The list of topics that were deleted on purpose, `pyrmq/deleted_topics.json`. A repair finds topics by their queues.

    {"format": 1, "topics": {"<topic>": <end of the log when it was deleted>, ...}}

The queue files of a deleted topic stay (see `administration`), so it looks like a topic that was lost with
config/topics.json. If a queue of the topic points at or above the recorded end, the topic was made again. Topics
without queue files are dropped from the list. If the file is lost, a repair also finds deleted topics. An unreadable
file is written again, if the table of topics can be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rmq_store.broker.metadata.json_table import LOCK_TIMEOUT_MS
from rmq_store.errors import CorruptConfigError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.locks.locked_call import call_locked
from rmq_store.format.views.consume_queue import ENTRY_BYTES

DELETED_TOPICS_FILE = "pyrmq/deleted_topics.json"

_FORMAT = 1
_BYTES_MAX = 16 << 20


def record_deletion(root: Path, topics: Iterable[str], log_end: int) -> None:
    """Record that `topics` are deleted while the log ends at `log_end`; durable on return.

    Raises:
        StoreLockedError, StoreFullError, StoreFailedError: as a change of a table under `config/`.
    """

    def note() -> None:
        try:
            known = deleted_topics(root)
        except CorruptConfigError:
            known = {}
        known = {name: end for name, end in known.items() if (root / "consumequeue" / name).is_dir()}
        known |= dict.fromkeys(topics, log_end)
        path = _path(root)
        durable.remove_leftovers(path)
        durable.write_atomically(path, json.dumps({"format": _FORMAT, "topics": known}).encode())

    call_locked(OfdLock(root / "pyrmq" / "config.lock"), LOCK_TIMEOUT_MS, note)


def deleted_topics(root: Path) -> Mapping[str, int]:
    """{topic: end of the log when it was deleted}; {} if none ever was. CorruptConfigError, StoreFailedError."""
    path = _path(root)
    try:
        data: Any = json.loads(durable.read_limited(path, _BYTES_MAX))
        topics: dict[str, int] = data["topics"]
        if data["format"] != _FORMAT or not all(type(end) is int for end in topics.values()):
            raise ValueError("another format")
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptConfigError(str(path), 0, f"no list of deleted topics ({error})") from error
    return topics


def was_used_since(directory: Path, log_end: int) -> bool:
    """True if a queue below `directory`, the directory of a topic, points at or above `log_end`."""
    return any(_newest_offset(queue) >= log_end for queue in directory.iterdir() if queue.is_dir())


def _newest_offset(queue: Path) -> int:
    """Commit-log offset of a queue's newest entry; -1 if it has none."""
    for path in sorted(queue.iterdir(), reverse=True):
        if path.name.isdigit() and path.is_file():
            data = path.read_bytes().rstrip(b"\0")
            if data:
                first = (len(data) - 1) // ENTRY_BYTES * ENTRY_BYTES
                last = data[first:].ljust(ENTRY_BYTES, b"\0")
                return int.from_bytes(last[:8], "big", signed=True)
    return -1


def _path(root: Path) -> Path:
    return root / DELETED_TOPICS_FILE
