"""Take over: a replica becomes the store of a master (`rmq broker promote`).

    1  hold the right to feed it                    a feeder that lives is refused by name
    2  open it as its feeder does                   recovery: whole records with their entries; half a unit is dropped
    3  topics that only records name                into config/topics.json
    4  the markers of units                         pyrmq/units.json is read from the log again
    5  close                                        everything is on disk
    6  pyrmq/promoted.json                          what this command says
    7  pyrmq/store.json without the master          the one step that counts: from here on it is a store of its own
    8  what feeder and slave leave in pyrmq/        removed

Before step 7 it is a replica as before, and may be fed again. A process that is killed leaves a directory with which
the next call begins again, or, after step 7, goes on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Final

from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.repair.repair_topics import lost_topics, put_into_table
from rmq_store.broker.store.directory import is_store, why_no_store
from rmq_store.broker.store.store import Store
from rmq_store.broker.write.units import UnitTable
from rmq_store.clock import system_clock
from rmq_store.errors import CorruptConfigError, NotAStoreError, StoreLockedError, UsageError
from rmq_store.files import durable
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.append.append import append_lock
from rmq_store.log.core.scan import newest_message
from rmq_store.log.feeder_state import FeederState, feeder_lives, read_state, remove_state
from rmq_store.log.replica_role import Feeder, ReplicaRole, fed_by, remove_feeder_lock
from rmq_store.replica.replica_store import open_replica
from rmq_store.replica.slave_commits import remove_commits

_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Promotion:
    """The findings of a promotion. Offsets are of the log; times are ms since the epoch, 0 if never.

    `log_start`, `log_end`: the log of the replica. `newest_ms`: the store time of its newest message. `master_end`: the
    end of the old master's log when it was last heard of, at `heard_ms`. `removed_bytes`: of no whole record, kept in
    pyrmq/removed. `dropped_unit`: where a unit without its end began, or -1. `topics`: those that only records named.
    `units`: number of keys with a marker. `promoted_ms`: when, 0 if that was a look only.
    """

    cluster: str
    broker: str
    address: str
    log_start: int
    log_end: int
    newest_ms: int
    master_end: int
    heard_ms: int
    removed_bytes: int
    dropped_unit: int
    topics: tuple[str, ...]
    units: int
    promoted_ms: int = 0

    @property
    def missing_bytes(self) -> int:
        """How many bytes the old master had more when it was last heard of: at least so many are not here."""
        return max(self.master_end - self.log_end, 0)


def promote(root: Path, *, dry_run: bool = False) -> Promotion:
    """Make the replica at `root` the store of a master; durable on return. `dry_run`: look only, and change nothing.
    A store that was promoted before is left as it is, and the result is that of its promotion.

    Raises:
        UsageError: it is no replica, and never was one.
        StoreLockedError: a process feeds it; names it.
        CorruptRecordError and others: as `Store.open`; it is a replica as before.
        StoreFullError, StoreFailedError: call again after the cause is gone.
    """
    root = root.absolute()
    if not is_store(root):
        raise NotAStoreError(str(root), why_no_store(root))
    known = StoreFile.load(root)
    if known is None or known.replica is None:
        done = read_promotion(root)
        if known is None or done is None:
            raise UsageError(
                f"{root}: no replica, so nothing is to be promoted. Any writer opens this store as it is: "
                "`rmq broker run`"
            )
        if not dry_run:
            with durable.typed(root):
                _end(root, known)
        return done
    if dry_run:
        if feeder_lives(root):
            raise StoreLockedError(f"{root}: {fed_by(root)}; stop it first")
        with Store.open(root, read_only=True) as store:
            return _look(store, known.replica)
    feeder = Feeder(root)
    feeder.take()
    try:
        with open_replica(root, feeder) as store:
            topics = lost_topics(root)
            put_into_table(root, topics)
            found = _look(store, known.replica, tuple(topic.topic_name for topic in topics))
        with durable.typed(root):
            found = replace(found, promoted_ms=system_clock())
            durable.write_atomically(_path(root), json.dumps(asdict(found)).encode() + b"\n")
            _end(root, replace(StoreFile.load(root) or known, replica=None))
    finally:
        feeder.close()
    return found


def read_promotion(root: Path) -> Promotion | None:
    """The findings of the promotion of the store; None: it was never promoted, or nothing tells."""
    try:
        content = json.loads(durable.read_limited(_path(root), _BYTES_MAX))
        known = {field.name: content[field.name] for field in fields(Promotion)}
        return Promotion(**known | {"topics": tuple(known["topics"])})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptConfigError(str(_path(root)), 0, f"no report of a promotion: {error}") from error


def _look(store: Store, role: ReplicaRole, topics: tuple[str, ...] | None = None) -> Promotion:
    """Look at the open store; if it is open for writing, the markers are written."""
    log, recovery = store._log, store.recovery
    start, end = store.log_range()
    state = read_state(store.path) or FeederState()
    newest = newest_message(log, end)
    if store.read_only:
        units = UnitTable(log).renew(end)
    else:
        with append_lock(log):
            units = UnitTable(log).renew(end)
    return Promotion(
        role.cluster, role.broker, role.address, start, end,
        newest_ms=(newest is not None and log.store_timestamp(newest)) or 0,
        master_end=state.master_end, heard_ms=state.heard_ms,
        removed_bytes=recovery.removed_bytes if recovery is not None else 0,
        dropped_unit=-1 if recovery is None or recovery.dropped_unit is None else recovery.dropped_unit,
        topics=tuple(topic.topic_name for topic in lost_topics(store.path)) if topics is None else topics,
        units=units,
    )  # fmt: skip


def _end(root: Path, own: StoreFile) -> None:
    """Say that the store is its own, and remove what a feeder leaves. It may have been done before, in part."""
    if StoreFile.load(root) != own:
        own.save(root)
    if StoreFile.load_backup(root) != own:
        own.save(root)  # what is in store.json becomes the backup
    remove_commits(root)
    remove_state(root)
    remove_feeder_lock(root)
    durable.fsync_directory(root / "pyrmq")


def _path(root: Path) -> Path:
    return root / "pyrmq" / "promoted.json"
