"""Makes and opens the store of a replica, for the process that feeds it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.store.directory import is_store, make_root
from rmq_store.broker.store.open_store import OpenRequest, open_store
from rmq_store.broker.store.store import Store
from rmq_store.clock import system_clock
from rmq_store.errors import UsageError
from rmq_store.files import durable
from rmq_store.log.append.append import append_lock
from rmq_store.log.replica_role import Feeder, ReplicaRole


def known_role(root: Path) -> ReplicaRole | None:
    """The role of the directory; None: no store is there yet.

    Raises:
        UsageError: a store of its own.
        NotAStoreError, CorruptConfigError: as `StoreFile.load`, and of a directory with other files.
    """
    known = StoreFile.load(root) if is_store(root) else None
    if known is not None and known.replica is None:
        raise UsageError(f"{root}: a store of its own, no replica: nothing is fed into it; name another directory")
    return known.replica if known is not None else None


def open_replica(root: Path, feeder: Feeder, made_of: tuple[ReplicaRole, StoreConfig] | None = None) -> Store:
    """Open a replica for its feeder, which holds the right to write to it. `made_of`: what a new replica is made of;
    its directory is there (`make_root`). Raises as `Store.open`.
    """
    role, config = made_of if made_of is not None else (None, None)
    request = OpenRequest(
        root, read_only=False, create=False, config=config, clock=None, broker_name=None, on_corruption="refuse",
        rebuild_views=False, commit_log_paths="", feeder=feeder, role=role,
    )  # fmt: skip
    store = open_store(request, Store)
    try:
        assert store.replica is not None
        _begin_at(store, store.replica.first_offset)
    except BaseException:
        store.close()
        raise
    return store


def _begin_at(store: Store, first_offset: int) -> None:
    """Let the log of a replica without a byte begin where its master's log does."""
    log = store._log
    page = log.writing_page
    if page.appended_end < first_offset:
        log.segments.create(first_offset)
        with append_lock(log):
            page.appended_end = first_offset  # first: the flushed end is never greater
            page.flushed_end = first_offset


def make_directory(root: Path) -> None:
    """The directory of a new replica. NotAStoreError: other files are there."""
    if not is_store(root):
        make_root(root)


def record_addresses(store: Store, found: ReplicaRole) -> None:
    """Make the addresses of the master, as they were found now, durable in store.json, unless they are there. The open
    store goes on with those that it was opened with; nothing of it needs them.

    Raises:
        StoreLockedError, StoreFullError, StoreFailedError: as `StoreFile.save`.
    """
    known = StoreFile.load(store.path)
    if known is not None and known.replica != found:
        with append_lock(store._log):
            replace(known, replica=found).save(store.path)


def put_aside(root: Path, feeder: Feeder) -> Path:
    """Give the directory of a replica, which nobody else feeds, another name beside it; returns that name. Readers that
    have it open find out as with any store that was moved.

    Raises:
        UsageError: it is a store of its own. StoreLockedError: another process feeds it.
        StoreFailedError: it cannot be renamed.
    """
    known_role(root)
    feeder.take()
    try:
        moment = datetime.fromtimestamp(system_clock() / 1000, UTC)
        aside = root.with_name(f"{root.name}.{moment:%Y%m%d-%H%M%S-%f}")
        with durable.typed(root):
            durable.before("rename", root)
            root.rename(aside)
            durable.fsync_directory(root.parent)
    finally:
        feeder.close()
    return aside
