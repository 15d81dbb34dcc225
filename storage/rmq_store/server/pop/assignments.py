"""400 and 401: the server divides the queues of a topic, and says whether they are read by PULL or by POP.

Consumers of 5.x ask if their own rebalancing is off (`setClientRebalance(false)`).
Source: QueryAssignmentProcessor.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rmq_store.format.text.names import RETRY_PREFIX
from rmq_store.protocol.allocate import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
)
from rmq_store.protocol.bodies.clients import (
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.pop.held_pops import ANY_QUEUE
from rmq_store.server.pop.request_modes import POP, PULL, RequestMode, RequestModeTable
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal

_BROADCASTING: Final = "BROADCASTING"
_NOTHING_SAID: Final = b"{}"


def _strategies() -> dict[str, AllocateMessageQueueStrategy]:
    known: tuple[AllocateMessageQueueStrategy, ...] = (
        AllocateMessageQueueAveragely(),
        AllocateMessageQueueAveragelyByCircle(),
        AllocateMessageQueueConsistentHash(),
    )
    return {one.name: one for one in known}


class Assignments:
    """The modes of groups in topics, and the queues of their members. Safe for threads."""

    def __init__(self, served: ServedStore) -> None:
        self._served = served
        self._strategies = _strategies()
        self._modes = RequestModeTable(served.store.path, clock=served.store.clock)

    def query(self, request: Request) -> RemotingCommand:
        """400: the queues of one member. In the mode POP queue -1 stands for all queues.

        Of a topic that does not exist, or a group without members, nothing is said: the consumer keeps what it has, and
        asks again. After an error one of 5.0 to 5.2 would divide the topic's queues itself for ever
        (RebalanceImpl#tryQueryAssignment), and after an empty list it would give up its queues.
        """
        asked = QueryAssignmentRequestBody.decode(request.command.body)
        mode = self._modes.get(asked.topic, asked.consumer_group)
        queues = self._queues(asked, mode)
        if queues is None:
            return request.answer(body=_NOTHING_SAID)
        found = tuple(MessageQueueAssignment(message_queue=queue, mode=mode.mode) for queue in queues)
        return request.answer(body=QueryAssignmentResponseBody(message_queue_assignments=found).encode())

    def set_mode(self, request: Request) -> RemotingCommand:
        """401: the mode is durable when it is answered. An unknown group is made if the store makes groups.

        Raises:
            MQBrokerError: 16, a retry topic is always pulled; 17 or 26, no such topic or group; 29, no such mode.
        """
        asked = SetMessageRequestModeRequestBody.decode(request.command.body)
        if asked.topic.startswith(RETRY_PREFIX):
            raise refusal(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        self._served.topic(asked.topic)
        if asked.mode not in (PULL, POP):
            raise refusal(ResponseCode.INVALID_PARAMETER, f"mode[{asked.mode}] is neither PULL nor POP")
        self._served.group(asked.consumer_group)
        self._modes.set(asked.topic, asked.consumer_group, RequestMode(asked.mode, asked.pop_share_queue_num))
        return request.answer()

    def _queues(self, asked: QueryAssignmentRequestBody, mode: RequestMode) -> list[MessageQueue] | None:
        topic = self._served.store.find_topic(asked.topic)
        if topic is None:
            return None
        queues = [MessageQueue(asked.topic, self._served.name, number) for number in range(topic.read_queue_nums)]
        if asked.message_model == _BROADCASTING:
            return queues
        strategy = self._strategies.get(asked.strategy_name)
        if strategy is None:
            raise refusal(ResponseCode.INVALID_PARAMETER, f"strategyName[{asked.strategy_name}] is not known here")
        ids = sorted(self._served.broker.consumer_ids(asked.consumer_group))
        if not ids:
            return None
        if not queues:
            return []
        if mode.mode == POP:
            return _shared(strategy, asked, queues, ids, mode.pop_share_queue_num)
        return strategy.allocate(asked.consumer_group, asked.client_id, queues, ids)


def _shared(
    strategy: AllocateMessageQueueStrategy,
    asked: QueryAssignmentRequestBody,
    queues: Sequence[MessageQueue],
    ids: Sequence[str],
    share: int,
) -> list[MessageQueue]:
    """The queues that a member pops, with `share` members behind it (QueryAssignmentProcessor#allocate4Pop)."""
    if share <= 0 or share >= len(ids) - 1:
        return [MessageQueue(asked.topic, queues[0].broker_name, ANY_QUEUE)]
    if asked.client_id not in ids:
        return []
    index = ids.index(asked.client_id)
    if len(ids) > len(queues):
        return [queues[index % len(queues)]]
    members = [ids[(index + behind) % len(ids)] for behind in range(share + 1)]
    return sorted({queue for each in members for queue in strategy.allocate(asked.consumer_group, each, queues, ids)})
