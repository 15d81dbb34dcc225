"""Reads parts of queues for what was stored there by sends of unknown outcome (data plane)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import numpy as np

from rmq_store.client.delivery.outcome import SendOutcome, verdict_of
from rmq_store.errors import OffsetOutOfRangeError, UsageError
from rmq_store.format.batches.content_keys import FoundKeys, keys_in_frames
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.answers import is_away
from rmq_store.protocol.errors import (
    BrokerAwayError,
    MQBrokerError,
    RemotingCommandError,
    RemotingError,
    ResponseCode,
    SendInDoubtError,
    SlaveBehindError,
)
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import BrokerError, Question, gather, waiting
from rmq_store.remoting.cluster.offsets import gather_ranges
from rmq_store.remoting.cluster.pull_request import EVERYTHING, PullFilter
from rmq_store.remoting.cluster.pulling import READ_ERRORS, read_range
from rmq_store.remoting.cluster.routes import MASTER_ID, TopicRoute
from rmq_store.remoting.questions.answer import Given
from rmq_store.remoting.questions.offsets import ask_max_offset, ask_min_offset, read_max_offset, read_min_offset

_log = logging.getLogger(__name__)

_PAUSE_S = 0.2
_ROWS: Final = "whether rows are stored"


class QueueReading:
    """Reads of one task. `patience_ms`: how long it waits for a broker that does not answer; `option` is its name for
    the user. Whatever keeps it from an answer is a SendInDoubtError, whose cause is the broker's or the network's
    error.

    `resend_lost`: what a queue has lost that has become shorter counts as not stored, with an error in the log;
    `resend_option` is what the user sets for that.
    """

    def __init__(
        self,
        cluster: Cluster,
        patience_ms: int,
        pull_group: str = "",
        sleep: Callable[[float], None] = time.sleep,
        option: str = "",
        *,
        resend_lost: bool = False,
        resend_option: str = "",
    ) -> None:
        self._cluster = cluster
        self.patience_ms = patience_ms
        self.bound = f"{patience_ms} ms" + (f" (option {option})" if option else "")
        self._sleep = sleep
        self._resend_lost = resend_lost
        self._resend_option = resend_option
        self._wanted = PullFilter(group=pull_group) if pull_group else EVERYTHING

    def ends(
        self, queues: Collection[MessageQueue], until_ms: float | None = None, *, unknown: str = _ROWS
    ) -> dict[MessageQueue, int]:
        """The ends of queues as their masters know them. A topic that a broker does not have ends at 0. `unknown`: what
        is not known without them, for the error.

        Raises:
            SendInDoubtError: a master refuses, or does not answer until `until_ms` of the cluster's timer. Without
                `until_ms`: within the patience.
        """
        until_ms = self._cluster.timer() + self.patience_ms if until_ms is None else until_ms
        told = waiting(
            self._cluster, self._questions(queues), until_ms,
            pause_s=_PAUSE_S, sleep=self._sleep, is_passing=is_passing,
        ).told  # fmt: skip
        self._require({queue: one.error for queue, one in told.items() if one.error is not None}, unknown)
        return {queue: one.required() for queue, one in told.items()}

    def ends_now(
        self, queues: Collection[MessageQueue]
    ) -> tuple[dict[MessageQueue, int], dict[MessageQueue, BrokerError]]:
        """The ends of queues whose masters answer at once, and why the others do not."""
        told = gather(self._cluster, self._questions(queues)).told
        missing = {queue: one.error for queue, one in told.items() if one.error is not None}
        return {queue: one.required() for queue, one in told.items() if queue not in missing}, missing

    def _questions(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, Question[int]]:
        return {
            queue: Question(
                queue.broker_name,
                ask_max_offset(self._cluster, queue.topic, queue.queue_id, queue.broker_name),
                _end_or_0,
            )
            for queue in queues
        }

    def await_again(self, missing: Mapping[MessageQueue, BrokerError], until_ms: float) -> None:
        """Wait a moment before masters are asked once more that did not answer.

        Raises:
            SendInDoubtError: it is `until_ms`, or a master refuses what it was asked.
        """
        if missing and all(map(is_passing, missing.values())) and self._cluster.timer() < until_ms:
            self._sleep(_PAUSE_S)
        else:
            self._require(missing)

    def _require(self, missing: Mapping[MessageQueue, BrokerError], unknown: str = _ROWS) -> None:
        if not missing:
            return
        refusals = [error for error in missing.values() if not is_passing(error)]
        last = next(iter(refusals or missing.values()))
        names = ", ".join(sorted({queue.broker_name for queue in missing}))
        raise SendInDoubtError(
            f"{unknown} is unknown until the queues of {names} are read, and its master "
            f"{'refuses' if refusals else 'does not answer'}: {last}. Nothing is sent again before; the work can be "
            f"repeated{'' if refusals else f' when it is back. Nobody answered for {self.bound}'}"
        ) from last

    def ranges(
        self, queues: Collection[MessageQueue], may_miss: Collection[MessageQueue] = ()
    ) -> dict[MessageQueue, QueueRange]:
        """The ranges of queues, of a slave while a master does not answer: its end is no later. It may begin later than
        its master, so that a range begins at 0 then. A topic that a broker does not have is empty. Queues of `may_miss`
        are left out while their masters are away, if other masters have told queues of their topic.

        Raises:
            SendInDoubtError: a broker refuses, or nobody of a broker answers within the patience.
        """
        until_ms = self._cluster.timer() + self.patience_ms
        ranges: dict[MessageQueue, QueueRange] = {}
        of_slaves: set[MessageQueue] = set()
        topics: set[str] = set()
        left: Collection[MessageQueue] = queues
        while left:
            missing: dict[MessageQueue, BrokerError] = {}
            for queue, one in gather_ranges(self._cluster, left).told.items():
                if one.error is None:
                    limits = one.required()
                    ranges[queue] = limits if one.broker_id == MASTER_ID else QueueRange(0, limits.max_offset)
                    if one.broker_id == MASTER_ID:
                        topics.add(queue.topic)
                    elif queue in may_miss:
                        of_slaves.add(queue)
                elif _is_unknown_topic(one.error):
                    ranges[queue] = QueueRange(0, 0)
                else:
                    missing[queue] = one.error
            left_out = {queue for queue in missing if queue in may_miss and queue.topic in topics}
            if left_out == missing.keys() and all(map(is_away, missing.values())):
                break
            self.await_again(missing, until_ms)
            left = missing
        return {queue: found for queue, found in ranges.items() if queue not in of_slaves or queue.topic not in topics}

    def begins(self, queues: Collection[MessageQueue], until_ms: float | None = None) -> dict[MessageQueue, int]:
        """The first offsets of queues as their masters know them. A slave that came late begins later, and messages
        before that would be missed. A topic that a broker does not have begins at 0.

        Raises:
            SendInDoubtError: a master refuses, or does not answer until `until_ms` of the cluster's timer. Without
                `until_ms`: within the patience.
        """
        until_ms = self._cluster.timer() + self.patience_ms if until_ms is None else until_ms
        questions = {
            queue: Question(queue.broker_name, ask_min_offset(self._cluster, queue), _begin_or_0) for queue in queues
        }
        told = waiting(
            self._cluster, questions, until_ms,
            pause_s=_PAUSE_S, sleep=self._sleep, is_passing=is_passing,
        ).told  # fmt: skip
        self._require({queue: one.error for queue, one in told.items() if one.error is not None})
        return {queue: one.required() for queue, one in told.items()}

    def await_brokers(self) -> None:
        """Wait until the name servers show a broker: they drop one that is killed at once, and its topics with it.

        Raises:
            SendInDoubtError: there is none within the patience.
        """
        until_ms = self._cluster.timer() + self.patience_ms
        while not self._cluster.routes.brokers(refresh=True):
            if self._cluster.timer() >= until_ms:
                raise SendInDoubtError(
                    "whether rows are stored is unknown, because no broker is registered at the name servers. Nobody "
                    f"was for {self.bound}. The batch can be repeated"
                )
            self._sleep(_PAUSE_S)

    def publish_queues(self, route: TopicRoute) -> list[MessageQueue]:
        """The queues of a topic that may be written at brokers with a master. While none has one, and only slaves of
        its brokers are registered, it waits.

        Raises:
            BrokerAwayError: no master is there within the patience. UsageError: no queue may be written.
        """
        until_ms = self._cluster.timer() + self.patience_ms
        while not (queues := route.publish_queues()):
            away = route.without_master()
            if not away:
                raise UsageError(f"topic {route.topic!r} has no queue that may be written")
            if self._cluster.timer() >= until_ms:
                raise BrokerAwayError(
                    f"topic {route.topic!r} cannot be written: of {', '.join(away)} only slaves are registered at the "
                    f"name servers, and no master came within {self.bound}",
                    tuple(away),
                )
            self._sleep(_PAUSE_S)
            route = self._cluster.refresh_route(route.topic) or route
        return queues

    def settled_ends(self, queues: Collection[MessageQueue], settle_ms: int) -> dict[MessageQueue, int]:
        """The ends of queues when all is in them that is on its way, if it ever comes.

        The first question goes over the connection of the sends: when it is answered, the broker has them. The settle
        time is for its own queue.

        Raises:
            SendInDoubtError: as `ends`, within the settle time and the patience.
        """
        until_ms = self._cluster.timer() + settle_ms + self.patience_ms
        self.ends(queues, until_ms)
        self._sleep(settle_ms / 1000)
        return self.ends(queues, until_ms)

    def frames(self, parts: Mapping[MessageQueue, tuple[int, int]]) -> Iterator[bytes]:
        """The messages [start, end) of queues, some frames at a time.

        Messages that retention has deleted are logged and left out.

        Raises:
            SendInDoubtError: a queue ends before `start`, or before `end` by now, so it is not what it was; or it
                cannot be read, for any reason. Damage (QueueHoleError, CorruptRecordError, RemotingCommandError) is
                such a reason, too: it is named in the text, and is the cause. Messages in it may be those that are
                looked for, and a batch that is repeated after a repair looks again.
        """
        for queue, (start, end) in parts.items():
            if end < start:
                self._lost(queue, end, start)
            if start < end:
                yield from self._frames_of(queue, start, end)

    def keys(self, parts: Mapping[MessageQueue, tuple[int, int]], tag: bytes, into: FoundKeys) -> None:
        """Add the keys with this tag among the messages [start, end) of queues. Raises as `frames`."""
        for frames in self.frames(parts):
            positions, _ = frames_of_answer(frames)
            keys, checks, _ = keys_in_frames(np.frombuffer(frames, np.uint8), positions, tag)
            into.add(keys, checks)

    def _frames_of(self, queue: MessageQueue, start: int, end: int) -> Iterator[bytes]:
        try:
            yield from read_range(
                self._cluster, queue, start, end, self._wanted, patience_ms=self.patience_ms, sleep=self._sleep
            )
        except READ_ERRORS as error:
            if not isinstance(error, OffsetOutOfRangeError):
                waited = f". Nobody answered for {self.bound}" if is_waited_for(error) else ""
                raise SendInDoubtError(f"whether messages are stored is unknown: {error}{waited}") from error
            begin = error.minimum
            if begin <= error.requested:
                self._lost(queue, error.maximum, end, error)
                return
            _log.warning(
                "queue %d of topic %r at broker %r: messages [%d, %d) are deleted, so what a repetition sends of them "
                "is stored once more",
                queue.queue_id, queue.topic, queue.broker_name, start, min(begin, end),
            )  # fmt: skip
            if begin < end:
                yield from self._frames_of(queue, begin, end)

    def _lost(self, queue: MessageQueue, end: int, earlier_end: int, cause: Exception | None = None) -> None:
        """Meet a queue that has become shorter: SendInDoubtError, or with `resend_lost` an error in the log."""
        text = (
            f"queue {queue.queue_id} of topic {queue.topic!r} at broker {queue.broker_name!r} ends at {end}, and ended "
            f"at {earlier_end} before: the broker has lost messages, or the topic was made again."
        )
        if self._resend_lost:
            _log.error("%s What is in doubt there is sent again", text)
            return
        way_out = f" With {self._resend_option} it is sent again, perhaps twice." if self._resend_option else ""
        raise SendInDoubtError(
            f"{text} Whether messages are stored there is unknown.{way_out} See docs/cluster.md"
        ) from cause


def _is_unknown_topic(error: Exception) -> bool:
    return isinstance(error, MQBrokerError) and error.response_code == ResponseCode.TOPIC_NOT_EXIST


def is_waited_for(error: Exception) -> bool:
    """Whether an error of `read_range` or of a question may pass by itself: its broker is away or busy, or a slave does
    not have the messages yet. Damage does not.
    """
    if isinstance(error, SlaveBehindError):
        return True
    is_of_broker = isinstance(error, (MQBrokerError, RemotingError)) and not isinstance(error, RemotingCommandError)
    return is_of_broker and is_passing(error)


def is_passing(error: Exception) -> bool:
    """Whether the same question may be answered in another way later. Rows are in doubt, so that a failure of the
    broker (1), or of a proxy, is waited for as well.
    """
    verdict = verdict_of(error)
    return not verdict.lacks_rights and verdict.outcome is not SendOutcome.REFUSED


def _end_or_0(answer: Given, broker_name: str) -> int:
    return _or_0(read_max_offset, answer, broker_name)


def _begin_or_0(answer: Given, broker_name: str) -> int:
    return _or_0(read_min_offset, answer, broker_name)


def _or_0(read: Callable[[Given, str], int], answer: Given, broker_name: str) -> int:
    try:
        return read(answer, broker_name)
    except MQBrokerError as error:
        if _is_unknown_topic(error):
            return 0
        raise
