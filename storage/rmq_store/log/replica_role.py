"""The role of a replica of a broker's log: how a directory gets it, and which process may write there.

A replica says so in store.json, which then has format 2: releases that know nothing of replicas refuse it. Its one
writer is the process that feeds it (`rmq follow`), and that process holds a lock of its own:

    pyrmq/feeder.lock    byte 0 is locked while a process feeds the replica; from byte 32 on when it began, 20 digits
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rmq_store.clock import system_clock
from rmq_store.errors import ReadOnlyError, StoreLockedError, UsageError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock, process_text
from rmq_store.lazy.dataclasses import dataclass

_SINCE_AT: Final = 32
_SINCE_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class ReplicaRole:
    """The master that a replica follows, and how the replica began.

    `cluster` and `broker`: the names of the master. `name_server`: where its address is asked for, "" if addresses were
    given. `address` and `ha_address`: host:port, where the feeder found it last. `start`: how it began,
    `earliest` or `newest-segment`. `first_offset`: where its log began in the log of the master.
    """

    cluster: str
    broker: str
    name_server: str
    address: str
    ha_address: str
    start: str
    first_offset: int

    @classmethod
    def parse(cls, data: object) -> ReplicaRole:
        """From the JSON of store.json. ValueError, TypeError: it is none."""
        if not isinstance(data, dict):
            raise TypeError("replica: not an object")
        known = {field.name: data[_JAVA_STYLE[field.name]] for field in fields(cls)}
        for name, value in known.items():
            if type(value) is not (int if name == "first_offset" else str):
                raise TypeError(f"replica: {_JAVA_STYLE[name]} is {value!r}")
        return cls(**known)

    def content(self) -> Mapping[str, Any]:
        """As `parse` takes it."""
        return {_JAVA_STYLE[name]: value for name, value in asdict(self).items()}


_JAVA_STYLE: Final = {
    "cluster": "brokerClusterName", "broker": "brokerName", "name_server": "namesrvAddr", "address": "brokerAddr",
    "ha_address": "haMasterAddress", "start": "from", "first_offset": "firstOffset",
}  # fmt: skip


class Feeder:
    """The right to write to one replica. It is held from `take` to `close`, and ends with its process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = OfdLock(_lock_path(root))

    def take(self) -> None:
        """Become the process that feeds the replica; the directory `pyrmq` is made if it is missing.

        Raises:
            StoreLockedError: another process feeds it; names it, and since when.
            StoreFullError, StoreFailedError, UsageError: as `durable.translate`.
        """
        with durable.typed(self._root):
            durable.make_directory(self._lock.path.parent)
            if not self._lock.try_exclusive():
                pid = self._lock.who().pid
                raise StoreLockedError(f"{self._root}: {fed_by(self._root)}; a replica has one feeder", pid)
            fd = durable.open_nofollow(self._lock.path, os.O_RDWR)
            try:
                text = b"%0*d" % (_SINCE_DIGITS, system_clock())
                durable.write_fully(fd, text, _SINCE_AT, self._lock.path)
            finally:
                os.close(fd)

    def feeds(self, root: Path) -> bool:
        """True if this is held, and is the right to write to the replica at `root`."""
        return self._lock.is_current() and _lock_path(root).samefile(self._lock.path)

    def close(self) -> None:
        """Give the right up."""
        self._lock.close()


def fed_by(root: Path) -> str:
    """Text that says which process feeds the replica, and since when; or that none does."""
    lock = OfdLock(_lock_path(root))
    state = lock.who()
    if state.kind == "free":
        return "no process feeds it now"
    fd = durable.open_nofollow(lock.path, os.O_RDONLY)
    try:
        text = os.pread(fd, _SINCE_DIGITS, _SINCE_AT)
    finally:
        os.close(fd)
    since = ""
    if len(text) == _SINCE_DIGITS and text.isdigit():
        with contextlib.suppress(ValueError, OverflowError, OSError):  # whoever wrote that
            since = f" since {datetime.fromtimestamp(int(text) // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"fed by {process_text(state.pid)}{since}"


def remove_feeder_lock(root: Path) -> None:
    """Remove the file of the lock, of a store that is no replica any more: nothing says then that it ever was one."""
    durable.before("unlink", _lock_path(root))
    _lock_path(root).unlink(missing_ok=True)


def refuse_writer(root: Path, role: ReplicaRole | None, feeder: Feeder | None = None) -> None:
    """Raise unless the store is no replica, or `feeder` holds the right to write to it; before anything is written.

    Raises:
        ReadOnlyError: it is a replica, and the caller does not feed it.
        UsageError: the caller feeds a replica, but the store is none.
    """
    if feeder is not None and role is None:
        raise UsageError(f"{root}: a store of its own, no replica: nothing is fed into it; name another directory")
    if role is None or (feeder is not None and feeder.feeds(root)):
        return
    raise ReadOnlyError(
        f"{root}: a replica of broker {role.broker!r}, {fed_by(root)}: only `rmq follow` writes to it. "
        "Open it with read_only=True, or write to the broker"
    )


def refuse_repair(root: Path, is_described: bool, role: ReplicaRole | None) -> None:
    """Raise ReadOnlyError if the store is a replica, or if nothing describes it and a process has fed it once."""
    if role is not None or (not is_described and os.path.lexists(_lock_path(root))):
        of = f"of broker {role.broker!r}" if role is not None else "of a broker"
        raise ReadOnlyError(
            f"{root}: a replica {of}, which is not repaired: `rmq follow --resync` keeps this directory aside, and "
            "takes everything from the master again"
        )


def _lock_path(root: Path) -> Path:
    return root / "pyrmq" / "feeder.lock"
