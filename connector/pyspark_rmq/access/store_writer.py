"""Writing to a store, for the sinks: from staging in tasks to the commit in the driver. Control plane.

All functions take the store's directory (option path). `store_location` is the counterpart for reading.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_rmq.access.spark_worker import close_before_it_ends, is_worker, spare_modules
from pyspark_rmq.access.store_pool import briefly, pooled, run_in_thread
from pyspark_rmq.options.options import SinkOptions

if TYPE_CHECKING:
    from rmq_store import CommitResult, SendBackArea, StagedFile, StagingArea, Store

_log = logging.getLogger(__name__)

# Purpose of the units that hold what was sent back.
SEND_BACK = "sendback"

# A store stays open for so long after the commit of a micro-batch: the next one often comes within that time.
_COMMIT_STORE_POOLED_S = 2.0

# Behind a batch write of at most so many bytes the store is closed before the write returns, if the disk is not slower
# than that: 10 to 60 ms are usual. Behind a larger one there is more to flush than anybody should wait for.
_SMALL_WRITE_BYTES = 1 << 20
_SMALL_WRITE_CLOSE_WAIT_S = 0.2

# Nobody stages that long without writing.
_STALE_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Marker:
    """Makes a repeated commit a no-op. It is stored with the messages, and `value` only grows for each `key`.

    With `repeatable` the same value must come with the same rows. This detects a copied checkpoint.
    """

    purpose: str
    key: str
    value: int
    repeatable: bool


def prepare_to_consume(path: str, group: str, max_reconsume_times: int | None) -> None:
    """Make sure that the store can be written. If `max_reconsume_times` is given, store it as the group's setting; it
    replaces an earlier one.

    Raises what `Store.open` raises.
    """
    with _open_to_write(path) as store:
        if max_reconsume_times is not None:
            store.retry.set_max_reconsume_times(group, max_reconsume_times)


def last_sent_back(path: str, key: str) -> int | None:
    """The newest value of a send-back marker; None if there is none."""
    with _open_to_write(path) as store:
        return store.last_unit(SEND_BACK, key)


def prepare_to_write(options: SinkOptions) -> None:
    """Make sure that there is a store for which tasks can stage. Creates one if nothing is there, and logs that: so a
    mistyped path shows in the log, as a new table does with Parquet and Delta.

    Raises:
        NotAStoreError: something else is there; or nothing, with createStore=false.
    """
    root = Path(options.path)
    if (root / "pyrmq" / "store.json").exists():  # the usual case: no need to import the engine
        return
    is_new = _is_nothing(root)
    if is_new:
        _refuse_to_create(options)
    with _open_to_write(options.path, create=True) as store:
        # Of several tasks that see nothing, the one that opens the store first has made it: until then it is not ours.
        if is_new and store.recovery is not None and store.recovery.case == "foreign":
            _log.warning("made a new store at %s: nothing was there", root)


def is_there_to_write(options: SinkOptions) -> bool:
    """True if there is a store for which the tasks of a stream can stage. A store that a broker made gets our settings
    file.

    Raises:
        NotAStoreError: something else is there; or nothing, with createStore=false.
    """
    root = Path(options.path)
    # The usual case, in every micro-batch: no need to import the engine.
    if (root / "pyrmq" / "store.json").exists():
        return True
    if _is_nothing(root):
        _refuse_to_create(options)
        return False
    with _open_to_write(options.path):
        return True


def prepare_batch(options: SinkOptions, batch_id: int) -> None:
    """Make sure, in a task, that there is a store to stage for, if the driver saw none. The first batch of a query
    creates it, also if the batch has no rows. Several tasks may do so at once.

    Raises:
        NotAStoreError: something else is there; or nothing, and this is a later batch: the store to which earlier
            batches were written is gone.
    """
    if batch_id == 0:
        prepare_to_write(options)
    elif not is_there_to_write(options):
        from rmq_store import NotAStoreError

        raise NotAStoreError(
            options.path,
            f"the store is gone: this is batch {batch_id} of a query, and batch 0 made the store or found it here. "
            "Mount it, or put it back, and start the query again. If a new store is what you want, start with a new "
            "checkpoint, or make the store first: `rmq init`",
        )


def _is_nothing(root: Path) -> bool:
    """True if nothing is there. A mount point is an empty directory while nothing is mounted."""
    return not root.exists() or (root.is_dir() and not any(root.iterdir()))


def _refuse_to_create(options: SinkOptions) -> None:
    if not options.create_store:
        from rmq_store import NotAStoreError

        raise NotAStoreError(
            options.path,
            "there is no store here, and createStore=false forbids the write to make one; check the path, or make the "
            "store first: `rmq init`",
        )


def stage(
    options: SinkOptions, write_id: str, partition_id: int, attempt_id: int, drop_properties: frozenset[str]
) -> StagingArea:
    """Begin the staged file of one attempt of a task. Raises `NotAStoreError` on a host that does not have the store.
    """
    from rmq_store import StagingArea

    spare_modules()
    return StagingArea.for_task(
        options.path,
        write_id,
        partition_id,
        attempt_id,
        topic=options.topic,
        use_queue_id=options.use_queue_id,
        compress_over_bytes=options.compress_over_bytes,
        keep_unique_key=options.keep_uniq_key,
        drop_properties=drop_properties,
    )


def prepare_to_send_back(options: SinkOptions) -> bool:
    """Prepare the group, on the driver, for tasks that send its messages back. False if it has no retry queues: then
    nothing that is sent back is stored, not even as a dead letter.

    Raises:
        NotAStoreError: there is no store, so no message of it can have failed.
        ResponseError: the group, or its retry topic, does not exist and must not be created.
    """
    assert options.send_back is not None  # options checked it
    with _open_to_write(options.path) as store:
        store.retry.prepare(options.send_back)
        return store.groups()[options.send_back].retry_queue_nums > 0


def stage_send_backs(options: SinkOptions, write_id: str, partition_id: int, attempt_id: int) -> SendBackArea:
    """As `stage`, for messages that a task sends back. Raises `NotAStoreError` if this host lacks the store."""
    from rmq_store import SendBackArea

    spare_modules()
    assert options.send_back is not None  # options checked it
    return SendBackArea.for_task(
        options.path,
        write_id,
        partition_id,
        attempt_id,
        group=options.send_back,
        max_reconsume_times=options.max_reconsume_times,
    )


def append_staged(
    options: SinkOptions,
    files: Sequence[StagedFile],
    marker: Marker | None,
    sweeping: Callable[[], None],
    *,
    stays_open: bool,
) -> bool:
    """Append staged files, all or nothing. False if `marker` says that this was done before: then nothing is added.
    Afterwards `sweeping` is called, which raises nothing.

    On return the messages are on disk under SYNC_FLUSH, and in the page cache under ASYNC_FLUSH. Under ASYNC_FLUSH a
    worker of Spark flushes, sweeps and closes in threads of its own. Any other process, or a worker that ends with the
    commit, does so before it returns. If the files are small, a worker waits a moment for the store to be closed. With
    `stays_open` it keeps the store open longer, because the next batch will need it soon. An error on close is logged,
    not raised: the files are committed, and after an error they would be written twice.

    Raises:
        MarkerError: the marker of this key is already further, or was stored with other rows.
        UsageError: two rows send the same message back.
        StagingError: a file is missing or altered.
        StoreFullError, StoreLockedError: nothing was appended.
        StoreFailedError: the messages are appended, but perhaps not on disk, or with onStoreStatus=fail not at a slave;
            with a marker the commit can be repeated.
    """
    spare_modules()
    close_before_it_ends()
    is_small = sum(file.size_bytes for file in files) <= _SMALL_WRITE_BYTES
    with _commit_store(options.path, stays_open, _SMALL_WRITE_CLOSE_WAIT_S if is_small else 0.0) as store:
        done = _append_once(store, files, marker, SEND_BACK if options.send_back is not None else "sink")
        if _pool_s(store, stays_open) is not None:
            # At once, however little it is: Spark may end a worker at any moment, and its flusher with it.
            store.flush_async()
            run_in_thread(sweeping)
        else:
            _flush(store)
            sweeping()
    _look_at_status(options, done)
    return done.committed


def _look_at_status(options: SinkOptions, done: CommitResult) -> None:
    """Of a store that a SYNC_MASTER serves, say that slaves lack the rows. StoreFailedError with onStoreStatus=fail."""
    from rmq_store import SendStatus, StoreFailedError

    if done.status is SendStatus.SEND_OK:
        return
    text = f"{options.path}: the batch is stored, with status {done.status.name}: perhaps no slave has it"
    if options.fail_on_weak_status:
        raise StoreFailedError(
            f"{text}. onStoreStatus=fail asks for the end of the batch; a stream that repeats it adds nothing, and "
            "waits for the slave again"
        )
    _log.warning("%s", text)


def _append_once(
    store: Store, files: Sequence[StagedFile], marker: Marker | None, purpose: str
) -> CommitResult:
    """Append the files as one unit, unless its marker is there already. `purpose` names a unit without a marker."""
    from rmq_store import MarkerError

    if marker is None:
        return store.commit_staged(files, purpose=purpose, consume_files=True)
    try:
        return store.commit_staged(
            files, purpose=marker.purpose, key=marker.key, value=marker.value, repeatable=marker.repeatable,
            consume_files=True,
        )
    except MarkerError as error:
        if store.last_unit(marker.purpose, marker.key) != marker.value:
            raise
        raise MarkerError(
            f"{error}: run it once with option repeatable=false of the sink. It drops this repetition, what was "
            "committed stays, and the query continues after it. How to tell: docs/operations.md, Checkpoints of streams"
        ) from error


def _flush(store: Store) -> None:
    """Make a commit durable. Raises StoreFailedError: no other error, because that would say that nothing was written.
    """
    from rmq_store import StoreFailedError, StoreLockedError

    try:
        store.flush()
    except StoreLockedError as error:
        raise StoreFailedError(f"the messages are stored, but perhaps not on disk: {error}") from error


def _commit_store(path: str, stays_open: bool, close_wait_s: float = 0.0) -> AbstractContextManager[Store]:
    from rmq_store import Store

    pool_s = partial(_pool_s, stays_open=stays_open)
    key = ("commit", path)
    return pooled(key, Path(path), lambda: Store.open(path), pool_s, written=True, close_wait_s=close_wait_s)


def _pool_s(store: Store, stays_open: bool) -> float | None:
    """How long a store stays open after a commit, in seconds. None: it is closed before the commit returns. Users of
    SYNC_FLUSH expect that of a batch write, which may be the last action of a job.
    """
    if not is_worker():
        return None
    if stays_open:
        return _COMMIT_STORE_POOLED_S
    return None if store.config.flush_disk_type == "SYNC_FLUSH" else 0.0


def _open_to_write(path: str, *, create: bool = False) -> AbstractContextManager[Store]:
    """The store, for one block. Raises what `Store.open` raises."""
    from rmq_store import Store

    return briefly(Path(path), lambda: Store.open(path, create=create))


def sweep_staged(
    options: SinkOptions, write_ids: Sequence[str], is_over: Callable[[str], bool] | None = None
) -> None:
    """Remove the staged files of `write_ids`, of writes that `is_over` says are over, and of writes that died long ago.
    """
    from rmq_store import sweep

    sweep(Path(options.path), write_ids, _STALE_MS, is_over=is_over)
