"""The replay check of a task: what is recorded before a send, and what is looked for (`records`).

    a topic's first rows, no record of it    its queues' ends are recorded; those of brokers that are away are left out,
                                             and get no rows, if all rows may go elsewhere
    a record of it is there                  this part of the write was tried before: after the settle time all
                                             recorded queues are read, and those that were added since from their start
    a send has an unknown outcome            its queue is read after the settle time
    all rows are stored, after a repetition  what came into the queues between the read and the first own row is read,
                                             too: rows of ours there that are stored once more are reported
    rows for a retry topic                   a broker may put them into its dead-letter topic, which is recorded and
                                             read, too
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from rmq_store.broker.rules.timer import TIMER_QUEUES
from rmq_store.client.cluster_sink.chunks import Chunk, Rows, RowsToMake
from rmq_store.client.cluster_sink.recorded_ends import SCHEDULE_QUEUES, RecordedEnds, Records
from rmq_store.client.cluster_sink.records import Offsets, WritePart
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.format.batches.batch_bodies import KEY_BYTES
from rmq_store.format.batches.content_keys import Bytes, FoundKeys
from rmq_store.format.text.names import DLQ_PREFIX, PYRMQ_TIMER_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_store.protocol.errors import SendInDoubtError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster

_log = logging.getLogger(__name__)

class ReplayCheck:
    """The check of one task; `tag` begins all of its keys."""

    def __init__(
        self,
        cluster: Cluster,
        reading: QueueReading,
        records: Records,
        part: WritePart,
        tag: bytes,
        settle_ms: int,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._reading = reading
        self._recorded = RecordedEnds(reading, records, part)
        self._part = part
        self._tag = tag
        self._settle_ms = settle_ms
        self._sleep = sleep
        self._read_ends: Offsets = {}
        self._delay_brokers: set[str] = set()
        self._served_brokers: set[str] = set()
        # Keys that may come into a queue once more without being stored twice: own ones whose send was in doubt, and
        # those of rows that waited for their time when the queues were read, or go one by one now: a broker may put
        # these into the queue at any time.
        self._found_in_doubt = FoundKeys()
        self._found_to_come = FoundKeys()
        self.found = FoundKeys()
        self.is_repetition = False

    def prepare(
        self, topic: str, queues: Sequence[MessageQueue], delayed: bool, *, may_go_elsewhere: bool = False
    ) -> None:
        """Before the first send to a topic, and before the first delayed one. `may_go_elsewhere`: no row has a queue of
        its own, so that brokers which are away are left out (`left_out`).

        Raises:
            SendInDoubtError: a recorded queue cannot be read. MQClientError: the record cannot be stored.
        """
        broker_names = {queue.broker_name for queue in queues}
        dead_letters = _dead_letters(topic, broker_names)
        elsewhere = (topic,) if may_go_elsewhere else ()
        self._prepare({topic: queues} | dead_letters, per_broker=dead_letters, elsewhere=elsewhere)
        if delayed:
            self.prepare_delays({queue.broker_name for queue in queues if queue not in self.left_out})

    @property
    def left_out(self) -> Collection[MessageQueue]:
        """The queues to which nothing may be sent: their brokers were away, and their ends are not recorded."""
        return self._recorded.left_out

    def prepare_delays(self, broker_names: Collection[str]) -> None:
        """Before the first delayed send to brokers. Raises as `prepare`.

        A served store has its timers in a topic of its own. `refuse_timers` has found the served stores before the
        first row with a deliver time; delay levels wait in the same topic everywhere.
        """
        new = sorted(set(broker_names) - self._delay_brokers)
        if new:
            levels = [MessageQueue(SCHEDULE_TOPIC, name, level) for name in new for level in range(SCHEDULE_QUEUES)]
            timers = [MessageQueue(TIMER_TOPIC, name, 0) for name in new]
            self._prepare({SCHEDULE_TOPIC: levels, TIMER_TOPIC: timers}, per_broker=_WAITING)
            self._delay_brokers.update(new)
        served = {name for name in broker_names if self._cluster.is_served_store(name)} - self._served_brokers
        if served:
            queues = [MessageQueue(PYRMQ_TIMER_TOPIC, name, of) for name in served for of in range(TIMER_QUEUES)]
            self._prepare({PYRMQ_TIMER_TOPIC: queues}, per_broker=_WAITING)
            self._served_brokers.update(served)

    def _prepare(
        self,
        queues_of: Mapping[str, Sequence[MessageQueue]],
        per_broker: Collection[str],
        elsewhere: Collection[str] = (),
    ) -> None:
        """Read and record the queues of topics. A broker that no earlier attempt has recorded for a topic of
        `per_broker` got no rows of it; otherwise its queues were added to the topic since.
        """
        read = self._recorded.prepare(queues_of, per_broker, elsewhere=elsewhere)
        if unread := {queue: start for queue, start in read.items() if queue not in self._read_ends}:
            self._read(unread)

    def _read(self, starts: Offsets) -> None:
        if not self.is_repetition:
            _log.info("%s was tried before: its queues are read", self._part.key)
            self._sleep(self._settle_ms / 1000)
        self.is_repetition = True
        ends = self._reading.ends(list(starts))
        parts = {queue: (start, ends[queue]) for queue, start in starts.items()}
        waiting = {queue: part for queue, part in parts.items() if queue.topic in _WAITING}
        self._reading.keys({queue: parts[queue] for queue in parts if queue not in waiting}, self._tag, self.found)
        if waiting:
            held = FoundKeys()
            self._reading.keys(waiting, self._tag, held)
            _copy(held, self._found_to_come, but=self.found)
            _copy(held, self.found)
        self._read_ends |= ends

    # -- Verifier ---------------------------------------------------------------------------------------------------

    def stored(self, chunk: Chunk, queue: MessageQueue, start: int | None, reason: str) -> npt.NDArray[np.bool_]:
        """(n,): which rows of a chunk are in the queue from `start` on (None: the record), or wait for their time.

        Raises:
            SendInDoubtError: the queue cannot be read in time.
        """
        known = self._recorded.starts()
        queues = [queue]
        if chunk.shared.single:
            elsewhere = (*_WAITING, *_dead_letters(queue.topic, ()))
            queues += [one for one in known if one.broker_name == queue.broker_name and one.topic in elsewhere]
        ends = self._reading.settled_ends(queues, self._settle_ms)
        found = FoundKeys()
        starts = {one: known[one] for one in queues}
        if start is not None:
            starts[queue] = start
        self._reading.keys({one: (starts[one], ends[one]) for one in queues}, self._tag, found)
        is_found, checks = found.find(chunk.keys)
        keys = chunk.keys.reshape(-1, KEY_BYTES)[is_found].ravel()
        self._found_in_doubt.add(keys, checks[is_found])
        _log.warning(
            "queue %d of topic %r at broker %r was read after a send of unknown outcome (%s): %d of %d rows are stored",
            queue.queue_id, queue.topic, queue.broker_name, reason, np.count_nonzero(is_found), chunk.row_count,
        )  # fmt: skip
        return is_found

    def expect_singles(self, rows: Rows | RowsToMake) -> None:
        """Rows that go one by one are about to be sent: their delivery is not that of another attempt's rows. If only
        one copy of such a row is there before the first own row, nobody can tell whose it is, and it is not reported.
        """
        if self.is_repetition and isinstance(rows, Rows) and rows.shared.single:
            self._found_to_come.add(rows.keys, rows.checks)

    # -- behind the last row ----------------------------------------------------------------------------------------

    def late_keys(self, first_offsets: Offsets, made: Callable[[Bytes], npt.NDArray[np.bool_]]) -> int:
        """How many rows of this part came into the queues after a repetition had read them, and before its own first
        row, and are stored twice by that: an attempt that was thought dead has stored them. `made` says which keys are
        those of the task's rows. A queue that cannot be read is logged.
        """
        parts = {
            queue: (self._read_ends[queue], offset)
            for queue, offset in first_offsets.items()
            if queue in self._read_ends and self._read_ends[queue] < offset
        }
        between = FoundKeys()
        try:
            self._reading.keys(parts, self._tag, between)
        except SendInDoubtError as error:
            _log.warning("%s: whether another attempt sent rows after the check is unknown: %s", self._part.key, error)
            return 0
        keys = between.keys
        if not len(keys):
            return 0
        own, counts = np.unique(keys.reshape(-1, KEY_BYTES)[made(keys)], axis=0, return_counts=True)
        flat = own.ravel()
        is_expected = self._found_in_doubt.find(flat)[0] | self._found_to_come.find(flat)[0]
        late = int((counts - is_expected.astype(np.int64)).sum())
        if late:
            _log.error(
                "%s: %d rows of an attempt that was thought dead came after the replay check, and are stored twice",
                self._part.key, late,
            )  # fmt: skip
        return late


_WAITING: Final = (SCHEDULE_TOPIC, TIMER_TOPIC, PYRMQ_TIMER_TOPIC)


def _dead_letters(topic: str, broker_names: Collection[str]) -> dict[str, list[MessageQueue]]:
    """Where brokers put messages for a retry topic that were tried too often, or while a member of the group has a lock
    (5.x); empty for other topics.
    """
    if not topic.startswith(RETRY_PREFIX):
        return {}
    dead = DLQ_PREFIX + topic.removeprefix(RETRY_PREFIX)
    return {dead: [MessageQueue(dead, name, 0) for name in sorted(broker_names)]}


def _copy(source: FoundKeys, into: FoundKeys, *, but: FoundKeys | None = None) -> None:
    """Add what was found, except the keys of `but`."""
    keys, checks = source.keys, source.checks
    if but is not None:
        wanted = ~but.find(keys)[0]
        keys, checks = keys.reshape(-1, KEY_BYTES)[wanted].ravel(), checks[wanted]
    into.add(keys, checks)
