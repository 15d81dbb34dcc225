"""All requests in one table: who receives them, and the typed headers and bodies of request and answer.

Sources: RequestCode.java, and the processors AdminBrokerProcessor.java, ClientRemotingProcessor.java,
DefaultRequestProcessor.java and their neighbours. A body that is None is absent, or not JSON: records, texts.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from rmq_store.protocol.bodies.clients import (
    BatchAckMessageRequestBody,
    CheckClientRequestBody,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from rmq_store.protocol.bodies.groups import (
    ConsumerConnection,
    ConsumerList,
    ConsumerStatusBody,
    ConsumeStats,
    ConsumeStatsList,
    GroupList,
    ProducerConnection,
    ProducerTableInfo,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionResponseBody,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from rmq_store.protocol.bodies.json_body import JsonBody
from rmq_store.protocol.bodies.routes import ClusterInfo, KVTable, RegisterBrokerBody, TopicList, TopicRouteData
from rmq_store.protocol.bodies.topics import (
    BrokerStatsData,
    DataVersion,
    QueryConsumeQueueResponseBody,
    TopicConfig,
    TopicConfigTable,
    TopicStatsTable,
)
from rmq_store.protocol.wire import admin_headers as admin
from rmq_store.protocol.wire import group_headers as groups
from rmq_store.protocol.wire import headers as messages
from rmq_store.protocol.wire import name_server_headers as name_server
from rmq_store.protocol.wire import pop_headers as pop
from rmq_store.protocol.wire import reply_headers as replies
from rmq_store.protocol.wire.header_fields import RequestHeader, ResponseHeader
from rmq_store.protocol.wire.request_codes import RequestCode


class Receiver(Enum):
    """The role that answers a request."""

    BROKER = "broker"
    NAME_SERVER = "name server"
    CLIENT = "client"


class RequestType(NamedTuple):
    """The forms of one request and of its answer. `oneway`: peers send it without waiting for an answer."""

    receiver: Receiver
    request_header: type[RequestHeader]
    response_header: type[ResponseHeader] | None = None
    request_body: type[JsonBody] | None = None
    response_body: type[JsonBody] | None = None
    oneway: bool = False


_B, _N, _C = Receiver.BROKER, Receiver.NAME_SERVER, Receiver.CLIENT

REQUESTS: Final[dict[RequestCode, RequestType]] = {
    RequestCode(row.request_header.code): row
    for row in (
        # messages
        RequestType(_B, messages.SendMessageRequestHeader, messages.SendMessageResponseHeader),
        RequestType(_B, messages.SendMessageRequestHeaderV2, messages.SendMessageResponseHeader),
        RequestType(_B, messages.SendBatchMessageRequestHeader, messages.SendMessageResponseHeader),
        RequestType(_B, replies.SendReplyMessageRequestHeader, messages.SendMessageResponseHeader),
        RequestType(_B, replies.SendReplyMessageRequestHeaderV2, messages.SendMessageResponseHeader),
        RequestType(_C, replies.ReplyMessageRequestHeader),
        RequestType(_B, messages.ConsumerSendMsgBackRequestHeader),
        RequestType(_B, messages.RecallMessageRequestHeader, messages.RecallMessageResponseHeader),
        RequestType(_B, messages.EndTransactionRequestHeader, oneway=True),
        RequestType(_C, messages.CheckTransactionStateRequestHeader, oneway=True),
        RequestType(_B, messages.PullMessageRequestHeader, messages.PullMessageResponseHeader),
        RequestType(_B, messages.LitePullMessageRequestHeader, messages.PullMessageResponseHeader),
        RequestType(_B, messages.QueryMessageRequestHeader, messages.QueryMessageResponseHeader),
        RequestType(_B, messages.ViewMessageRequestHeader),
        # offsets
        RequestType(_B, messages.QueryConsumerOffsetRequestHeader, messages.QueryConsumerOffsetResponseHeader),
        RequestType(_B, messages.UpdateConsumerOffsetRequestHeader),
        RequestType(_B, messages.SearchOffsetRequestHeader, messages.SearchOffsetResponseHeader),
        RequestType(_B, messages.GetMaxOffsetRequestHeader, messages.GetMaxOffsetResponseHeader),
        RequestType(_B, messages.GetMinOffsetRequestHeader, messages.GetMinOffsetResponseHeader),
        RequestType(
            _B, messages.GetEarliestMsgStoretimeRequestHeader, messages.GetEarliestMsgStoretimeResponseHeader
        ),
        # members of groups
        RequestType(_B, groups.HeartbeatRequestHeader, groups.HeartbeatResponseHeader, HeartbeatData),
        RequestType(_B, groups.UnregisterClientRequestHeader),
        RequestType(_B, groups.GetConsumerListByGroupRequestHeader, response_body=ConsumerList),
        RequestType(_B, groups.LockBatchMqRequestHeader, None, LockBatchRequestBody, LockBatchResponseBody),
        RequestType(_B, groups.UnlockBatchMqRequestHeader, request_body=LockBatchRequestBody),
        RequestType(_B, groups.CheckClientRequestHeader, request_body=CheckClientRequestBody),
        RequestType(_C, groups.NotifyConsumerIdsChangedRequestHeader, oneway=True),
        RequestType(_C, groups.ResetOffsetRequestHeader, request_body=ResetOffsetBody, oneway=True),
        RequestType(_B, groups.InvokeBrokerToResetOffsetRequestHeader, response_body=ResetOffsetBody),
        RequestType(_B, groups.InvokeBrokerToGetConsumerStatusRequestHeader, response_body=ConsumerStatusBody),
        RequestType(_C, groups.GetConsumerStatusRequestHeader, response_body=ConsumerStatusBody),
        RequestType(_C, groups.GetConsumerRunningInfoRequestHeader, response_body=ConsumerRunningInfo),
        RequestType(_C, groups.ConsumeMessageDirectlyRequestHeader, response_body=ConsumeMessageDirectlyResult),
        # POP
        RequestType(_B, pop.PopMessageRequestHeader, pop.PopMessageResponseHeader),
        RequestType(_B, pop.AckMessageRequestHeader),
        RequestType(_B, pop.BatchAckMessageRequestHeader, request_body=BatchAckMessageRequestBody),
        RequestType(_B, pop.ChangeInvisibleTimeRequestHeader, pop.ChangeInvisibleTimeResponseHeader),
        RequestType(_B, pop.NotificationRequestHeader, pop.NotificationResponseHeader),
        RequestType(_B, pop.PeekMessageRequestHeader, pop.PopMessageResponseHeader),
        RequestType(_B, pop.PollingInfoRequestHeader, pop.PollingInfoResponseHeader),
        RequestType(
            _B, pop.QueryAssignmentRequestHeader, None, QueryAssignmentRequestBody, QueryAssignmentResponseBody
        ),
        RequestType(_B, pop.SetMessageRequestModeRequestHeader, request_body=SetMessageRequestModeRequestBody),
        # administration
        RequestType(_B, admin.CreateTopicRequestHeader),
        RequestType(_B, admin.DeleteTopicRequestHeader),
        RequestType(_N, admin.DeleteTopicFromNamesrvRequestHeader),
        RequestType(_B, admin.GetAllTopicConfigRequestHeader, response_body=TopicConfigTable),
        RequestType(_B, admin.GetTopicConfigRequestHeader, response_body=TopicConfig),
        RequestType(_B, admin.UpdateSubscriptionGroupRequestHeader, request_body=SubscriptionGroupConfig),
        RequestType(_B, admin.GetSubscriptionGroupConfigRequestHeader, response_body=SubscriptionGroupConfig),
        RequestType(_B, admin.GetSystemTopicListFromBrokerRequestHeader, response_body=TopicList),
        RequestType(_B, admin.GetAllSubscriptionGroupRequestHeader, response_body=SubscriptionGroupTable),
        RequestType(_B, admin.DeleteSubscriptionGroupRequestHeader),
        RequestType(_B, admin.GetTopicStatsInfoRequestHeader, response_body=TopicStatsTable),
        RequestType(_B, admin.GetConsumerConnectionListRequestHeader, response_body=ConsumerConnection),
        RequestType(_B, admin.GetProducerConnectionListRequestHeader, response_body=ProducerConnection),
        RequestType(_B, admin.GetConsumeStatsRequestHeader, response_body=ConsumeStats),
        RequestType(_B, admin.QueryTopicConsumeByWhoRequestHeader, response_body=GroupList),
        RequestType(_B, admin.QueryTopicsByConsumerRequestHeader, response_body=TopicList),
        RequestType(_B, admin.QuerySubscriptionByConsumerRequestHeader, response_body=QuerySubscriptionResponseBody),
        RequestType(_B, admin.QueryConsumeTimeSpanRequestHeader, response_body=QueryConsumeTimeSpanBody),
        RequestType(_B, admin.GetConsumeStatsInBrokerHeader, response_body=ConsumeStatsList),
        RequestType(_B, admin.GetAllProducerInfoRequestHeader, response_body=ProducerTableInfo),
        RequestType(_B, admin.GetBrokerRuntimeInfoRequestHeader, response_body=KVTable),
        RequestType(_B, admin.GetBrokerConfigRequestHeader, admin.GetBrokerConfigResponseHeader),
        RequestType(_B, admin.UpdateBrokerConfigRequestHeader),
        RequestType(_B, admin.ViewBrokerStatsDataRequestHeader, response_body=BrokerStatsData),
        RequestType(_B, admin.QueryConsumeQueueRequestHeader, response_body=QueryConsumeQueueResponseBody),
        RequestType(_B, admin.CleanExpiredConsumeQueueRequestHeader),
        RequestType(_B, admin.DeleteExpiredCommitLogRequestHeader),
        RequestType(_B, admin.CleanUnusedTopicRequestHeader),
        RequestType(_B, admin.GetAllConsumerOffsetRequestHeader),
        RequestType(_B, admin.GetAllDelayOffsetRequestHeader),
        # name servers
        RequestType(
            _N,
            name_server.RegisterBrokerRequestHeader,
            name_server.RegisterBrokerResponseHeader,
            RegisterBrokerBody,
            KVTable,
        ),
        RequestType(_N, name_server.UnRegisterBrokerRequestHeader),
        RequestType(
            _N, name_server.QueryDataVersionRequestHeader, name_server.QueryDataVersionResponseHeader, DataVersion
        ),
        RequestType(_N, name_server.GetRouteInfoRequestHeader, response_body=TopicRouteData),
        RequestType(_N, name_server.GetBrokerClusterInfoRequestHeader, response_body=ClusterInfo),
        RequestType(_N, name_server.GetAllTopicListFromNamesrvRequestHeader, response_body=TopicList),
        RequestType(_N, name_server.GetSystemTopicListFromNamesrvRequestHeader, response_body=TopicList),
        RequestType(_N, name_server.GetTopicsByClusterRequestHeader, response_body=TopicList),
        RequestType(
            _N, name_server.WipeWritePermOfBrokerRequestHeader, name_server.WipeWritePermOfBrokerResponseHeader
        ),
        RequestType(_N, name_server.PutKVConfigRequestHeader),
        RequestType(_N, name_server.GetKVConfigRequestHeader, name_server.GetKVConfigResponseHeader),
        RequestType(_N, name_server.DeleteKVConfigRequestHeader),
        RequestType(_N, name_server.GetKVListByNamespaceRequestHeader, response_body=KVTable),
        RequestType(_N, name_server.GetNamesrvConfigRequestHeader),
    )
}
