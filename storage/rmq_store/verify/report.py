"""Counts and findings of a verification, and the one place that decides what counts as damage."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from .files import Bytes, map_file, other_kind
from .in_use import lock_use, settled_end
from .known import BadRange, progress_record, queue_table

FINDINGS_KEPT, MAPS_KEPT = 100, 256
LOG = "commitlog/"
LOST_NAMED = 5  # messages of one damaged range


class Problem(NamedTuple):
    """One contradiction: bytes [offset, end) of the file `path` (relative to the store); an empty range means the whole
    file.
    """

    path: str
    offset: int
    text: str
    end: int


@dataclass
class Report:
    """Counts and findings. Offsets of the log are bytes, half open; `problems` holds the first 100 of `problem_count`.

    problems    damage: bytes that contradict each other and that no crash explains, and everything that prevents an
                opening of the store. `bad_ranges`: the damage in the log, as offsets of the log; `damaged`: the
                number of problems by directory
    unreadable  bytes that the disk does not return, damage too; the check continues as if they were zeros
    kept        damage of the log that somebody accepted (on_corruption="keep", `rmq repair`)
    recovery    traces of an unclean stop, or of a killed repair (`abort`, views that do not reach the log's end or
                pass it, a torn last record); the next opening for writing repairs them
    notes       unusual but allowed: keys of a broker's messages that no index file covers, messages of a deleted
                topic
    not_looked_at   parts of the store that were not checked, because they are of another kind (docs/stores.md)
    """

    root: str
    log_start: int = 0
    log_end: int = 0
    messages: int = 0
    messages_with_crc: int = 0
    blanks: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_files: int = 0
    index_entries: int = 0
    unindexed_keys: int = 0
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list)
    damaged: dict[str, int] = field(default_factory=dict)
    bad_ranges: list[BadRange] = field(default_factory=list)
    unreadable: list[Problem] = field(default_factory=list)
    kept: list[BadRange] = field(default_factory=list)
    recovery: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_looked_at: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """`"damaged"`, else `"unclean"` (needs recovery), else `"kept"` (nothing but known damage), else `"clean"`."""
        if self.problem_count:
            return "damaged"
        return "unclean" if self.recovery else "kept" if self.kept else "clean"

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON, `status` included."""
        tables = ("problems", "bad_ranges", "unreadable", "kept")
        rows = {name: [row._asdict() for row in getattr(self, name)] for name in tables}
        return {"status": self.status, **asdict(self), **rows}


class Ledger:
    """The report in the making, with the state that the checks of log, queues and index share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.report = Report(str(root))
        # Before any file is listed, and in this order, while others write: what was written down before an end was
        # read lies below it, and what is below the end is in the files behind it.
        self.progress, self.table = progress_record(root), queue_table(root)
        self.has_abort = (root / "abort").exists()
        is_in_use = lock_use(root) != "free"
        self.unclean = self.has_abort or is_in_use
        self.end = settled_end(root) if self.unclean else None
        self.grows = is_in_use and self.end is not None
        self.bad_ranges: list[tuple[int, int]] = []  # of the log; reported once, so views into them are no news
        self.lost: dict[int, list[str]] = {}  # by where a bad range begins: whose messages lay in it, and how many
        self.lost_counts: Counter[int] = Counter()
        self.map = lru_cache(MAPS_KEPT)(self.map_once)

    def map_once(self, path: str) -> Bytes:
        """The file `path` of the store, mapped. `map` caches the result."""
        data, unreadable = map_file(self.root / path)
        is_reported = any(bad.path == path for bad in self.report.unreadable) if unreadable else True
        for start, end, why in unreadable if not is_reported else ():
            text = f"{end - start} bytes cannot be read: {why}"
            self.report.unreadable.append(Problem(path, start, text, end))
            self.problem(path, start, text, end - start)
        return data

    def problem(self, path: str, offset: int, text: str, size_bytes: int = 0) -> None:
        """Report damage."""
        self.report.problem_count += 1
        area = path.partition("/")[0]
        self.report.damaged[area] = self.report.damaged.get(area, 0) + 1
        if len(self.report.problems) < FINDINGS_KEPT:
            self.report.problems.append(Problem(path, offset, text, offset + size_bytes))

    def bad_range(self, bad: BadRange, base: int) -> None:
        """Report damage of the log in the segment that starts at `base`."""
        if len(self.report.bad_ranges) < FINDINGS_KEPT:
            self.report.bad_ranges.append(bad)
        self.bad_ranges.append((bad.start, bad.end))
        self.problem(bad.path, bad.start - base, bad.text, bad.end - bad.start)

    def note_lost(self, log_offset: int, message: str) -> None:
        """Record a message that lay in a bad range; its queue entry names it."""
        start = next((start for start, end in self.bad_ranges if start <= log_offset < end), None)
        if start is not None:
            self.lost_counts[start] += 1
            if len(names := self.lost.setdefault(start, [])) < LOST_NAMED:
                names.append(message)

    def name_lost(self) -> None:
        """Add the lost messages to the texts about damage of the log. Called at the end of the check."""
        report = self.report
        report.bad_ranges = [bad._replace(text=bad.text + self._lost_in(bad.start)) for bad in report.bad_ranges]
        report.kept = [bad._replace(text=bad.text + self._lost_in(bad.start)) for bad in report.kept]
        report.problems = [
            problem._replace(text=problem.text + self._lost_in(int(problem.path[len(LOG) :]) + problem.offset))
            if problem.path.startswith(LOG) and problem.path[len(LOG) :].isdecimal()
            else problem
            for problem in report.problems
        ]

    def _lost_in(self, start: int) -> str:
        names, count = self.lost.get(start), self.lost_counts[start]
        if not names:
            return ""
        more = f" and {count - len(names)} more" if count > len(names) else ""
        return f"; lost with it: {', '.join(names)}{more}"

    def no_file(self, path: Path, remedy: str) -> bool:
        """Report damage if `path` is no regular file, although only regular files have such a name; True if it was
        reported.
        """
        if kind := other_kind(path):
            name = path.relative_to(self.root).as_posix()
            self.problem(name, 0, f"{kind} in the place of a regular file: {remedy}")
        return bool(kind)

    def repairable(self, path: str, offset: int, text: str, size_bytes: int = 0) -> None:
        """Report a trace of an unclean stop. In a store that was closed cleanly it is damage."""
        if not self.unclean:
            self.problem(path, offset, text, size_bytes)
        elif len(self.report.recovery) < FINDINGS_KEPT:
            self.report.recovery.append(f"{path}: at byte {offset}: {text}")

    def is_new(self, log_offset: int) -> bool:
        """Whether a writer appended the record at `log_offset` after the check began."""
        return self.grows and self.end is not None and log_offset >= self.end

    def is_ours(self, log_offset: int) -> bool:
        """Whether this engine wrote the record at `log_offset`, and no broker has used the store since."""
        return self.progress.crc_from is not None and log_offset >= self.progress.crc_from

    def is_gone(self, log_offset: int) -> bool:
        """Whether no message can be expected at `log_offset`: retention deleted it, or its bytes are reported
        as bad.
        """
        return log_offset < self.report.log_start or any(start <= log_offset < end for start, end in self.bad_ranges)
