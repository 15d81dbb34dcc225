"""400 and 401: the server divides the queues of a topic, and says whether they are read by PULL or by POP.

Consumers of 5.x ask if their own rebalancing is off (`setClientRebalance(false)`).
Source: QueryAssignmentProcessor.java.
"""

from __future__ import annotations

import threading
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
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal

PULL: Final = "PULL"
POP: Final = "POP"
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
    """The modes of groups in topics, until the server ends, and the queues of their members. Safe for threads."""

    def __init__(self, served: ServedStore) -> None:
        self._served = served
        self._strategies = _strategies()
        self._turn = threading.Lock()
        self._modes: dict[tuple[str, str], str] = {}

    def query(self, request: Request) -> RemotingCommand:
        """400: the queues of one member. In the mode POP it is queue -1: each member receives from all queues.

        Of a topic that does not exist, or a group without members, nothing is said: the consumer keeps what it has, and
        asks again. After an error one of 5.0 to 5.2 would divide the topic's queues itself for ever
        (RebalanceImpl#tryQueryAssignment), and after an empty list it would give up its queues.
        """
        asked = QueryAssignmentRequestBody.decode(request.command.body)
        with self._turn:
            mode = self._modes.get((asked.topic, asked.consumer_group), PULL)
        queues = [MessageQueue(asked.topic, self._served.name, ANY_QUEUE)] if mode == POP else self._queues(asked)
        if queues is None:
            return request.answer(body=_NOTHING_SAID)
        found = tuple(MessageQueueAssignment(message_queue=queue, mode=mode) for queue in queues)
        return request.answer(body=QueryAssignmentResponseBody(message_queue_assignments=found).encode())

    def set_mode(self, request: Request) -> RemotingCommand:
        """401.

        Raises:
            MQBrokerError: 16, a retry topic is always pulled; 17 or 26, no such topic or group; 29, no such mode, or
                queues that are shared by some members only.
        """
        asked = SetMessageRequestModeRequestBody.decode(request.command.body)
        if asked.topic.startswith(RETRY_PREFIX):
            raise refusal(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        self._served.topic(asked.topic)
        if asked.consumer_group not in self._served.store.groups():
            raise refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if asked.mode not in (PULL, POP):
            raise refusal(ResponseCode.INVALID_PARAMETER, f"mode[{asked.mode}] is neither PULL nor POP")
        if asked.mode == POP and asked.pop_share_queue_num > 0:
            remark = f"popShareQueueNum[{asked.pop_share_queue_num}]: all members share all queues here; send 0"
            raise refusal(ResponseCode.INVALID_PARAMETER, remark)
        with self._turn:
            self._modes[asked.topic, asked.consumer_group] = asked.mode
        return request.answer()

    def _queues(self, asked: QueryAssignmentRequestBody) -> list[MessageQueue] | None:
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
        return strategy.allocate(asked.consumer_group, asked.client_id, queues, ids)
