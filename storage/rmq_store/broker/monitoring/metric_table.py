"""The metrics of a store: their names, labels and meanings.

`rocketmq_...` are metrics of a RocketMQ 5 broker, under the names and labels that its Prometheus exporter gives them;
`rmq_...` are metrics of this engine. docs/metrics.md says where a meaning differs. Source: BrokerMetricsConstant,
BrokerMetricsManager, DefaultStoreMetricsManager (5.x).
"""

from __future__ import annotations

from typing import Final

from rmq_store.format.text.openmetrics import Metric

_NODE = ("cluster", "node_type", "node_id")
_STORAGE = (*_NODE, "storage_type", "storage_medium")
_GROUP = (*_NODE, "consumer_group", "is_system")
_TOPIC = (*_NODE, "topic", "is_retry", "is_system")
_LAG = (*_NODE, "consumer_group", "topic", "is_retry", "is_system")
_QUEUE = (*_NODE, "topic", "queue_id")
_GROUP_QUEUE = (*_NODE, "consumer_group", "topic", "queue_id")

TOPIC_NUMBER = Metric("rocketmq_topic_number", "gauge", "Topics.", _NODE)
GROUP_NUMBER = Metric("rocketmq_consumer_group_number", "gauge", "Consumer groups with settings.", _NODE)
CONNECTIONS = Metric(
    "rocketmq_consumer_connections", "gauge",
    "Running streams, push and lite pull consumers of the group.", _GROUP,
)  # fmt: skip
LAG_MESSAGES = Metric(
    "rocketmq_consumer_lag_messages", "gauge", "Messages between the committed offset and the end.", _LAG
)
LAG_LATENCY = Metric(
    "rocketmq_consumer_lag_latency_milliseconds", "gauge",
    "Age of the oldest message that is not consumed.", _LAG, "milliseconds",
)  # fmt: skip
INFLIGHT = Metric(
    "rocketmq_consumer_inflight_messages", "gauge", "Messages that POP handed out and that are not committed.", _LAG
)
QUEUEING_LATENCY = Metric(
    "rocketmq_consumer_queueing_latency_milliseconds", "gauge",
    "Age of the oldest message that was not handed out.", _LAG, "milliseconds",
)  # fmt: skip
READY = Metric("rocketmq_consumer_ready_messages", "gauge", "Messages that were not handed out.", _LAG)
SENT_TO_DLQ = Metric(
    "rocketmq_send_to_dlq_messages", "counter", "Messages that ever became dead letters of the group.", _GROUP
)
STORAGE_SIZE = Metric(
    "rocketmq_storage_size_bytes", "gauge", "Bytes in use on the file system that holds the store.", _STORAGE, "bytes"
)
FLUSH_BEHIND = Metric(
    "rocketmq_storage_flush_behind_bytes", "gauge",
    "Bytes of the log that are not flushed; only while a process of this project has the store "
    "open.", _STORAGE, "bytes",
)  # fmt: skip
RESERVE_TIME = Metric(
    "rocketmq_storage_message_reserve_time_milliseconds", "gauge", "Age of the oldest message of the log.", _STORAGE,
    "milliseconds",
)  # fmt: skip
TOPIC_MESSAGES = Metric("rmq_topic_messages", "gauge", "Messages of the topic that can be read.", _TOPIC)
TOPIC_PUT = Metric(
    "rmq_topic_put_messages", "counter", "Messages that were ever put into the queues of the topic.", _TOPIC
)
DEAD_LETTERS = Metric("rmq_dead_letters", "gauge", "Dead letters of the group that can be read.", _GROUP)
DELAYED = Metric(
    "rmq_delayed_messages", "gauge", "Delayed messages of a delay level; level timer: those with a delivery time.",
    (*_NODE, "delay_level"),
)  # fmt: skip
OVERDUE = Metric(
    "rmq_delayed_overdue_seconds", "gauge",
    "Time since the first delayed message became due; grows while no process delivers.", (*_NODE, "delay_level"),
    "seconds",
)  # fmt: skip
LOG_MIN_OFFSET = Metric("rmq_commit_log_min_offset_bytes", "gauge", "Start of the commit log.", _NODE, "bytes")
LOG_MAX_OFFSET = Metric("rmq_commit_log_max_offset_bytes", "gauge", "End of the commit log.", _NODE, "bytes")
FILES = Metric("rmq_storage_files", "gauge", "Files of a part of the store.", (*_NODE, "part"))
FILE_BYTES = Metric("rmq_storage_bytes", "gauge", "Disk space of a part of the store.", (*_NODE, "part"), "bytes")
DISK_USAGE = Metric(
    "rmq_disk_usage_ratio", "gauge", "Used part of the disk as diskSpaceWarningLevelRatio counts it, 0 to 1.", _NODE,
    "ratio",
)  # fmt: skip
UNREADABLE = Metric(
    "rmq_unreadable", "gauge", "1 for a group or topic without other samples, because a file is damaged.",
    (*_NODE, "consumer_group", "topic"),
)  # fmt: skip
BROKER_AWAY = Metric(
    "rmq_broker_away", "gauge",
    "1 for a broker that does not answer, so that samples of it are missing; 0 for one that does.", _NODE,
)  # fmt: skip
REPLICA_FED = Metric("rmq_replica_fed", "gauge", "1 while a process feeds the replica; 0 without one.", _NODE)
REPLICA_CONNECTED = Metric(
    "rmq_replica_connected", "gauge", "1 while that process is connected to the HA port of the master.", _NODE
)
REPLICA_BEHIND_BYTES = Metric(
    "rmq_replica_behind_bytes", "gauge", "Bytes of the master's log, as last heard, that the replica lacks.", _NODE,
    "bytes",
)  # fmt: skip
REPLICA_BEHIND_MESSAGES = Metric(
    "rmq_replica_behind_messages", "gauge", "About how many messages these are, by the mean size of those that came.",
    _NODE,
)  # fmt: skip
REPLICA_BEHIND_TIME = Metric(
    "rmq_replica_behind_seconds", "gauge", "Age of the replica's newest message while it lacks some; else 0.", _NODE,
    "seconds",
)  # fmt: skip
REPLICA_HEARD = Metric(
    "rmq_replica_heard_seconds", "gauge", "Time since the master last said where its log ends; every 10 s.", _NODE,
    "seconds",
)  # fmt: skip
SYNC_MASTER = Metric(
    "rmq_sync_master", "gauge", "1 if sends wait for slaves, also those of other processes without a server; else 0.",
    _NODE,
)  # fmt: skip
SLAVES = Metric("rmq_slaves", "gauge", "Slaves that are connected, and not far behind (haSlaveFallbehindMax).", _NODE)
SLAVE_BEHIND_BYTES = Metric(
    "rmq_slave_behind_bytes", "gauge", "Bytes of the log that the slowest connected slave lacks; none without one.",
    _NODE, "bytes",
)  # fmt: skip
REPLICATED_BEHIND_BYTES = Metric(
    "rmq_replicated_behind_bytes", "gauge", "Bytes of the log that fewer slaves have than a send waits for.", _NODE,
    "bytes",
)  # fmt: skip
QUEUE_MIN_OFFSET = Metric("rmq_queue_min_offset", "gauge", "The first queue offset that can be read.", _QUEUE)
QUEUE_MAX_OFFSET = Metric("rmq_queue_max_offset", "gauge", "The queue offset that the next message gets.", _QUEUE)
QUEUE_COMMITTED = Metric("rmq_consumer_queue_offset", "gauge", "The committed offset.", _GROUP_QUEUE)
QUEUE_LAG = Metric(
    "rmq_consumer_queue_lag_messages", "gauge", "Messages between the committed offset and the end.", _GROUP_QUEUE
)
QUEUE_LAG_TIME = Metric(
    "rmq_consumer_queue_lag_seconds", "gauge", "Age of the oldest message that is not consumed.",
    _GROUP_QUEUE, "seconds",
)  # fmt: skip

STORE_METRICS: Final = (
    LAG_MESSAGES, LAG_LATENCY, INFLIGHT, QUEUEING_LATENCY, READY, SENT_TO_DLQ, CONNECTIONS, GROUP_NUMBER, TOPIC_NUMBER,
    STORAGE_SIZE, FLUSH_BEHIND, RESERVE_TIME, TOPIC_MESSAGES, TOPIC_PUT, DEAD_LETTERS, DELAYED, OVERDUE,
    LOG_MIN_OFFSET, LOG_MAX_OFFSET, FILES, FILE_BYTES, DISK_USAGE, UNREADABLE,
)  # fmt: skip
"""The metrics in every result."""

REPLICA_METRICS: Final = (
    REPLICA_FED, REPLICA_CONNECTED, REPLICA_BEHIND_BYTES, REPLICA_BEHIND_MESSAGES, REPLICA_BEHIND_TIME, REPLICA_HEARD,
)  # fmt: skip
"""The additional metrics of a replica of a broker."""

SLAVE_METRICS: Final = (SYNC_MASTER, SLAVES, SLAVE_BEHIND_BYTES, REPLICATED_BEHIND_BYTES)
"""The additional metrics of a store that is served, or whose sends wait for slaves."""

QUEUE_METRICS: Final = (QUEUE_MIN_OFFSET, QUEUE_MAX_OFFSET, QUEUE_COMMITTED, QUEUE_LAG, QUEUE_LAG_TIME)
"""The additional metrics of a result with `queues`."""
