"""An intent log in a topic: a text is durable before the work that it announces begins. Control plane.

The topic has one queue at every master. A text is one message; its tag is a hash of its owner (a task of a write, say,
or a group), so a broker looks through its queue for it and answers little. Two owners may have one tag: whoever reads
compares what the text says. A text may be stored twice, and says the same then.

A broker shows a message in its queue a moment after its answer.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from rmq_store.client.delivery.deliver import Delivery, Single
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.client.delivery.request import single_request, stored_offset
from rmq_store.format.batches.batch_bodies import MessageParts
from rmq_store.format.frames.frame_check import BODY_POSITIONS
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.errors import RemotingCommandError, SendInDoubtError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.names import TOOLS_CONSUMER
from rmq_store.remoting.cluster.offsets import store_timestamp_ms
from rmq_store.remoting.cluster.pull_request import PullFilter
from rmq_store.remoting.cluster.pulling import LOOKS_AT_MAX, read_range

# Each pull is work for a broker, which looks at many messages of others: few at a time.
_LANES: Final = 4
_DISPATCH_PAUSE_S: Final = 0.01


class JournalTopic:
    """The journal of a cluster. `reading.patience_ms` is the one bound for a broker that is away or busy: for a text
    that is to be stored, to be shown, or to be read. A caller that goes back to a queue later gives `read_patience_ms`
    for the last of the three. `what` names a text in errors.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        what: str,
        reading: QueueReading,
        *,
        group: str,
        pull_group: str = "",
        read_patience_ms: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._subject = f"{what} into topic {topic!r}"
        self._reading = reading
        self._read_patience_ms = reading.patience_ms if read_patience_ms is None else read_patience_ms
        self._group = group
        self._pull_group = pull_group or TOOLS_CONSUMER
        self._sleep = sleep
        self._delivery = Delivery(cluster, reading.patience_ms, sleep=sleep)

    def append(
        self,
        queues: Sequence[MessageQueue],
        owner: str,
        key: str,
        text: bytes,
        *,
        wanted: int = 1,
        needed: int = 1,
        patience_ms: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Make a text durable, as far as the brokers' flush and replication settings do that: in `wanted` of the
        queues, the first ones if their brokers take it, or in `needed` at least. Returns the queues that have it, and
        at which offset. `patience_ms`: the bound, if it is not that of the reading.

        Raises:
            MQBrokerError: too many brokers refuse it. MQClientError: too few take it within the bound.
            RemotingCommandError: a broker has stored it, and its answer does not say where.
        """
        properties = f"TAGS\x01{_tag_of(owner)}\x02KEYS\x01{key}\x02WAIT\x01true\x02"
        born_ms = time.time_ns() // 1_000_000
        sends = [
            Single(
                queue.broker_name,
                single_request(self._cluster, queue, text, properties, group=self._group, born_ms=born_ms),
                key,
                self._subject,
            )
            for queue in queues
        ]
        delivery = self._delivery
        if patience_ms is not None:
            delivery = Delivery(self._cluster, patience_ms, sleep=self._sleep)
        stored = delivery.send_copies(sends, wanted, needed)
        return {queues[number]: self._offset(queues[number], one.fields) for number, one in stored.items()}

    def _offset(self, queue: MessageQueue, fields: Mapping[str, str]) -> int:
        try:
            return stored_offset(fields)
        except RemotingCommandError as error:
            raise RemotingCommandError(
                f"broker {queue.broker_name!r} has stored {self._subject}, and its answer cannot be read: {error}"
            ) from error

    def await_shown(self, queue: MessageQueue, end: int) -> None:
        """Return when a broker shows all messages before `end` in its queue, which it has stored.

        Raises:
            SendInDoubtError: it does not show them, or does not answer, within the bound.
        """
        until_ms = self._cluster.timer() + self._reading.patience_ms
        shown = f"whether broker {queue.broker_name!r} shows message {end - 1} of topic {queue.topic!r}"
        while self._reading.ends([queue], until_ms, unknown=shown)[queue] < end:
            if self._cluster.timer() >= until_ms:
                raise SendInDoubtError(
                    f"broker {queue.broker_name!r} has stored message {end - 1} of topic {queue.topic!r}, and does not "
                    "show it in its queue"
                )
            self._sleep(_DISPATCH_PAUSE_S)

    def texts(
        self, queue: MessageQueue, start: int, end: int, owners: Sequence[str]
    ) -> Iterator[tuple[bytes, int]]:
        """The texts [start, end) of a queue that have a tag of these owners, and when each was stored, in ms.

        Raises:
            OffsetOutOfRangeError: retention is faster. Others as `read_range`: the queue cannot be read.
        """
        if start >= end:
            return
        wanted = PullFilter(group=self._pull_group, subscription=" || ".join(map(_tag_of, owners)))
        for frames in read_range(
            self._cluster, queue, start, end, wanted, lanes=_LANES, looks_at=LOOKS_AT_MAX,
            patience_ms=self._read_patience_ms, sleep=self._sleep,
        ):  # fmt: skip
            positions, sizes = frames_of_answer(frames)
            for position, size in zip(positions.tolist(), sizes.tolist(), strict=True):
                frame = frames[position : position + size]
                header_bytes = BODY_POSITIONS[int.from_bytes(frame[36:40], "big") >> 4 & 3]
                yield MessageParts(frame, header_bytes).body, store_timestamp_ms(frame)


def _tag_of(owner: str) -> str:
    return hashlib.blake2b(owner.encode(), digest_size=8).hexdigest()
