"""The store: one directory, opened. A facade: it opens and closes, and passes each call to the part that does the work.

with Store.open("/data/store", create=True) as store:
    store.create_topic("Orders", queue_count=4)
    store.send(Message("Orders", b"..."))

    topics_and_groups   topics, groups, committed offsets, leases
    reading             messages, ranges, times
    writing             single messages, batches, units
    parts               which part gets which
    open_store          the steps of opening
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from rmq_store.arguments import checked_methods, local_path
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.store.administration import Administration
from rmq_store.broker.store.open_store import OpenRequest, open_store
from rmq_store.broker.store.reading import Reading
from rmq_store.broker.store.retention import Retention
from rmq_store.broker.store.writing import Writing
from rmq_store.files import durable
from rmq_store.log.core.commit_log import Clock, leaves_no_lock
from rmq_store.log.recovery import opening
from rmq_store.real_time import load_under_real_time


@checked_methods()
class Store(Reading, Writing):
    """A RocketMQ store. Made by `Store.open`; close it, or use it in a `with` block. Safe for threads, not across
    fork.
    """

    @classmethod
    @durable.permitted()
    def open(
        cls,
        path: str | Path,
        *,
        read_only: bool = False,
        create: bool = False,
        config: StoreConfig | None = None,
        clock: Clock | None = None,
        broker_name: str | None = None,
        on_corruption: Literal["refuse", "keep"] = "refuse",
        rebuild_views: bool | Callable[[int, int, int], None] = False,
        commit_log_paths: str = "",
    ) -> Self:
        """Open the store at `path`; with `create`, make one if the directory is missing or empty. A text may be a
        file: URI.

        `config` gives the settings of a new store, or of a store that a broker made. For a store that this engine made,
        it must not contradict the store's settings; fields with their default value are not compared. Settings that may
        change (those of `Retention.configure`, and messageDelayLevel) are replaced for every process. Messages that are
        delayed already keep their due times. If a broker wrote the store and no caller ever gave messageDelayLevel, the
        delay of each level is inferred from the delayed messages.

        `read_only` changes nothing on disk. Otherwise, the first process to open a store that was not stopped cleanly
        recovers it: see `recovery`.

        If recovery finds records damaged or missing that were certainly on disk, `open` refuses. With
        `on_corruption="keep"` nothing is truncated: the damage is accepted, and named in `recovery.bad_ranges`. It is
        also recorded in pyrmq/kept.json; later openers accept this damage and no other. Messages before and after it
        can be read; reading a lost message raises CorruptRecordError.

        `rebuild_views` scans the whole log and writes queues and index again. A function is called with (records so
        far, bytes so far, bytes in all).

        `commit_log_paths`: the log's directories if the log is outside the store, separated by commas, as in the
        broker's storePathCommitLog. Only with `read_only`.

        Raises:
            NotAStoreError: no store at `path`, or one of a newer version.
            StoreKindError: a store of a kind that cannot be read, or not be written (docs/stores.md).
            StoreLockedError: a RocketMQ broker runs on it (for writing).
            UsageError: `config` contradicts the store, no permission, or a URI of another file system.
            CorruptionError: files that contradict each other, or store.json is damaged or lost; nothing was changed.
        """
        load_under_real_time()
        place = local_path(path) if isinstance(path, str) else path
        request = OpenRequest(
            place, read_only, create, config, clock, broker_name, on_corruption, rebuild_views, commit_log_paths
        )
        return open_store(request, cls)

    def close(self) -> None:
        """Wait for appends of other threads, flush, and release files and locks. The last writer to close leaves a
        cleanly stopped store. If another thread is closing the store, this call does nothing. After an interrupt
        (Ctrl-C) during the wait the store is still open: call `close` again.

        Raises:
            StoreFailedError: a flush failed; the next opener recovers the store.
            StoreLockedError: another process, or another thread, appends for too long.
            UsageError: a signal handler calls it during an append or a flush of the same thread. The store stays open.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._log.refuse_reentry()
        # The first one in it closes. A dict, because to leave it is one step that no signal handler can come between.
        closer = object()
        try:
            self._closers[closer] = None
            first, *_ = self._closers
            if first is closer:
                self._close()
        finally:
            self._closers.pop(closer, None)

    @leaves_no_lock
    def _close(self) -> None:
        try:
            self._let_go()
        finally:
            # Also after an error; a read-only store never has it.
            self._closed = self._log.store_lock.held == "free"

    def _let_go(self) -> None:
        self._retention.close()
        if self._flusher is not None:
            self._flusher.stop()
            try:
                if self._schedule is not None:
                    self._schedule.close()
                if self._pop is not None:
                    self._pop.close()
                self._transactions.save_progress()
            finally:
                opening.close(self._log)
                assert self._writer is not None  # as the flusher
                self._writer.forget_files()
        else:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def retention(self) -> Retention:
        """Deletes old messages. For a read-only store it only plans."""
        self._reading()
        return self._retention

    @property
    def admin(self) -> Administration:
        """Changes and deletes topics and groups. For a read-only store it only plans deletions."""
        self._reading()
        return self._admin
