"""All requests in one table: the headers and bodies, who answers them, and the rights that each needs.

Of a row come the codec of a request (its header has the code), the right that is asked for, and the service of a broker
or a name server: `processor` names an object of the server and its method. A request without a row is refused where
there are users, and without a processor it is answered by code 3.

Sources: RequestCode.java; BrokerController#registerProcessor (pools); AdminBrokerProcessor.java,
ClientRemotingProcessor.java, DefaultRequestProcessor.java and their neighbours; DefaultAuthorizationContextBuilder.java
(rights). Beyond the last one: a message that is named by its place in the log (33, 36, 309) needs the right for its
topic, and a producer group is joined by those only who may send for it, because brokers show its members half messages.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from rmq_store.server.requests import request_needs as needs
from rmq_store.server.requests.request_needs import HalfMessage, Needs, Right, StoredMessage, WholeBroker


class Receiver(Enum):
    """The role that answers a request."""

    BROKER = "broker"
    NAME_SERVER = "name server"
    CONTROLLER = "controller"
    CLIENT = "client"


class Pool(Enum):
    """The pool of threads in which a request waits. REGISTRATION: of brokers, at a name server."""

    SEND = "send"
    PULL = "pull"
    POP = "pop"
    ADMIN = "admin"
    CLIENT = "client"
    TRANSACTION = "transaction"
    REGISTRATION = "registration"


class Change(Enum):
    """Says whether a request is a change for administrators: ALWAYS, or only for an EXISTING topic or group. NEVER: it
    is carried out for nobody.
    """

    NO = "no"
    EXISTING = "existing"
    ALWAYS = "always"
    NEVER = "never"


class Rights(NamedTuple):
    """The rights that a request needs (none: it is for every user), and whether it is a change."""

    needs: Needs = ()
    change: Change = Change.NO


class RequestType(NamedTuple):
    """One request and its answer. `processor` is "" for one that no server of ours answers. A body that is None is
    absent, or not JSON: records, texts. `oneway`: peers send it without waiting for an answer. `grouped`: several
    that came together may be answered by one call, if the server has one.
    """

    receiver: Receiver
    request_header: type[RequestHeader]
    rights: Rights
    pool: Pool | None
    processor: str
    response_header: type[ResponseHeader] | None = None
    request_body: type[JsonBody] | None = None
    response_body: type[JsonBody] | None = None
    oneway: bool = False
    grouped: bool = False


_B, _N, _K, _C = Receiver.BROKER, Receiver.NAME_SERVER, Receiver.CONTROLLER, Receiver.CLIENT
_PUB, _SUB, _ADMIN = Right.PUB, Right.SUB, Right.ADMIN

_SEND: Final = Rights((needs.topic(_PUB), HalfMessage("properties", "producerGroup")))
_SEND_V2: Final = Rights((needs.topic(_PUB, "b"), HalfMessage("i", "a")))
_READ_TOPIC: Final = Rights((needs.topic(_SUB),))
_CONSUME: Final = Rights((needs.topic(_SUB), needs.group(_SUB)))
_OF_GROUP: Final = Rights((needs.group(_SUB),))
_OF_PRODUCERS: Final = Rights((needs.group(_PUB, "producerGroup"),))
_LOCKS: Final = Rights((needs.locks,))
_RESET: Final = Rights((needs.topic(_SUB), needs.group(_ADMIN, "group")), Change.ALWAYS)
_STATUS: Final = Rights((needs.topic(_SUB), needs.group(_SUB, "group")))
_SEND_BACK: Final = Rights((needs.group(_SUB, "group"), StoredMessage(_SUB, "offset", needs.log_offset)))
_VIEW: Final = Rights((StoredMessage(_SUB, "offset", needs.log_offset),))
_UNREGISTER: Final = Rights(
    (needs.group(_PUB, "producerGroup", may_be_empty=True), needs.group(_SUB, may_be_empty=True))
)
_CONSUME_DIRECTLY: Final = Rights((needs.group(_ADMIN), StoredMessage(_SUB, "msgId", needs.message_id)), Change.ALWAYS)
_READ_QUEUE: Final = Rights((needs.topic(_SUB), needs.group(_SUB, may_be_empty=True)))
_CREATE_TOPIC: Final = Rights((needs.topic(_ADMIN),), Change.EXISTING)
_CREATE_GROUP: Final = Rights((needs.new_group,), Change.EXISTING)
_DELETE_GROUP: Final = Rights((needs.group(_ADMIN, "groupName"),), Change.ALWAYS)
_SET_REQUEST_MODE: Final = Rights((needs.request_mode,), Change.ALWAYS)
_HEARTBEAT: Final = Rights((needs.heartbeat,))
_CONDITION: Final = Rights((needs.condition,))
_ACKS: Final = Rights((needs.acks,))
_ASSIGNMENT: Final = Rights((needs.assignment,))
_TOPICS_OF_GROUP: Final = Rights((needs.group(_SUB, "group"),))
# Figures and settings: names and numbers, never messages or secrets.
_ANYBODY: Final = Rights()
_OF_BROKER: Final = Rights((WholeBroker(_ADMIN),))
_CHANGE_TOPIC: Final = Rights((needs.topic(_ADMIN),), Change.ALWAYS)
_CHANGE_BROKER: Final = Rights((WholeBroker(_ADMIN),), Change.ALWAYS)
# CVE-2023-33246 and CVE-2023-37582
_REFUSED: Final = Rights((WholeBroker(_ADMIN),), Change.NEVER)

_ROWS: Final = (
    # messages
    RequestType(
        _B, messages.SendMessageRequestHeader, _SEND, Pool.SEND, "sends.send",
        messages.SendMessageResponseHeader, grouped=True,
    ),
    RequestType(
        _B, messages.SendMessageRequestHeaderV2, _SEND_V2, Pool.SEND, "sends.send",
        messages.SendMessageResponseHeader, grouped=True,
    ),
    RequestType(
        _B, messages.SendBatchMessageRequestHeader, _SEND_V2, Pool.SEND, "sends.send",
        messages.SendMessageResponseHeader,
    ),
    RequestType(
        _B, replies.SendReplyMessageRequestHeader, _SEND, Pool.CLIENT, "replies.reply",
        messages.SendMessageResponseHeader,
    ),
    RequestType(
        _B, replies.SendReplyMessageRequestHeaderV2, _SEND_V2, Pool.CLIENT, "replies.reply",
        messages.SendMessageResponseHeader,
    ),
    RequestType(_C, replies.ReplyMessageRequestHeader, _OF_BROKER, None, ""),
    RequestType(_B, messages.ConsumerSendMsgBackRequestHeader, _SEND_BACK, Pool.SEND, "sends.send_back"),
    RequestType(
        _B, messages.RecallMessageRequestHeader, _SEND, Pool.ADMIN, "sends.recall",
        messages.RecallMessageResponseHeader,
    ),
    RequestType(
        _B, messages.EndTransactionRequestHeader, _OF_PRODUCERS, Pool.TRANSACTION, "transactions.end", oneway=True,
    ),
    RequestType(_C, messages.CheckTransactionStateRequestHeader, _OF_BROKER, None, "", oneway=True),
    RequestType(
        _B, messages.PullMessageRequestHeader, _CONSUME, Pool.PULL, "pulls.pull",
        messages.PullMessageResponseHeader, grouped=True,
    ),
    RequestType(
        _B, messages.LitePullMessageRequestHeader, _CONSUME, Pool.PULL, "pulls.pull",
        messages.PullMessageResponseHeader, grouped=True,
    ),
    RequestType(
        _B, messages.QueryMessageRequestHeader, _READ_TOPIC, Pool.ADMIN, "queries.query",
        messages.QueryMessageResponseHeader,
    ),
    RequestType(_B, messages.ViewMessageRequestHeader, _VIEW, Pool.ADMIN, "queries.view"),
    # offsets
    RequestType(
        _B, messages.QueryConsumerOffsetRequestHeader, _CONSUME, Pool.ADMIN, "offsets.query",
        messages.QueryConsumerOffsetResponseHeader,
    ),
    RequestType(_B, messages.UpdateConsumerOffsetRequestHeader, _CONSUME, Pool.ADMIN, "offsets.update"),
    RequestType(
        _B, messages.SearchOffsetRequestHeader, _READ_TOPIC, Pool.ADMIN, "ends.search",
        messages.SearchOffsetResponseHeader,
    ),
    RequestType(
        _B, messages.GetMaxOffsetRequestHeader, _READ_TOPIC, Pool.ADMIN, "ends.maximum",
        messages.GetMaxOffsetResponseHeader,
    ),
    RequestType(
        _B, messages.GetMinOffsetRequestHeader, _READ_TOPIC, Pool.ADMIN, "ends.minimum",
        messages.GetMinOffsetResponseHeader,
    ),
    RequestType(
        _B, messages.GetEarliestMsgStoretimeRequestHeader, _READ_TOPIC, Pool.ADMIN, "ends.earliest_time",
        messages.GetEarliestMsgStoretimeResponseHeader,
    ),
    # members of groups
    RequestType(
        _B, groups.HeartbeatRequestHeader, _HEARTBEAT, Pool.CLIENT, "members.heartbeat", groups.HeartbeatResponseHeader,
        request_body=HeartbeatData,
    ),
    RequestType(_B, groups.UnregisterClientRequestHeader, _UNREGISTER, Pool.CLIENT, "members.unregister"),
    RequestType(
        _B, groups.GetConsumerListByGroupRequestHeader, _OF_GROUP, Pool.CLIENT, "members.consumer_list",
        response_body=ConsumerList,
    ),
    RequestType(
        _B, groups.LockBatchMqRequestHeader, _LOCKS, Pool.CLIENT, "locks.lock", request_body=LockBatchRequestBody,
        response_body=LockBatchResponseBody,
    ),
    RequestType(
        _B, groups.UnlockBatchMqRequestHeader, _LOCKS, Pool.CLIENT, "locks.unlock", request_body=LockBatchRequestBody,
    ),
    RequestType(
        _B, groups.CheckClientRequestHeader, _CONDITION, Pool.CLIENT, "members.check_client",
        request_body=CheckClientRequestBody,
    ),
    RequestType(_C, groups.NotifyConsumerIdsChangedRequestHeader, _OF_BROKER, None, "", oneway=True),
    RequestType(_C, groups.ResetOffsetRequestHeader, _RESET, None, "", request_body=ResetOffsetBody, oneway=True),
    RequestType(
        _B, groups.InvokeBrokerToResetOffsetRequestHeader, _RESET, Pool.ADMIN, "resets.reset",
        response_body=ResetOffsetBody,
    ),
    RequestType(
        _B, groups.InvokeBrokerToGetConsumerStatusRequestHeader, _STATUS, Pool.ADMIN, "member_offsets.ask",
        response_body=ConsumerStatusBody,
    ),
    RequestType(_C, groups.GetConsumerStatusRequestHeader, _STATUS, None, "", response_body=ConsumerStatusBody),
    RequestType(
        _C, groups.GetConsumerRunningInfoRequestHeader, _OF_GROUP, Pool.ADMIN, "questions.running_info",
        response_body=ConsumerRunningInfo,
    ),
    RequestType(
        _C, groups.ConsumeMessageDirectlyRequestHeader, _CONSUME_DIRECTLY, Pool.ADMIN, "questions.consume_directly",
        response_body=ConsumeMessageDirectlyResult,
    ),
    # POP
    RequestType(_B, pop.PopMessageRequestHeader, _CONSUME, Pool.POP, "pops.pop", pop.PopMessageResponseHeader),
    RequestType(_B, pop.AckMessageRequestHeader, _CONSUME, Pool.POP, "receipts.ack"),
    RequestType(
        _B, pop.BatchAckMessageRequestHeader, _ACKS, Pool.POP, "receipts.ack_all",
        request_body=BatchAckMessageRequestBody,
    ),
    RequestType(
        _B, pop.ChangeInvisibleTimeRequestHeader, _CONSUME, Pool.POP, "receipts.change_invisible_time",
        pop.ChangeInvisibleTimeResponseHeader,
    ),
    RequestType(
        _B, pop.NotificationRequestHeader, _CONSUME, Pool.POP, "notifications.ask", pop.NotificationResponseHeader,
    ),
    RequestType(_B, pop.PeekMessageRequestHeader, _CONSUME, Pool.POP, "peeks.peek", pop.PopMessageResponseHeader),
    RequestType(
        _B, pop.PollingInfoRequestHeader, _CONSUME, Pool.ADMIN, "pops.polling_info", pop.PollingInfoResponseHeader,
    ),
    RequestType(
        _B, pop.QueryAssignmentRequestHeader, _ASSIGNMENT, Pool.CLIENT, "assignments.query",
        request_body=QueryAssignmentRequestBody, response_body=QueryAssignmentResponseBody,
    ),
    RequestType(
        _B, pop.SetMessageRequestModeRequestHeader, _SET_REQUEST_MODE, Pool.ADMIN, "assignments.set_mode",
        request_body=SetMessageRequestModeRequestBody,
    ),
    # administration
    RequestType(_B, admin.CreateTopicRequestHeader, _CREATE_TOPIC, Pool.ADMIN, "admins.create_topic"),
    RequestType(_B, admin.DeleteTopicRequestHeader, _CHANGE_TOPIC, Pool.ADMIN, "changes.delete_topic"),
    RequestType(_N, admin.DeleteTopicFromNamesrvRequestHeader, _CHANGE_TOPIC, Pool.CLIENT, "removals.delete_topic"),
    RequestType(
        _B, admin.GetAllTopicConfigRequestHeader, _ANYBODY, Pool.ADMIN, "admins.topic_configs",
        response_body=TopicConfigTable,
    ),
    RequestType(
        _B, admin.GetTopicConfigRequestHeader, _ANYBODY, Pool.ADMIN, "admins.topic_config", response_body=TopicConfig,
    ),
    RequestType(
        _B, admin.UpdateSubscriptionGroupRequestHeader, _CREATE_GROUP, Pool.ADMIN, "changes.update_group",
        request_body=SubscriptionGroupConfig,
    ),
    RequestType(
        _B, admin.GetSubscriptionGroupConfigRequestHeader, _ANYBODY, Pool.ADMIN, "admins.group",
        response_body=SubscriptionGroupConfig,
    ),
    RequestType(
        _B, admin.GetSystemTopicListFromBrokerRequestHeader, _ANYBODY, Pool.ADMIN, "admins.system_topics",
        response_body=TopicList,
    ),
    RequestType(
        _B, admin.GetAllSubscriptionGroupRequestHeader, _ANYBODY, Pool.ADMIN, "admins.groups",
        response_body=SubscriptionGroupTable,
    ),
    RequestType(_B, admin.DeleteSubscriptionGroupRequestHeader, _DELETE_GROUP, Pool.ADMIN, "changes.delete_group"),
    RequestType(
        _B, admin.GetTopicStatsInfoRequestHeader, _READ_TOPIC, Pool.ADMIN, "ends.topic_stats",
        response_body=TopicStatsTable,
    ),
    RequestType(
        _B, admin.GetConsumerConnectionListRequestHeader, _OF_GROUP, Pool.ADMIN, "admins.consumer_connection",
        response_body=ConsumerConnection,
    ),
    RequestType(
        _B, admin.GetProducerConnectionListRequestHeader, _OF_PRODUCERS, Pool.ADMIN, "admins.producer_connection",
        response_body=ProducerConnection,
    ),
    RequestType(
        _B, admin.GetConsumeStatsRequestHeader, _CONSUME, Pool.ADMIN, "progress.consume_stats",
        response_body=ConsumeStats,
    ),
    RequestType(
        _B, admin.QueryTopicConsumeByWhoRequestHeader, _READ_TOPIC, Pool.ADMIN, "admins.groups_of_topic",
        response_body=GroupList,
    ),
    RequestType(
        _B, admin.QueryTopicsByConsumerRequestHeader, _TOPICS_OF_GROUP, Pool.ADMIN, "progress.topics_of_group",
        response_body=TopicList,
    ),
    RequestType(
        _B, admin.QuerySubscriptionByConsumerRequestHeader, _STATUS, Pool.ADMIN, "progress.subscription",
        response_body=QuerySubscriptionResponseBody,
    ),
    RequestType(
        _B, admin.QueryConsumeTimeSpanRequestHeader, _STATUS, Pool.ADMIN, "progress.time_spans",
        response_body=QueryConsumeTimeSpanBody,
    ),
    RequestType(
        _B, admin.GetConsumeStatsInBrokerHeader, _OF_BROKER, Pool.ADMIN, "progress.all_consume_stats",
        response_body=ConsumeStatsList,
    ),
    RequestType(
        _B, admin.GetAllProducerInfoRequestHeader, _OF_BROKER, Pool.ADMIN, "admins.producers",
        response_body=ProducerTableInfo,
    ),
    RequestType(
        _B, admin.GetBrokerRuntimeInfoRequestHeader, _ANYBODY, Pool.ADMIN, "admins.runtime_info", response_body=KVTable,
    ),
    RequestType(
        _B, admin.GetBrokerConfigRequestHeader, _OF_BROKER, Pool.ADMIN, "settings.all",
        admin.GetBrokerConfigResponseHeader,
    ),
    RequestType(_B, admin.UpdateBrokerConfigRequestHeader, _REFUSED, Pool.ADMIN, ""),
    RequestType(_N, admin.UpdateNamesrvConfigRequestHeader, _REFUSED, Pool.ADMIN, ""),
    RequestType(_K, admin.UpdateControllerConfigRequestHeader, _REFUSED, Pool.ADMIN, ""),
    RequestType(
        _B, admin.ViewBrokerStatsDataRequestHeader, _ANYBODY, Pool.ADMIN, "rates.view", response_body=BrokerStatsData,
    ),
    RequestType(
        _B, admin.QueryConsumeQueueRequestHeader, _READ_QUEUE, Pool.ADMIN, "queue_entries.query",
        response_body=QueryConsumeQueueResponseBody,
    ),
    RequestType(_B, admin.CleanExpiredConsumeQueueRequestHeader, _CHANGE_BROKER, Pool.ADMIN, "cleaning.queue_files"),
    RequestType(_B, admin.DeleteExpiredCommitLogRequestHeader, _CHANGE_BROKER, Pool.ADMIN, "cleaning.expired_segments"),
    RequestType(_B, admin.CleanUnusedTopicRequestHeader, _CHANGE_BROKER, Pool.ADMIN, "cleaning.unused_topics"),
    RequestType(_B, admin.GetAllConsumerOffsetRequestHeader, _OF_BROKER, Pool.ADMIN, "slaves.consumer_offsets"),
    RequestType(_B, admin.GetAllDelayOffsetRequestHeader, _OF_BROKER, Pool.ADMIN, "slaves.delay_offsets"),
    RequestType(_B, admin.GetTimerCheckPointRequestHeader, _OF_BROKER, Pool.ADMIN, "slaves.timer_check_point"),
    RequestType(_B, admin.GetTimerMetricsRequestHeader, _OF_BROKER, Pool.ADMIN, "slaves.timer_metrics"),
    RequestType(_B, admin.GetAllMessageRequestModeRequestHeader, _OF_BROKER, Pool.ADMIN, "slaves.request_modes"),
    RequestType(
        _B, admin.ExchangeHAInfoRequestHeader, _OF_BROKER, Pool.ADMIN, "slaves.ha_info",
        admin.ExchangeHAInfoResponseHeader,
    ),
    # name servers
    RequestType(
        _N, name_server.RegisterBrokerRequestHeader, _OF_BROKER, Pool.REGISTRATION, "routes.register",
        name_server.RegisterBrokerResponseHeader, request_body=RegisterBrokerBody, response_body=KVTable,
    ),
    RequestType(_N, name_server.UnRegisterBrokerRequestHeader, _OF_BROKER, Pool.REGISTRATION, "routes.unregister"),
    RequestType(
        _N, name_server.QueryDataVersionRequestHeader, _OF_BROKER, Pool.REGISTRATION, "data_versions.data_version",
        name_server.QueryDataVersionResponseHeader, request_body=DataVersion,
    ),
    RequestType(
        _N, name_server.GetRouteInfoRequestHeader, _ANYBODY, Pool.CLIENT, "routes.route", response_body=TopicRouteData,
    ),
    RequestType(
        _N, name_server.GetBrokerClusterInfoRequestHeader, _ANYBODY, Pool.CLIENT, "routes.clusters",
        response_body=ClusterInfo,
    ),
    RequestType(
        _N, name_server.GetAllTopicListFromNamesrvRequestHeader, _ANYBODY, Pool.CLIENT, "routes.topics",
        response_body=TopicList,
    ),
    RequestType(
        _N, name_server.GetSystemTopicListFromNamesrvRequestHeader, _ANYBODY, Pool.CLIENT, "routes.system_topics",
        response_body=TopicList,
    ),
    RequestType(
        _N, name_server.GetTopicsByClusterRequestHeader, _ANYBODY, Pool.CLIENT, "routes.topics_of_cluster",
        response_body=TopicList,
    ),
    RequestType(
        _N, name_server.WipeWritePermOfBrokerRequestHeader, _CHANGE_BROKER, None, "",
        name_server.WipeWritePermOfBrokerResponseHeader,
    ),
    RequestType(_N, name_server.PutKVConfigRequestHeader, _CHANGE_BROKER, Pool.CLIENT, "pairs.put"),
    RequestType(
        _N, name_server.GetKVConfigRequestHeader, _ANYBODY, Pool.CLIENT, "pairs.get",
        name_server.GetKVConfigResponseHeader,
    ),
    RequestType(_N, name_server.DeleteKVConfigRequestHeader, _CHANGE_BROKER, Pool.CLIENT, "pairs.delete"),
    RequestType(
        _N, name_server.GetKVListByNamespaceRequestHeader, _ANYBODY, Pool.CLIENT, "pairs.pairs", response_body=KVTable,
    ),
    RequestType(_N, name_server.GetNamesrvConfigRequestHeader, _OF_BROKER, Pool.CLIENT, "name_server_settings.all"),
    # of this engine
    RequestType(
        _B, admin.AdvanceClockRequestHeader, _OF_BROKER, Pool.ADMIN, "clock.advance", admin.AdvanceClockResponseHeader,
    ),
)  # fmt: skip

REQUESTS: Final[Mapping[int, RequestType]] = {int(row.request_header.code): row for row in _ROWS}
"""By request code."""
