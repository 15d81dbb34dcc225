"""Opens a store: each check and step from a path to a usable log, in order.

    1. check the arguments, and that a store is at the path (or make its directory)
    2. refuse kinds of stores that cannot be read, or not be written
    3. find the settings that hold
    4. for writing: recover a store that was not stopped cleanly, and write store.json if it has none
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rmq_store import kinds
from rmq_store.arguments import names_a_cluster
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.store_log import log_of
from rmq_store.broker.metadata.topics import topics_with_batch_queues
from rmq_store.broker.store.describe import broker_name, describe, describe_first
from rmq_store.broker.store.directory import BEING_MADE, has_been_written, is_ours, is_store, make_root, why_no_store
from rmq_store.broker.store.parts import StoreParts
from rmq_store.broker.store.settings import described_before, settings_that_hold
from rmq_store.clock import store_clock
from rmq_store.errors import (
    CorruptIndexError,
    NotAStoreError,
    ReadOnlyError,
    StoreError,
    StoreLockedError,
    UsageError,
)
from rmq_store.files import durable
from rmq_store.files.rooted import Root
from rmq_store.files.segments.spread_log import parse_paths
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.commit_log import Clock, CommitLog
from rmq_store.log.integrity.index_gaps import has_no_index
from rmq_store.log.recovery import opening
from rmq_store.log.recovery.delay_inference import infer_delays, warn_of_assumed
from rmq_store.log.recovery.index_repair import indexes_tags
from rmq_store.log.recovery.rebuilt_queues import RebuiltViews
from rmq_store.log.recovery.recovery import RecoveryOptions, RecoveryReport
from rmq_store.log.replica_role import Feeder, ReplicaRole, refuse_writer

_LOG = logging.getLogger(__name__)

S = TypeVar("S", bound=StoreParts)


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """The arguments of `Store.open`."""

    path: str | Path
    read_only: bool
    create: bool
    config: StoreConfig | None
    clock: Clock | None
    broker_name: str | None
    on_corruption: str
    rebuild_views: bool | Callable[[int, int, int], None]
    commit_log_paths: str
    feeder: Feeder | None = None
    role: ReplicaRole | None = None
    """What a new replica is one of: of the process that feeds it."""


Make = Callable[[CommitLog, StoreFile, str, RecoveryReport | None], S]
"""(open log, content of store.json, name of the broker, report of the recovery if there was one) -> the store."""


def open_store(request: OpenRequest, make: Make[S]) -> S:
    """Open the log, and call `make` with it. Raises as `Store.open`; then everything is closed again."""
    root, paths = _checked_root(request)
    ours = is_ours(root)  # first: a process that is about to say so has written everything that follows from it
    known = StoreFile.load(root) or described_before(root)
    if not request.read_only:
        refuse_writer(root, known.replica if known is not None else request.role, request.feeder)
    damage: list[CorruptIndexError] = []
    settings = settings_that_hold(root, known, request.config, damage, ours=ours, paths=paths)
    clock = request.clock or store_clock(root)
    log = log_of(root, settings, writable=not request.read_only, index=not damage, clock=clock, paths=paths)
    log.is_replica = (known.replica if known is not None else request.role) is not None
    recovery = None
    is_open = False
    try:
        if known is None and request.role is not None and log.segments.bases():
            raise UsageError(f"{root}: a broker's store, no replica: nothing is fed into it; name another directory")
        if request.read_only:
            if known is None and not (paths or log.segments.bases() or has_been_written(root)):
                raise NotAStoreError(str(root), BEING_MADE)
            _prepare_reading(log)
        log.index_damage = damage[0] if damage and settings.message_index_enable else None
        if log.index_damage is not None and not request.read_only:
            _LOG.warning("%s: what is stored now will not be found by its keys: %s", root, log.index_damage)
        if known is None and log.segments.bases() and not request.read_only:
            settings = _with_index_of(log, settings)
        log.views.elsewhere |= topics_with_batch_queues(root)
        if not request.read_only:
            settings = _with_delays_of(log, settings, ours=ours)
            recovery = opening.open_for_writing(log, options=_recovery_options(request, root, settings))
            is_open = True
            if request.rebuild_views and recovery is None:
                raise StoreLockedError(f"{root}: rebuild_views needs the store alone; another process has it open")
            known = describe(log, known, settings)
            if known.config != settings:
                # Another process was faster to make the store, with other settings: those hold.
                is_open = False
                opening.close(log)
                again = open_store(request, make)
                again.recovery = recovery or again.recovery
                return again
        name = request.broker_name or broker_name(root, settings)
        if not settings.message_delay_level:
            settings = settings.with_delays(log.delay_levels_ms)
        file = replace(known, config=settings) if known is not None else StoreFile("", settings)
        return make(log, file, name, recovery)
    except BaseException:
        try:
            if is_open:  # nothing is wrong with the log: it is stopped as cleanly as it was
                with contextlib.suppress(StoreError):
                    opening.close(log)
        finally:
            log.close()
        raise


def _checked_root(request: OpenRequest) -> tuple[Path, Sequence[Path]]:
    """The directory of a store that may be opened by this request, and the directories of its log if they are
    elsewhere.
    """
    if str(request.path).startswith(("rmq://", "rmq:/")):  # a Path has lost a slash
        raise names_a_cluster(str(request.path))
    root, read_only = Path(request.path).absolute(), request.read_only
    if request.on_corruption not in ("refuse", "keep"):
        raise UsageError(f"on_corruption={request.on_corruption!r}: must be refuse or keep")
    if read_only and (request.create or request.rebuild_views or request.on_corruption == "keep"):
        raise UsageError("read_only excludes create, rebuild_views and on_corruption=keep, which write")
    paths = parse_paths(request.commit_log_paths) if request.commit_log_paths else ()
    if paths and not read_only:
        raise ReadOnlyError(f"{root}: a log outside of the store (storePathCommitLog) needs read_only=True")
    if paths and not (root / "config").is_dir():
        raise NotAStoreError(str(root), "no store of a broker is here: it has no config/")
    if request.create and not is_store(root):
        make_root(root)
    elif not paths and not is_store(root):
        raise NotAStoreError(str(root), why_no_store(root))
    durable.warn_of_shared_directory(root)
    with durable.typed_reading(root):
        if read_only:
            kinds.refuse_to_read(root)
        else:
            kinds.refuse_to_write(root)
    if not read_only:
        with durable.typed(root):
            root = Root(root).path
    return root, paths


def _recovery_options(request: OpenRequest, root: Path, settings: StoreConfig) -> RecoveryOptions:
    rebuild = request.rebuild_views
    return RecoveryOptions(
        request.on_corruption == "keep",
        bool(rebuild),
        lambda: _consumed(root),
        describe=functools.partial(describe_first, root, settings, request.role),
        progress=rebuild if callable(rebuild) else lambda records, done_bytes, total_bytes: None,
    )


def _prepare_reading(log: CommitLog) -> None:
    log.held = Root(log.root)
    log.held.watch()
    if kinds.queues_are_in(log.root) == "RocksDB":
        log.views = RebuiltViews(log)
    if (tables := kinds.tables_are_in_rocksdb(log.root)) is not None:
        _warn(f"{log.root}: {tables.text}")


def _with_index_of(log: CommitLog, settings: StoreConfig) -> StoreConfig:
    """The settings of a broker's store that this engine opens for the first time: its index files show if it has an
    index, and of which entries.
    """
    if log.views.index is not None and has_no_index(log):
        settings, log.views.index = replace(settings, message_index_enable=False), None
    log.index_tags = indexes_tags(log)
    return replace(settings, message_index_tags=log.index_tags)


def _with_delays_of(log: CommitLog, settings: StoreConfig, *, ours: bool) -> StoreConfig:
    """The settings without delay levels, if a broker wrote delayed messages and no caller gave its levels: the log then
    infers them from these messages.
    """
    if not settings.tells_delays() and _has_brokers_records(log, ours=ours):
        settings = replace(settings, message_delay_level="")
    if not settings.message_delay_level:
        rocketmqs_own = log.delay_levels_ms
        infer_delays(log, rocketmqs_own)
        warn_of_assumed(log, rocketmqs_own)
    return settings


def _has_brokers_records(log: CommitLog, *, ours: bool) -> bool:
    """True if a broker with unknown delays has written to the store."""
    if not ours:
        return bool(log.segments.bases())
    known = log.progress.load()
    return known is not None and bool(known[0].crc_from)



def _consumed(root: Path) -> dict[tuple[str, int], list[int]]:
    """The committed offsets of all groups by queue: all offsets below them were given out."""
    consumed: dict[tuple[str, int], list[int]] = {}
    for key, offset in OffsetTable(root).given_out():
        consumed.setdefault(key, []).append(offset)
    return consumed



@functools.lru_cache(maxsize=64)
def _warn(text: str) -> None:
    """Warn once, because every task of Spark opens the store."""
    _LOG.warning("%s", text)


