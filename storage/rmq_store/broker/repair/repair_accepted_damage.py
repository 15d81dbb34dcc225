"""Accepted damage that is gone, because somebody restored the file (`rmq repair`)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.store_log import log_of
from rmq_store.broker.repair.repair_finding import Finding
from rmq_store.broker.repair.repair_trash import Trash
from rmq_store.broker.store.directory import is_ours
from rmq_store.errors import CorruptionError
from rmq_store.log.core import scan
from rmq_store.log.core.accepted_damage import AcceptedDamage, BadRange
from rmq_store.log.core.commit_log import CommitLog

KEPT_FILE = "pyrmq/kept.json"


def find_whole_again(root: Path, trash: Trash, config: StoreConfig, unreadable: set[str]) -> Finding | None:
    """The repair if accepted ranges hold whole frames again. A segment in `unreadable` is not read: an access to its
    map would kill the process by SIGBUS.
    """
    accepted = AcceptedDamage.load(root / "pyrmq")
    with closing(log_of(root, config, writable=False)) as log:
        known = log.progress.load_for_repair() if is_ours(root) else None
        log.crc_from = known[0].crc_from if known else None
        parts = [[bad] if bad.file in unreadable else _still_damaged(log, bad) for bad in accepted.ranges]
    better = [bad for bad, still in zip(accepted.ranges, parts, strict=True) if still != [bad]]
    if not better:
        return None
    ranges = tuple(bad for still in parts for bad in still)

    def drop() -> None:
        trash.copy(root / KEPT_FILE)
        AcceptedDamage(ranges, accepted.queues if ranges else {}).save(root / "pyrmq")

    places = ", ".join(f"{bad.start} to {bad.end}" for bad in better)
    problem = f"bytes {places} of the log are kept as damaged, but hold whole records again"
    action = "only what is still damaged is kept, and the messages can be read again"
    return Finding("own files", KEPT_FILE, problem, action, drop)


def _still_damaged(log: CommitLog, bad: BadRange) -> list[BadRange]:
    """The parts of an accepted range that hold no whole frames; [] if frames fill the range."""
    base, offset = log.segments.base_of(bad.start), bad.start
    found: list[BadRange] = []
    try:
        while offset < bad.end:
            stretch = next(scan.walk(log, offset, bad.end))
            if stretch.end > bad.end:
                return [bad]
            if stretch.stopped:
                end = min(base + scan.next_frame(log, base, stretch.end - base + 1), bad.end)
                found.append(bad._replace(start=stretch.end, end=end))
            offset = found[-1].end if stretch.stopped else stretch.end
    except (CorruptionError, FileNotFoundError):  # missing, or of a wrong size: that is a finding of its own
        return [bad]
    return found
