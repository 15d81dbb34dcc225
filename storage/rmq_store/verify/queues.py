"""Consume queues against the log, in both directions, with a few counters per queue.

The check reads the queue entry of every message, and expects the next queue offset of its queue. So after the scan all
entries in [first message, next offset) are checked. Only the entries outside of that range are read one by one.

Source of the rules: ConsumeQueue#putMessagePositionInfo, #fillPreBlank, #correctMinOffset.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rmq_store.kinds import is_rocksdb_file

from .ext import ExtUnits
from .files import numbered_files, other_kind
from .records import MESSAGE_SIZE_MIN_BYTES, SCHEDULE_TOPIC, Frame, delay_of, tags_code_is_right
from .report import FINDINGS_KEPT, Ledger, Problem
from .tables import check_unlisted, configured_topics

ENTRY = struct.Struct(">qiq")  # log offset, size, tags code
NO_ENTRY = (0, 0, 0)
DELAYS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)  # MessageStoreConfig
PRE_BLANK = 0x7FFFFFFF  # the size of the units in front of the first entry of a queue that began above 0

# TopicValidator.java, MixAll.java; a light message queue has the name of a topic behind its prefix.
TOPIC_NAME = re.compile(
    r"(%LMQ%)?(%RETRY%[%|a-zA-Z0-9_+-]{1,248}|%DLQ%[%|a-zA-Z0-9_-]{1,248}|[%|a-zA-Z0-9_-]{1,127})", re.ASCII
)
FILE_NAME = re.compile(r"[0-9]{20}", re.ASCII)


def _is_directory(path: Path) -> bool:
    return other_kind(path) == "a directory"


def _is_topic(name: str) -> bool:
    return TOPIC_NAME.fullmatch(name) is not None


@dataclass(slots=True)
class _Tally:
    """The first of several findings of one kind, and their count."""

    first: Problem | None = None
    count: int = 0

    def add(self, finding: Problem | None, count: int = 1) -> None:
        self.first, self.count = self.first or finding, self.count + count


@dataclass(slots=True)
class _Queue:
    """`size`: bytes of one file; [first, end): bytes of all files. `next`: the queue offset expected after the message
    at `newest`, an offset of the log. `flagged_end`: queue offsets in [next, flagged_end) belong to records that are
    messages of no queue. `jumps`: queue offsets of a broker's messages that do not follow the previous one, each with
    its finding. The finding counts unless a later message of the log begins at or below these offsets.
    """

    path: str
    size: int = 0
    first: int = 0
    end: int = 0
    next: int | None = None
    newest: int = -1
    flagged_end: int = -1
    wrong: _Tally = field(default_factory=_Tally)
    missing: _Tally = field(default_factory=_Tally)
    jumps: list[tuple[int, Problem]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """<topic>-<queue id>."""
        return "-".join(self.path.partition("/")[2].rsplit("/", 1))


class NoQueues:
    """Replaces `QueueCheck` for a store that keeps its queues elsewhere: it checks none."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def check(self, path: str, position: int, log_offset: int, frame: Frame) -> None:
        """As `QueueCheck.check`."""

    def check_flagged(self, log_offset: int, frame: Frame, flag: str) -> None:
        """As `QueueCheck.check_flagged`."""

    def finish(self) -> None:
        """As `QueueCheck.finish`."""


class QueueCheck:
    """Compares the queues with the log. Call `check` with every message that belongs in a queue, in log order; then
    `finish`.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.ends = ledger.table.ends  # older than the files that are listed: queues only grow
        self.queues = dict(self._list())
        self.ext = ExtUnits(ledger)
        self.delays: dict[int, int] = {}  # by delay level, that of its newest message, ms

    def _report_foreign(self, root: Path) -> None:
        """Report names below `consumequeue/` that a broker does not create. A broker refuses to load a store with some
        of them.
        """
        for topic in sorted(root.iterdir()):
            if is_rocksdb_file(topic.name) and not _is_directory(topic):
                continue  # said to be not looked at
            if not _is_directory(topic) or not _is_topic(topic.name):
                self._foreign(topic, "no directory of a topic")
                continue
            for queue in sorted(topic.iterdir()):
                if not _is_directory(queue) or not (queue.name.isascii() and queue.name.isdigit()):
                    self._foreign(queue, "no directory of a queue")
                    continue
                for file in queue.iterdir():
                    kind = other_kind(file)
                    if kind or not FILE_NAME.fullmatch(file.name):
                        self._foreign(file, f"no file of a queue{kind and f', but {kind}'}")

    def _foreign(self, path: Path, text: str) -> None:
        self.ledger.problem(path.relative_to(self.ledger.root).as_posix(), 0, text)

    def _list(self) -> Iterator[tuple[tuple[bytes, int], _Queue]]:
        root = self.ledger.root / "consumequeue"
        if root.is_dir():
            self._report_foreign(root)
        topics = sorted(filter(_is_directory, root.iterdir())) if root.is_dir() else []
        for directory in (path for topic in topics for path in sorted(topic.iterdir())):
            is_queue = _is_directory(directory) and directory.name.isascii() and directory.name.isdigit()
            if is_queue and not directory.parent.name.startswith("%LMQ%"):  # second entries of other topics' messages
                files = numbered_files(directory)
                path = directory.relative_to(self.ledger.root).as_posix()
                size, first = (files[0].stat().st_size, int(files[0].name)) if files else (0, 0)
                if size % ENTRY.size or any(int(f.name) != first + i * size for i, f in enumerate(files)):
                    self.ledger.problem(path, 0, "the files of this queue do not follow each other")
                queue = _Queue(path, size, first, first + size * len(files))
                yield (directory.parent.name.encode(errors="surrogateescape"), int(directory.name)), queue

    def _entry(self, queue: _Queue, queue_offset: int) -> tuple[str, int, tuple[int, int, int]]:
        """File, byte position and value of an entry; NO_ENTRY if it does not exist."""
        byte = queue_offset * ENTRY.size
        base = byte // queue.size * queue.size if queue.size else 0
        path, position = f"{queue.path}/{base:020d}", byte - base
        if not queue.first <= byte < queue.end or position + ENTRY.size > len(self.ledger.map(path)):
            return path, position, NO_ENTRY
        log_offset, size, tags_code = ENTRY.unpack_from(self.ledger.map(path), position)
        return path, position, (log_offset, size, tags_code)

    def check(self, path: str, position: int, log_offset: int, frame: Frame) -> None:
        """Compare one message, found at `position` of the segment `path`, with its queue entry."""
        topic, queue_id = frame.queue
        queue = self.queues.get(frame.queue)
        if queue is None:
            name = f"consumequeue/{topic.decode(errors='backslashreplace')}/{queue_id}"
            queue = self.queues[frame.queue] = _Queue(name)
        where, at, entry = self._entry(queue, frame.queue_offset)
        code = self.ext.tags_code(queue.path, entry[2], frame.store_ms)
        good = entry[:2] == (log_offset, frame.size) and tags_code_is_right(frame, code)
        if good and (delay_ms := delay_of(frame, code)):
            self.delays[queue_id + 1] = delay_ms
        if frame.queue_offset != queue.next:
            self._jump(path, position, log_offset, frame, queue, good)
        if good:
            queue.wrong.add(queue.missing.first, queue.missing.count)  # a hole, not a queue that lags behind
            queue.missing = _Tally()
            self.ledger.report.queue_entries += 1
        elif entry == NO_ENTRY:
            text = f"{queue.name}: no entry for queue offset {frame.queue_offset}, log offset {log_offset}"
            queue.missing.add(Problem(where, at, text, at + ENTRY.size))
        else:
            expected = f"({log_offset}, {frame.size}, tags code of {frame.properties.get(b'TAGS', b'')!r})"
            text = f"{queue.name}: queue offset {frame.queue_offset} holds {entry}, expected {expected}"
            queue.wrong.add(Problem(where, at, text, at + ENTRY.size))
        if good or queue.next is None or frame.queue_offset == queue.next:
            queue.next, queue.newest = frame.queue_offset + 1, log_offset

    def check_flagged(self, log_offset: int, frame: Frame, flag: str) -> None:
        """Count a record that belongs in no queue but has a queue offset. Brokers store a transaction's half and rolled
        back messages with queue offset 0. No queue can be built without that offset, and the record is whole. So the
        offset counts as used, with or without an entry.
        """
        queue, number = self.queues.get(frame.queue), frame.queue_offset
        if queue is None:
            return
        expected = queue.first // ENTRY.size if queue.next is None else queue.next
        entry = self._entry(queue, number)[2]
        is_own, is_none = entry[:2] == (log_offset, frame.size), number > 0 and entry[1] < MESSAGE_SIZE_MIN_BYTES
        if number == max(expected, queue.flagged_end) and (is_own or is_none):
            queue.flagged_end = number + 1
            if len(self.ledger.report.notes) < FINDINGS_KEPT:
                text = f"message {number} is flagged as {flag}, which brokers put in no such queue"
                self.ledger.report.notes.append(f"{queue.path}: {text}")

    def _newest(self) -> dict[bytes, int]:
        """By topic with entries: the log offset of its newest message. If retention deleted the message, the entry
        supplies the offset.
        """
        newest: dict[bytes, int] = {}
        for (topic, _), queue in self.queues.items():
            first = self._entry(queue, queue.first // ENTRY.size)[2]
            at = queue.newest if queue.newest >= 0 or first[1] <= 0 else first[0]
            if queue.size and at >= 0:
                newest[topic] = max(at, newest.get(topic, 0))
        return newest

    def _jump(self, path: str, position: int, log_offset: int, frame: Frame, queue: _Queue, good: bool) -> None:
        """Judge a queue offset that does not follow the previous one: retention, lost records, new topic, or damage."""
        falls_back = queue.next is not None and frame.queue_offset < queue.next and good
        if queue.next is not None and falls_back and not self.ledger.is_ours(queue.newest):
            # A broker has deleted the topic, and it was made again, or another replica went on: older messages keep
            # their offsets, their entries are gone. Ours gives no queue offset twice; there the queue's files were
            # lost.
            count = queue.next - frame.queue_offset
            self.ledger.report.notes.append(f"{queue.path}: {count} messages of an earlier topic of this name")
            queue.wrong, queue.missing = _Tally(), _Tally()
            queue.jumps = [(number, jump) for number, jump in queue.jumps if number < frame.queue_offset]
            return
        start = queue.first // ENTRY.size if queue.next is None else queue.next
        if start <= frame.queue_offset <= queue.flagged_end:
            return
        stop = min(frame.queue_offset, queue.end // ENTRY.size)
        explained = stop == frame.queue_offset or queue.next is None
        if start > frame.queue_offset or not (explained and all(self._unclaimed(queue, n) for n in range(start, stop))):
            again = ": the queue's files were lost, and it began anew" if good and frame.queue_offset == 0 else ""
            text = f"{queue.name}: queue offset {frame.queue_offset}, expected {start}{again}"
            if self.ledger.is_ours(log_offset):
                self.ledger.problem(path, position + 20, text, 8)
            elif len(queue.jumps) < FINDINGS_KEPT:
                queue.jumps.append((frame.queue_offset, Problem(path, position + 20, text, position + 28)))

    def _unclaimed(self, queue: _Queue, queue_offset: int) -> bool:
        """Judge an entry that no message claimed; True if it is correct or has been reported elsewhere."""
        path, position, (log_offset, size, _) = self._entry(queue, queue_offset)
        if size == PRE_BLANK:
            return True
        if size > 0 and self.ledger.is_gone(log_offset):
            self.ledger.note_lost(log_offset, f"message {queue_offset} of {queue.name}")
            return True
        if size > 0 or log_offset != 0:
            what = f"points at {log_offset}, which is no message of this queue"
            text = f"{queue.name}: queue offset {queue_offset} {what}"
            queue.wrong.add(Problem(path, position, text, position + ENTRY.size))
        return False

    def _tell_delays(self) -> None:
        """Report the delay levels of a broker's messages. No file holds a broker's messageDelayLevel; only its messages
        show it.
        """
        for level, delay_ms in sorted(self.delays.items()):
            if level > len(DELAYS_S) or delay_ms != DELAYS_S[level - 1] * 1000:
                text = f"messages of delay level {level} wait {delay_ms // 1000} s"
                self.ledger.report.notes.append(f"{text}, not as in RocketMQ's own messageDelayLevel")
        for (topic, queue_id), queue in sorted(self.queues.items()):
            if topic == SCHEDULE_TOPIC and queue.missing.count and queue_id + 1 not in self.delays:
                text = f"nothing tells how long messages of delay level {queue_id + 1} wait"
                assumed = "for those without an entry RocketMQ's delay will be assumed"
                self.ledger.report.notes.append(f"{queue.path}: {text}: {assumed}")

    def finish(self) -> None:
        """Judge entries after the last message, messages without entries, and the queue ends that the last close
        recorded.
        """
        for topic, queue_id in sorted(self.ends.keys() - self.queues.keys()):
            if not topic.startswith(b"%LMQ%"):  # as in `_list`
                self.queues[topic, queue_id] = _Queue(f"consumequeue/{topic.decode()}/{queue_id}")
        report, topics = self.ledger.report, configured_topics(self.ledger.root)
        self._tell_delays()
        report.queues = len(self.queues)
        check_unlisted(self.ledger, self._newest())
        for (topic, queue_id), queue in self.queues.items():
            offset = queue.first // ENTRY.size if queue.next is None else queue.next
            offset = max(offset, queue.flagged_end)
            for _, jump in queue.jumps:
                self.ledger.problem(*jump[:3], jump.end - jump.offset)
            ahead = _Tally()
            while (found := self._entry(queue, offset))[2][1] > 0:
                if self.ledger.is_new(found[2][0]):
                    break
                if found[2][0] >= report.log_end and found[2][1] != PRE_BLANK:
                    text = f"{queue.name}: queue offset {offset} points behind the log's end"
                    ahead.add(Problem(*found[:2], text, found[1] + ENTRY.size))
                else:
                    self._unclaimed(queue, offset)
                offset += 1
            if offset < (end := self.ends.get((topic, queue_id), 0)):
                what = f"the queue ends at queue offset {offset}, and went up to {end} when it was last closed"
                text = f"{queue.name}: {what}"
                self.ledger.repairable(queue.path, 0, text)
            # A broker deletes the queues with the topic, ours leaves them.
            is_deleted = topics is not None and topic not in topics and not self.ledger.is_ours(queue.newest)
            if queue.missing.count and queue.size == 0 and is_deleted:
                report.notes.append(f"{queue.path}: {queue.missing.count} messages of a topic that was deleted")
                queue.missing = _Tally()
            for tally, tell in (
                (queue.wrong, self.ledger.problem),
                (queue.missing, self.ledger.repairable),
                (ahead, self.ledger.repairable),
            ):
                if tally.first:
                    more = f" (and {tally.count - 1} more of this queue)" if tally.count > 1 else ""
                    tell(*tally.first[:2], tally.first.text + more, tally.first.end - tally.first.offset)
