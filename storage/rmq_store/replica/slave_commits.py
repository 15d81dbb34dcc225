"""Offsets that groups committed at a slave, until its master has them or has said something else.

    pyrmq/slave_commits.json    {"format": 1, "commits": [["<group>", "<topic>", queue id, offset, base], ...]}

Clients commit at a slave only while its master is away. `base` is the master's offset that the slave knew before, -1 if
it knew none. When the master answers again, its own offset decides, for each queue by itself:

    below `base`, or gone            the group was reset meanwhile: the master's counts
    at or above the slave's offset   the group has gone on: the master's counts
    between                          the slave's goes up (15). If the master refuses, since a reset is pending, its own
                                     counts

A slave of Java forgets what was committed at it, with the next table of its master.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmq_store.broker.metadata.offset_files import QueueKey
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.errors import CorruptConfigError
from rmq_store.files import durable

_LOG = logging.getLogger(__name__)

_FORMAT: Final = 1
_BYTES_MAX: Final = 64 << 20


class Commit(NamedTuple):
    """A group's offset in a queue, committed at the slave; `base`: that of the master before, -1 if there was none."""

    group: str
    queue: QueueKey
    offset: int
    base: int


Offsets = Mapping[str, Mapping[QueueKey, int]]
"""{group: {(topic, queue id): offset}}."""


class SlaveCommits:
    """The commits of one slave. Safe for the threads of its process, which is the only one that writes them."""

    def __init__(self, root: Path) -> None:
        self._path = root / "pyrmq" / "slave_commits.json"
        self._table = OffsetTable(root)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, QueueKey], Commit] | None = None

    def commit(self, group: str, offsets: Mapping[QueueKey, int]) -> None:
        """Set offsets of one group; durable on return, here.

        Raises:
            UsageError, CorruptConfigError, StoreLockedError, StoreFullError, StoreFailedError: as `OffsetTable.commit`.
        """
        with self._lock:
            before, known = self._table.committed(group), dict(self._all())
            for queue, offset in offsets.items():
                last = known.get((group, queue))
                base = last.base if last is not None else before.get(queue, -1)
                known[group, queue] = Commit(group, queue, offset, base)
            self._save(known)  # first: a death in between leaves a commit with what was there before it
            self._table.commit(group, offsets)

    def pending(self) -> list[Commit]:
        """Those that the master has not decided. CorruptConfigError: the file cannot be read."""
        with self._lock:
            return list(self._all().values())

    def decided(self, commits: Iterable[Commit]) -> None:
        """Forget commits that the master has decided, unless the group has committed again. StoreFullError,
        StoreFailedError.
        """
        with self._lock:
            known = dict(self._all())
            for commit in commits:
                if known.get((commit.group, commit.queue)) == commit:
                    del known[commit.group, commit.queue]
            if known != self._all():
                self._save(known)

    def _all(self) -> Mapping[tuple[str, QueueKey], Commit]:
        if self._known is None:
            self._known = {(commit.group, commit.queue): commit for commit in _load(self._path)}
        return self._known

    def _save(self, known: dict[tuple[str, QueueKey], Commit]) -> None:
        rows = [[one.group, *one.queue, one.offset, one.base] for one in known.values()]
        durable.write_atomically(self._path, json.dumps({"format": _FORMAT, "commits": rows}).encode() + b"\n")
        self._known = known


def goes_up(commit: Commit, at_master: Offsets) -> bool:
    """Whether the slave's offset counts, by the master's own ones. If it does not, both are logged."""
    there = at_master.get(commit.group, {}).get(commit.queue, -1)
    if commit.base <= there < commit.offset:
        return True
    reason = "it was reset meanwhile" if there < commit.base else "it has gone on"
    tell_overwritten(commit, f"the master has {shown(there)}, which counts: {reason}")
    return False


def tell_overwritten(commit: Commit, reason: str) -> None:
    """Log one of two offsets that differ."""
    topic, queue_id = commit.queue
    _LOG.warning(
        "offset of group %s in %s-%d: %d was committed at the slave; %s", commit.group, topic, queue_id, commit.offset,
        reason,
    )  # fmt: skip


def shown(offset: int) -> str:
    """An offset for people."""
    return "none" if offset < 0 else str(offset)


def remove_commits(root: Path) -> None:
    """Forget all, of a store that is no replica any more. Does nothing if there are none."""
    path = root / "pyrmq" / "slave_commits.json"
    durable.before("unlink", path)
    path.unlink(missing_ok=True)


def _load(path: Path) -> list[Commit]:
    try:
        data: Any = json.loads(durable.read_limited(path, _BYTES_MAX))
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']}")
        found = [Commit(group, (topic, queue), offset, base) for group, topic, queue, offset, base in data["commits"]]
        if not all(type(part) is int for one in found for part in (one.queue[1], one.offset, one.base)):
            raise ValueError("an offset is no number")
        return found
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptConfigError(str(path), 0, f"no offsets of a slave: {error}") from error
