"""A second look at a master's log: its bytes are read again over the HA port, and compared with those of a replica.

    both have    compared byte by byte, up to the first difference
    one has      said as ranges: what the replica or the master has deleted, and what the replica does not have yet

A master takes the first report of a connection for the acknowledgement of all bytes below it (`first_report`). So the
comparison begins where the master's log begins, or it waits until no producer waits any more for what lies below.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from rmq_store import real_time
from rmq_store.broker.store.store import Store
from rmq_store.errors import CorruptRecordError, MasterTransferError, UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core import scan
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.protocol.errors import RemotingError
from rmq_store.replica.first_report import SETTLED_MS
from rmq_store.replica.ha_connection import HAConnection
from rmq_store.replica.master import LogEnds, Master, MasterSettings
from rmq_store.replica.wire import FROM_START

_WAIT_S: Final = 0.5
_HEARTBEATS_MAX: Final = 5
"""So many in a row, and the master does not send what it says that it has. One comes every 5 s."""


class ByteRange(NamedTuple):
    """Bytes [`start`, `end`) of the log."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison. `replica` and `master`: which bytes each had when it began.

    `compared`: which bytes are equal. `difference`: the first byte that is not the same, and in which record; None:
    there is none.
    """

    replica: ByteRange
    master: ByteRange
    compared: tuple[ByteRange, ...]
    difference: tuple[int, str] | None

    @property
    def is_equal(self) -> bool:
        """Whether the replica has no byte that the master has not, among those that the master has not deleted."""
        return self.difference is None

    @property
    def only_at_master(self) -> tuple[ByteRange, ...]:
        """The bytes that the replica has deleted, or never had; and those that it does not have yet."""
        before = ByteRange(self.master.start, min(self.replica.start, self.master.end))
        behind = ByteRange(max(self.replica.end, self.master.start), self.master.end)
        return tuple(one for one in (before, behind) if one.start < one.end)

    @property
    def only_at_replica(self) -> tuple[ByteRange, ...]:
        """The bytes that the master had deleted, or has deleted meanwhile."""
        found, end = [], self.replica.start
        stop = min(self.replica.end, self.master.end) if self.difference is None else self.difference[0]
        for one in (*self.compared, ByteRange(stop, stop)):
            if end < one.start:
                found.append(ByteRange(end, one.start))
            end = max(end, one.end)
        return tuple(found)


class LogComparison:
    """One comparison of the log of `store`, open for reading, with that of `master`. `tell(done, all)` is called with
    bytes, often. `sleep` waits some seconds.
    """

    def __init__(
        self,
        store: Store,
        master: Master,
        *,
        tell: Callable[[int, int], None] = lambda done, total: None,
        sleep: Callable[[float], None] = time.sleep,
        timer: Callable[[], float] = real_time.monotonic,
    ) -> None:
        self._store = store
        self._master = master
        self._tell = tell
        self._sleep = sleep
        self._timer = timer
        self._ends = LogEnds(0, 0)
        self._asked_at = 0.0

    def run(self, begin: int = 0) -> Comparison:
        """Compare up to the end that both have now, from `begin` on, the start of a record, or of what both have.
        Nothing is changed, here or there.

        Raises:
            UsageError: another broker, or segments of another size.
            RemotingError: the master does not answer, or the connection ended twice without a byte.
            MasterTransferError: it sent what is no log.
            MQBrokerError, StoreKindError: as `Master.look`.
        """
        settings = self._master.look()
        self._refuse_other(settings)
        self._ends, self._asked_at = self._master.log_ends(), self._timer()
        self._store.refresh()
        replica, master = ByteRange(*self._store.log_range()), ByteRange(*self._ends)
        low, high = max(replica.start, master.start, begin), min(replica.end, master.end)
        compared: list[ByteRange] = []
        difference: tuple[int, str] | None = None
        if low < high:
            with self._store.pin(low, high):
                difference = self._compare(settings, low, high, compared)
        if difference is None and replica.end > master.end:
            difference = master.end, f"the master's log ends at {master.end}, and the replica's at {replica.end}"
        return Comparison(replica, master, tuple(compared), difference)

    def _compare(
        self, settings: MasterSettings, low: int, high: int, compared: list[ByteRange]
    ) -> tuple[int, str] | None:
        at, failure = low, -1
        while at < high:
            begin = at
            try:
                at, difference = self._connected(settings, at, high)
            except RemotingError:
                if failure == at:
                    raise
                failure, difference = at, None
            if at > begin:
                compared.append(ByteRange(begin, at))
            if difference is not None:
                return difference
            # Deleted at the master, or here, meanwhile.
            at = min(max(at, self._ends.start, self._store._log.start()), high)
        return None

    def _connected(self, settings: MasterSettings, at: int, high: int) -> tuple[int, tuple[int, str] | None]:
        """Compare from `at` on over one connection. Returns up to where the bytes are equal, and the first difference.
        Without one, and before `high`, the master has deleted what comes next, or the connection ended.
        """
        self._wait_until_settled(at)
        begin, heartbeats = at or FROM_START, 0
        with HAConnection(
            settings.ha_address, self._master.settings, begin, lambda: begin, tls=settings.ha_tls
        ) as connection:
            while at < high:
                try:
                    for offset, data in connection.transfers(_WAIT_S):
                        if not len(data):
                            heartbeats += 1
                            continue
                        heartbeats = 0
                        if offset != (at or begin):
                            raise MasterTransferError(
                                f"{connection.address} sent bytes from {offset} on where {at} come next"
                            )
                        given = data[: high - offset]
                        first = first_difference(self._store._log, offset, given)
                        if first is not None:
                            return first, (first, f"other bytes from {first} on, {self._place_of(first)}")
                        at = offset + len(given)
                        self._tell(at, high)
                        if at >= high:
                            break
                except FileNotFoundError:  # retention was faster than the pin
                    if self._store._log.start() > at:
                        return at, None
                    raise
                except RemotingError:
                    if at > (0 if begin == FROM_START else begin):
                        return at, None
                    raise
                if heartbeats:
                    self._ends = self._master.log_ends()
                    if self._ends.start > at:
                        return at, None
                    if self._ends.end < high:
                        end = self._ends.end
                        return at, (end, f"the master's log has become shorter: it ends at {end}")
                    if heartbeats > _HEARTBEATS_MAX:
                        raise RemotingError(f"{connection.address} sends nothing from {at} on, and says that it has it")
        return at, None

    def _wait_until_settled(self, begin: int) -> None:
        """Nobody waits for what lies below the end that the master had SETTLED_MS ago, nor below its log's start."""
        left_s = SETTLED_MS / 1000 - (self._timer() - self._asked_at)
        if begin > self._ends.start and left_s > 0:
            self._sleep(left_s)

    def _refuse_other(self, settings: MasterSettings) -> None:
        role, size = self._store.replica, self._store.config.mapped_file_size_commit_log
        if role is not None and (role.cluster, role.broker) != (settings.cluster, settings.broker):
            raise UsageError(
                f"{self._store.path}: a replica of broker {role.broker!r} of cluster {role.cluster!r}, and not of "
                f"{settings.broker!r} of {settings.cluster!r}"
            )
        if size != settings.config.mapped_file_size_commit_log:
            raise UsageError(
                f"{self._store.path}: segments of {size} bytes; broker {settings.broker} has "
                f"mappedFileSizeCommitLog={settings.config.mapped_file_size_commit_log}: it is no copy of its log"
            )

    def _place_of(self, offset: int) -> str:
        """The record of the replica in which `offset` lies, for people."""
        log = self._store._log
        base = log.segments.base_of(offset)
        start = max(base, log.start())
        for stretch in scan.walk(log, start, offset + 1, ahead=False):
            starts = stretch.base + stretch.positions
            number = int(np.searchsorted(starts, offset, "right")) - 1
            if number >= 0 and offset < starts[number] + stretch.sizes[number]:
                return self._named(int(starts[number]))
            if stretch.stopped:
                return f"in the record at {stretch.end}, which is damaged here: {stretch.stopped}"
        return "behind the last record of a segment"

    def _named(self, log_offset: int) -> str:
        try:
            message = self._store.message_at(log_offset)
        except CorruptRecordError:
            return f"in the record at {log_offset}"
        return f"in message {message.queue_offset} of {message.topic}-{message.queue_id}, at {log_offset}"


def first_difference(log: CommitLog, offset: int, data: memoryview) -> int | None:
    """The offset of the first byte from `offset` on that is another one in the log than in `data`; None: all are equal.
    The log has all of them.
    """
    done = 0
    while done < len(data):
        at = offset + done
        base = log.segments.base_of(at)
        count = min(len(data) - done, base + log.segments.size_bytes - at)
        own = log.segments.open(base).map[at - base : at - base + count]
        if own != data[done : done + count]:
            given = np.frombuffer(data, np.uint8, count, done)
            return at + int(np.flatnonzero(np.frombuffer(own, np.uint8) != given)[0])
        done += count
    return None
