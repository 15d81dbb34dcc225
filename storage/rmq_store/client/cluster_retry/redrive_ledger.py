"""The redrive ledger of a cluster: which dead letters were moved on, at the brokers that hold them. Control plane.

The topic has one queue at every master. A record is at the broker from which letters were moved, behind them in its
log: so retention deletes a record later than the dead letters that it names. A record is one message, in JSON:

    {"version": 1, "group": "g", "attempt": "5f...", "state": "sending", "letters": {"0": [[3, 9]]},
     "ends": {"%RETRY%g": {"broker-a:0": 23}}}
    {"version": 1, "group": "g", "attempt": "5f...", "state": "moved", "letters": {"0": [[3, 9]]}}

The first one is there before the first copy is sent, with the ends of all queues that copies can go to. The second one
names what was moved. Where it is missing the process has died, and the next one looks for copies from those ends on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.client.cluster_sink.outcomes import Outcome, verdict_of
from rmq_store.client.cluster_sink.queue_reading import QueueReading
from rmq_store.client.cluster_sink.records import Offsets
from rmq_store.errors import OffsetOutOfRangeError
from rmq_store.format.batches.batch_bodies import MessageParts
from rmq_store.format.frames.frame_check import BODY_POSITIONS
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.errors import MQClientError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.cluster.pull_request import EVERYTHING, PullFilter
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.cluster.sending import single_request, stored_offset
from rmq_store.remoting.cluster.topics import create_topic

LEDGER_TOPIC: Final = "PYRMQ_REDRIVEN"

SENDING: Final = "sending"
MOVED: Final = "moved"

_VERSION: Final = 1
_TRIES: Final = 5
_PAUSE_S: Final = 0.2
_DISPATCH_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A record. `letters`: offset ranges by queue of the dead-letter topic. `ends`: where copies may lie from."""

    group: str
    attempt: str
    state: str
    letters: Mapping[int, OffsetRanges]
    ends: Offsets = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The text of the record."""
        topics: dict[str, dict[str, int]] = {}
        for queue, offset in sorted(self.ends.items()):
            topics.setdefault(queue.topic, {})[f"{queue.broker_name}:{queue.queue_id}"] = offset
        content: dict[str, Any] = {
            "version": _VERSION, "group": self.group, "attempt": self.attempt, "state": self.state,
            "letters": {str(queue_id): ranges.pairs() for queue_id, ranges in sorted(self.letters.items())},
        }  # fmt: skip
        if topics:
            content["ends"] = topics
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> LedgerRecord | None:
        """Read a record; None: the text is none, or of a version that is not known."""
        try:
            found = json.loads(text)
            if found["version"] != _VERSION:
                return None
            letters = {}
            for queue_id, pairs in found["letters"].items():
                ranges = np.array(pairs, np.int64).reshape(-1, 2)
                letters[int(queue_id)] = OffsetRanges(ranges[:, 0], ranges[:, 1])
            ends = {
                MessageQueue(topic, name.rpartition(":")[0], int(name.rpartition(":")[2])): int(offset)
                for topic, queues in found.get("ends", {}).items()
                for name, offset in queues.items()
            }
            return cls(str(found["group"]), str(found["attempt"]), str(found["state"]), letters, ends)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return None


@dataclass
class BrokerLedger:
    """The content of the records of one broker for one group. `open`: attempts that have not said what they moved."""

    moved: dict[int, list[OffsetRanges]] = field(default_factory=dict)
    open: dict[str, LedgerRecord] = field(default_factory=dict)

    def add(self, record: LedgerRecord) -> None:
        """Take the next record."""
        if record.state == SENDING:
            self.open[record.attempt] = record
            return
        self.open.pop(record.attempt, None)
        for queue_id, ranges in record.letters.items():
            self.moved.setdefault(queue_id, []).append(ranges)

    def moved_of(self, queue_id: int) -> OffsetRanges:
        """The offsets of a queue that were moved."""
        return OffsetRanges.union(self.moved.get(queue_id, [OffsetRanges.none()]))


class RedriveLedger:
    """The ledger of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        patience_ms: int = 15_000,
        pull_group: str = "",
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._reading = QueueReading(cluster, patience_ms, pull_group, sleep)
        self._wanted = PullFilter(group=pull_group) if pull_group else EVERYTHING
        self._sleep = sleep

    def read(self, group: str, broker_name: str, *, at_master: bool) -> BrokerLedger:
        """All that a broker has recorded for a group. `at_master`: nothing may be missed, so no slave is asked.

        Raises:
            SendInDoubtError: the master does not answer.
            RemotingError, MQBrokerError, SlaveBehindError: the queue cannot be read.
        """
        ledger = BrokerLedger()
        if self._cluster.route(LEDGER_TOPIC) is None:
            return ledger
        queue = queue_of(broker_name)
        for _ in range(2):  # retention may be faster once
            limits = queue_ranges(self._cluster, [queue])[queue]
            end = self._reading.ends([queue])[queue] if at_master else limits.max_offset
            try:
                for record in self._records(queue, limits.min_offset, end):
                    if record.group == group:
                        ledger.add(record)
                return ledger
            except OffsetOutOfRangeError:
                ledger = BrokerLedger()
        return ledger

    def add(self, broker_name: str, record: LedgerRecord) -> None:
        """Make a record durable, as far as the broker's flush and replication settings do that.

        Raises:
            MQClientError: the broker does not take it.
        """
        if self._cluster.route(LEDGER_TOPIC) is None:
            create_topic(self._cluster, LEDGER_TOPIC, 1)
        wire = replace(queue_of(broker_name), topic=self._cluster.wire_topic(LEDGER_TOPIC))
        command = single_request(
            wire, record.to_json(), f"KEYS\x01{record.group}\x02WAIT\x01true\x02", group="pyspark_rmq",
            born_ms=time.time_ns() // 1_000_000,
        )  # fmt: skip
        reason = ""
        for number in range(_TRIES):
            try:
                answer = self._cluster.submit_broker(broker_name, command).result()
                verdict = verdict_of(answer)
                if verdict.outcome in (Outcome.STORED, Outcome.STORED_WEAKLY):
                    self._await_shown(broker_name, stored_offset(answer.ext_fields))
                    return
            except RemotingError as error:
                verdict = verdict_of(error)
            reason = verdict.reason
            if number + 1 < _TRIES:  # stored twice, a record says the same
                self._sleep(_PAUSE_S * 2**number)
        raise MQClientError(f"broker {broker_name!r} takes no record of a redrive into {LEDGER_TOPIC!r}: {reason}")

    def _await_shown(self, broker_name: str, offset: int) -> None:
        """A broker shows a message in its queue a moment after its answer, and who comes next must see it."""
        queue = queue_of(broker_name)
        while self._reading.ends([queue])[queue] <= offset:
            self._sleep(_DISPATCH_PAUSE_S)

    def _records(self, queue: MessageQueue, start: int, end: int) -> Iterator[LedgerRecord]:
        if start >= end:
            return
        for frames in read_range(self._cluster, queue, start, end, self._wanted, sleep=self._sleep):
            positions, sizes = frames_of_answer(frames)
            for position, size in zip(positions.tolist(), sizes.tolist(), strict=True):
                frame = frames[position : position + size]
                header_bytes = BODY_POSITIONS[int.from_bytes(frame[36:40], "big") >> 4 & 3]
                record = LedgerRecord.from_json(MessageParts(frame, header_bytes).body)
                if record is not None:
                    yield record


def queue_of(broker_name: str) -> MessageQueue:
    """The queue of a broker's records."""
    return MessageQueue(LEDGER_TOPIC, broker_name, 0)
