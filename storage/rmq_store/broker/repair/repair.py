"""Repair of a damaged store: it builds again from the log what it can, and records what is lost.

    1  examine without changes: single files (repair_files, repair_segments, repair_settings), then the verifier over
       log, queues and index
    2  under byte 0 of `lock`, if nothing changed since: copy the queues if they must be built again, and record the
       rebuild (log.rebuild: from here on every opener would do it); move or restore single files, move the index.
       In this order: the steps that need disk space come first, and can be undone
    3  open the store with on_corruption="keep", scanning the whole log if queues or log are damaged, and close it
    4  examine again

Nothing is deleted: see `Trash`. After a kill, start the repair again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rmq_store import kinds
from rmq_store.broker.metadata.deleted_topics import DELETED_TOPICS_FILE
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.repair.repair_accepted_damage import KEPT_FILE, find_whole_again
from rmq_store.broker.repair.repair_files import (
    find_foreign_index_files,
    find_own_files,
    find_queue_files,
    find_tables,
    find_unreadable_queue_files,
)
from rmq_store.broker.repair.repair_finding import Finding
from rmq_store.broker.repair.repair_plan import Repair
from rmq_store.broker.repair.repair_segments import find_segments, find_unreadable_segments, unreadable_places
from rmq_store.broker.repair.repair_settings import Given, Settings, find_settings, find_store_file, refuse_replica
from rmq_store.broker.repair.repair_stamps import refuse_changes, stamps_of
from rmq_store.broker.repair.repair_topics import TOPICS_FILE, find_again, find_lost_topics
from rmq_store.broker.repair.repair_trash import Trash
from rmq_store.broker.repair.repair_views import (
    also_built,
    describe,
    index_tells_geometry,
    look_for_room,
)
from rmq_store.broker.store.store import Store
from rmq_store.clock import system_clock
from rmq_store.errors import (
    CorruptIndexError,
    CorruptionError,
    NotAStoreError,
    StoreLockedError,
    UsageError,
)
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock, process_text
from rmq_store.log.core.geometry import infer
from rmq_store.log.recovery.delivery_times import schedule_files
from rmq_store.log.recovery.rebuild import REBUILD_FILE, begin_rebuild, end_rebuild, is_begun
from rmq_store.log.recovery.recovery import free_name
from rmq_store.verify import Report, verify_store

Tell = Callable[[int, int, int], None]
"""(messages so far, bytes so far, bytes in all)."""

NOTHING_GIVEN = Given()


def examine(
    root: str | Path,
    *,
    queues: bool = False,
    index: bool = False,
    removed: str | Path | None = None,
    given: Given = NOTHING_GIVEN,
    progress: Tell | None = None,
) -> Repair:
    """Find out what is wrong with a store that nobody has open; nothing is changed.

    Args:
        queues, index: build them again even if nothing is wrong with them.
        removed: directory for everything that is taken out; default: a new directory under `pyrmq/removed/`.
        given: settings of a store whose store.json is lost, or of one that a broker made.

    Raises:
        NotAStoreError: no store, one of a newer version, or a link where a directory or a segment belongs.
        StoreKindError: a store of a kind that is not written here: nothing of it may be moved or made anew.
        ReadOnlyError: it is a replica, whoever has it open.
        StoreLockedError: another process has it open.
        UsageError: `removed` lies in the store; settings are given that the store knows; a size is ambiguous.
        CorruptionError: a segment is larger than it should be, and holds records in the excess.
        UsageError, StoreFailedError: it cannot be read; the file is named.
    """
    root = Path(root).absolute()
    with durable.typed_reading(root):
        return _examine(root, queues, index, removed, given, progress)


def _examine(
    root: Path, queues: bool, index: bool, removed: str | Path | None, given: Given, progress: Tell | None
) -> Repair:
    durable.refuse_links(*(root / name for name in ("commitlog", "config", "pyrmq")))
    kinds.refuse_to_repair(root)
    if not (root / "commitlog").is_dir():
        raise NotAStoreError(str(root), f"not a store: it has no commitlog directory{kinds.store_nearby(root)}")
    refuse_replica(root)
    with closing(OfdLock(root / "lock")) as lock:
        _refuse_company(root, lock)
    trash, seen = Trash(root, _target(root, removed)), stamps_of(root)
    settings = find_settings(root, given)
    findings = _look_at_files(root, trash, settings)
    report = verify_store(root, progress)
    findings += _look_at_what_was_read(root, trash, report, {finding.path for finding in findings})
    found = Repair(root, report, findings, set(), trash, seen, settings)
    found.rebuild = _rebuilt_views(found, queues=queues, index=index)
    if "index" in found.rebuild:
        durable.refuse_links(root / "index")
    return found


def carry_out(repair: Repair, progress: Tell | None = None) -> Report:
    """Carry out the repairs that `examine` planned; returns the verifier's report afterwards, of a cleanly stopped
    store.

    On return everything is durable. Damage that stays is accepted: `Report.kept`.

    Raises:
        UsageError: settings are lost, or somebody changed the store since `examine`; nothing was changed.
        StoreLockedError: another process has opened the store meanwhile.
        StoreFullError, StoreFailedError, CorruptionError: call `examine` again after the cause is gone. If space for
            queues and index was missing, nothing was changed.
    """
    with durable.typed_reading(repair.root):
        return _carry_out(repair, progress)


def _carry_out(repair: Repair, progress: Tell | None) -> Report:
    root = repair.root
    if repair.lost_settings:
        raise UsageError(
            f"{root}: settings are lost, and most cannot be changed later: {', '.join(repair.lost_settings)}. "
            "Nothing was changed. Give them with --set NAME=VALUE or --config FILE, or take the --defaults for all of "
            "them (ASYNC_FLUSH!)"
        )
    durable.make_directory(root / "pyrmq")
    with closing(OfdLock(root / "lock")) as lock:
        if not lock.try_exclusive():
            _refuse_company(root, lock)
        with durable.typed(root):
            refuse_changes(root, repair.seen)
            _change_files(repair)
    rescan = "queues" in repair.rebuild
    had_table = any(path.exists() for path in TopicTable(root).paths)  # whoever opens the store makes one
    was_lost = not had_table or TOPICS_FILE in {finding.path for finding in repair.findings}
    with Store.open(root, on_corruption="keep", rebuild_views=(progress or True) if rescan else False) as store:
        if count := store.recovery.delivery_times if store.recovery else 0:
            repair.steps.append(f"consumequeue: {count} delayed messages are due when they were before")
        if count := find_again(root, table_was_lost=was_lost):
            repair.steps.append(f"{TOPICS_FILE}: {count} topics were found by their queues")
    repair.after = verify_store(root, progress)
    return repair.after


def _target(root: Path, removed: str | Path | None) -> Path:
    ours = root / "pyrmq" / "removed"
    if removed is None:
        return free_name(ours / f"repair-{system_clock()}")
    target = Path(removed).absolute()
    if ours.resolve() not in target.resolve().parents:
        durable.refuse_inside(target, root)
    return target


def _refuse_company(root: Path, lock: OfdLock) -> None:
    state = lock.who()
    if state.kind != "free":
        raise StoreLockedError(
            f"{root}: {process_text(state.pid)} has the store open: stop all processes that use it, then repair it",
            state.pid,
        )


def _look_at_files(root: Path, trash: Trash, settings: Settings | None) -> list[Finding]:
    """Findings about every file, except the contents of log, queues and index."""
    known = settings or StoreFile.load(root)
    assert known is not None
    known_size = known.size if isinstance(known, Settings) else lambda name: int(getattr(known.config, name))
    findings = [*find_tables(root, trash), *find_own_files(root, trash)]
    if not {TOPICS_FILE, DELETED_TOPICS_FILE} & {finding.path for finding in findings}:
        findings += [lost] if (lost := find_lost_topics(root)) else []
    if settings is not None and settings.problem:
        findings.append(find_store_file(root, trash, settings))
    findings += find_segments(root, trash, known_size("mapped_file_size_commit_log"))
    findings += find_queue_files(root, trash, known_size("mapped_file_size_consume_queue"))
    findings += find_foreign_index_files(root, trash)
    return findings


def _look_at_what_was_read(root: Path, trash: Trash, report: Report, known: set[str]) -> list[Finding]:
    """Findings from the verifier's report about single files: unreadable sectors, and accepted damage that is gone."""
    places = unreadable_places(report.unreadable)
    segments = {name: text for name, text in places.items() if name.startswith("commitlog/") and name not in known}
    queues = {name: text for name, text in places.items() if name.startswith("consumequeue/") and name not in known}
    findings = [*find_unreadable_segments(root, trash, segments), *find_unreadable_queue_files(root, trash, queues)]
    described = StoreFile.load(root) if not {"pyrmq/store.json", KEPT_FILE} & known else None
    if described is not None and (again := find_whole_again(root, trash, described.config, set(places))):
        findings.append(again)
    return findings


def _rebuilt_views(found: Repair, *, queues: bool, index: bool) -> set[str]:
    areas, paths = {finding.area for finding in found.findings}, {finding.path for finding in found.findings}
    if found.log_is_damaged or {KEPT_FILE, REBUILD_FILE, "pyrmq/progress"} & paths:
        return {"queues", "index"}
    wanted = {"queues"} if queues or "queues" in areas or found.problem_count("consumequeue") else set()
    wanted |= {"index"} if index or found.problem_count("index") or _index_is_unreadable(found) else set()
    return also_built(found.root, wanted)


def _index_is_unreadable(found: Repair) -> bool:
    """Whether the index has another geometry than store.json says, or none can be derived."""
    if found.settings is not None:
        return not index_tells_geometry(found.root, found.settings.config.geometry())
    known = StoreFile.load(found.root)
    assert known is not None
    try:
        return infer(found.root, known.config.geometry()) != known.config.geometry()
    except CorruptIndexError:
        return True
    except CorruptionError:  # of the log or the queues: these have findings of their own
        return False


def _change_files(repair: Repair) -> None:
    root, trash = repair.root, repair.trash
    was_begun = is_begun(root)
    try:
        if "queues" in repair.rebuild and (root / "consumequeue").is_dir():
            trash.copy_all(root / "consumequeue", {root / finding.path for finding in repair.findings})
        look_for_room(root, repair.rebuild)
        if "queues" in repair.rebuild:
            begin_rebuild(root, schedule=schedule_files(root, trash.copies))
        _apply(repair)
    except BaseException:
        if not trash.touched:
            if not was_begun:
                end_rebuild(root)
            trash.take_back()
        raise


def _apply(repair: Repair) -> None:
    root, trash, actions = repair.root, repair.trash, repair.view_actions()
    for finding in repair.findings:
        finding.apply()
        repair.steps.append(f"{finding.path}: {finding.action}")
    settings = repair.settings
    if settings is not None and (told := index_tells_geometry(root, settings.config.geometry())):
        describe(root, settings)
    if "index" in repair.rebuild and (root / "index").is_dir():
        trash.move(root / "index")
    if settings is not None and not told:
        describe(root, settings)
    repair.steps += actions
