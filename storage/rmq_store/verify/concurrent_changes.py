"""Checking a store while other processes open, write, close, clean up or repair it.

One pass cannot read all files at one moment. A writer that starts during the pass makes a sound store appear damaged.
So a finding counts only if nobody changed the store during the pass. Otherwise `check` runs another pass, four at most;
each reads the locks again. If the store changes during every pass, the findings that two passes share count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .files import read_start
from .in_use import lock_use
from .report import FINDINGS_KEPT, Report

PASSES_MAX = 4
WORDS_BYTES = 512  # of the state page, and the whole progress record

StoreStamp = tuple[object, ...]


def store_stamp(root: Path) -> StoreStamp:
    """Values that differ after a change of the store: names, sizes, times, and the words that writers move."""
    own, fresh = root / "pyrmq", []
    for path in (own / "state", own / "progress"):
        try:
            fresh.append(read_start(path, WORDS_BYTES))
        except OSError:
            fresh.append(b"")
    return lock_use(root), *fresh, *_stamps(root)


def _stamps(root: Path) -> Iterator[tuple[str, int, int, int]]:
    """(path, inode, size, time) of every file whose size or time shows a change. Writes through mapped memory show in
    neither. Of the queues only the directories are listed: the state page shows what was written to their files.
    """
    for directory in (root, root / "config", root / "pyrmq", root / "commitlog", root / "index"):
        yield from _entries(directory)
    for topic in _directories(root / "consumequeue"):
        yield from _entries(Path(topic))


def _entries(directory: Path) -> list[tuple[str, int, int, int]]:
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                found.append((entry.path, status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError:
        pass
    return sorted(found)


def _directories(directory: Path) -> list[str]:
    return [path for path, *_ in _entries(directory)]


def check(root: Path, one_pass: Callable[[], Report]) -> Report:
    """The report of `one_pass` if nobody changed the store meanwhile; else the findings of which two passes agree."""
    before: Report | None = None
    for number in range(1, PASSES_MAX + 1):
        seen = store_stamp(root)
        try:
            report = one_pass()
        except (FileNotFoundError, NotADirectoryError):  # somebody took it behind our back
            if number == PASSES_MAX or store_stamp(root) == seen:
                raise
            continue
        if not _is_in_doubt(report) or store_stamp(root) == seen:
            return report
        if before is not None and report.problem_count and _keys(report) == _keys(before):
            return report
        if number < PASSES_MAX or before is None:
            before = report
    assert before is not None
    return _agreed(before, report)


def _is_in_doubt(report: Report) -> bool:
    """Whether a change during the pass may explain a finding. That the store is open is not such a finding."""
    return bool(report.problem_count) or any(not text.startswith("`abort` exists") for text in report.recovery)


def _keys(report: Report) -> set[tuple[str, int, str]]:
    return {(problem.path, problem.offset, problem.text) for problem in report.problems}


def _agreed(before: Report, report: Report) -> Report:
    """`report` without the problems that only it has. If there are more problems than a report names, `report` is
    returned unchanged: they count as damage.
    """
    if max(report.problem_count, before.problem_count) > FINDINGS_KEPT:
        return report
    both = _keys(before)
    others = [problem for problem in report.problems if (problem.path, problem.offset, problem.text) not in both]
    if not others:
        return report
    report.problems = [problem for problem in report.problems if problem not in others]
    report.problem_count = len(report.problems)
    report.damaged = {}
    for problem in report.problems:
        area = problem.path.partition("/")[0]
        report.damaged[area] = report.damaged.get(area, 0) + 1
    report.bad_ranges = [bad for bad in report.bad_ranges if bad in before.bad_ranges]
    report.recovery.append(
        f"others changed the store in each of {PASSES_MAX} passes: {len(others)} contradictions that only the last one "
        "met are not counted"
    )
    return report
