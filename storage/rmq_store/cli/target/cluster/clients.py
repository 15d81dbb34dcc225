"""Sends messages to the brokers of a cluster, and consumes them: `rmq send`, `rmq consume`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from rmq_store.cli.target.cluster.queues import named_queues, require_topic
from rmq_store.cli.target.rows import SentRow
from rmq_store.errors import UnknownTopicError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store import Message
    from rmq_store.cli.target.view import QueueName
    from rmq_store.client import PushConsumer, PushConsumerConfig
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.remoting.cluster.cluster import Cluster

_GROUP: Final = "rmq_send"
_MESSAGE_BYTES_MAX: Final = 4 << 20  # of a broker by default
# Queues are acquired and pulled in the background of brokers: a round without messages does not mean that none is left.
_EMPTY_S: Final = 2.0


class ClusterSender:
    """See `Sender`."""

    def __init__(self, cluster: Cluster) -> None:
        self.message_bytes_max = _MESSAGE_BYTES_MAX
        self._cluster = cluster

    def now_ms(self) -> int:
        """By the clock of this host."""
        return time.time_ns() // 1_000_000

    def send(self, message: Message, queue: QueueName | None) -> SentRow:
        """See `Sender`."""
        from rmq_store.client import Producer, ProducerConfig
        from rmq_store.client.backend.remote import RemoteBackend

        config = ProducerConfig(send_msg_timeout=self._cluster.settings.timeout_ms)
        with RemoteBackend(self._cluster) as backend:
            place = self._writable(message.topic, queue)
            with Producer(_GROUP, backend, config) as producer:
                sent = producer.send(message, queue=place)
        return SentRow(
            sent.topic, sent.broker_name, sent.queue_id, sent.queue_offset, sent.msg_id, sent.offset_msg_id,
            sent.status.value,
        )  # fmt: skip

    def appender(
        self, template: Message, queue: QueueName | None
    ) -> tuple[Message, Callable[[pa.RecordBatch], object]]:
        """As `Sender`; a named queue is that of all messages. UnknownTopicError: the topic must be there."""
        cluster = self._cluster
        if cluster.route(template.topic) is None:
            shown = template.topic[:255]
            raise UnknownTopicError(
                f"no topic {shown!r} in the cluster: --lines and --jsonl make none; `rmq updateTopic -t {shown}` does"
                f"{cluster.did_you_mean(shown)}"
            )
        place = self._writable(template.topic, queue)
        return template, lambda rows: _append(
            cluster, template.topic, rows if place is None else _at_queue(rows, place)
        )

    def _writable(self, topic: str, name: QueueName | None) -> MessageQueue | None:
        if name is None:
            return None
        (queue,) = named_queues(require_topic(self._cluster, topic), name)
        if queue not in self._cluster.known_route(topic).publish_queues():
            raise UsageError(f"queue {name} of topic {topic} cannot be written now: no master, or no right W")
        return queue


def _at_queue(rows: pa.RecordBatch, queue: MessageQueue) -> pa.RecordBatch:
    """Rows of INPUT_SCHEMA that all go to one queue."""
    import pyarrow as pa

    names = pa.array([queue.broker_name] * rows.num_rows, pa.string())
    numbers = pa.array([queue.queue_id] * rows.num_rows, pa.int32())
    at = rows.schema.get_field_index("queueId")
    rows = rows.remove_column(at) if at >= 0 else rows
    return rows.append_column("queueId", numbers).append_column("brokerName", names)


def _append(cluster: Cluster, topic: str, rows: pa.RecordBatch) -> None:
    """Send rows of INPUT_SCHEMA; all are stored on return."""
    from rmq_store.client.cluster_sink.pipeline import PipelineSettings
    from rmq_store.client.cluster_sink.records import WritePart
    from rmq_store.client.cluster_sink.row_encoder import EncoderSettings
    from rmq_store.client.cluster_sink.task import SinkSettings, SinkTask

    settings = SinkSettings(
        EncoderSettings(topic, use_queue_id="queueId" in rows.schema.names),
        PipelineSettings(group=_GROUP, request_timeout_ms=cluster.settings.timeout_ms),
        replay_check=False,
        new_topic_queues=0,
    )
    with SinkTask(cluster, settings, WritePart(f"rmq-send-{time.time_ns()}", 0, 0)) as task:
        task.write(rows)
        task.finish()


class ClusterConsuming:
    """See `Consuming`."""

    names_brokers: Final = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def now_ms(self) -> int:
        """By the clock of this host."""
        return time.time_ns() // 1_000_000

    @contextlib.contextmanager
    def consumer(self, group: str, config: PushConsumerConfig) -> Iterator[PushConsumer]:
        """See `Consuming`."""
        from rmq_store.client import PushConsumer
        from rmq_store.client.backend.remote import RemoteBackend

        with RemoteBackend(self._cluster) as backend, PushConsumer(group, backend, config) as consumer:
            yield consumer

    def is_empty(self, consumer: PushConsumer, idle_s: float) -> bool:
        """It has queues, and no message has come for a while."""
        return bool(consumer.queues()) and idle_s > _EMPTY_S
