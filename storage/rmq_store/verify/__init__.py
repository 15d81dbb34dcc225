"""Check a whole store against itself in one pass over the log; nothing is written. Control plane.

The verifier uses only the standard library (struct, zlib, mmap, os, json, ...), and of the engine only its errors. A
checker made from the engine's classes could not detect a mistake that writer and reader share. The verifier compares
queue and index entries during the scan of the log. So memory holds a few counters per queue and one slot table, never
an object per message.

    files     bytes of files, and their unreadable ranges
    segments  the files of the log, by name and size
    tables    whether the store can be opened with config/ and store.json
    records   whether bytes are a record, and the entries that queues and index must have for it
    queues    consume queues <-> log
    index     hash index files <-> log
    concurrent_changes
              which findings count for a store that others change during the check
    known     the log's end as writers publish it, the accepted damage, and whether a repair was completed
    report    which findings are damage, and which are traces of an unclean stop
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from rmq_store import kinds
from rmq_store.errors import NotAStoreError, StoreFailedError, UsageError

from .concurrent_changes import check
from .files import Bytes
from .index import IndexCheck
from .known import REBUILD_FILE, BadRange, accepted_damage_ranges, is_in_repair
from .queues import NoQueues, QueueCheck
from .records import MAGIC_START, Frame, read_frame
from .report import FINDINGS_KEPT, Ledger, Problem, Report
from .segments import find_segments
from .tables import check_tables, topics_with_batch_queues

__all__ = ["BadRange", "Problem", "Report", "verify_store"]

PROGRESS_EVERY_RECORDS = 4096


def verify_store(root: str | Path, progress: Callable[[int, int, int], None] | None = None) -> Report:
    """Check the store at `root`, and return counts and findings.

    Args:
        root: the store's directory; others may open, write, close or repair it meanwhile. While it is open for writing
            the report is at best "unclean", and does not cover messages that are appended meanwhile. Findings that a
            change during the check may explain are checked again.
        progress: called now and then with (messages, bytes of the log done, bytes of the log in all).

    Raises:
        NotAStoreError: there is no `commitlog/` below `root`. StoreKindError: the log is missing, or it is a
            DLedger log.
        UsageError: this user may not read a file or a directory; nothing is known of the store.
        StoreFailedError: the disk cannot read a directory; files that cannot be read are findings.
    """
    path, tell = Path(root), progress or (lambda messages, done_bytes, total_bytes: None)
    try:
        kinds.refuse_to_check(path)
        if not (path / "commitlog").is_dir():
            raise NotAStoreError(str(path), f"not a store: it has no commitlog directory{kinds.store_nearby(path)}")
        return check(path, lambda: _Scan(Ledger(path), tell).run())
    except PermissionError as error:
        text = f"{error.filename or path}: cannot be read: {error.strerror}; check the store as the user it belongs to"
        raise UsageError(text) from error
    except OSError as error:
        raise StoreFailedError(f"{error.filename or path}: cannot be read: {error.strerror or error}") from error


class _Scan:
    """The pass over the log that feeds the checks of the views."""

    def __init__(self, ledger: Ledger, progress: Callable[[int, int, int], None]) -> None:
        self.ledger, self.report, self.progress = ledger, ledger.report, progress
        self.segments, self.report.log_start, self.segment_bytes = find_segments(ledger)
        self.report.log_end = self.report.log_start
        self.flushed_end, self.crc_from, _ = ledger.progress
        # In this order, while others write: what is below an end that was read before is in the files behind it.
        self.limit = ledger.end
        self.queues = QueueCheck(ledger) if kinds.queues_are_in(ledger.root) != "RocksDB" else NoQueues(ledger)
        self.elsewhere = topics_with_batch_queues(ledger.root)
        self.index = IndexCheck(ledger, self.segments)
        self.newest_ms = 0
        self.accepted: list[BadRange] = []

    def run(self) -> Report:
        if self.ledger.has_abort:
            self.report.recovery.append("`abort` exists: the store is open now or was not closed")
        if is_in_repair(self.ledger.root):
            text = "the store is in the middle of a repair: the next writer ends it, until then nobody can only read"
            self.report.recovery.append(f"{REBUILD_FILE}: {text}")
        self.report.not_looked_at += [
            f"{seen.path}: {seen.kind.unchecked}" for seen in kinds.find_kinds(self.ledger.root) if seen.kind.unchecked
        ]
        check_tables(self.ledger)
        self._read_accepted_damage()
        for number, (base, path) in enumerate(self.segments):
            if self.limit is not None and base >= self.limit:
                self._pass_over_missing(self.limit)
                self._check_behind(number - 1)
                break
            log = self.ledger.map_once(path)  # not kept: one segment at a time is in memory
            start = self._pass_over_missing(base)
            self._check_size(base, path, len(log))
            if not self._scan_segment(number, base, path, log, start - base):
                self._check_behind(number)
                break
        self.report.log_end = self._skip(self.report.log_end)
        self._check_flushed_end()
        self.queues.finish()
        self.index.finish()
        self.ledger.name_lost()
        return self.report

    def _scan_segment(self, number: int, base: int, path: str, log: Bytes, position: int) -> bool:
        """Scan one segment from `position` on; False if the log ends in it."""
        records = 0
        while position < len(log):
            if self.limit is not None and base + position >= self.limit:
                return False
            item = read_frame(log, position, base, self.crc_from)
            if isinstance(item, Frame):
                self._message(path, position, base + position, item)
                position += item.size
            elif isinstance(item, int):
                self.report.blanks += 1
                position += item
            elif (known := self._skip(base + position)) > base + position:
                position = min(known - base, len(log))
            else:
                behind = self._next_record(log, position + 1, base)
                if self.ledger.unclean and not isinstance(read_frame(log, position, base, self.crc_from), str):
                    continue  # a writer has finished it since
                in_log = self.limit is not None and base + position < self.limit
                if behind is None and not in_log and self._is_last(number):
                    self._tail(path, log, position, item)
                    return False
                stop = len(log) if behind is None else behind
                if in_log and self.limit is not None:
                    stop = min(stop, self.limit - base)
                text = f"{item}; {stop - position} bytes are no record"
                self.ledger.bad_range(BadRange(path, base + position, base + stop, text), base)
                position = stop
            self.report.log_end = base + position
            records += 1
            if records % PROGRESS_EVERY_RECORDS == 0:
                self._report_progress(number, position)
        self._report_progress(number, position)
        return True

    def _check_size(self, base: int, path: str, size_bytes: int) -> None:
        if size_bytes != self.segment_bytes or (base - self.report.log_start) % self.segment_bytes:
            text = f"{size_bytes} bytes in a file named {base}, segments of this store have {self.segment_bytes}"
            self.ledger.problem(path, 0, text)

    def _check_behind(self, number: int) -> None:
        """Files after the log's end hold no records. But a file of a wrong size prevents every opening of the store."""
        for base, path in self.segments[number + 1 :]:
            try:
                size_bytes = (self.ledger.root / path).lstat().st_size
            except FileNotFoundError:  # the last closer has removed it
                continue
            self._check_size(base, path, size_bytes)

    def _check_flushed_end(self) -> None:
        """Report a lost end of the log: bytes that were on disk and are missing now, whatever queues and index still
        say.
        """
        end = self.report.log_end
        if end < self.flushed_end:
            base = end - end % self.segment_bytes if self.segment_bytes else 0
            bad = BadRange(f"commitlog/{base:020d}", end, self.flushed_end, "the log's end is lost: this was on disk")
            self.ledger.bad_range(bad, base)
            self.report.log_end = self.flushed_end

    def _skip(self, offset: int) -> int:
        """The offset at which the log continues if accepted damage begins at `offset`; such damage is not reported
        again.
        """
        for bad in self.accepted:
            if bad.start == offset:
                self.report.kept.append(bad)
                self.ledger.bad_ranges.append((bad.start, bad.end))
                offset = bad.end
        return offset

    def _read_accepted_damage(self) -> None:
        accepted = accepted_damage_ranges(self.ledger.root)
        if isinstance(accepted, str):
            self.ledger.problem("pyrmq/kept.json", 0, accepted)
            return
        self.accepted = accepted
        # A lost file was found, say. A reader of one of its messages uses the list, and reports it lost.
        for bad in filter(self._is_whole, accepted):
            text = f"bytes {bad.start} to {bad.end} of the log are whole again: `rmq repair` takes them back"
            self.ledger.problem("pyrmq/kept.json", 0, text)

    def _is_whole(self, bad: BadRange) -> bool:
        """Whether an accepted range holds whole records again, from its first byte to its last."""
        for base, path in self.segments:
            if base <= bad.start < base + self.segment_bytes:
                log, position, item = self.ledger.map(path), bad.start - base, None
                while position < bad.end - base and not isinstance(item, str):
                    item = read_frame(log, position, base, self.crc_from)
                    position += item.size if isinstance(item, Frame) else item if isinstance(item, int) else 0
                return position == bad.end - base
        return False

    def _pass_over_missing(self, base: int) -> int:
        """Report missing segments before the one that starts at `base`; returns the offset at which the log continues
        in that one.
        """
        offset, reported = self.report.log_end, 0
        while offset < base:
            if (known := self._skip(offset)) > offset:
                offset = known
                continue
            segment = offset - offset % self.segment_bytes
            # One name that is far off may make any number of them.
            end = min(segment + self.segment_bytes, base) if reported < FINDINGS_KEPT else base
            path = f"commitlog/{segment:020d}"
            if os.path.lexists(self.ledger.root / path):
                self.ledger.bad_ranges.append((offset, end))  # it is too short, or no file, and reported
            else:
                self.ledger.bad_range(BadRange(path, offset, end, "the segment is missing"), offset)
            offset, reported = end, reported + 1
        self.report.log_end = offset
        return offset

    def _report_progress(self, number: int, position: int) -> None:
        done_bytes = number * self.segment_bytes + position
        self.progress(self.report.messages, done_bytes, len(self.segments) * self.segment_bytes)

    def _message(self, path: str, position: int, log_offset: int, frame: Frame) -> None:
        self.report.messages += 1
        self.report.messages_with_crc += frame.has_crc
        # NOT and COMMIT are dispatched; inner batches (0x80) go to batchconsumequeue/, which is not checked.
        if frame.queue[0] in self.elsewhere:
            pass  # its queue is said to be not looked at
        elif frame.flags & 0xC in (0x4, 0xC):
            self.queues.check_flagged(log_offset, frame, "part of a transaction")
        elif frame.flags & 0x80:
            self.queues.check_flagged(log_offset, frame, "a batch")
        else:
            self.queues.check(path, position, log_offset, frame)
        self.index.check(log_offset, frame)
        self.newest_ms = frame.store_ms

    def _is_last(self, number: int) -> bool:
        """Whether no later segment begins with a record."""
        later = (read_frame(self.ledger.map(path), 0, base) for base, path in self.segments[number + 1 :])
        return all(isinstance(item, str) for item in later)

    def _next_record(self, log: Bytes, start: int, base: int) -> int | None:
        """The next record after bad bytes. A record older than the last good one does not count: Java truncates without
        erasing.
        """
        found = log.find(MAGIC_START, start + 4)
        while found != -1:
            item = read_frame(log, found - 4, base, self.crc_from)
            if isinstance(item, Frame) and item.store_ms >= self.newest_ms:
                return found - 4
            found = log.find(MAGIC_START, found + 1)
        return None

    def _tail(self, path: str, log: Bytes, position: int, reason: str) -> None:
        """Judge the bytes at the log's end: zeros, a record that is not whole, or remains of an older truncation."""
        head = log[position : position + 36]
        own_offset = (self.report.log_end or -1).to_bytes(8, "big", signed=True)
        if head[4:7] == MAGIC_START or head[28:36] == own_offset:
            size_bytes = len(bytes(log[position:]).rstrip(b"\0"))
            self.ledger.repairable(path, position, f"the last record is not whole: {reason}", size_bytes)
        elif any(head[:8]):
            self.report.notes.append(f"{path}: old bytes behind the log's end at byte {position}")
