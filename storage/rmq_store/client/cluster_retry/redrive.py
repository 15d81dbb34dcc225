"""Dead letters of a cluster, moved on: each of them once, whatever is repeated.

The steps for the letters of one broker, 500 at a time:

    1  a lock of the ledger's queue at this broker: nobody else moves letters of the group there
    2  the ledger is read; for an attempt that has died, its copies are looked for, and recorded as moved
    3  the letters are read and judged
    4  a record says which letters are sent now, and where all queues that they can go to end
    5  the copies are sent (310), up to 32 at once, to the broker of the letter, or to any broker of another topic
    6  a record says that they are moved

After a crash between 4 and 6 step 2 of the next call finds what was sent. A broker forgets the lock of a dead process
after 60 s, so the next call waits that long.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.dlq.redrive_batch import ALREADY_REDRIVEN, GONE, PARKED, REDRIVEN, REFUSED, Policy
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.broker.rules.input_rows import as_schema
from rmq_store.client.cluster_retry.letter_copies import Judgement, judged, letter_name
from rmq_store.client.cluster_retry.letters import CLUSTER_ROWS_SCHEMA, Letter, letters_by_broker, ranges_of, result_of
from rmq_store.client.cluster_retry.redrive_ledger import MOVED, SENDING, LedgerRecord, RedriveLedger, queue_of
from rmq_store.client.cluster_retry.redrive_lock import RedriveLock, no_lock
from rmq_store.client.cluster_retry.sent_letters import LetterVerifier, SentLetters
from rmq_store.client.cluster_retry.single_sends import Single, SingleSends
from rmq_store.client.cluster_sink.queue_reading import QueueReading
from rmq_store.errors import UnknownTopicError, UsageError
from rmq_store.format.frames.frame_check import COMPRESSION_MASK, SysFlag
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame
from rmq_store.format.text import names
from rmq_store.format.text.ids import parse_offset_message_id
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import ViewMessageRequestHeader
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.cluster.pull_request import EVERYTHING, PullFilter
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.cluster.sending import single_request
from rmq_store.remoting.cluster.topics import refuse_to_write_topic

_log = logging.getLogger(__name__)

_CHUNK_LETTERS: Final = 500
_GAP_ROWS: Final = 32
_COMPRESSION_BITS: Final = COMPRESSION_MASK | SysFlag.COMPRESSED
_PLANNED: Final = {REDRIVEN: "WOULD_REDRIVE", PARKED: "WOULD_PARK"}

Int64 = npt.NDArray[np.int64]


class ClusterDeadLetters:
    """The dead letters of the groups of a cluster; not thread-safe. `settle_ms`, `send_timeout_ms`, `pull_group`: as
    the options settleTime, sendTimeout and pullGroup.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        settle_ms: int = 3_000,
        send_timeout_ms: int = 20_000,
        pull_group: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._send_timeout_ms = send_timeout_ms
        self._wanted = PullFilter(group=pull_group) if pull_group else EVERYTHING
        self._sleep = sleep
        self._reading = QueueReading(cluster, send_timeout_ms, pull_group, sleep)
        self._sent = SentLetters(cluster, self._reading, settle_ms, pull_group, sleep)
        self._ledger = RedriveLedger(cluster, send_timeout_ms, pull_group, sleep=sleep)
        self._client_id = f"pyspark_rmq#redrive#{secrets.token_hex(6)}"
        self._turns = 0
        self._probed: set[str] = set()

    def redriven(self, group: str, broker_name: str) -> Mapping[int, OffsetRanges]:
        """The offsets of moved dead letters by queue of `%DLQ%group`, as the broker has recorded them.

        Raises:
            RemotingError, MQBrokerError, SlaveBehindError: they cannot be read.
        """
        ledger = self._ledger.read(group, broker_name, at_master=False)
        return {queue_id: ledger.moved_of(queue_id) for queue_id in ledger.moved}

    def plan(
        self,
        group: str,
        rows: pa.RecordBatch,
        *,
        to_topic: str | None = None,
        max_replays: int | None = None,
        parking_topic: str | None = None,
        limit: int | None = None,
    ) -> pa.RecordBatch:
        """The outcomes of a `redrive` with these arguments (CLUSTER_RESULT_SCHEMA); sends nothing. Raises as it."""
        return self._run(
            group, rows, writes=False, to_topic=to_topic, max_replays=max_replays, parking_topic=parking_topic,
            limit=limit,
        )  # fmt: skip

    def redrive(
        self,
        group: str,
        rows: pa.RecordBatch,
        *,
        to_topic: str | None = None,
        max_replays: int | None = None,
        parking_topic: str | None = None,
        limit: int | None = None,
    ) -> pa.RecordBatch:
        """Send dead letters (CLUSTER_ROWS_SCHEMA) to a topic where they are consumed again, each once, however often
        this is called. The arguments are those of `DeadLetters.redrive`. Returns
        CLUSTER_RESULT_SCHEMA in the order of the rows. On return the letters are moved, as durably as brokers store.

        Raises:
            UsageError: a row is no dead letter of the group; a target that cannot be written or would be a loop; the
                group holds locks of queues, so a broker of 5.x moves what it gets straight to the dead letters.
            LeaseHeldError: another process moves letters of this group.
            MQBrokerError, MQClientError, SendInDoubtError, RemotingError: a broker refuses or does not answer. Letters
                that were moved before stay moved, and the next call knows them.
        """
        return self._run(
            group, rows, writes=True, to_topic=to_topic, max_replays=max_replays, parking_topic=parking_topic,
            limit=limit,
        )  # fmt: skip

    def _run(
        self,
        group: str,
        rows: pa.RecordBatch,
        *,
        writes: bool,
        to_topic: str | None,
        max_replays: int | None,
        parking_topic: str | None,
        limit: int | None,
    ) -> pa.RecordBatch:
        policy = self._policy(group, to_topic, max_replays, parking_topic)
        rows = as_schema(
            rows, CLUSTER_ROWS_SCHEMA, ("brokerName", "queueId", "queueOffset"), "a dead letter is named by its place"
        )
        done: dict[int, tuple[str, int, Letter]] = {}
        left = limit
        for broker_name, by_queue in letters_by_broker(rows).items():
            with self._lock(group, broker_name) if writes else no_lock() as renew:
                for queue_id, letters in by_queue.items():
                    for start in range(0, len(letters), _CHUNK_LETTERS):
                        if left == 0:
                            break
                        renew()
                        chunk = letters[start : start + _CHUNK_LETTERS]
                        moved = self._chunk(group, broker_name, queue_id, chunk, policy, left, writes=writes)
                        done |= {one.row: (broker_name, queue_id, one) for one in chunk if one.judgement is not None}
                        left = None if left is None else left - moved
        return result_of(done, {} if writes else _PLANNED)

    def _lock(self, group: str, broker_name: str) -> RedriveLock:
        return RedriveLock(self._cluster, group, queue_of(broker_name), self._client_id, self._sleep)

    # -- targets ------------------------------------------------------------------------------------------------------

    def _policy(
        self, group: str, to_topic: str | None, max_replays: int | None, parking_topic: str | None
    ) -> Policy:
        names.validate_group(group)
        if max_replays is not None and (type(max_replays) is not int or max_replays < 0):
            raise UsageError(f"max_replays={max_replays!r}: must be 0 or more")
        if parking_topic is not None and max_replays is None:
            raise UsageError("parking_topic needs max_replays: it gets the messages that were redriven so often")
        target = names.retry_topic(group) if to_topic is None else to_topic
        for what, topic in (("to_topic", target), ("parking_topic", parking_topic)):
            if topic is not None and topic != names.retry_topic(group):
                self._check_target(what, topic)
        return Policy(target, max_replays, parking_topic)

    def _check_target(self, what: str, topic: str) -> None:
        names.validate_topic(topic)
        if topic.startswith((names.DLQ_PREFIX, names.RETRY_PREFIX)):
            raise UsageError(f"{what}={topic!r}: dead letters go to the retry topic of their own group, or to no group")
        if self._cluster.route(topic) is None:
            raise UnknownTopicError(f"{what}={topic!r}: no broker of the cluster has this topic")
        refuse_to_write_topic(self._cluster, topic)

    def _queues(self, topic: str, broker_name: str) -> list[MessageQueue]:
        """The queues that copies can go to: those of the letter's broker, or all if that has none."""
        route = self._cluster.route(topic)
        found = [] if route is None else list(route.publish_queues())
        if topic.startswith(names.RETRY_PREFIX):
            return [one for one in found if one.broker_name == broker_name] or [MessageQueue(topic, broker_name, 0)]
        if not found:
            raise UsageError(f"topic {topic!r} has no queue that may be written at a broker with a master")
        return found

    # -- one chunk ----------------------------------------------------------------------------------------------------

    def _chunk(
        self,
        group: str,
        broker_name: str,
        queue_id: int,
        letters: list[Letter],
        policy: Policy,
        limit: int | None,
        *,
        writes: bool,
    ) -> int:
        """Decide letters of one queue, up to the last one that may move, and move them. Returns how many move."""
        ledger = self._ledger.read(group, broker_name, at_master=writes)
        if writes:
            for record in list(ledger.open.values()):
                ledger.add(self._finished(broker_name, record))
        moved = ledger.moved_of(queue_id)
        dlq = MessageQueue(names.dlq_topic(group), broker_name, queue_id)
        self._judge(dlq, letters, moved, policy)
        moving = [one for one in letters if one.judgement is not None and one.judgement.target is not None]
        if limit is not None and len(moving) > limit:
            # The rows after the last moved one are left out of the result.
            kept = letters.index(moving[limit - 1]) + 1 if limit else 0
            for one in letters[kept:]:
                one.judgement = None
            moving = moving[:limit]
        if writes and moving:
            self._move(group, dlq, moving)
        return len(moving)

    def _finished(self, broker_name: str, record: LedgerRecord) -> LedgerRecord:
        """Find out what a dead attempt has moved, and record it."""
        self._sent.settle(list(record.ends))
        dlq = names.dlq_topic(record.group)
        found = self._sent.copies(record.ends)
        letters = {}
        for queue_id, ranges in record.letters.items():
            offsets = [offset for start, end in ranges.pairs() for offset in range(start, end)]
            moved = [at for at in offsets if letter_name(dlq, broker_name, queue_id, at) in found]
            letters[queue_id] = OffsetRanges.of(np.array(moved, np.int64))
        finished = LedgerRecord(record.group, record.attempt, MOVED, letters)
        self._ledger.add(broker_name, finished)
        _log.warning(
            "broker %r: a redrive of group %r has ended early; %d of its letters were moved",
            broker_name, record.group, sum(int((one.ends - one.starts).sum()) for one in letters.values()),
        )  # fmt: skip
        return finished

    def _judge(self, dlq: MessageQueue, letters: list[Letter], moved: OffsetRanges, policy: Policy) -> None:
        limits = queue_ranges(self._cluster, [dlq])[dlq]
        offsets = np.array([one.queue_offset for one in letters], np.int64)
        if len(beyond := np.flatnonzero((offsets < 0) | (offsets >= limits.max_offset))):
            bad = letters[int(beyond[0])]
            raise UsageError(
                f"row {bad.row}: {dlq.topic} queue {dlq.queue_id} of broker {dlq.broker_name!r} has no message "
                f"{bad.queue_offset}: it ends at {limits.max_offset}"
            )
        is_moved = moved.contains(offsets)
        before: int | None = None
        open_letters = []
        for one, was_moved in zip(letters, is_moved.tolist(), strict=True):
            if one.queue_offset == before:
                one.judgement = Judgement(ALREADY_REDRIVEN, "named twice")
            elif was_moved:
                one.judgement = Judgement(ALREADY_REDRIVEN, "moved before")
            elif one.queue_offset < limits.min_offset:
                one.judgement = Judgement(GONE, "removed by retention")
            else:
                open_letters.append(one)
            before = one.queue_offset
        found = self._messages(dlq, [one.queue_offset for one in open_letters])
        for one in open_letters:
            one.message = found.get(one.queue_offset)
            if one.message is None:
                one.judgement = Judgement(REFUSED, "its queue entry points at no message")
            else:
                name = letter_name(dlq.topic, dlq.broker_name, dlq.queue_id, one.queue_offset)
                one.judgement = judged(one.message, name, one.msg_id, policy)

    def _messages(self, dlq: MessageQueue, offsets: Sequence[int]) -> dict[int, StoredMessage]:
        found: dict[int, StoredMessage] = {}
        wanted = set(offsets)
        for first, last in _runs(offsets):
            for frames in read_range(self._cluster, dlq, first, last, self._wanted, sleep=self._sleep):
                view = memoryview(frames)
                positions, sizes = frames_of_answer(frames)
                for position, size in zip(positions.tolist(), sizes.tolist(), strict=True):
                    message = decode_frame(view, position, position + size)
                    if message.queue_offset in wanted:
                        found[message.queue_offset] = message
        return found

    def _move(self, group: str, dlq: MessageQueue, moving: Sequence[Letter]) -> None:
        targets = {one.judgement.target for one in moving if one.judgement is not None and one.judgement.target}
        queues = {topic: self._queues(topic, dlq.broker_name) for topic in sorted(targets)}
        # While the group holds locks, a broker of 5.x moves what is sent to its retry topic to its dead letters.
        ends = self._reading.ends([queue for of_topic in queues.values() for queue in of_topic] + [dlq])
        attempt = uuid.uuid4().hex
        begun = LedgerRecord(group, attempt, SENDING, {dlq.queue_id: ranges_of(moving)}, ends)
        self._ledger.add(dlq.broker_name, begun)
        sends = SingleSends(self._cluster, self._send_timeout_ms, LetterVerifier(self._sent, ends), sleep=self._sleep)
        # Brokers do not say that they have made a dead letter of a message: the first one is looked at.
        is_first = dlq.broker_name not in self._probed
        sent: list[Letter] = []
        is_dead_again = False
        for part in (moving[:1], moving[1:]) if is_first else (moving,):
            if part and not is_dead_again:
                self._send(dlq, part, queues, sends)
                is_dead_again = not sent and is_first and self._is_dead(part[0])
                sent += part
        self._probed.add(dlq.broker_name)
        self._ledger.add(dlq.broker_name, LedgerRecord(group, attempt, MOVED, {dlq.queue_id: ranges_of(sent)}))
        if is_dead_again:
            raise UsageError(
                f"broker {dlq.broker_name!r} moves what is sent to {names.retry_topic(group)!r} straight to the dead "
                f"letters: members of group {group!r} hold locks of queues. Stop them for a minute, or give another "
                "topic. One letter was moved, and is a dead letter again"
            )

    def _send(
        self,
        dlq: MessageQueue,
        letters: Sequence[Letter],
        queues: Mapping[str, Sequence[MessageQueue]],
        sends: SingleSends,
    ) -> None:
        singles = []
        for one in letters:
            assert one.judgement is not None and one.judgement.target is not None and one.message is not None
            self._turns += 1
            of_topic = queues[one.judgement.target]
            one.target = of_topic[self._turns % len(of_topic)]
            name = letter_name(dlq.topic, dlq.broker_name, dlq.queue_id, one.queue_offset)
            command = self._request(one.target, one.message, one.judgement.properties)
            singles.append(Single(one.target.broker_name, command, name, f"row {one.row}: the dead letter {name}"))
        for one, stored in zip(letters, sends.send_all(singles), strict=True):
            if stored.fields:
                one.new_queue_offset = int(stored.fields["queueOffset"])
                id_text = stored.fields.get("msgId", "")
                one.new_log_offset = parse_offset_message_id(id_text)[1] if id_text else None

    def _request(self, target: MessageQueue, message: StoredMessage, properties: str) -> RemotingCommand:
        wire = MessageQueue(self._cluster.wire_topic(target.topic), target.broker_name, target.queue_id)
        # reconsumeTimes 0 of 1: no broker makes a dead letter of it.
        return single_request(
            wire, message.body, properties, group="pyspark_rmq", flag=message.flag,
            sys_flag=message.sys_flag & _COMPRESSION_BITS, born_ms=message.born_timestamp_ms, max_reconsume_times=1,
        )  # fmt: skip

    def _is_dead(self, letter: Letter) -> bool:
        if letter.new_log_offset is None or letter.target is None:
            return False
        header = ViewMessageRequestHeader(offset=letter.new_log_offset, bname=letter.target.broker_name)
        answer = self._cluster.call_broker(letter.target.broker_name, request(header))
        return decode_frame(memoryview(answer.body), 0, len(answer.body)).topic.startswith(names.DLQ_PREFIX)


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Half-open ranges that have all of the ascending offsets, and not much between them."""
    array = np.array(offsets, np.int64)
    for part in np.split(array, np.flatnonzero(np.diff(array) > _GAP_ROWS) + 1):
        if len(part):
            yield int(part[0]), int(part[-1]) + 1
