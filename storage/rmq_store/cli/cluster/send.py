"""`rmq send` over a cluster."""

from __future__ import annotations

import time
from typing import IO, TYPE_CHECKING, Any

import click

from rmq_store.cli.messages.send import message_options, send_lines, template_of, write_result
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options
from rmq_store.errors import UnknownTopicError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store import Message
    from rmq_store.remoting.cluster.cluster import Cluster

_GROUP = "rmq_send"
_MESSAGE_BYTES_MAX = 4 << 20  # of a broker by default


@click.command(
    cls=ClusterCommand,
    short_help="Send one message, or one per line of a file.",
    epilog="\b\nExamples:\n  rmq -n ns1:9876 send OrderTopic --body 'two teas' --tags TagA --keys ORD-1\n"
    "  rmq tail OrderTopic -n 100 --json --store /data/store | rmq -n ns1:9876 send Copies --jsonl -",
)
@cluster_options()
@click.argument("topic")
@click.argument("source", metavar="[FILE]", required=False, type=click.File("rb"))
@message_options
@click.option("--queue", metavar="BROKER:ID", help="Send to this queue, as broker-a:0.")
def send(
    target: ClusterTarget, as_json: bool, topic: str, source: IO[bytes] | None, queue: str | None,
    lines: IO[bytes] | None, jsonl: IO[bytes] | None, **given: Any,
) -> None:  # fmt: skip
    """Send one message and print its id and position, or many messages and print their number.

    FILE holds the body of one message; `-` as FILE is standard input, in all options. With --lines and --jsonl the
    options are defaults for every message. Some thousands are sent at a time; if a line is wrong, the messages of the
    lines before it are stored. A missing topic is made by its first message, if brokers allow that
    (autoCreateTopicEnable); with --lines and --jsonl it must be there. Sends whose answer is lost are repeated, so a
    message may be stored twice. Exit code 1 also if a broker has stored a message, but neither on disk nor at a slave
    in time.
    """
    template = template_of(
        topic, source, lines, jsonl, given, limit=_MESSAGE_BYTES_MAX, now_ms=time.time_ns() // 1_000_000
    )
    with target.open() as cluster:
        if lines is not None or jsonl is not None:
            _send_many(cluster, template, lines, jsonl, queue, as_json)
        else:
            _send_one(cluster, template, queue, as_json)


def _send_one(cluster: Cluster, message: Message, queue_name: str | None, as_json: bool) -> None:
    from rmq_store.client import Producer, ProducerConfig
    from rmq_store.client.backend.remote import RemoteBackend

    queue = None
    with RemoteBackend(cluster) as backend:
        if queue_name is not None:
            queue = _queue(cluster, message.topic, queue_name)
        config = ProducerConfig(send_msg_timeout=cluster.settings.timeout_ms)
        with Producer(_GROUP, backend, config) as producer:
            write_result(producer.send(message, queue=queue), as_json=as_json, of_cluster=True)


def _send_many(
    cluster: Cluster,
    template: Message,
    lines: IO[bytes] | None,
    jsonl: IO[bytes] | None,
    queue_name: str | None,
    as_json: bool,
) -> None:
    if cluster.route(template.topic) is None:
        shown = template.topic[:255]
        raise UnknownTopicError(
            f"no topic {shown!r} in the cluster: --lines and --jsonl make none; `rmq updateTopic -t {shown}` does"
            f"{cluster.did_you_mean(shown)}"
        )
    queue = None if queue_name is None else _queue(cluster, template.topic, queue_name)

    def append(rows: pa.RecordBatch) -> None:
        import pyarrow as pa

        if queue is not None:
            names = pa.array([queue.broker_name] * rows.num_rows, pa.string())
            numbers = pa.array([queue.queue_id] * rows.num_rows, pa.int32())
            at = rows.schema.get_field_index("queueId")
            rows = rows.remove_column(at) if at >= 0 else rows
            rows = rows.append_column("queueId", numbers).append_column("brokerName", names)
        _append(cluster, template.topic, rows)

    send_lines(lines, jsonl, template, append, as_json=as_json)


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


def _queue(cluster: Cluster, topic: str, name: str) -> Any:
    from rmq_store.cli.cluster.queues import named_queues, require_topic

    (queue,) = named_queues(require_topic(cluster, topic), name)
    if queue not in cluster.known_route(topic).publish_queues():
        raise UsageError(f"queue {name} of topic {topic} cannot be written now: no master, or no right W")
    return queue
