"""`rmq consume` over a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from rmq_store import real_time
from rmq_store.cli.messages.consume import (
    POLL_S,
    Handler,
    Stop,
    begin,
    consume_options,
    consumer_config,
    parse_group_start,
    show_row,
)
from rmq_store.cli.shared.message_text import columns_of
from rmq_store.cli.shared.output import tell, wide_option
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.remoting.cluster.cluster import Cluster

# Queues are acquired and pulled in the background of brokers: a round without messages does not mean that none is left.
_EMPTY_S: Final = 2.0


@click.command(
    cls=ClusterCommand,
    short_help="Consume messages as a group; --peek only shows them.",
    epilog="\b\nExamples:\n  rmq -n ns1:9876 consume OrderTopic --group cg_orders --max 10\n"
    "  rmq -n ns1:9876 consume OrderTopic --group cg_orders --until-empty --exec 'python handle.py'",
)
@cluster_options()
@wide_option
@click.argument("topic")
@click.option("--group", "-g", required=True, help="The consumer group.")
@consume_options
def consume(
    target: ClusterTarget,
    as_json: bool,
    topic: str,
    group: str,
    limit: int | None,
    until_empty: bool,
    tags: str | None,
    start: str,
    command: str | None,
    peek: bool,
    body: str,
) -> None:
    """Consume messages of a topic, and the group's retries, and commit the group's offsets, as a member of the group.

    A message is consumed when it was printed, or when the command of --exec ended with 0. Other exit codes send it back
    (RECONSUME_LATER): it comes again after a delay, and after its last retry it is a dead letter. The command runs
    without a shell, and has RMQ_TOPIC, RMQ_MSG_ID, RMQ_TAGS, RMQ_KEYS and RMQ_RECONSUME_TIMES in its environment. Other
    members of the group, Java's included, share the queues. --until-empty ends when no message has come for two
    seconds. Without it and --max the command runs until Ctrl-C or SIGTERM. Exit code 1 if a message was sent back.
    --peek joins no group, and makes none.
    """
    from rmq_store.cli.cluster.queues import require_topic

    if peek and command is not None:
        raise UsageError("--peek changes nothing: it does not go with --exec")
    with target.open() as cluster:
        require_topic(cluster, topic)
        if peek:
            _peek(cluster, target, topic, group, limit, tags, start, as_json, body)
            return
        handler = Handler(limit, command, as_json=as_json, body=body, of_cluster=True)
        handler.run(lambda: _run(cluster, handler, topic, group, tags, start, until_empty))
    handler.tell()


def _run(
    cluster: Cluster, handler: Handler, topic: str, group: str, tags: str | None, start: str, until_empty: bool
) -> None:
    from rmq_store.client import PushConsumer
    from rmq_store.client.backend.remote import RemoteBackend

    with RemoteBackend(cluster) as backend:
        consumer = PushConsumer(group, backend, consumer_config(start, backend.clock()))
        with consumer:
            begin(consumer, handler, topic, tags)
            progressed = real_time.monotonic()
            try:
                while not handler.is_full:
                    if consumer.run_once():
                        progressed = real_time.monotonic()
                    elif until_empty and consumer.queues() and real_time.monotonic() - progressed > _EMPTY_S:
                        return
                    else:
                        time.sleep(POLL_S)
            except Stop:
                return


# ---- looking only


def _peek(
    cluster: Cluster, target: ClusterTarget, topic: str, group: str, limit: int | None, tags: str | None, start: str,
    as_json: bool, body: str,
) -> None:  # fmt: skip
    from rmq_store.format.text.names import retry_topic, validate_group

    validate_group(group)
    shown = 0
    for name in (retry_topic(group), topic):
        if cluster.route(name) is None:
            continue
        for row in _waiting(cluster, target, name, group, tags if name == topic else None, start, as_json, body):
            show_row(row, as_json, body)
            shown += 1
            if shown == limit:
                return


def _waiting(
    cluster: Cluster, target: ClusterTarget, topic: str, group: str, tags: str | None, start: str, as_json: bool,
    body: str,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """The messages that the group has not consumed."""
    from rmq_store.cli.cluster.follow import ClusterFollower
    from rmq_store.remoting.cluster.offsets import query_consumer_offsets

    queues = cluster.known_route(topic).read_queues()
    columns = columns_of(as_json=as_json, body=body, of_cluster=True)
    follower = ClusterFollower(cluster, target, queues, tags=tags, columns=columns, tell=tell)
    follower.begin(parse_group_start(start, time.time_ns() // 1_000_000))
    # A broker of 4.x says 0 for a group without an offset, which is where its consumers begin, too.
    found = query_consumer_offsets(cluster, group, queues)
    follower.start_from({queue: one.offset for queue, one in found.items()})
    yield from follower.take()
    follower.answers.require_any()
