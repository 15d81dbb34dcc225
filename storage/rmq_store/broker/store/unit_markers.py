"""Keeps unit markers longer than their segments.

Before retention deletes a segment, it writes some units again: the newest unit of each key whose last record lies in
it.

The new record encloses no rows. It counts as the last record of the unit, and carries the time when the unit was
appended. Each query that ever wrote leaves a marker: markers of commits that Spark may repeat are dropped when they are
older than `unitMarkerReservedTime`. All other units record progress (delivery, redrive) and are never dropped.
"""

from __future__ import annotations

from collections.abc import Iterable

from rmq_store.broker.rules import purposes
from rmq_store.broker.write.system_records import system_records
from rmq_store.broker.write.units import UnitTable
from rmq_store.format.text.host import Host
from rmq_store.log.append.append import append, append_lock
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.units import END_TAG, UNITS_QUEUE, UNITS_TOPIC, UnitRecord


class UnitMarkers:
    """The markers of one store open for writing, for its retention."""

    def __init__(self, log: CommitLog, host: Host) -> None:
        self._log = log
        self._host = host
        self._table = UnitTable(log)

    def carry(self, log_offset: int, expired_ms: int) -> int:
        """Write the units below `log_offset` again, except for expiring ones that were appended before `expired_ms`.
        Returns how many. They become visible at once; durable after a flush. Raises as `append`.
        """
        log = self._log
        with append_lock(log):
            units = self.needed(self._below(log_offset), expired_ms)
            if units:
                ends = [unit.bodies(0, 0)[1] for unit in units]
                append(log, [system_records(log, self._host, UNITS_TOPIC, UNITS_QUEUE, END_TAG, ends)])
        return len(units)

    @staticmethod
    def needed(units: Iterable[UnitRecord], expired_ms: int) -> list[UnitRecord]:
        """The units that must not be lost: without expiring ones that were appended before `expired_ms`."""
        return [unit for unit in units if not _is_expired(unit, expired_ms)]

    def forget(self, expired_ms: int) -> None:
        """Forget the expired units whose last records retention has deleted. StoreFullError, StoreFailedError: they
        stay.
        """
        with append_lock(self._log):
            self._table.forget(unit for unit in self._below(self._log.start()) if _is_expired(unit, expired_ms))

    def _below(self, log_offset: int) -> list[UnitRecord]:
        return self._table.below(log_offset, self._log.writing_page.appended_end)


def _is_expired(unit: UnitRecord, expired_ms: int) -> bool:
    return unit.purpose in purposes.EXPIRING and unit.seen_ms < expired_ms
