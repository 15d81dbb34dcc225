"""One pull of a queue (PULL_MESSAGE, 11): the answer is frames of the broker's log, which nobody decodes here.

The subscription is in the request, nothing is committed, and the broker does not hold the request: sysFlag 4. Only
consumers ask it to wait for messages: 6.
Sources: PullMessageRequestHeader.java, PullSysFlag.java, PullMessageProcessor.java.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.answers import PULL_CODES
from rmq_store.protocol.errors import MQBrokerError, ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import PullMessageRequestHeader
from rmq_store.protocol.wire.pull_answers import FrameArea, PullAnswer
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.names import TOOLS_CONSUMER
from rmq_store.remoting.cluster.routes import MASTER_ID
from rmq_store.remoting.questions.answer import Given, checked
from rmq_store.remoting.transport.calls import Call
from rmq_store.remoting.transport.pull_round import PullRound
from rmq_store.remoting.transport.template import RequestTemplate

_VARYING: Final = ("queueOffset", "maxMsgNums")
SQL92: Final = "SQL92"
SUSPEND_FLAG: Final = 2
SUBSCRIPTION_FLAG: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PullFilter:
    """The group that pulls, and the messages that it wants.

    `subscription` is "*", or tags as "TagA || TagB", or with `expression_type` SQL92 an expression. A broker compares
    hashes of tags only, and takes an expression that it cannot parse for "*".
    """

    group: str = TOOLS_CONSUMER
    subscription: str = "*"
    expression_type: str = "TAG"

    @property
    def takes_all(self) -> bool:
        """Whether every message is wanted, so that queue offsets have no gaps."""
        return self.expression_type == "TAG" and self.subscription.strip() in ("", "*")


EVERYTHING: Final = PullFilter()


def evaluates_no_sql92(error: MQBrokerError) -> bool:
    """Whether a broker has refused a pull because its enablePropertyFilter is false (PullMessageProcessor.java)."""
    said = "does not support consumer to filter message by SQL92"
    return error.response_code == ResponseCode.SYSTEM_ERROR and said in error.remark


class PullRequests:
    """The pulls of one queue: most fields are the same in each. With `hold_ms` the broker waits for so long if there is
    no message at the offset.
    """

    def __init__(
        self, cluster: Cluster, queue: MessageQueue, wanted: PullFilter = EVERYTHING, *, hold_ms: int = 0
    ) -> None:
        self._cluster = cluster
        self._queue = queue
        header = PullMessageRequestHeader(
            consumer_group=cluster.wire_group(wanted.group),
            topic=cluster.wire_topic(queue.topic),
            queue_id=queue.queue_id,
            queue_offset=0,
            max_msg_nums=0,
            sys_flag=SUBSCRIPTION_FLAG | (SUSPEND_FLAG if hold_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=hold_ms,
            subscription=wanted.subscription.strip() or "*",
            sub_version=0,
            expression_type=wanted.expression_type,
            bname=queue.broker_name,
        )
        command = request(header)
        for name in _VARYING:
            del command.ext_fields[name]
        self._template = RequestTemplate(command, _VARYING)

    def request(self, offset: int, max_messages: int) -> RemotingCommand:
        """The pull of at most `max_messages` from `offset` on; a broker may give fewer."""
        return self._template.request(offset, max_messages).command()

    def submit(
        self, offset: int, max_messages: int, broker_id: int, timeout_ms: int | None = None
    ) -> Future[RemotingCommand]:
        """Send a pull; the answer is for `answer_of`. RemotingConnectError: there is no such process."""
        command = self.request(offset, max_messages)
        return self._cluster.submit_broker(self._queue.broker_name, command, timeout_ms, broker_id=broker_id)

    def submit_round(
        self, pulls: Sequence[tuple[int, int]], area: FrameArea, broker_id: int, done: Callable[[Call], object]
    ) -> PullRound:
        """Send several pulls together, each (offset, max_messages); see `Cluster.submit_round`."""
        name = self._queue.broker_name
        return self._cluster.submit_round(name, self._template, pulls, area, done, broker_id=broker_id)


def pull(
    cluster: Cluster,
    queue: MessageQueue,
    offset: int,
    max_messages: int = 32,
    wanted: PullFilter = EVERYTHING,
    *,
    broker_id: int = MASTER_ID,
    timeout_ms: int | None = None,
) -> PullAnswer:
    """Pull once, from one process of the queue's broker. It never waits for messages.

    Raises:
        MQBrokerError: another code than those of PullAnswer, as 2 (busy), 16 (no rights), 17 (no such topic).
        RemotingError: no answer.
    """
    command = PullRequests(cluster, queue, wanted).request(offset, max_messages)
    answer = cluster.call_broker(queue.broker_name, command, timeout_ms, broker_id=broker_id, ok=PULL_CODES)
    return answer_of(answer, queue.broker_name)


def answer_of(given: Given | PullAnswer, broker_name: str) -> PullAnswer:
    """Read the answer to a pull. MQBrokerError: it does not tell the range of the queue."""
    return given if isinstance(given, PullAnswer) else PullAnswer.of(checked(given, broker_name, PULL_CODES))
