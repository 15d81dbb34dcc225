"""Leases: the users of a group. Each member or queue lock has one file, locked by the process that holds it.

    pyrmq/groups/<group>/<name>.lease
        0       locked (OFD) while the lease is held
        16-23   pid of the holder, written by the lock
        32-51   last heartbeat, ms since 1970, decimal, padded with spaces
        64-     JSON {"name", "owner", "pid", "host", "started_ms", "shares"}, padded with spaces to byte 4096
    4096-   of a member: JSON list of the topics that it has subscribed to, padded with spaces

Only the lock decides. If it is free, the holder has died or left, and another process takes the lease at once. A
heartbeat older than 120 s means that the holder is stuck. Its lease is still not taken, because the holder may go on
and commit. The content only names the holder. Another lock decides whether a stream or consumers have a topic
(`topic_use`).
RocketMQ keeps the same facts in the broker's memory (ConsumerManager.java, RebalanceLockManager.java).
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rmq_store.arguments import checked, checked_methods
from rmq_store.clock import system_clock
from rmq_store.errors import LeaseHeldError, NotAStoreError
from rmq_store.files.durable import make_directory, open_nofollow, write_fully
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.rooted import as_path, refuse_if_replaced
from rmq_store.format.text.names import is_group_name, validate_group, validate_topic
from rmq_store.lazy.dataclasses import dataclass

MEMBER_PREFIX: Final = "%MEMBER%"
"""Prefix of the name of a member's lease; its owner is the client id."""

RECEIVER_PREFIX: Final = "%RECEIVER%"
"""Prefix of the name of a SimpleConsumer's lease, which only lists the topics that it shares: it is no member."""

STUCK_AFTER_MS = 120_000  # ConsumerManager.java CHANNEL_EXPIRED_TIMEOUT
OWNER_LENGTH_MAX = 256

_HEARTBEAT_START, _HEARTBEAT_LENGTH = 32, 20
# A name of 255 ASCII characters, an owner of 256 at 12 bytes each as escaped JSON, and a host of 64 bytes fit.
_NOTE_START, _NOTE_END = 64, 4096
_TOPICS_LENGTH_MAX = 1 << 20
_TIME_END_MS = 253_402_300_800_000  # the year 10000, which datetime does not reach
_SUFFIX = ".lease"
# A file name has at most 255 bytes; retry topics have up to 255 characters without a suffix.
_PLAIN_LENGTH_MAX = 200


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """The data that the holder of a lease wrote about itself; None for a field that could not be read.

    `topics`: its subscribed topics; () if unknown, as for streams, whose leases are on topics. `shares`: True if it
    shares their queues with its group; False for a broadcasting consumer.
    """

    name: str
    owner: str
    pid: int | None
    started_ms: int | None
    heartbeat_ms: int | None
    topics: tuple[str, ...] = ()
    host: str | None = None
    shares: bool = True

    def is_stuck(self, now_ms: int) -> bool:
        """True if the holder lives, but its last heartbeat is older than STUCK_AFTER_MS."""
        return self.heartbeat_ms is not None and now_ms - self.heartbeat_ms > STUCK_AFTER_MS

    def describe(self, now_ms: int) -> str:
        """The holder, its process and host, the start time, and whether it is stuck, as far as known."""
        facts = []
        if self.pid is not None:
            facts.append(f"process {self.pid}")
        if self.started_ms is not None:
            facts.append(f"since {datetime.fromtimestamp(self.started_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC")
        if self.heartbeat_ms is not None and self.is_stuck(now_ms):
            facts.append(f"stuck: no heartbeat for {(now_ms - self.heartbeat_ms) // 1000} s")
        who = repr(self.owner) if self.owner else "another member"
        if facts:
            who += f" ({', '.join(facts)})"
        return f"{who} on {self.host}" if self.host and self.host not in self.owner else who


@checked_methods(constructor=True)
class Lease:
    """One lease of a group: on a topic, on a queue, or on a member id; `name` has the characters of a topic name.

    Raises:
        UsageError: a bad group or name.
    """

    def __init__(self, root: str | Path, group: str, name: str, *, clock: Callable[[], int] = system_clock) -> None:
        validate_group(group)
        validate_topic(name)
        self.group = group
        self.name = name
        self._root = as_path(root)
        self._path = group_directory(self._root, group) / (file_stem(name) + _SUFFIX)
        self._clock = clock
        self._lock = OfdLock(self._path)
        self._topics: bytes | None = None

    def acquire(self, owner: str, *, shares: bool = True) -> None:
        """Take the lease, or fail at once. Others see `owner` as the name of the holder (cut after 256 characters), and
        `shares` as in `LeaseInfo`.

        Raises:
            LeaseHeldError: another live member holds it, in this process or another one; `.holder` is its text.
            StoreReplacedError: the store is not in its place any more.
            NotAStoreError: there is no such directory.
        """
        refuse_if_replaced(self._root)
        try:
            for directory in reversed([self._path.parent, *self._path.parent.parents[:2]]):
                make_directory(directory)
        except FileNotFoundError as error:
            raise NotAStoreError(str(self._root), "no such directory") from error
        if not self._lock.try_exclusive():
            raise self._held_by_other()
        try:
            now_ms = self._clock()
            note = {
                "name": self.name, "owner": owner[:OWNER_LENGTH_MAX], "pid": os.getpid(), "host": socket.gethostname(),
                "started_ms": now_ms, "shares": shares,
            }  # fmt: skip
            self._write(_HEARTBEAT_START, _heartbeat(now_ms))
            # Over the topics, too, of a holder that was killed.
            room = max(_NOTE_END, self._path.stat().st_size) - _NOTE_START
            self._write(_NOTE_START, json.dumps(note).encode().ljust(room))
            self._topics = None
        except BaseException:
            self._lock.close()
            raise

    def held(self) -> bool:
        """True if this object holds the lease now; check again before every commit. False in a forked child."""
        return self._lock.is_current()

    def heartbeat(self) -> bool:
        """Write that the holder is alive; call it at least every minute. Returns False, and writes nothing, if the
        lease is lost.
        """
        if not self.held():
            return False
        self._write(_HEARTBEAT_START, _heartbeat(self._clock()))
        return True

    def write_topics(self, topics: Collection[str]) -> None:
        """Write the holder's subscribed topics; does nothing if the lease is lost."""
        text = json.dumps(sorted(topics)).encode()
        if text != self._topics and self.held():
            self._write(_NOTE_END, text.ljust(self._path.stat().st_size - _NOTE_END))
            self._topics = text

    def release(self) -> None:
        """Give the lease back; does nothing if it is not held."""
        if self._lock.is_current():
            # While it is locked: whoever waits for this file sees that it is unlinked, and opens the next one.
            self._path.unlink(missing_ok=True)
        self._lock.close()

    def holder(self) -> LeaseInfo | None:
        """The holder of the lease, this object included; None if it is free. Changes nothing."""
        return _read_holder(self._path)

    def _held_by_other(self) -> LeaseHeldError:
        info = self.holder() or LeaseInfo(self.name, "", None, None, None)
        who = info.describe(self._clock())
        return LeaseHeldError(f"group {self.group!r}: {self.name!r} is held by {who}", info.owner)

    def _write(self, start: int, data: bytes) -> None:
        fd = open_nofollow(self._path, os.O_WRONLY)
        try:
            write_fully(fd, data, start, self._path)
        finally:
            os.close(fd)


@checked
def live_leases(root: str | Path, group: str) -> list[LeaseInfo]:
    """Return the holders of the group's leases now, sorted by name; without SimpleConsumers. Changes nothing.

    Raises:
        UsageError: a bad group name.
    """
    return _live(root, group, lambda name: not name.startswith(RECEIVER_PREFIX))


def live_sharers(root: str | Path, group: str, topic: str) -> list[LeaseInfo]:
    """Return the consumers, SimpleConsumers included, that share the queues of `topic` with their group, sorted by
    name. Changes nothing. Raises as `live_leases`.
    """
    found = _live(root, group, lambda name: name.startswith((MEMBER_PREFIX, RECEIVER_PREFIX)))
    # A SimpleConsumer shows no signs of life: it may not be asked for anything for hours.
    return [
        replace(info, heartbeat_ms=None) if info.name.startswith(RECEIVER_PREFIX) else info
        for info in found
        if info.shares and topic in info.topics
    ]


def _live(root: str | Path, group: str, wanted: Callable[[str], bool]) -> list[LeaseInfo]:
    validate_group(group)
    try:
        entries = sorted(group_directory(as_path(root), group).iterdir())
    except FileNotFoundError:
        return []
    found = (_read_holder(entry) for entry in entries if entry.name.endswith(_SUFFIX) and wanted(entry.name))
    return sorted((info for info in found if info is not None), key=lambda info: info.name)


def groups_with_leases(root: str | Path) -> list[str]:
    """The groups that ever had a lease in this store, sorted. Names that no group can have are skipped."""
    try:
        names = sorted(entry.name for entry in (Path(root) / "pyrmq" / "groups").iterdir())
    except FileNotFoundError:
        return []
    return [name for name in names if is_group_name(name)]


def group_directory(root: Path, group: str) -> Path:
    """The directory of a group's lease files."""
    return root / "pyrmq" / "groups" / group


def file_stem(name: str) -> str:
    """The name, without its ending, of the file for a lease or a topic; long names are hashed."""
    if len(name) <= _PLAIN_LENGTH_MAX:
        return name
    return f"{name[:100]}.{hashlib.sha256(name.encode()).hexdigest()}"


def _heartbeat(now_ms: int) -> bytes:
    return b"%*d" % (_HEARTBEAT_LENGTH, now_ms)


def _read_holder(path: Path) -> LeaseInfo | None:
    """Return the data that the holder wrote to a lease file; None if the file is not locked. The content may be
    anything.
    """
    state = OfdLock(path).who()
    if state.kind == "free":
        return None
    unknown = LeaseInfo(path.name.removesuffix(_SUFFIX), "", state.pid, None, None)
    try:
        fd = open_nofollow(path, os.O_RDONLY)
    except FileNotFoundError:
        return unknown
    try:
        content = os.pread(fd, _NOTE_END + _TOPICS_LENGTH_MAX, 0)
    finally:
        os.close(fd)
    try:
        note = json.loads(content[_NOTE_START:_NOTE_END])
        heartbeat_ms = int(content[_HEARTBEAT_START : _HEARTBEAT_START + _HEARTBEAT_LENGTH])
        info = LeaseInfo(
            note["name"], note["owner"], note["pid"], note["started_ms"], heartbeat_ms, _topics(content),
            note.get("host"), note.get("shares") is not False,
        )  # fmt: skip
    except (ValueError, RecursionError, KeyError, TypeError):
        return unknown
    if not isinstance(info.name, str) or not isinstance(info.owner, str) or not isinstance(info.host, str | None):
        return unknown
    if type(info.started_ms) is not int or not 0 <= info.started_ms < _TIME_END_MS:
        return unknown
    # The pid differs for the microseconds in which a new holder has the lock and the old one's text still stands.
    return info if info.pid == state.pid else unknown


def _topics(content: bytes) -> tuple[str, ...]:
    """The topics in a lease file; () if there are none, or while they are being written."""
    try:
        found = json.loads(content[_NOTE_END:])
    except (ValueError, RecursionError):
        return ()
    return tuple(name for name in found if isinstance(name, str)) if isinstance(found, list) else ()
