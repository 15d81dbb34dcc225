"""POP at a broker of 5.x: messages that are hidden from their group until they are acknowledged, or their time is over.

A receipt handle is what RocketMQ calls POP_CK, eight fields with blanks between them: start offset, pop time, invisible
time, revive queue, kind of topic (0 the topic, 1 and 2 retry topics), broker, queue, offset.
Sources: PopMessageProcessor.java, AckMessageProcessor.java, MQClientAPIImpl.java (processPopResponse), KeyBuilder.java,
ExtraInfoUtil.java.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from rmq_store.broker.filter.subscription import Subscription
from rmq_store.broker.filter.tags import TagFilter
from rmq_store.errors import InvalidReceiptHandleError, UsageError
from rmq_store.format.properties.property_string import POP_CK
from rmq_store.format.text.names import retry_topic
from rmq_store.protocol.answers import is_away
from rmq_store.protocol.errors import MQBrokerError, RemotingCommandError, RemotingError, ResponseCode
from rmq_store.protocol.messages import MessageExt, PoppedMessage
from rmq_store.protocol.proxy_answers import NO_POP
from rmq_store.protocol.stored_messages import messages_in
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rmq_store.remoting.admin.broker_probes import broker_probes
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.name_servers import Probes
from rmq_store.remoting.questions.answer import broker_error

MESSAGES_MAX: Final = 32
"""A broker refuses to give more in one answer."""
ANY_QUEUE: Final = -1
_FROM_FIRST, _FROM_LAST = 0, 1
_NOTHING: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT)
_ORIGINAL, _RETRY_V1, _RETRY_V2 = "0", "1", "2"


class _Handle(NamedTuple):
    """The fields of a receipt handle, as texts."""

    start_offset: str
    pop_time: str
    invisible_time: str
    revive_queue: str
    kind: str
    broker_name: str
    queue_id: str
    offset: str

    @classmethod
    def of_text(cls, text: str) -> _Handle:
        """Read a handle. InvalidReceiptHandleError: it is none."""
        fields = text.split(" ")
        numbers = [field for place, field in enumerate(fields) if place != 5]
        if len(fields) != len(cls._fields) or not all(field.isascii() and field.isdigit() for field in numbers):
            raise InvalidReceiptHandleError(f"{text[:200]!r} is no receipt handle of a broker")
        return cls(*fields)

    def topic(self, group: str, topic: str) -> str:
        """The topic that the message lies in: its own, or one of the group's for retries."""
        if self.kind == _ORIGINAL:
            return topic
        return f"{retry_topic(group)}{'_' if self.kind == _RETRY_V1 else '+'}{topic}"


class _Absence(NamedTuple):
    """Why the broker has not answered, and the questions that ask whether it does again."""

    error: RemotingError | MQBrokerError
    probes: Probes


class RemotePop:
    """The POP requests to one broker, the master. From the moment at which it does not answer a `receive`, until it
    answers a probe (28), which nobody waits for, `receive` raises that error at once: receivers share their time among
    all brokers.
    """

    def __init__(self, name: str, cluster: Cluster) -> None:
        self._name = name
        self._cluster = cluster
        self._absence: _Absence | None = None

    def receive(
        self,
        group: str,
        subscription: Subscription,
        max_messages: int,
        invisible_duration_ms: int,
        *,
        from_first: bool,
    ) -> list[PoppedMessage]:
        """See `Broker.receive_message`. Messages that the broker lets through but the subscription does not want are
        acknowledged: the broker compares hashes of tags, and conditions are evaluated here.
        """
        absence = self._absence
        if absence is not None and not absence.probes.are_answered(self._cluster.timer()):
            raise absence.error.with_traceback(None)
        header = PopMessageRequestHeader(
            consumer_group=self._cluster.wire_group(group),
            topic=self._cluster.wire_topic(subscription.topic),
            queue_id=ANY_QUEUE,
            max_msg_nums=min(max_messages, MESSAGES_MAX),
            invisible_time=invisible_duration_ms,
            poll_time=0,
            born_time=time.time_ns() // 1_000_000,
            init_mode=_FROM_FIRST if from_first else _FROM_LAST,
            exp_type="TAG",
            exp=subscription.tags or "*",
            order=False,
            bname=self._name,
        )
        answer = self._asked(request(header))
        if answer.code != ResponseCode.SUCCESS:
            return []
        tags = TagFilter.parse(subscription.tags)
        wanted = []
        for message, handle in self._popped(answer):
            is_wanted = subscription.matches(message.properties) and (tags is None or message.tags in tags.tags)
            if is_wanted:
                wanted.append(PoppedMessage(message, handle, message.reconsume_times + 1))
            else:
                self.ack(group, subscription.topic, handle)
        return wanted

    def ack(self, group: str, topic: str, receipt_handle: str) -> None:
        """See `Broker.ack_message`."""
        handle = _Handle.of_text(receipt_handle)
        wire_group, wire_topic = self._cluster.wire_group(group), self._cluster.wire_topic(topic)
        header = AckMessageRequestHeader(
            consumer_group=wire_group,
            topic=handle.topic(wire_group, wire_topic),
            queue_id=int(handle.queue_id),
            extra_info=receipt_handle,
            offset=int(handle.offset),
            bname=self._name,
        )
        self._settle(request(header), receipt_handle)

    def change(self, group: str, topic: str, receipt_handle: str, invisible_duration_ms: int) -> str:
        """See `Broker.change_invisible_duration`."""
        handle = _Handle.of_text(receipt_handle)
        wire_group, wire_topic = self._cluster.wire_group(group), self._cluster.wire_topic(topic)
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=wire_group,
            topic=handle.topic(wire_group, wire_topic),
            queue_id=int(handle.queue_id),
            extra_info=receipt_handle,
            offset=int(handle.offset),
            invisible_time=invisible_duration_ms,
            bname=self._name,
        )
        answer = self._settle(request(header), receipt_handle)
        changed = ChangeInvisibleTimeResponseHeader.from_ext(answer.ext_fields)
        return " ".join(
            handle._replace(
                pop_time=str(changed.pop_time),
                invisible_time=str(changed.invisible_time),
                revive_queue=str(changed.revive_qid),
            )
        )

    def _asked(self, command: RemotingCommand) -> RemotingCommand:
        """The answer to a question for messages; the absence of the broker begins or ends here."""
        try:
            answer = self._call(command, (ResponseCode.SUCCESS, *_NOTHING))
        except (RemotingError, MQBrokerError) as error:
            if not is_away(error):
                self._absence = None
            elif self._absence is None:
                self._absence = _Absence(error, broker_probes(self._cluster, self._name, self._cluster.timer()))
            else:
                self._absence.probes.again()
            raise
        self._absence = None
        return answer

    def _settle(self, command: RemotingCommand, receipt_handle: str) -> RemotingCommand:
        try:
            return self._call(command, (ResponseCode.SUCCESS,))
        except MQBrokerError as error:
            if error.response_code in (ResponseCode.NO_MESSAGE, ResponseCode.INVALID_PARAMETER):
                raise InvalidReceiptHandleError(f"{receipt_handle!r}: {error}") from error
            raise

    def _call(self, command: RemotingCommand, ok: Sequence[int]) -> RemotingCommand:
        unknown, error = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR
        answer = self._cluster.call_broker(self._name, command, ok=(*ok, unknown, error))
        if answer.code == unknown:
            raise UsageError(f"broker {self._name} knows no POP: a SimpleConsumer needs brokers of 5.x")
        if answer.code == error:
            refusal = broker_error(answer, self._name)
            if self._cluster.routes.is_of_proxies():
                raise UsageError(f"broker {self._name}: {NO_POP}") from refusal
            raise refusal
        return answer

    def _popped(self, answer: RemotingCommand) -> list[tuple[MessageExt, str]]:
        """The messages with their handles. A retried one brings its own; its topic is the original one already."""
        header = PopMessageResponseHeader.from_ext(answer.ext_fields)
        starts = _start_offsets(header.start_offset_info or "")
        found = []
        for message in messages_in(answer.body, self._name):
            own = message.properties.get(POP_CK)
            if own is None:
                start = starts.get((_ORIGINAL, str(message.queue_id)))
                if start is None:
                    raise RemotingCommandError(
                        f"broker {self._name} gave a message of queue {message.queue_id} without a receipt handle"
                    )
                own = " ".join(
                    _Handle(
                        start, str(header.pop_time), str(header.invisible_time), str(header.revive_qid), _ORIGINAL,
                        self._name, str(message.queue_id), str(message.queue_offset),
                    )
                )  # fmt: skip
            found.append((message, own))
        return found


def _start_offsets(text: str) -> dict[tuple[str, str], str]:
    """`0 1 40;1 0 7` as {(kind of topic, queue id): first offset of the answer}."""
    parts = [part.split(" ") for part in text.split(";") if part]
    if any(len(part) != 3 for part in parts):
        raise RemotingCommandError(f"an answer to POP has startOffsetInfo={text[:200]!r}")
    return {(kind, queue_id): offset for kind, queue_id, offset in parts}

