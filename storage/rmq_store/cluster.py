"""The public names of a cluster of brokers: settings, the clients' backend, and what a data source needs.

The parts are `rmq_store.remoting` (calls), `rmq_store.protocol` (values) and `rmq_store.client.cluster_sink` (writing).
"""

from rmq_store.broker.filter.sql92 import compile_selector
from rmq_store.broker.filter.tags import TagFilter
from rmq_store.client.backend.remote import RemoteBackend
from rmq_store.client.cluster_retry.dead_letters import CLUSTER_RESULT_SCHEMA, CLUSTER_ROWS_SCHEMA
from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters
from rmq_store.client.cluster_retry.send_back_task import SendBackReport, SendBackSettings, SendBackTask
from rmq_store.client.cluster_sink.holders import Holders
from rmq_store.client.cluster_sink.pipeline import PipelineSettings
from rmq_store.client.cluster_sink.record_topic import RECORD_TOPIC, RecordTopic
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
from rmq_store.client.cluster_sink.task import SinkReport, SinkSettings, SinkTask
from rmq_store.client.group.group_lease import GroupLease
from rmq_store.format.batches.answer_batches import AnswerRequest, answer_batches
from rmq_store.format.batches.frame_decoder import frame_columns
from rmq_store.format.frames.frame_walk import WalkedFrames, frames_of_answer
from rmq_store.memory import BatchMemory
from rmq_store.protocol.answers import NOT_AT_SLAVE, is_away, tells_nothing
from rmq_store.protocol.errors import BrokerAwayError, MQBrokerError, RemotingError, ResponseCode, SlaveBehindError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.pull_answers import PullAnswer
from rmq_store.remoting.admin.one_broker import OneBroker
from rmq_store.remoting.admin.required_brokers import (
    brokers_away,
    parse_broker_names,
    require_brokers,
    unanswered,
)
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import At, Question, gather
from rmq_store.remoting.cluster.groups import (
    first_group_config,
    gather_group_configs,
    gather_members,
    group_configs,
    live_members,
)
from rmq_store.remoting.cluster.name_servers import Probes
from rmq_store.remoting.cluster.offsets import gather_ranges, search_offsets
from rmq_store.remoting.cluster.pull_request import (
    SQL92,
    PullFilter,
    PullRequests,
    answer_of,
    evaluates_no_sql92,
    pull,
)
from rmq_store.remoting.cluster.pull_source import PullSource
from rmq_store.remoting.cluster.pulling import walk_range
from rmq_store.remoting.cluster.queries import (
    Found,
    LogFigure,
    log_figures,
    query_by_key,
    query_by_unique_key,
    view_message,
)
from rmq_store.remoting.cluster.routes import MASTER_ID, KnownRoutes, TopicRoute
from rmq_store.remoting.cluster.topics import BrokerEnds, CheckedTopics, TopicAt, at_brokers, ends_at_brokers
from rmq_store.remoting.questions.answer import SUCCESS, broker_error, checked, is_not_told, lacks_rights
from rmq_store.remoting.questions.brokers import ask_runtime_info
from rmq_store.remoting.transport.settings import ClusterSettings, TlsSettings, is_address_server, split_name_servers

__all__ = [
    "CLUSTER_RESULT_SCHEMA",
    "CLUSTER_ROWS_SCHEMA",
    "MASTER_ID",
    "NOT_AT_SLAVE",
    "RECORD_TOPIC",
    "SQL92",
    "SUCCESS",
    "AnswerRequest",
    "At",
    "BatchMemory",
    "BrokerAwayError",
    "BrokerEnds",
    "CheckedTopics",
    "Cluster",
    "ClusterDeadLetters",
    "ClusterSettings",
    "EncoderSettings",
    "Found",
    "GroupLease",
    "Holders",
    "KnownRoutes",
    "LogFigure",
    "MQBrokerError",
    "MessageQueue",
    "OneBroker",
    "PipelineSettings",
    "Probes",
    "PullAnswer",
    "PullFilter",
    "PullRequests",
    "PullSource",
    "Question",
    "QueueRange",
    "RecordTopic",
    "RemoteBackend",
    "RemotingCommand",
    "RemotingError",
    "ResponseCode",
    "SendBackReport",
    "SendBackSettings",
    "SendBackTask",
    "SinkReport",
    "SinkSettings",
    "SinkTask",
    "SlaveBehindError",
    "TagFilter",
    "TlsSettings",
    "TopicAt",
    "TopicRoute",
    "WalkedFrames",
    "WritePart",
    "answer_batches",
    "answer_of",
    "ask_runtime_info",
    "at_brokers",
    "broker_error",
    "brokers_away",
    "checked",
    "compile_selector",
    "ends_at_brokers",
    "evaluates_no_sql92",
    "first_group_config",
    "frame_columns",
    "frames_of_answer",
    "gather",
    "gather_group_configs",
    "gather_members",
    "gather_ranges",
    "group_configs",
    "is_address_server",
    "is_away",
    "is_not_told",
    "lacks_rights",
    "live_members",
    "log_figures",
    "parse_broker_names",
    "pull",
    "query_by_key",
    "query_by_unique_key",
    "require_brokers",
    "search_offsets",
    "split_name_servers",
    "tells_nothing",
    "unanswered",
    "view_message",
    "walk_range",
]
