"""The tables of a master, asked for in a thread beside the feed: an answer that takes its time delays no message.

One round is under way at most, and one answer waits at most. The thread that feeds writes the tables
(`MetadataCopy.take`), at a moment when nothing of the feed is held back.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from rmq_store.replica.metadata import MetadataCopy, Tables


class Questions:
    """Asks for everything that `metadata` takes, when `begin` says so. Close it: that waits for one answer at most."""

    def __init__(self, metadata: MetadataCopy) -> None:
        self._metadata = metadata
        self._ended = threading.Event()
        self._thread = ThreadPoolExecutor(1, "rmq-replica-questions")
        self._round: Future[Tables] | None = None

    @property
    def are_asked(self) -> bool:
        """Whether a round is under way, or its answer waits."""
        return self._round is not None

    def begin(self) -> None:
        """Begin a round, unless one is under way."""
        if self._round is None:
            self._round = self._thread.submit(self._metadata.ask, self._ended.is_set)

    def answer(self, *, wait: bool = False) -> Tables | None:
        """The tables of the round, once; None: they are not all there yet. `wait`: until they are.

        Raises, once:
            MQBrokerError, RemotingError: as `MetadataCopy.ask`.
        """
        asked = self._round
        if asked is None or not (wait or asked.done()):
            return None
        self._round = None
        return asked.result()

    def close(self) -> None:
        """Ask nothing more."""
        self._ended.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
