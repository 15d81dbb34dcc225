"""The loop that follows a master: one process, one connection, one replica.

    look       ask the master for its settings and for the ends of its log; stop by name if the replica cannot go on
    connect    report where to begin (`first_report`), compare the overlap, feed what is new
    chores     every METADATA_S: topics, groups and offsets of the master, which `Questions` asks for meanwhile; how far
               it is ahead; old files of the replica

A connection that ends is made again, ever more rarely. No error changes what the replica has.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from rmq_store import real_time
from rmq_store.backoff import Backoff
from rmq_store.broker.metadata.topics import TopicTable, topics_with_batch_queues
from rmq_store.broker.store.store import Store
from rmq_store.clock import system_clock
from rmq_store.errors import MasterTransferError, ReplicaDivergedError, UsageError
from rmq_store.format.text.names import CONFIG_DIRECTORY
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.append.flush import flush_and_vouch
from rmq_store.log.feeder_state import FeederState, write_state
from rmq_store.log.replica_role import Feeder, ReplicaRole
from rmq_store.protocol.answers import tells_nothing
from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.replica.feed import Feed
from rmq_store.replica.first_report import SettledEnd, overlap_start
from rmq_store.replica.ha_connection import HAConnection
from rmq_store.replica.master import LogEnds, Master, MasterSettings
from rmq_store.replica.metadata import MetadataCopy, Tables
from rmq_store.replica.questions import Questions
from rmq_store.replica.replica_store import (
    known_role,
    make_directory,
    open_replica,
    put_aside,
    record_addresses,
)
from rmq_store.replica.slave_commits import SlaveCommits
from rmq_store.replica.wire import FROM_LAST_SEGMENT, FROM_START

_LOG = logging.getLogger(__name__)

Start = Literal["earliest", "newest-segment"]

METADATA_S: Final = 10.0
"""As a slave of 4.x. One of 5.x waits for a minute."""

WAIT_S: Final = 0.5
"""So long a look at the connection waits for bytes."""

TABLES_WAIT_S: Final = 0.02

GATHERED_BYTES: Final = 2 << 20
"""As long as more has come already, so many bytes are published together: each time costs some 1 ms."""

RECONNECTS: Final = Backoff(first_ms=500, max_ms=10_000, factor=2.0, jitter=0.2)


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a replica. `end`: of its visible log. `master_end`: of the master's log, as last known. `messages`
    and `received_bytes`: since this process has begun to follow. `behind_ms`: the age of the newest message while the
    master has more, by this machine's clock; else 0. `is_connected`: to the master's HA port.
    """

    start: int = 0
    end: int = 0
    master_end: int = 0
    messages: int = 0
    received_bytes: int = 0
    behind_ms: int = 0
    is_connected: bool = False

    @property
    def behind_bytes(self) -> int:
        """How many bytes of the master's log the replica does not have."""
        return max(self.master_end - self.end, 0)

    @property
    def mean_bytes(self) -> int:
        """How many bytes of the log a message takes that this process has got; 0: it has got none."""
        return max((self.end - self.start) // self.messages, 1) if self.messages else 0

    @property
    def behind_messages(self) -> int | None:
        """About how many messages `behind_bytes` are, by `mean_bytes`; None: that is not known."""
        return FeederState(master_end=self.master_end, mean_bytes=self.mean_bytes).behind_messages(self.end)


class Follower:
    """Follows `master` into the replica at `root`, which is made if nothing is there.

    `start`: what a new replica begins with; `earliest`, all that the master has, or `newest-segment`, what it sends to
    a slave without a byte: Java's its last segment file, ours everything. `as_slave`: report what is on disk here, so
    that a SYNC_MASTER's sends count this replica. `settings`: those of `Retention.configure`; the replica keeps them
    for later runs. `commits`: those of a slave that is served. `tell` is called with the progress, often.
    `should_stop(seconds)` waits at most so long, and returns True if the process is to end.
    """

    def __init__(
        self,
        root: Path,
        master: Master,
        *,
        start: Start = "earliest",
        as_slave: bool = False,
        settings: Mapping[str, Any] | None = None,
        commits: SlaveCommits | None = None,
        tell: Callable[[Progress], None] | None = None,
        should_stop: Callable[[float], bool],
    ) -> None:
        self._root = root.absolute()
        self._master = master
        self._start: Start = start
        self._as_slave = as_slave
        self._settings = dict(settings or {})
        self._commits = commits
        self._tell = tell
        self._should_stop = should_stop
        self._feeder = Feeder(self._root)
        self._store: Store | None = None
        self._metadata: MetadataCopy | None = None
        self._questions: Questions | None = None
        self._state = FeederState()
        self._settled = SettledEnd()
        self._target: int | None = None
        self._chores_at = 0.0
        self._vouched_end = 0
        self._once = False
        self.progress = Progress()
        self.is_there = threading.Event()
        """Set when the replica can be read."""

    def resync(self) -> Path | None:
        """Put a replica that is there aside, under another name; returns that name. Raises as `put_aside`."""
        return put_aside(self._root, self._feeder) if known_role(self._root) is not None else None

    def run(self, *, once: bool = False) -> Progress:
        """Follow until `should_stop`; with `once`, up to the end that the master has now. On return the store is
        closed, and all that it has is on disk.

        Raises:
            ReplicaDivergedError: the replica does not continue its master's log; nothing was changed.
            MasterTransferError: the master sent what is no log.
            UsageError: the directory is no replica, or one of another broker.
            StoreLockedError: another process feeds it.
            StoreKindError, MQBrokerError: as `Master.look`.
            RemotingError: with `once`: the master does not answer, or the connection ended. Call again: it goes on.
            StoreFullError, StoreFailedError: of the replica.
        """
        self._once, failures = once, 0
        role = known_role(self._root)
        try:
            if role is not None:
                self._open(None)
            while True:
                try:
                    received = self.progress.received_bytes
                    if self._follow():
                        return self.progress
                except (RemotingError, MQBrokerError) as error:
                    if once or not tells_nothing(error):
                        raise
                    failures = 0 if self.progress.received_bytes > received else failures + 1
                    wait_s = RECONNECTS.wait_s(failures)
                    _LOG.warning("%s: %s; trying again in %.1f s", self._root, error, wait_s)
                    self._progress(is_connected=False)
                    self._publish_state(is_connected=False, reason=str(error))
                    if self._should_stop(wait_s):
                        return self.progress
        finally:
            with contextlib.ExitStack() as ends:
                ends.callback(self._feeder.close)
                if self._store is not None:
                    ends.callback(self._store.close)
                    ends.callback(self._publish_state, is_connected=False, reason="the feeder has ended")
                if self._questions is not None:
                    ends.callback(self._questions.close)

    # -- one connection -----------------------------------------------------------------------------------------------

    def _follow(self) -> bool:
        """One connection; True: the process is to end."""
        settings = self._master.look()
        if self._store is None and self._start == "newest-segment":
            with self._connected(settings, FROM_LAST_SEGMENT) as connection:
                return self._receive(connection, settings, None)
        ends = self._master.log_ends()
        if self._store is None:
            self._make(settings, ends.start)
        self._refuse_other(settings)
        self._refuse_diverged(ends)
        self._now_at(settings)
        self._ask(first=ends.end)
        begin = self._begin(ends)
        if begin is None:
            return True
        with self._connected(settings, begin or FROM_START) as connection:
            return self._receive(connection, settings, begin or FROM_START)

    def _begin(self, ends: LogEnds) -> int | None:
        """The offset where the master is to begin; waits until there is such an offset. None: the process is to end."""
        log = self._opened()._log
        while (found := overlap_start(log, self._settled.end, ends.start)) is None:
            self._settled.note(log.writing_page.appended_end)
            if self._should_stop(WAIT_S):
                return None
        return found

    def _connected(self, settings: MasterSettings, begin: int) -> HAConnection:
        self._vouched_end = 0
        return HAConnection(
            settings.ha_address, self._master.settings, begin,
            partial(self._durable_end, begin) if self._as_slave else lambda: begin, prompt=self._as_slave,
            tls=settings.ha_tls,
        )  # fmt: skip

    def _receive(self, connection: HAConnection, settings: MasterSettings, begin: int | None) -> bool:
        """Feed what comes on a connection; True: the process is to end. `begin` None: as the master says."""
        feed = None if begin is None else self._feed(begin)
        self._publish_state(is_connected=True)
        try:
            while True:
                wait_s, gathered, is_silent, at_end = self._wait_s(), 0, True, False
                while gathered < GATHERED_BYTES:
                    before = gathered
                    for offset, data in connection.transfers(wait_s):
                        is_silent = False
                        if feed is None:
                            self._make(settings, offset)
                            self._ask()
                            self._publish_state(is_connected=True)
                            feed = self._feed(offset)
                        at_end = not len(data)
                        if at_end and offset != feed.position:
                            raise MasterTransferError(
                                f"{connection.address} will send from {offset} on, but {feed.position} comes next"
                            )
                        feed.take(offset, data)
                        gathered += len(data)
                    if gathered == before:
                        break
                    wait_s = 0
                if gathered:
                    self._progress(received=gathered)
                if feed is not None:
                    self._publish(feed)
                    if self._once and self._has_target(feed, at_end=at_end):
                        return True
                    if at_end and (feed.holds_back or feed.waits) and feed.position > FROM_START:
                        # The master has no more of what has begun: it must not keep the lock.
                        feed.abort()
                        if self._should_stop(RECONNECTS.max_ms / 1000):
                            return True
                        raise RemotingError(f"{connection.address}: the log ends inside a record or a unit at {offset}")
                if self._should_stop(0):
                    return True
                if feed is None or not feed.holds_back:
                    self._chores_if_due()
                if is_silent and feed is not None:
                    self._progress()
        finally:
            if feed is not None:
                feed.abort()

    def _feed(self, begin: int) -> Feed:
        store = self._opened()
        feed = Feed(store._log, min(begin, store._log.writing_page.appended_end), self._master.broker_name)
        if feed.position < begin:  # FROM_START, of an empty replica
            feed.take(0, memoryview(b"\0"))
        self._fed = 0
        return feed

    def _publish(self, feed: Feed) -> None:
        log = self._opened()._log
        feed.publish()
        self._settled.note(log.writing_page.appended_end)
        if self._as_slave:
            # Bytes that this master has not sent again may be other ones, which it would take for its own.
            self._vouched_end = min(flush_and_vouch(log), feed.position)
        self._progress(messages=feed.messages - self._fed)
        self._fed = feed.messages
        if self._metadata is not None and not feed.holds_back:
            self._metadata.write_offsets(log.writing_page.appended_end)

    def _has_target(self, feed: Feed, *, at_end: bool) -> bool:
        """Whether a run that stops has what the master had at the start: half a unit at its end never becomes more."""
        if self._target is None:  # its tables belong to the copy
            return False
        end = self._opened()._log.writing_page.appended_end
        return end >= self._target or (at_end and feed.holds_back and feed.position >= self._target)

    # -- the replica --------------------------------------------------------------------------------------------------

    def _make(self, settings: MasterSettings, first_offset: int) -> None:
        size = settings.config.mapped_file_size_commit_log
        if first_offset % size:
            raise MasterTransferError(
                f"broker {settings.broker} begins at {first_offset}, inside a segment of {size} bytes: no broker opens "
                "a log that does"
            )
        by_name = ";".join(self._master.settings.name_servers) if self._master.is_by_name else ""
        role = ReplicaRole(
            settings.cluster, settings.broker, by_name, self._master.address(), settings.ha_address, self._start,
            first_offset,
        )  # fmt: skip
        make_directory(self._root)
        self._open((role, settings))

    def _open(self, made_of: tuple[ReplicaRole, MasterSettings] | None) -> None:
        if made_of is None or not self._feeder.feeds(self._root):
            self._feeder.take()
        new = None if made_of is None else (made_of[0], made_of[1].config)
        self._store = store = open_replica(self._root, self._feeder, new)
        self._metadata = MetadataCopy(
            self._root, self._master, flush_log=lambda: flush_and_vouch(store._log), commits=self._commits
        )
        self._questions = Questions(self._metadata)
        if self._settings:
            self._store.retention.configure(**self._settings)
        self.is_there.set()
        page = self._store._log.writing_page
        self.progress = replace(self.progress, start=page.appended_end, end=page.appended_end)

    def _now_at(self, settings: MasterSettings) -> None:
        """Keep where the master was found, if that is not where the replica says: who else asks it goes there."""
        role = self._opened().replica
        assert role is not None
        by_name = ";".join(self._master.settings.name_servers) if self._master.is_by_name else role.name_server
        found = replace(
            role, name_server=by_name, address=self._master.address(), ha_address=settings.ha_address
        )
        record_addresses(self._opened(), found)

    def _opened(self) -> Store:
        assert self._store is not None
        return self._store

    def _durable_end(self, begin: int) -> int:
        """The report of a slave: what is on disk, and was compared on this connection. Never less than its first
        report: a master reads the last of several that came together, and 0 there would let it begin with its last
        segment.
        """
        return max(begin, self._vouched_end)

    def _refuse_other(self, settings: MasterSettings) -> None:
        store = self._opened()
        role = store.replica
        assert role is not None
        if (role.cluster, role.broker) != (settings.cluster, settings.broker):
            raise UsageError(
                f"{self._root}: a replica of broker {role.broker!r} of cluster {role.cluster!r}, and not of "
                f"{settings.broker!r} of {settings.cluster!r}; name another directory"
            )
        size = settings.config.mapped_file_size_commit_log
        if store.config.mapped_file_size_commit_log != size:
            raise UsageError(
                f"{self._root}: segments of {store.config.mapped_file_size_commit_log} bytes; the master now has "
                f"mappedFileSizeCommitLog={size}"
            )

    def _refuse_diverged(self, ends: LogEnds) -> None:
        log, what = self._opened()._log, f"broker {self._master.broker_name}"
        start, end = log.start(), log.writing_page.appended_end
        advice = "Nothing was changed: `rmq follow --resync` keeps this replica aside, and begins a new one"
        if ends.end < end:
            raise ReplicaDivergedError(
                f"{self._root}: the log of {what} is shorter than the replica: it ends at {ends.end}, the replica at "
                f"{end}. It may have lost what it had not flushed, or is another broker. {advice}",
                (ends.end, end), (ends.start, ends.end),
            )  # fmt: skip
        if end < ends.start:
            raise ReplicaDivergedError(
                f"{self._root}: {what} has deleted what comes next, bytes {end} to {ends.start} of its log. {advice}",
                (start, end), (ends.start, ends.end),
            )  # fmt: skip

    # -- chores -------------------------------------------------------------------------------------------------------

    def _wait_s(self) -> float:
        """How long a look at the connection may wait: a run that stops waits for the first tables, too."""
        return TABLES_WAIT_S if self._once and self._target is None else WAIT_S

    def _ask(self, *, first: int = 0) -> None:
        """Begin to ask for the tables. A new replica waits for them: they say which topics have no queues here."""
        assert self._questions is not None
        self._questions.begin()
        if not (self._root / CONFIG_DIRECTORY / TopicTable.file_name).exists():
            tables = self._questions.answer(wait=True)
            assert tables is not None
            self._chores(tables)
        elif first:
            self._progress(master_end=first)

    def _chores_if_due(self) -> None:
        questions = self._questions
        if questions is None:
            return
        if not questions.are_asked and real_time.monotonic() >= self._chores_at:
            questions.begin()
        try:
            tables = questions.answer()
        except (RemotingError, MQBrokerError) as error:
            if not error.retryable or (self._once and self._target is None):
                raise
            # The log comes over another connection, which says itself when it ends.
            _LOG.warning("%s: topics, groups and offsets stay as they are: %s", self._root, error)
            self._chores_at = real_time.monotonic() + METADATA_S
            return
        if tables is not None:
            self._chores(tables)

    def _chores(self, tables: Tables) -> None:
        """Metadata of the master, the end of its log, and retention. Not while the feed holds something back."""
        assert self._metadata is not None
        log = self._opened()._log
        self._metadata.take(tables)
        log.views.elsewhere |= topics_with_batch_queues(self._root)
        if self._target is None:
            self._target = max(self._metadata.waiting_end or 0, tables.log_end)
        self._metadata.write_offsets(log.writing_page.appended_end)
        self._opened().retention.run()
        self._chores_at = real_time.monotonic() + METADATA_S
        self._progress(master_end=tables.log_end)
        self._state = replace(self._state, heard_ms=system_clock(), master_end=tables.log_end)
        self._publish_state()

    def _publish_state(self, *, is_connected: bool | None = None, reason: str = "") -> None:
        """Tell other processes; `is_connected` None: as before."""
        if self._store is None:
            return
        page = self._store._log.writing_page
        changes: dict[str, Any] = {"newest_ms": page.store_timestamp, "mean_bytes": self.progress.mean_bytes}
        if is_connected is not None and (is_connected != self._state.is_connected or not self._state.changed_ms):
            changes |= {"is_connected": is_connected, "changed_ms": system_clock()}
        if is_connected is not None:
            changes["reason"] = reason
        self._state = replace(self._state, **changes)
        write_state(self._root, self._state)

    def _progress(
        self, *, received: int = 0, messages: int = 0, master_end: int = 0, is_connected: bool = True
    ) -> None:
        known = self.progress
        page = self._opened()._log.writing_page if self._store is not None else None
        end = page.appended_end if page is not None else 0
        master_end = max(master_end, known.master_end, end)
        is_behind = page is not None and master_end > end and page.store_timestamp > 0
        behind_ms = max(system_clock() - page.store_timestamp, 0) if page is not None and is_behind else 0
        self.progress = Progress(
            known.start, end, master_end, known.messages + messages, known.received_bytes + received, behind_ms,
            is_connected,
        )  # fmt: skip
        if not received and self._tell is not None:
            self._tell(self.progress)
