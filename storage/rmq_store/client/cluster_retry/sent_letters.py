"""Copies of dead letters that are in queues: those of an attempt that has died, and of requests of unknown outcome."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable

from rmq_store.broker.rules.failure import DEAD_LETTER
from rmq_store.client.cluster_retry.stored_copies import CopyReading
from rmq_store.client.cluster_sink.records import Offsets
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.remoting.cluster.cluster import Cluster


class SentLetters:
    """Looks for copies in queues."""

    def __init__(self, cluster: Cluster, reading: QueueReading, settle_ms: int) -> None:
        self._cluster = cluster
        self._reading = reading
        self._settle_ms = settle_ms

    def copies(self, starts: Offsets) -> set[str]:
        """The letters of which queues have copies, from offsets on, by `letter_name`, when all that is on its way is
        there. Raises as `QueueReading.settled_ends` and `QueueReading.frames`.
        """
        ends = self._reading.settled_ends(list(starts), self._settle_ms)
        reading = CopyReading(self._reading, frozenset(self._cluster.wire_topic(queue.topic) for queue in starts))
        parts = {queue: (start, ends[queue]) for queue, start in starts.items()}
        return {name for one in reading.messages(parts) if (name := one.properties.get(DEAD_LETTER)) is not None}


class LetterVerifier:
    """A `Verifier` of copies. `starts`: where the queues ended before the first one was sent. `renew` renews the
    sender's lock after each look, before the other ones are sent again.
    """

    def __init__(self, letters: SentLetters, starts: Offsets, renew: Callable[[], None]) -> None:
        self._letters = letters
        self._starts = starts
        self._renew = renew

    def stored(self, broker_name: str, keys: Collection[Hashable], reason: str) -> set[Hashable]:
        """As `Verifier.stored`."""
        starts = {queue: start for queue, start in self._starts.items() if queue.broker_name == broker_name}
        found = set(keys) & self._letters.copies(starts)
        self._renew()
        return found
