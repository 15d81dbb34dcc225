"""The old master comes back: its store becomes a replica of the master that took over (`rmq broker rejoin`).

    1  open the store as a writer               recovery; a broker, a server or a feeder that has it open is named
    2  where both logs part                     by their bytes, read from the new master's HA port (`parting`)
    3  the messages behind that point           to a file of JSON lines: nobody else has them
    4  the role of a replica, in store.json     from here on only a feeder writes
    5  cut                                      `rmq_store.log.cut_tail`

A process that is killed leaves the store as it was, or a replica with a tail: the next call does the rest. Topics,
groups and offsets stay as they are until the replica is fed for the first time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.store.directory import is_store, why_no_store
from rmq_store.broker.store.store import Store
from rmq_store.errors import NotAStoreError, ReplicaDivergedError, StoreLockedError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.append.append import append_lock
from rmq_store.log.core import scan
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.cut_tail import cut_tail
from rmq_store.log.feeder_state import feeder_lives
from rmq_store.log.replica_role import Feeder, ReplicaRole, fed_by
from rmq_store.replica.compare import LogComparison
from rmq_store.replica.master import Master, MasterSettings
from rmq_store.replica.replica_store import open_replica
from rmq_store.replica.take_over.tail_export import export_tail, messages_from

Compare = Callable[[int], tuple[int, int | None]]
"""Compares two logs from an offset on, the start of a record of both; returns the end of what both have, and the first
byte that differs or that only this log has. None: there is none."""


@dataclass(frozen=True, slots=True)
class Rejoined:
    """Both logs as they were. Offsets are of the log. `parting`: where the first record begins that the master does not
    have, or the end of this log. `messages`: how many records lie behind. `file`: where they are written; None: there
    are none. `is_done`: False of a look only.
    """

    start: int
    end: int
    master_start: int
    master_end: int
    parting: int
    messages: int
    file: Path | None
    is_done: bool


def rejoin(root: Path, master: Master, *, file: Path | None = None, dry_run: bool = False) -> Rejoined:
    """Make the store at `root`, of ours or of a RocketMQ broker, a replica of `master`, without the messages that only
    it has. `file`: where these are written; by default beside `root`. `dry_run`: look only. Durable on return.

    Raises:
        ReplicaDivergedError: nothing is common, or the master has deleted what comes next; nothing was changed.
        UsageError: the master has segments or index files of another size, or is a slave. Or the store is a replica of
            another broker.
        StoreLockedError: another process has the store open, or feeds it.
        RemotingError, MQBrokerError, MasterTransferError: as `LogComparison.run`.
        CorruptRecordError and others: as `Store.open`.
    """
    root = root.absolute()
    if not is_store(root):
        raise NotAStoreError(str(root), why_no_store(root))
    known = StoreFile.load(root)
    is_replica = known is not None and known.replica is not None
    settings = master.look()
    sizes = _index_sizes(settings) if known is None else None
    if dry_run:
        if is_replica and feeder_lives(root):
            raise StoreLockedError(f"{root}: {fed_by(root)}; stop it first")
        with Store.open(root, read_only=True, config=sizes) as store:
            return _look(store, master, file)
    feeder = Feeder(root)
    try:
        if is_replica:
            feeder.take()
        with open_replica(root, feeder) if is_replica else Store.open(root, config=sizes) as store:
            if store.recovery is None:
                raise StoreLockedError(f"{root}: another process has it open; stop it first")
            found = _look(store, master, file)
            if found.file is not None:
                export_tail(store, found.parting, found.file)
            _record_role(store, master, settings)
        if not is_replica:
            feeder.take()
        if found.messages:
            with open_replica(root, feeder) as store:
                cut_tail(store._log, found.parting)
    finally:
        feeder.close()
    return replace(found, is_done=True)


def parting(log: CommitLog, start: int, end: int, compare: Compare) -> int | None:
    """The start of the first record that another log does not have; None: the logs have no record in common. Both have
    bytes from `start` to `end`.

    Both logs only grow, so they have everything in common below a record that is the same, with its offset and its
    store time. So the comparison begins with the last segment that both have, and goes back only if not even its first
    record is the same.
    """
    step_bytes = log.segments.size_bytes
    low = max(start, log.segments.base_of(max(end - 1, 0)))
    while start < end:
        common, differs = compare(low)
        if differs is None:
            return common
        found = _record_at(log, low, differs)
        if found > low or low == start:
            return found if found > low else None
        low, step_bytes = max(start, low - step_bytes), 2 * step_bytes
    return None


def _index_sizes(settings: MasterSettings) -> StoreConfig:
    """Those of the master, for a broker's store: index files without an entry do not tell their own."""
    config = settings.config
    return StoreConfig(max_hash_slot_num=config.max_hash_slot_num, max_index_num=config.max_index_num)


def _look(store: Store, master: Master, file: Path | None) -> Rejoined:
    log, comparison = store._log, LogComparison(store, master)
    start, end = store.log_range()
    ends = master.log_ends()
    if ends.start > end:
        raise ReplicaDivergedError(
            f"{store.path}: broker {master.broker_name} has deleted what comes next, bytes {end} to {ends.start} of "
            "its log; nothing was changed. Give this directory another name, and begin a new replica with `rmq follow`",
            (start, end), (ends.start, ends.end),
        )  # fmt: skip

    def compared(begin: int) -> tuple[int, int | None]:
        found = comparison.run(begin)
        return min(end, found.master.end), None if found.difference is None else found.difference[0]

    low = max(start, ends.start)
    at = end if start == end else parting(log, low, min(end, ends.end), compared)
    if at is None:
        raise ReplicaDivergedError(
            f"{store.path}: no record of it is in the log of broker {master.broker_name}; nothing was changed. Is it "
            "another broker? Otherwise give this directory another name, and begin a new replica with `rmq follow`",
            (start, end), (ends.start, ends.end),
        )  # fmt: skip
    messages = sum(1 for _ in messages_from(store, at))
    where = file or store.path.with_name(f"{store.path.name}.tail-{at}-{end}.jsonl")
    return Rejoined(start, end, ends.start, ends.end, at, messages, where if messages else None, is_done=False)


def _record_at(log: CommitLog, start: int, offset: int) -> int:
    """The start of the record, or of the blank, that has the byte at `offset`; `start` is the start of a record."""
    found = max(start, log.segments.base_of(offset))
    for stretch in scan.walk(log, found, offset, ahead=False) if found < offset else ():
        ends = stretch.base + stretch.positions + stretch.sizes  # the walk may end behind `offset`
        found = max(found, int(ends[ends <= offset].max(initial=found)))
    return found


def _record_role(store: Store, master: Master, settings: MasterSettings) -> None:
    """Say durably that the store is a replica of the master. Its records need no checksum that the master does not
    write.
    """
    by_name = ";".join(master.settings.name_servers) if master.is_by_name else ""
    role = ReplicaRole(
        settings.cluster, settings.broker, by_name, master.address(), settings.ha_address, "earliest",
        store.log_range()[0],
    )  # fmt: skip
    config = replace(
        store.config, enabled_append_prop_crc=False, message_delay_level=settings.config.message_delay_level,
        broker_name=settings.broker,
    )  # fmt: skip
    with append_lock(store._log):
        StoreFile(store.identity, config, role).save(store.path)
