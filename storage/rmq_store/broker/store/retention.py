"""Retention: deletes old segments by RocketMQ's rules (DefaultMessageStore.CleanCommitLogService), without a daemon.

A pass deletes if one of these is true; otherwise it does nothing:

    time      the local hour of the store's clock is in deleteWhen
    disk      the disk is fuller than diskMaxUsedSpaceRatio
    manual    the caller asks for it
    retry     a reader kept the oldest segment, and redeleteHangedFileInterval has passed since

A pass deletes from the oldest segment on, at most deleteFileBatchMax segments, and stops at the first one that stays. A
segment is deleted if its file was not written to for fileReservedTime hours. If the disk is fuller than
diskSpaceCleanForciblyRatio and cleanFileForciblyEnable is set, its age does not matter. Committed offsets of groups do
not matter.

    a reader pins it           it stays until the pin is released, at most destroyMapedFileIntervalForcibly after the
                               first refusal
    it has delayed messages    it stays until they are delivered, unless `drop_waiting` is set (RocketMQ deletes them)
    it has dead letters        they are archived first, if dlqArchivePath is set; if that fails, the segment stays
    it has newest units        they are written again first (`unit_markers`)
    it has half messages       those of open transactions are written again first (RocketMQ deletes them)

A replica follows the same rules by its own settings, and may keep more than its master, or less. Nothing can be written
into its log, and nothing in it is delivered, so two of them differ:

    it has delayed messages, half messages    it goes: they are the master's to deliver, and to check
    it has newest units                       it stays until the units that the master writes again have come

Only `Retention.run` deletes. Only `rmq retention run`, `rmq broker run` and the feeder of a replica call it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from rmq_store.arguments import checked_methods
from rmq_store.broker.delay.backlog import SegmentBacklog, backlog_by_segment
from rmq_store.broker.metadata.store_config import CHANGEABLE, StoreConfig, parse_delete_when
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.read.queues import Queues
from rmq_store.broker.store.retention_plan import (
    KEPT,
    Refusals,
    RetentionPlan,
    RetentionReport,
    SegmentFate,
    hold_delayed,
    hold_units,
    up_to_first_kept,
)
from rmq_store.broker.store.unit_markers import UnitMarkers
from rmq_store.broker.write import disk_space
from rmq_store.broker.write.units import UnitTable
from rmq_store.errors import (
    CorruptConfigError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    StoreError,
    StoreLockedError,
    UsageError,
)
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.rooted import refuse_if_replaced
from rmq_store.files.segments.pin import is_pinned
from rmq_store.format.text.host import Host
from rmq_store.log import retention as mechanics
from rmq_store.log.append.append import append_lock
from rmq_store.log.core.commit_log import CommitLog, leaves_no_lock
from rmq_store.log.core.units import UnitRecord

_LOG = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
_FORMAT = 1
_TRIES = 3
_REFUSALS_BYTES_MAX = 1 << 20

# DefaultMessageStore.CleanCommitLogService: passes that a deletion by hand asks for.
MANUAL_PASSES = 20


class Archive(Protocol):
    """The archive of dead letters, as retention needs it."""

    def archive_up_to(self, log_offset: int) -> object:
        """Archive every dead letter below `log_offset` that is not archived yet; durable on return."""


@checked_methods()
class Retention:
    """Deletes old messages of one store. One process at a time; the others are refused."""

    def __init__(
        self,
        log: CommitLog,
        config: StoreConfig,
        queues: Queues,
        topics: TopicTable,
        carry_halves: Callable[[int], int],
        sleep: Callable[[float], None] = time.sleep,
        *,
        is_replica: bool = False,
    ) -> None:
        self._log = log
        self._config = config
        self._queues = queues
        self._topics = topics
        self._carry_halves = carry_halves
        self._sleep = sleep
        self._is_replica = is_replica
        self._lock = OfdLock(log.own / "retention.lock")
        self._refusals = _Refusals(log.own / "retention.json")
        self._units = UnitTable(log)
        self._markers = UnitMarkers(log, Host.parse(config.broker_host))
        self._archive_failure = ""
        self._views_start = -1  # where the log began when old files of the views were last looked for

    def settings(self) -> StoreConfig:
        """The present settings: another process may have changed them."""
        known = StoreFile.load(self._log.root) if self._log.writable else None
        return known.config if known else self._config

    @leaves_no_lock
    def configure(self, /, **settings: Any) -> StoreConfig:
        """Change settings of retention for every process, and return all settings; durable on return.
        `message_delay_level` can be changed too: it counts for processes that open the store later.

        Raises:
            UsageError: a setting that is fixed when the store is made, or a bad value; a `dlq_archive_path` in the
                store itself.
            ReadOnlyError, StoreLockedError, StoreFullError, StoreFailedError: nothing was changed.
        """
        self._require_writer()
        foreign = sorted(settings.keys() - set(CHANGEABLE))
        if foreign:
            raise UsageError(f"{foreign[0]} cannot be changed; these can: {', '.join(CHANGEABLE)}")
        with append_lock(self._log):
            known = StoreFile.load(self._log.root)
            assert known is not None
            changed = replace(known, config=replace(known.config, **settings))
            if settings.get("dlq_archive_path"):
                durable.refuse_inside(changed.config.dlq_archive_path, self._log.root)
            changed.save(self._log.root)
        return changed.config

    @leaves_no_lock
    def plan(
        self, *, manual: bool = False, file_reserved_time: int | None = None, drop_waiting: bool = False
    ) -> RetentionPlan:
        """The plan of `run`; it changes nothing, and works for a read-only store too.

        Raises:
            UsageError: `file_reserved_time` is negative.
            CorruptionError: a queue or config/delayOffset.json is unreadable.
        """
        for tries_left in reversed(range(_TRIES)):
            try:
                return self._plan(self._settings(file_reserved_time), manual, drop_waiting)
            except (FileNotFoundError, OffsetOutOfRangeError):  # somebody else deletes: look again
                if not tries_left:
                    raise
        raise AssertionError

    def _plan(self, settings: StoreConfig, manual: bool, drop_waiting: bool) -> RetentionPlan:
        usage = disk_space.usage_percent(self._log.root)
        refusals = self._refusals.load()
        trigger = self._trigger(settings, usage, manual, refusals)
        start = self._log.start()
        bases = mechanics.removable(self._log, self._queues.end())[: settings.delete_file_batch_max] if trigger else []
        if trigger == "retry":
            bases = bases[:1]
        fates = self._fates(bases, settings, usage, refusals)
        if self._is_replica:
            held = [hold_units(fate, self._units_below(fate.end, settings) if fate.goes else 0) for fate in fates]
        else:
            waiting = {} if drop_waiting or not fates else self._waiting(start, max(fate.end for fate in fates))
            held = [hold_delayed(fate, waiting.get(fate.start), self._log.clock()) for fate in fates]
        return RetentionPlan(trigger, usage, start, up_to_first_kept(held))

    @leaves_no_lock
    def run(
        self, *, manual: bool = False, file_reserved_time: int | None = None, drop_waiting: bool = False
    ) -> RetentionReport:
        """One pass: delete the segments that the rules allow; see the module.

        `manual`: at any hour. `file_reserved_time`: hours, instead of the store's setting. `drop_waiting`: delayed
        messages and timers that were not delivered are deleted, too. The deletion is durable on return. If the process
        dies at any moment, the store is intact and only begins later.

        Raises:
            ReadOnlyError: the store was opened with `read_only=True`.
            StoreLockedError: another process runs retention, or an append takes too long.
            UsageError, CorruptionError: as `plan`.
            StoreFullError, StoreFailedError: the segments that were not deleted are intact.
        """
        self._require_writer()
        settings = self._settings(file_reserved_time)

        def run_alone() -> RetentionReport:
            with self._lock.exclusive_if_free() as is_alone:
                if not is_alone:
                    holder = self._lock.who().pid
                    raise StoreLockedError(f"{self._log.root}: another process is deleting old messages", holder)
                refuse_if_replaced(self._log.root)
                plan = self.plan(manual=manual, file_reserved_time=file_reserved_time, drop_waiting=drop_waiting)
                return self._run(plan, settings) if plan.trigger else RetentionReport(plan)

        try:
            return run_alone()
        finally:
            self._lock.release_left()  # of a block that was interrupted on its way in or out

    def close(self) -> None:
        """Close the lock file."""
        self._lock.close()

    def _run(self, plan: RetentionPlan, settings: StoreConfig) -> RetentionReport:
        self._refusals.record([fate.start for fate in plan.segments if fate.is_kept], plan.log_start, self._log.clock())
        report = RetentionReport(plan, stopped=next((fate.reason for fate in plan.segments if not fate.goes), ""))
        if plan.going:
            end = plan.going[-1].end
            expired_ms = self._expired_ms(settings)
            if settings.dlq_archive_path and (failure := self._archive(settings.dlq_archive_path, end)):
                return replace(report, stopped=failure)
            halves = 0 if self._is_replica else self._carry_halves(end)
            units = 0 if self._is_replica else self._markers.carry(end, expired_ms)
            mechanics.make_removable(self._log, end)
            self._warn_of_slave(end)
            report = self._remove(replace(report, units=units, half_messages=halves), settings)
            self._markers.forget(expired_ms)
        if self._views_start != self._log.start():
            queue_files = mechanics.remove_queue_files(self._log)
            report = replace(report, queue_files=queue_files, index_files=mechanics.remove_index_files(self._log))
            self._views_start = self._log.start()
        return report

    def _warn_of_slave(self, end: int) -> None:
        """Old messages go when they must go, also if a slave of this store has not copied them: it begins anew then."""
        slowest = self._log.writing_page.slowest_end
        if 0 <= slowest < end:
            _LOG.warning(
                "%s: bytes up to %d of the log are about to be deleted, and a slave has copied those below %d only: it "
                "will have to begin anew. Raise fileReservedTime, or see what keeps the slave back",
                self._log.root, end, slowest,
            )  # fmt: skip

    def _remove(self, report: RetentionReport, settings: StoreConfig) -> RetentionReport:
        for number, fate in enumerate(report.plan.going):
            if number:
                self._sleep(settings.delete_commit_log_files_interval / 1000)
            if not mechanics.remove_segment(self._log, fate.start, forced=fate.is_kept):
                self._refusals.record([fate.start], fate.start, self._log.clock())
                return replace(report, stopped=KEPT)
            _LOG.info("%s: deleted bytes %d to %d of the log: %s", self._log.root, fate.start, fate.end, fate.reason)
            report = replace(report, removed=(*report.removed, fate.start))
        return report

    def _archive(self, directory: str, end: int) -> str:
        """Archive the dead letters below `end`. Returns why that failed, or ""."""
        try:
            self._open_archive(Path(directory)).archive_up_to(end)
        except (StoreError, OSError) as error:
            failure = f"its dead letters could not be archived in {directory}: {error}"
            if failure != self._archive_failure:  # a pass every ten seconds need not say it again
                _LOG.error("%s: nothing is deleted: %s", self._log.root, failure)
            self._archive_failure = failure
            return failure
        self._archive_failure = ""
        return ""

    def _open_archive(self, directory: Path) -> Archive:
        from rmq_store.broker.dlq.archive import DeadLetterArchive

        archive: Archive = DeadLetterArchive(self._log, self._queues, self._topics, directory)
        return archive

    def _trigger(self, settings: StoreConfig, usage: int | None, manual: bool, refusals: Refusals) -> str:
        now_ms = self._log.clock()
        if manual:
            return "manual"
        if time.localtime(now_ms / 1000).tm_hour in parse_delete_when(settings.delete_when):
            return "time"
        ratios = settings.disk_max_used_space_ratio, settings.disk_space_clean_forcibly_ratio
        if usage is None or usage > min(ratios):
            return "disk"
        is_hanging = self._log.start() in refusals.since_ms
        if is_hanging and abs(now_ms - refusals.tried_ms) >= settings.redelete_hanged_file_interval:
            return "retry"
        return ""

    def _fates(
        self, bases: list[int], settings: StoreConfig, usage: int | None, refusals: Refusals
    ) -> list[SegmentFate]:
        """The decisions by age, disk and readers, up to the first segment that is too young. Segments after a kept one
        are checked too, so that the waiting time for their readers begins at the same time.
        """
        now_ms = self._log.clock()
        forced = usage is not None and usage > settings.disk_space_clean_forcibly_ratio
        forced &= settings.clean_file_forcibly_enable
        fates: list[SegmentFate] = []
        for base in bases:
            path, end = self._log.segments.path(base), base + self._log.segments.size_bytes
            modified_ms = path.stat().st_mtime_ns // 1_000_000
            expired = modified_ms + settings.file_reserved_time * _HOUR_MS <= now_ms
            reason = f"older than {settings.file_reserved_time} h" if expired else f"the disk is {usage} % full"
            if not expired and not forced:
                young = f"younger than {settings.file_reserved_time} h (fileReservedTime)"
                return [*fates, SegmentFate(base, end, modified_ms, False, young)]
            kept = is_pinned(path)
            left_ms = refusals.left_ms(base, now_ms, settings.destroy_maped_file_interval_forcibly)
            goes = not kept or left_ms <= 0
            if kept:
                reason = f"{reason}; taken from a reader" if goes else f"{KEPT}, for {-(-left_ms // 1000)} s at most"
            fates.append(SegmentFate(base, end, modified_ms, goes, reason, is_kept=kept))
        return fates

    def _waiting(self, start: int, end: int) -> dict[int, SegmentBacklog]:
        if self._log.writable:
            return backlog_by_segment(self._log, self._newest_unit, start, end)
        log_end = self._queues.end()

        def newest_unit(purpose: str, key: str) -> UnitRecord | None:
            return self._units.newest(purpose, key, log_end)

        return backlog_by_segment(self._log, newest_unit, start, end)

    def _units_below(self, log_offset: int, settings: StoreConfig) -> int:
        """How many newest units in the log a store of its own would write again before it deletes what is below
        `log_offset`.
        """
        end = self._log.writing_page.appended_end if self._log.writable else self._queues.end()
        gone = {(unit.purpose, unit.key) for unit in self._units.below(self._log.start(), end)}
        needed = self._markers.needed(self._units.below(log_offset, end), self._expired_ms(settings))
        return sum((unit.purpose, unit.key) not in gone for unit in needed)

    def _expired_ms(self, settings: StoreConfig) -> int:
        return self._log.clock() - settings.unit_marker_reserved_time * _HOUR_MS

    def _newest_unit(self, purpose: str, key: str) -> UnitRecord | None:
        with append_lock(self._log):
            return self._units.newest(purpose, key, self._log.writing_page.appended_end)

    def _settings(self, file_reserved_time: int | None) -> StoreConfig:
        settings = self.settings()
        return settings if file_reserved_time is None else replace(settings, file_reserved_time=file_reserved_time)

    def _require_writer(self) -> None:
        if not self._log.writable:
            raise ReadOnlyError(f"{self._log.root} was opened with read_only=True: nothing can be deleted")
        refuse_if_replaced(self._log.root)


class _Refusals:
    """`pyrmq/retention.json`: {"format": 1, "refused": {"<offset>": ms}, "tried": ms}; under the retention lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Refusals:
        """The known times; none if the file is missing or unreadable: then the waiting time for readers begins anew."""
        try:
            data: Any = json.loads(durable.read_limited(self._path, _REFUSALS_BYTES_MAX))
            found = Refusals({int(base): since for base, since in data["refused"].items()}, data["tried"])
            numbers = [found.tried_ms, *found.since_ms.values()]
            if data["format"] == _FORMAT and all(type(number) is int for number in numbers):
                return found
        except FileNotFoundError:
            pass
        except (CorruptConfigError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            _LOG.warning("%s: unreadable; segments that are kept by readers stay once more", self._path)
        return Refusals({})

    def record(self, kept: list[int], log_start: int, now_ms: int) -> None:
        """Record that these segments could not be deleted, and forget those below `log_start`. After the clock was set
        back, times begin anew.
        """
        known = self.load()
        since = {base: min(ms, now_ms) for base, ms in known.since_ms.items() if base >= log_start}
        for base in kept:
            since.setdefault(base, now_ms)
        if since or known.since_ms:
            content = {"format": _FORMAT, "refused": since, "tried": now_ms}
            durable.write_atomically(self._path, json.dumps(content).encode())
