"""11 and 361: frames of a queue, at once or when there are some (PullMessageProcessor.java)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rmq_store import kinds
from rmq_store.broker.filter.subscription import Subscription
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.broker.metadata.topics import TopicConfig
from rmq_store.broker.rules.broker_suggestion import suggested_broker_id
from rmq_store.broker.rules.hot_queue import hot_bytes
from rmq_store.errors import OffsetOutOfRangeError, UsageError
from rmq_store.format.frames.stored_message import decode_checked
from rmq_store.protocol.bodies.groups import SubscriptionData
from rmq_store.protocol.bodies.routes import MASTER_ID
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.results import QueueRange
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmq_store.server.processors.committed_offsets import CommittedOffsets
from rmq_store.server.processors.held_pulls import HeldPull, HeldPulls
from rmq_store.server.processors.members import Members, subscription_of
from rmq_store.server.processors.served_store import ServedStore, refuse_missing_queue
from rmq_store.server.requests.request import Request, refusal, refuse_body

# PullSysFlag.java.
COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4

# MessageStoreConfig.java: maxTransferBytesOnMessageInMemory, maxFilterMessageSize.
PULL_BYTES_MAX: Final = 256 << 10
FILTERED_ENTRIES_MAX: Final = 16_000
_STEP: Final = 1024
_NO_MATCH: Final = "NO_MATCHED_MESSAGE"
_SIZE: Final = struct.Struct(">i")


class _Found(NamedTuple):
    code: int
    remark: str
    next_begin_offset: int
    first: int
    last: int
    frames: bytes = b""


class PullProcessor:
    """Answers pulls of one store. `is_slave`: an offset that it does not have may be the master's (20, not 21).
    `slave_reads`: slaveReadEnable, by which `suggested_broker_id` decides.
    """

    def __init__(
        self,
        served: ServedStore,
        members: Members,
        offsets: CommittedOffsets,
        holds: HeldPulls,
        *,
        is_slave: bool = False,
        slave_reads: bool = False,
    ) -> None:
        self._slave_reads = slave_reads
        self._slow_bytes = hot_bytes()
        self._is_slave = is_slave
        self._served = served
        self._members = members
        self._offsets = offsets
        self._holds = holds

    def pull(self, request: Request) -> RemotingCommand | None:
        """11 and 361; None: the pull is held."""
        refuse_body(request)
        header = request.header(PullMessageRequestHeader)
        return self._pulled(request, header, *self._checked(header, self._served.group(header.consumer_group)))

    def pull_at_once(self, requests: Sequence[Request]) -> list[RemotingCommand | None] | None:
        """As `pull`, of one request. None: it would wait for its group to be made, or for a condition to be asked of
        thousands of messages.
        """
        (request,) = requests
        refuse_body(request)
        header = request.header(PullMessageRequestHeader)
        group = self._served.known_group(header.consumer_group)
        if group is None:
            return None
        topic, subscription = self._checked(header, group)
        if subscription.selector.expression_type == "SQL92":
            return None
        return [self._pulled(request, header, topic, subscription)]

    def _pulled(
        self, request: Request, header: PullMessageRequestHeader, topic: TopicConfig, subscription: Subscription
    ) -> RemotingCommand | None:
        """The answer; None: the pull is held."""
        if header.sys_flag & COMMIT_OFFSET and header.commit_offset > 0:
            place = header.topic, header.queue_id
            self._offsets.commit_later(header.consumer_group, place, header.commit_offset)
        found = self._find(header, subscription, header.queue_offset, topic)
        if found.code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & SUSPEND:
            held = HeldPull(request, header, subscription, header.suspend_timeout_millis, found.next_begin_offset)
            if self._holds.hold(held):
                return None
        return self._answer(request, header, found)

    def pull_again(self, held: HeldPull, *, is_last: bool) -> RemotingCommand | None:
        """The answer to a held pull that has woken up. None: it has found nothing, and is held again, behind messages
        that do not match.
        """
        found = self._find(held.header, held.subscription, held.offset)
        if found.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            skipped = held.skipped or found.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            if not is_last and self._holds.hold(replace(held, offset=found.next_begin_offset, skipped=skipped)):
                return None
            if skipped:  # the client goes on behind them
                found = found._replace(code=ResponseCode.PULL_RETRY_IMMEDIATELY, remark=_NO_MATCH)
        return self._answer(held.request, held.header, found)

    def _checked(
        self, header: PullMessageRequestHeader, group: SubscriptionGroup
    ) -> tuple[TopicConfig, Subscription]:
        """The topic, which may be read, and what the client wants of it."""
        if not group.consume_enable:
            remark = f"subscription group no permission, {header.consumer_group}"
            raise refusal(ResponseCode.NO_PERMISSION, remark)
        topic = self._served.topic(header.topic)
        kinds.refuse_to_read_topic(header.topic, topic.kind)
        if not topic.readable:
            raise refusal(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden")
        refuse_missing_queue(topic, header.queue_id)
        try:
            return topic, subscription_of(self._wanted(header, group))
        except UsageError as error:
            raise refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

    def _wanted(self, header: PullMessageRequestHeader, group: SubscriptionGroup) -> SubscriptionData:
        if header.sys_flag & SUBSCRIPTION:
            expression, kind = header.subscription or "*", header.expression_type or "TAG"
            return SubscriptionData(topic=header.topic, sub_string=expression, expression_type=kind)
        known = self._members.subscription(header.consumer_group, header.topic)
        if known is None:
            remark = f"the consumer's subscription not exist: {header.topic} of {header.consumer_group}"
            raise refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if not group.consume_broadcast_enable and self._members.broadcasts(header.consumer_group):
            remark = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            raise refusal(ResponseCode.NO_PERMISSION, remark)
        if known.sub_version < header.sub_version:
            raise refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return known

    def _find(
        self, header: PullMessageRequestHeader, wanted: Subscription, offset: int, topic: TopicConfig | None = None
    ) -> _Found:
        try:
            frames, at, (first, last) = self._read(header, wanted, offset, topic)
        except OffsetOutOfRangeError as error:  # retention was faster
            frames, at, (first, last) = b"", offset, QueueRange(error.minimum, error.maximum)
        if first == last and offset == 0 == last:
            return _Found(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0, first, last)
        if offset == last:
            return _Found(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", offset, first, last)
        if self._is_slave and not first <= offset < last:
            return _Found(ResponseCode.PULL_RETRY_IMMEDIATELY, "the master may have it", offset, first, last)
        if not first <= offset < last:
            remark = "OFFSET_TOO_SMALL" if offset < first else "OFFSET_OVERFLOW_BADLY"
            return _Found(ResponseCode.PULL_OFFSET_MOVED, remark, first if offset < first else last, first, last)
        if not frames:
            return _Found(ResponseCode.PULL_RETRY_IMMEDIATELY, _NO_MATCH, at, first, last)
        return _Found(ResponseCode.SUCCESS, "FOUND", at, first, last, frames)

    def _read(
        self, header: PullMessageRequestHeader, wanted: Subscription, offset: int, topic: TopicConfig | None
    ) -> tuple[bytes, int, QueueRange]:
        """Frames, the next offset, and the queue's range. It looks at FILTERED_ENTRIES_MAX messages at most. `topic`:
        its settings; None: the pull has waited, and they may have changed.
        """
        pieces: list[bytes] = []
        count, size = max(header.max_msg_nums, 1), header.max_msg_bytes or PULL_BYTES_MAX
        size = max(1, min(size, PULL_BYTES_MAX))
        is_sql = wanted.selector.expression_type == "SQL92"
        step = _STEP if is_sql or wanted.tags is not None else 1  # without a filter each message looked at is wanted
        at, limit = offset, offset + FILTERED_ENTRIES_MAX
        while True:
            found = self._served.store.read_frames(
                header.topic, header.queue_id, at, entries_max=min(limit - at, max(count, step)), count_max=count,
                bytes_max=size, tags=wanted.tags, settings=topic,
            )  # fmt: skip
            if pieces and len(found.frames) > size:
                break
            frames = _matching(found.frames, wanted) if is_sql else found.frames
            has_ended, at = found.next_offset == at, found.next_offset
            count -= found.frame_count if frames else 0
            size -= len(frames)
            if frames:
                pieces.append(frames)
            if has_ended or at >= min(limit, found.queue.max_offset) or count <= 0 or size <= 0:
                break
        return b"".join(pieces), at, found.queue

    def _answer(self, request: Request, asked: PullMessageRequestHeader, found: _Found) -> RemotingCommand:
        header = PullMessageResponseHeader(
            suggest_which_broker_id=self._suggested(asked.consumer_group, found.frames),
            next_begin_offset=found.next_begin_offset,
            min_offset=found.first,
            max_offset=found.last,
        )
        return request.answer(found.code, found.remark, header=header, body=found.frames)

    def _suggested(self, group: str, frames: bytes) -> int:
        settings = self._served.known_group(group) if self._slave_reads else None
        if settings is None:
            return MASTER_ID
        return suggested_broker_id(settings, frames, self._served.store.log_range()[1], self._slow_bytes)


def _matching(frames: bytes, wanted: Subscription) -> bytes:
    """The frames whose properties satisfy the condition."""
    pieces, at = [], 0
    while at < len(frames):
        (size,) = _SIZE.unpack_from(frames, at)
        frame = frames[at : at + size]
        if wanted.matches(decode_checked(frame, 0).properties):
            pieces.append(frame)
        at += size
    return b"".join(pieces)
