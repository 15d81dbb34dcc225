"""The views of the log: all consume queues, and the index. Dispatch puts records into them, `cut` removes them.

The same records always give the same bytes: a queue entry lies at its queue offset, index entries follow log order. So
dispatching the same records again changes nothing in the queues; the index must be restored first.
Source: DefaultMessageStore.ReputMessageService.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np

from rmq_store import kinds
from rmq_store.files import durable
from rmq_store.files.segments.open_files import OpenFiles
from rmq_store.files.segments.segments import SegmentRun
from rmq_store.log.views.consume_queue import ConsumeQueue
from rmq_store.log.views.hash_index import NOT_KEPT, HashIndex, IndexState

QueueKey = tuple[str, int]
"""(topic, queue id)."""

ConfirmRecord = Callable[[str, int, int, int, int], bool]
"""(topic, queue id, commit-log offset, size, queue offset) -> is this record really that message?"""


# A remembered queue takes 1.2 KB in a reader, and saves it listing a directory at the next read.
_READ_QUEUES_MAX = 1024


class Views:
    """Consume queues by (topic, queue id), and the index if the store keeps one."""

    def __init__(
        self, root: Path, queue_file_bytes: int, files: OpenFiles, index: HashIndex | None, *, writable: bool
    ) -> None:
        self.directory = root / "consumequeue"
        self.index = index
        self._queue_file_bytes = queue_file_bytes
        self._files = files
        self._writable = writable
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        with durable.typed_reading(root):
            self.elsewhere = kinds.topics_with_batch_queues(root)
        """Topics whose queues a broker keeps in another directory and format. A broker that finds queues of them here
        does not start any more (ConsumeQueueStore#queueTypeShouldBe): nothing makes any.
        """

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, with or without files yet. `topic` must be a valid name: it becomes a path.

        Raises:
            NotAStoreError: one of its directories is a symbolic link: a store's queues lie in the store.
        """
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            directory = self.directory / topic / str(queue_id)
            durable.refuse_links(directory.parent, directory)
            run = SegmentRun(
                directory,
                self._queue_file_bytes,
                self._files,
                writable=self._writable,
                sparse=True,
                pin=False,
            )
            queue = ConsumeQueue(run, topic, queue_id)
            if not self._writable and len(self._queues) >= _READ_QUEUES_MAX:
                self._queues.clear()
            self._queues[key] = queue
        return queue

    def keys(self) -> list[QueueKey]:
        """Every queue that has a directory, sorted; names that are no queue ids are passed over, as in Java."""
        return sorted((topic, queue_id) for topic in self.topic_names() for queue_id in self.queue_ids(topic))

    def topic_names(self) -> list[str]:
        """Every name in the directory of the topics' queues."""
        return _names(self.directory)

    def queue_ids(self, topic: str) -> list[int]:
        """The ids of one topic's queues that have a directory, in no order."""
        directory = os.fspath(self.directory / topic)
        try:
            # Not scandir: an interrupt between it and its `with` block leaves it open.
            names = os.listdir(directory)  # noqa: PTH208 - thousands of queues: no Path object per name
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [
            int(name)
            for name in names
            if name.isascii() and name.isdigit() and os.path.isdir(f"{directory}/{name}")  # noqa: PTH112 - as above
        ]

    def written_keys(self) -> list[QueueKey]:
        """The queues that this process has written entries of."""
        return [key for key, queue in self._queues.items() if queue.is_written]

    def make_room(self, queues: Iterable[tuple[QueueKey, int, int]]) -> None:
        """Create the files that will be needed. `queues`: (key, first queue offset, messages) each."""
        for key, first, count in queues:
            self.queue(*key).make_room(first, count)

    def make_room_for_keys(self, timestamp: int) -> None:
        """Create the file that `put_keys` begins with, unless it exists; its first record has this timestamp (ms)."""
        if self.index is not None:
            self.index.make_room(timestamp)

    def putting_keys(self, key_count: int) -> AbstractContextManager[None]:
        """A block that calls `put_keys` with `key_count` keys in all. If it fails, the caller must call
        `restore_index`.
        """
        return self.index.putting(key_count) if self.index is not None else nullcontext()

    def put_keys(
        self, key_hashes: np.ndarray, key_counts: np.ndarray, log_offsets: np.ndarray, timestamps: np.ndarray
    ) -> None:
        """Index records in log order. `key_counts` (n,): how many of the flat `key_hashes` belong to each record.
        `timestamps` (ms): one for each record, or one for all.
        """
        if self.index is not None and len(key_hashes):
            times = np.repeat(timestamps, key_counts) if len(timestamps) > 1 else timestamps
            self.index.put(key_hashes, np.repeat(log_offsets, key_counts), times)

    def index_state(self) -> IndexState:
        """The end of the index."""
        return self.index.state() if self.index is not None else NOT_KEPT

    def restore_index(self, state: IndexState) -> None:
        """Restore the index to `state`."""
        if self.index is not None:
            self.index.restore(state)

    def cut_queues(
        self,
        log_offset: int,
        keys: Iterable[QueueKey],
        is_record: ConfirmRecord,
        confirm: ConfirmRecord | None = None,
    ) -> None:
        """Remove the entries of records at or above `log_offset` from the given queues; `is_record` and `confirm` as
        `ConsumeQueue.cut`.
        """
        for key in keys:
            self.queue(*key).cut(log_offset, partial(is_record, *key), partial(confirm, *key) if confirm else None)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - thousands of queues: no Path object per name
    except (FileNotFoundError, NotADirectoryError):
        return []
