"""The copies of dead letters: sent between two records of the ledger, and looked for where the second one is missing.

    a record       which letters are sent now, and where all queues that they can go to end
    the copies     310, 32 at once, to the broker of the letter, or to any broker of another topic
    a record       they are moved

A broker forgets the lock of the sender after 60 s. So it is renewed before each 32 copies, and after each look for
those whose answers are lost: before anything is sent that another process may have sent by then. A refused renewal
leaves the first record open, and the next call looks for the copies.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Final

import numpy as np

from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.broker.rules.failure import DEAD_LETTER
from rmq_store.client.cluster_retry.dead_letters import Letter, letter_name, ranges_of
from rmq_store.client.cluster_retry.redrive_ledger import MOVED, SENDING, LedgerRecord, RedriveLedger
from rmq_store.client.cluster_retry.stored_copies import CopyReading
from rmq_store.client.cluster_sink.records import Offsets
from rmq_store.client.delivery.deliver import IN_FLIGHT_MAX, Delivery, Single
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.client.delivery.request import single_request
from rmq_store.errors import UsageError
from rmq_store.format.frames.frame_check import COMPRESSION_MASK, SysFlag
from rmq_store.format.frames.stored_message import StoredMessage, decode_frame
from rmq_store.format.text import names
from rmq_store.format.text.ids import parse_offset_message_id
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions.messages import ask_message

_log = logging.getLogger(__name__)

_COMPRESSION_BITS: Final = COMPRESSION_MASK | SysFlag.COMPRESSED


class LetterMoves:
    """Sends letters on. `renew` of its methods renews the caller's lock, and raises if another process has it."""

    def __init__(
        self,
        cluster: Cluster,
        ledger: RedriveLedger,
        *,
        settle_ms: int,
        send_timeout_ms: int,
        pull_group: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._send_timeout_ms = send_timeout_ms
        self._sleep = sleep
        self._reading = QueueReading(cluster, send_timeout_ms, pull_group, sleep)
        self._sent = SentLetters(cluster, self._reading, settle_ms)
        self._turns = 0
        # Groups and brokers whose letters came to the retry topic, as a look at one of them has shown.
        self._probed: set[tuple[str, str]] = set()

    def finish(self, broker_name: str, record: LedgerRecord, renew: Callable[[], None]) -> None:
        """Find out what a dead attempt has moved, and record it.

        Raises:
            SendInDoubtError: a recorded queue cannot be read. MQClientError: the broker takes no record.
        """
        dlq = names.dlq_topic(record.group)
        found = self._sent.copies(record.ends)
        letters = {}
        for queue_id, ranges in record.letters.items():
            offsets = [offset for start, end in ranges.pairs() for offset in range(start, end)]
            moved = [at for at in offsets if letter_name(dlq, broker_name, queue_id, at) in found]
            letters[queue_id] = OffsetRanges.of(np.array(moved, np.int64))
        self._ledger.add(broker_name, LedgerRecord(record.group, record.attempt, MOVED, letters))
        _log.warning(
            "broker %r: a redrive of group %r has ended early; %d of its letters were moved",
            broker_name, record.group, sum(int((one.ends - one.starts).sum()) for one in letters.values()),
        )  # fmt: skip
        renew()

    def move(self, group: str, dlq: MessageQueue, moving: Sequence[Letter], renew: Callable[[], None]) -> None:
        """Send letters with their messages and judgements. On return they are moved, and recorded.

        Raises:
            UsageError: the group holds locks of queues. LeaseHeldError: another process has the lock.
            MQBrokerError, MQClientError, SendInDoubtError, RemotingError: a broker refuses or does not answer.
        """
        queues = {topic: self._queues(topic, dlq.broker_name) for topic in sorted({_target(one) for one in moving})}
        # While the group holds locks, a broker of 5.x moves what is sent to its retry topic to its dead letters.
        ends = self._reading.ends([queue for of_topic in queues.values() for queue in of_topic] + [dlq])
        attempt = uuid.uuid4().hex
        self._ledger.add(
            dlq.broker_name, LedgerRecord(group, attempt, SENDING, {dlq.queue_id: ranges_of(moving)}, ends)
        )
        verifier = LetterVerifier(self._sent, ends, renew)
        sends = Delivery(self._cluster, self._send_timeout_ms, verifier, sleep=self._sleep)
        left = list(moving)
        is_dead_again = False
        while left and not is_dead_again:
            probe = self._probe(group, dlq.broker_name, left)
            part = left[:IN_FLIGHT_MAX] if probe is None else [probe]
            renew()
            self._send(dlq, part, queues, sends)
            left = [one for one in left if one not in part]
            is_dead_again = probe is not None and self._is_dead(group, dlq.broker_name, probe)
        sent = [one for one in moving if one not in left]
        self._ledger.add(dlq.broker_name, LedgerRecord(group, attempt, MOVED, {dlq.queue_id: ranges_of(sent)}))
        if is_dead_again:
            raise UsageError(
                f"broker {dlq.broker_name!r} moves what is sent to {names.retry_topic(group)!r} straight to the dead "
                f"letters: members of group {group!r} hold locks of queues. Stop them for a minute, or give another "
                f"topic. Letters that were moved, and are dead letters again: {len(sent)}"
            )

    def _queues(self, topic: str, broker_name: str) -> list[MessageQueue]:
        """The queues that copies can go to: those of the letter's broker, or all if that has none."""
        route = self._cluster.route(topic)
        if topic.startswith(names.RETRY_PREFIX):
            found = [] if route is None else route.publish_queues()
            return [one for one in found if one.broker_name == broker_name] or [MessageQueue(topic, broker_name, 0)]
        if route is None:
            raise UsageError(f"no broker has a topic {topic!r}")
        return self._reading.publish_queues(route)

    def _send(
        self,
        dlq: MessageQueue,
        letters: Sequence[Letter],
        queues: Mapping[str, Sequence[MessageQueue]],
        sends: Delivery,
    ) -> None:
        singles = []
        for one in letters:
            assert one.judgement is not None and one.message is not None  # only such letters move
            self._turns += 1
            of_topic = queues[_target(one)]
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
        # reconsumeTimes 0 of 1: no broker makes a dead letter of it.
        return single_request(
            self._cluster, target, message.body, properties, group="pyspark_rmq", flag=message.flag,
            sys_flag=message.sys_flag & _COMPRESSION_BITS, born_ms=message.born_timestamp_ms, max_reconsume_times=1,
        )  # fmt: skip

    def _probe(self, group: str, broker_name: str, letters: Sequence[Letter]) -> Letter | None:
        """A letter that is sent alone, because brokers do not say that they have made a dead letter of a message."""
        if (group, broker_name) in self._probed:
            return None
        return next((one for one in letters if _target(one) == names.retry_topic(group)), None)

    def _is_dead(self, group: str, broker_name: str, probe: Letter) -> bool:
        """Whether a letter is a dead letter again. One that was found after a lost answer has no known place: the next
        one is looked at.
        """
        if probe.new_log_offset is None or probe.target is None:
            return False
        name = probe.target.broker_name
        answer = self._cluster.call_broker(name, ask_message(probe.new_log_offset, name))
        self._probed.add((group, broker_name))
        return decode_frame(memoryview(answer.body), 0, len(answer.body)).topic.startswith(names.DLQ_PREFIX)


def _target(letter: Letter) -> str:
    assert letter.judgement is not None and letter.judgement.target is not None  # only such letters move
    return letter.judgement.target


# -- copies that are there already -------------------------------------------------------------------------------------


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
