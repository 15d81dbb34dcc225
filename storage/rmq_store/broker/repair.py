"""Putting a damaged store right: what can be made again from the log is made again, what is lost is written down.

    1  look, change nothing: single files (repair_files), then the verifier over log, queues and index
    2  under byte 0 of `lock`: move or restore single files, copy views that are to be built again
    3  open the store with on_corruption="keep", scanning the whole log if views or log are damaged, and close it
    4  look again

Nothing is deleted: see `Trash`. A repair that was killed is started again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from rmq_store.broker.config import StoreFile
from rmq_store.broker.deleted_topics import deleted_topics, was_used_since
from rmq_store.broker.repair_files import Finding, Trash, find, find_unreadable
from rmq_store.broker.store import Store
from rmq_store.broker.topics import TopicConfig, TopicTable
from rmq_store.clock import system_clock
from rmq_store.errors import CorruptConfigError, CorruptIndexError, NotAStoreError, StoreFailedError, StoreLockedError
from rmq_store.files import durable
from rmq_store.files.lock import OfdLock
from rmq_store.log.geometry import infer
from rmq_store.log.recovery import LMQ_PREFIX, free_name
from rmq_store.verify import Report, verify_store

Tell = Callable[[int, int, int], None]
"""(messages so far, bytes so far, bytes in all)."""


@dataclass(slots=True)
class Repair:
    """What is wrong with the store at `root`, and what will be done; made by `examine`.

    `report`: the verifier's, before. `rebuild`: the views that are built again, of "queues" and "index".
    """

    root: Path
    report: Report
    findings: list[Finding]
    rebuild: set[str]
    trash: Trash
    after: Report | None = None
    steps: list[str] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.findings or self.rebuild or self.report.problem_count or self.report.recovery)

    @property
    def log_is_damaged(self) -> bool:
        """Whether bytes of the log are damaged that were not kept before."""
        return self.report.damaged.get("commitlog", 0) > 0 or any(finding.area == "log" for finding in self.findings)


def examine(
    root: str | Path,
    *,
    queues: bool = False,
    index: bool = False,
    removed: str | Path | None = None,
    progress: Tell | None = None,
) -> Repair:
    """Find out what is wrong with a store that nobody has open; nothing is changed.

    Args:
        queues, index: build them again even if nothing is wrong with them.
        removed: where to put what is taken out; default: a new directory under `pyrmq/removed/`.

    Raises:
        NotAStoreError: no store, or one of a newer version.
        StoreLockedError: somebody has it open.
        OSError: it cannot be read.
    """
    root = Path(root).absolute()
    if not (root / "commitlog").is_dir():
        raise NotAStoreError(str(root), "not a store: it has no commitlog directory")
    with closing(OfdLock(root / "lock")) as lock:
        _refuse_company(root, lock)
    target = Path(removed).absolute() if removed else free_name(root / "pyrmq" / "removed" / f"repair-{system_clock()}")
    trash = Trash(root, target)
    findings = list(find(root, trash))
    report = verify_store(root, progress)
    known = {finding.path for finding in findings}
    findings += find_unreadable(root, trash, (bad for bad in report.unreadable if bad.path not in known))
    rebuild = {"queues"} if queues else set()
    rebuild |= {"index"} if index else set()
    if report.damaged.get("consumequeue") or any(finding.area == "queues" for finding in findings):
        rebuild.add("queues")
    if report.damaged.get("index") or _index_is_unreadable(root, findings):
        rebuild.add("index")
    return Repair(root, report, findings, rebuild, trash)


def carry_out(repair: Repair, progress: Tell | None = None) -> Report:
    """Do what `examine` found; returns the verifier's report afterwards, of a store that was stopped cleanly.

    On return everything is durable. What stays damaged is kept: `Report.kept`.

    Raises:
        StoreLockedError: somebody has opened the store meanwhile.
        StoreFullError, StoreFailedError, CorruptionError: call `examine` again after the cause is gone.
    """
    root = repair.root
    rescan = bool(repair.rebuild) or repair.log_is_damaged
    rescan |= any(finding.path in ("pyrmq/kept.json", "pyrmq/progress") for finding in repair.findings)
    durable.make_directory(root / "pyrmq")
    topics = _topics_of_queues(root) if any(f.path == "config/topics.json" for f in repair.findings) else []
    with closing(OfdLock(root / "lock")) as lock:
        if not lock.try_exclusive():
            _refuse_company(root, lock)
        if repair.findings or rescan:
            _make_directories(repair.trash.target)
        for finding in repair.findings:
            if (root / finding.path).exists() or finding.area == "config":
                finding.apply()
                repair.steps.append(f"{finding.path}: {finding.action}")
        if rescan:
            _save_views(repair)
    with Store.open(root, on_corruption="keep", rebuild_views=(progress or True) if rescan else False):
        known = TopicTable(root).all()
        lost = [topic for topic in topics if topic.topic_name not in known]
        if lost:
            TopicTable(root).create_all(lost, exist_ok=True)
            repair.steps.append(f"config/topics.json: {len(lost)} topics were found by their queues")
    repair.after = verify_store(root, progress)
    return repair.after


def _refuse_company(root: Path, lock: OfdLock) -> None:
    state = lock.who()
    if state.kind != "free":
        raise StoreLockedError(
            f"{root}: process {state.pid} has the store open: stop all that use it, then repair it", state.pid
        )


def _index_is_unreadable(root: Path, findings: list[Finding]) -> bool:
    if any(finding.path == "pyrmq/store.json" for finding in findings):
        return False
    known = StoreFile.load(root)
    if known is None:
        return False
    try:
        geometry = known.config.geometry()
        return infer(root, geometry) != geometry
    except CorruptIndexError:
        return True
    except Exception as error:  # of the log or the queues: these have findings of their own
        if type(error).__name__ != "CorruptionError":
            raise
        return False


def _save_views(repair: Repair) -> None:
    """Both are written again. The queues stay where they are until then: they tell which offsets were given out."""
    root, trash = repair.root, repair.trash
    if (root / "index").is_dir():
        trash.move(root / "index")
        repair.steps.append("index: moved away and built again")
    if (root / "consumequeue").is_dir():
        trash.copy_all(root / "consumequeue")
        repair.steps.append("consumequeue: copied and built again")


def _topics_of_queues(root: Path) -> list[TopicConfig]:
    """Those that have queues, but for those that were deleted and not made again."""
    try:
        deleted = deleted_topics(root)
    except (CorruptConfigError, StoreFailedError):
        deleted = {}
    found = []
    for topic in sorted((root / "consumequeue").iterdir()) if (root / "consumequeue").is_dir() else ():
        ids = [int(queue.name) for queue in topic.iterdir() if queue.name.isdigit()] if topic.is_dir() else []
        if topic.name in deleted and ids and not was_used_since(topic, deleted[topic.name]):
            continue
        if ids and not topic.name.startswith(LMQ_PREFIX):
            found.append(TopicConfig(topic.name, max(ids) + 1, max(ids) + 1, 6))
    return found


def _make_directories(path: Path) -> None:
    for directory in reversed([path, *path.parents]):
        if not directory.is_dir():
            durable.make_directory(directory)
