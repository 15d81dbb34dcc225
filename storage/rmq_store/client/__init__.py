"""RocketMQ's clients over a backend: stores of this host, or a cluster of brokers.

>>> import tempfile
>>> from rmq_store import Message, Store
>>> from rmq_store.client import Producer
>>> directory = tempfile.TemporaryDirectory()
>>> with Store.open(directory.name + "/store", create=True) as store, Producer("pg_orders", store) as producer:
...     result = producer.send(Message("Orders", b"tea for two", tags="TagA", keys="ORD-1"))
...     (result.status.value, result.broker_name, result.queue_offset)
('SEND_OK', 'rmq-embedded', 0)
>>> directory.cleanup()
"""

from rmq_store.broker.filter.subscription import MessageSelector
from rmq_store.client.backend.backend import Backend, Broker
from rmq_store.client.backend.local import LocalBackend
from rmq_store.client.backend.queue_selection import select_message_queue_by_hash
from rmq_store.client.backend.remote import RemoteBackend
from rmq_store.client.consume_service.listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageListenerArrow,
    MessageListenerConcurrently,
    MessageListenerOrderly,
)
from rmq_store.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_store.client.consumer.message_view import MessageView
from rmq_store.client.consumer.push_consumer import PushConsumer
from rmq_store.client.consumer.simple_consumer import FilterExpression, FilterExpressionType, SimpleConsumer
from rmq_store.client.group.consumer_config import (
    ConsumeFromWhere,
    LitePullConsumerConfig,
    MessageModel,
    PushConsumerConfig,
)
from rmq_store.client.group.rate_limiter import RateLimiter
from rmq_store.client.producer.flow_control import BackoffPolicy
from rmq_store.client.producer.producer import Producer
from rmq_store.client.producer.producer_config import ProducerConfig
from rmq_store.client.producer.transaction_listener import TransactionListener
from rmq_store.client.producer.transaction_producer import TransactionProducer
from rmq_store.errors import InvalidReceiptHandleError, LeaseHeldError, UsageError
from rmq_store.format.frames.message import Message
from rmq_store.protocol.allocate import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
)
from rmq_store.protocol.errors import (
    BrokerAwayError,
    ClientError,
    ClientErrorCode,
    MessageIllegalError,
    MQBrokerError,
    MQClientError,
    QueueHoleError,
    RemotingCommandError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    ReplayConflictError,
    ResponseCode,
    SendInDoubtError,
    SlaveBehindError,
    TimerNotSupportedError,
    WeakSendError,
)
from rmq_store.protocol.messages import MessageExt, MessageQueue, PullBatchResult, PullResult, PullStatus
from rmq_store.protocol.results import SendResult, SendStatus
from rmq_store.protocol.transactions import LocalTransactionState, TransactionSendResult

__all__ = [
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "Backend",
    "BackoffPolicy",
    "Broker",
    "BrokerAwayError",
    "ClientError",
    "ClientErrorCode",
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "FilterExpression",
    "FilterExpressionType",
    "InvalidReceiptHandleError",
    "LeaseHeldError",
    "LitePullConsumer",
    "LitePullConsumerConfig",
    "LocalBackend",
    "LocalTransactionState",
    "MQBrokerError",
    "MQClientError",
    "Message",
    "MessageExt",
    "MessageIllegalError",
    "MessageListenerArrow",
    "MessageListenerConcurrently",
    "MessageListenerOrderly",
    "MessageModel",
    "MessageQueue",
    "MessageSelector",
    "MessageView",
    "Producer",
    "ProducerConfig",
    "PullBatchResult",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerConfig",
    "QueueHoleError",
    "RateLimiter",
    "RemoteBackend",
    "RemotingCommandError",
    "RemotingConnectError",
    "RemotingError",
    "RemotingTimeoutError",
    "RemotingTooMuchRequestError",
    "ReplayConflictError",
    "ResponseCode",
    "SendInDoubtError",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SlaveBehindError",
    "TimerNotSupportedError",
    "TransactionListener",
    "TransactionProducer",
    "TransactionSendResult",
    "UsageError",
    "WeakSendError",
    "select_message_queue_by_hash",
]
