"""The metadata of a replica: the tables in `config/` of its master, which do not travel in the log (SlaveSynchronize).

    21, 201, 402     topics, with the queues of static ones; groups; their request modes      written at once
    43, 45, 60, 61   consumer offsets, delay offsets, progress and number of timers           wait for the log

Tables are written as a broker of the master's version writes them, each atomically, with the master's `dataVersion`.
An entry that was deleted at the master is deleted, and an offset that was reset goes back. (A slave of Java keeps
offsets that its master has removed.)

Offsets are read before the master is asked for the end of its log, so they lie below that end. They are written when
the replica's log has reached it: no group is ever ahead of the log. While they wait, no others are read. A newer end
would be later, and a replica that has much to catch up with would never have offsets.

A topic that is gone from the master's table is recorded as deleted (`deleted_topics`), as its messages are still in the
log. timercheck has the master's progress, and none of the files of its wheel: a broker that opens the replica reads the
timers again from their topic.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from rmq_store.broker.metadata.deleted_topics import record_deletion
from rmq_store.broker.metadata.entry_table import EntryTable
from rmq_store.broker.metadata.groups import GroupTable
from rmq_store.broker.metadata.json_table import ConfigFile, Table
from rmq_store.broker.metadata.offset_files import LMQ_OFFSETS, PLAIN_OFFSETS, OffsetFile
from rmq_store.broker.metadata.offsets import DelayOffsetTable
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.clock import system_clock
from rmq_store.errors import CorruptConfigError
from rmq_store.files.durable import make_directory, write_atomically
from rmq_store.format.tables.config_json import ConfigJsonError, Style, loads
from rmq_store.format.text.names import CONFIG_DIRECTORY
from rmq_store.kinds.topics import MAPPING
from rmq_store.protocol.errors import MQBrokerError, RemotingCommandError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.versions import V5_0_0
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import request_name
from rmq_store.remoting.questions.answer import Given, checked
from rmq_store.remoting.questions.groups import ask_group_configs
from rmq_store.remoting.questions.offsets import ask_commit, read_commit
from rmq_store.remoting.questions.tables import (
    ask_consumer_offsets,
    ask_delay_offsets,
    ask_request_modes,
    ask_timer_check_point,
    ask_timer_metrics,
    read_table,
)
from rmq_store.remoting.questions.topics import ask_topic_configs
from rmq_store.replica.slave_commits import Commit, SlaveCommits, goes_up, shown, tell_overwritten

_REQUEST_MODES: Final = "messageRequestModeMap"
_TIMER_CHECK_POINT: Final = struct.Struct(">7q")
_TIMER_FILE_BYTES: Final = 4096
_NEITHER_LOG_NOR_QUEUE: Final = 0, 0


class Master(Protocol):
    """The broker that is asked, by remoting."""

    @property
    def broker_name(self) -> str:
        """Its name."""

    def ask(self, command: RemotingCommand) -> Given:
        """The answer with any code, or the error in its place."""

    def log_end(self) -> int:
        """The end of its log now (28)."""


class _Checks(Protocol):
    """A table of `broker.metadata`."""

    def check(self, table: Table) -> None:
        """CorruptConfigError: it is no such table."""


class Offsets(NamedTuple):
    """Tables that wait for the log. `timers`: the content of timercheck. None: the master has no such table.
    `decided`: what was committed at this slave, and the master has decided: `consumer` has it, or its own.
    """

    consumer: Table | None
    delay: Table | None
    timers: bytes | None
    timer_metrics: Table | None
    decided: tuple[Commit, ...] = ()


class Tables(NamedTuple):
    """The answers of a master. `log_end`: of its log, asked for last. `style`: how it writes its own files. `modes`:
    None if it has no such table; `offsets`: None if it was not asked for them.
    """

    log_end: int
    style: Style
    topics: Table
    groups: Table
    modes: Table | None
    offsets: Offsets | None


class _Waiting(NamedTuple):
    log_end: int
    style: Style
    offsets: Offsets


class _Questioned:
    """A master that is asked until it is over."""

    def __init__(self, master: Master, is_over: Callable[[], bool]) -> None:
        self._master = master
        self._is_over = is_over
        self.broker_name = master.broker_name

    def ask(self, command: RemotingCommand) -> Given:
        self._go_on()
        return self._master.ask(command)

    def log_end(self) -> int:
        self._go_on()
        return self._master.log_end()

    def _go_on(self) -> None:
        if self._is_over():
            raise RemotingError(f"broker {self.broker_name} is not asked any more: the follower ends")


class MetadataCopy:
    """The metadata of the replica at `root`, of which only its feeder changes anything. Another thread may `ask` while
    this one feeds; all else belongs to one thread.

    `flush_log` puts the log on disk, before offsets are that lie below its end: a power cut takes no message of a group
    that has committed it. So a later boot must know that the log is on disk (`flush_and_vouch`). `commits`: the offsets
    that groups have committed here while the master was away; the master is told of them.
    """

    def __init__(
        self,
        root: Path,
        master: Master,
        *,
        flush_log: Callable[[], object] = lambda: None,
        commits: SlaveCommits | None = None,
        clock: Callable[[], int] = system_clock,
    ) -> None:
        self._root = root
        self._commits = commits
        self._master = master
        self._flush_log = flush_log
        self._clock = clock
        self._waiting: _Waiting | None = None
        self.written_end: int | None = None
        """The end of the master's log as of which the offsets are; None: this process has written none."""

    @property
    def waiting_end(self) -> int | None:
        """The end of the log that read offsets wait for; None: none wait."""
        return None if self._waiting is None else self._waiting.log_end

    def ask(self, is_over: Callable[[], bool] = lambda: False) -> Tables:
        """Ask the master for everything, in any thread; nothing is written. Offsets are asked for only if none wait.
        `is_over`: looked at before each question; True: it is not asked any more.

        Raises:
            MQBrokerError: the master refuses a question, as for want of rights.
            RemotingError: it does not answer, or with something that is no such table; or it is over.
        """
        asked = _Questioned(self._master, is_over)
        topics, style = _required(asked, ask_topic_configs(), self._topics())
        groups, _ = _required(asked, ask_group_configs(), GroupTable(self._root))
        modes = _optional(asked, ask_request_modes(), _REQUEST_MODES)
        offsets = self._ask_offsets(asked) if self._waiting is None else None
        return Tables(asked.log_end(), style, topics, groups, modes, offsets)

    def take(self, tables: Tables) -> None:
        """Topics, groups and request modes are durable on return; offsets wait for `write_offsets`.

        Raises:
            StoreLockedError, StoreFullError, StoreFailedError: as `ConfigFile.replace`.
        """
        self._write_topics(tables.topics, tables.style, tables.log_end)
        self._file(GroupTable.file_name).replace(tables.groups, tables.style)
        if tables.modes is not None:
            self._file("messageRequestMode.json").replace(_only(tables.modes, _REQUEST_MODES), tables.style)
        if tables.offsets is not None:
            self._waiting = _Waiting(tables.log_end, tables.style, tables.offsets)

    def write_offsets(self, log_end: int) -> bool:
        """Write the offsets that wait, if the replica's log, which ends at `log_end`, has reached their end. True: they
        are durable. Raises as `ConfigFile.replace`.
        """
        waiting = self._waiting
        if waiting is None or log_end < waiting.log_end:
            return False
        self._flush_log()
        offsets = waiting.offsets
        if offsets.consumer is not None:
            self._forget_decided(offsets.decided, offsets.consumer)
            self._write_consumer_offsets(offsets.consumer, waiting.style)
        if offsets.delay is not None:
            self._file("delayOffset.json").replace(offsets.delay, waiting.style)
        if offsets.timer_metrics is not None:
            self._file("timermetrics").replace(offsets.timer_metrics, "compact")
        if offsets.timers is not None:
            self._write_timer_check_point(offsets.timers)
        self._waiting, self.written_end = None, waiting.log_end
        return True

    # -- topics -----------------------------------------------------------------------------------------------------

    def _write_topics(self, table: Table, style: Style, log_end: int) -> None:
        gone = self._known_topics() - table[TopicTable.part].keys()
        if gone:  # first: a death in between leaves a topic that is in both, and that counts as there
            record_deletion(self._root, gone, log_end)
        self._file(TopicTable.file_name).replace(_only(table, "dataVersion", TopicTable.part), style)
        static = table.get("topicQueueMappingDetailMap")
        if static or (self._root / MAPPING).exists():
            version = table.get("mappingDataVersion")
            mapping = {"dataVersion": version, "topicQueueMappingInfoMap": static or {}}
            self._file(Path(MAPPING).name).replace(mapping, style)

    def _known_topics(self) -> set[str]:
        try:
            return {*self._topics().all()}
        except CorruptConfigError:  # it is about to be replaced by the master's
            return set()

    def _topics(self) -> TopicTable:
        return TopicTable(self._root, clock=self._clock)

    # -- offsets ----------------------------------------------------------------------------------------------------

    def _ask_offsets(self, asked: _Questioned) -> Offsets:
        file = OffsetFile(self._root, PLAIN_OFFSETS)
        consumer = _optional(asked, ask_consumer_offsets(), OffsetFile.part, file)
        decided = () if consumer is None else self._bring_up(asked, file, consumer)
        return Offsets(
            consumer,
            _optional(asked, ask_delay_offsets(), DelayOffsetTable.part, DelayOffsetTable(self._root)),
            _timer_check_point(asked),
            _optional(asked, ask_timer_metrics(), "timingCount"),
            decided,
        )

    def _bring_up(self, asked: _Questioned, file: OffsetFile, table: Table) -> tuple[Commit, ...]:
        """Tell the master what was committed here, where that counts, and put it into its `table`. Returns what is
        decided.
        """
        pending = self._commits.pending() if self._commits is not None else []
        at_master = file.groups(table) if pending else {}
        for commit in pending:
            if not goes_up(commit, at_master):
                continue
            topic, queue_id = commit.queue
            queue = MessageQueue(topic, asked.broker_name, queue_id)
            there = shown(at_master.get(commit.group, {}).get(commit.queue, -1))
            try:
                command = ask_commit(_AsTheyAre(), commit.group, queue, commit.offset)
                stands = read_commit(asked.ask(command), asked.broker_name)
            except MQBrokerError as error:  # the group or the topic is not there any more, or may not be changed
                tell_overwritten(commit, f"the master has {there}, which counts: {error}")
                continue
            if stands:
                tell_overwritten(commit, f"the master had {there}, and has it now")
                file.put(table, commit.group, {commit.queue: commit.offset})
            else:
                tell_overwritten(commit, f"the master has {there}, which counts: a reset is pending there")
        return tuple(pending)

    def _forget_decided(self, decided: tuple[Commit, ...], table: Table) -> None:
        """Forget these. Offsets that were committed here since the master was asked stay, also in the table."""
        if self._commits is None:
            return
        self._commits.decided(decided)
        file = OffsetFile(self._root, PLAIN_OFFSETS)
        for commit in self._commits.pending():
            file.put(table, commit.group, {commit.queue: commit.offset})

    def _write_consumer_offsets(self, table: Table, style: Style) -> None:
        """A broker with enableLmq=true has one more member, and reads another file: the one that it does not read is
        emptied if it is there, as it would contradict the other.
        """
        is_lmq = "lmqOffsetTable" in table
        counts, other = (LMQ_OFFSETS, PLAIN_OFFSETS) if is_lmq else (PLAIN_OFFSETS, LMQ_OFFSETS)
        self._file(counts).replace(table, style)
        if OffsetFile(self._root, other).exists():
            self._file(other).replace({OffsetFile.part: {}}, style)

    def _write_timer_check_point(self, content: bytes) -> None:
        make_directory(self._root / CONFIG_DIRECTORY)
        write_atomically(self._root / CONFIG_DIRECTORY / "timercheck", content)

    def _file(self, name: str) -> ConfigFile:
        return ConfigFile(self._root, name, clock=self._clock)


class _AsTheyAre:
    """Names of a replica are those on the wire."""

    def wire_topic(self, topic: str) -> str:
        return topic

    def wire_group(self, group: str) -> str:
        return group


# -- answers ----------------------------------------------------------------------------------------------------------


def _required(asked: _Questioned, command: RemotingCommand, table: EntryTable[Any]) -> tuple[Table, Style]:
    """The content of the table that every master has, and how the master writes its own files."""
    answer = checked(asked.ask(command), asked.broker_name)
    content = _decoded(asked, command, bytes(answer.body), table.part, table)
    return content, "4.x" if answer.version < V5_0_0 else "5.x"


def _optional(asked: _Questioned, command: RemotingCommand, part: str, table: _Checks | None = None) -> Table | None:
    """The content of a table; None: this master has none."""
    body = read_table(asked.ask(command), asked.broker_name)
    return None if body is None else _decoded(asked, command, body, part, table)


def _timer_check_point(asked: _Questioned) -> bytes | None:
    command = ask_timer_check_point()
    body = read_table(asked.ask(command), asked.broker_name)
    if body is None:
        return None
    if len(body) < _TIMER_CHECK_POINT.size:
        raise _no_table(asked, command, f"{len(body)} bytes, not {_TIMER_CHECK_POINT.size}")
    read_ms, _, _, queue_offset, *version = _TIMER_CHECK_POINT.unpack_from(body)
    content = _TIMER_CHECK_POINT.pack(read_ms, *_NEITHER_LOG_NOR_QUEUE, queue_offset, *version)
    return content.ljust(_TIMER_FILE_BYTES, b"\0")


def _decoded(asked: _Questioned, command: RemotingCommand, body: bytes, part: str, table: _Checks | None) -> Table:
    try:
        content = loads(body)
        if not isinstance(content.get(part), dict):
            raise _no_table(asked, command, f"{part} is not an object")
        if table is not None:
            table.check(content)
    except ConfigJsonError as error:
        raise _no_table(asked, command, str(error)) from error
    except CorruptConfigError as error:  # it names the file that the table would be
        raise _no_table(asked, command, error.reason) from error
    return content


def _no_table(asked: _Questioned, command: RemotingCommand, reason: str) -> RemotingCommandError:
    return RemotingCommandError(
        f"broker {asked.broker_name} answered {request_name(command.code)} with no such table: {reason}"
    )


def _only(table: Table, *names: str) -> Table:
    """The members that a broker's file has, of an answer that may have others."""
    return {name: table[name] for name in names if table.get(name) is not None}

