"""`rmq mirror rmq-to-kafka` over a cluster: copy topics of a broker into Kafka."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mirror.mirror_to_kafka import copy, copy_options
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options

if TYPE_CHECKING:
    from rmq_store.bridge.source.message_source import MessageSource


@click.command(
    "rmq-to-kafka",
    cls=ClusterCommand,
    short_help="Copy topics of a broker into Kafka.",
    epilog="\b\nExample:\n"
    "  rmq -n ns1:9876 mirror rmq-to-kafka --broker broker-a --name out --cluster-id rmq-eu \\\n"
    "      --bootstrap-servers kafka:9092 --topics Orders --create-topics",
)
@cluster_options()
@copy_options
@click.option("--broker", "broker_name", metavar="NAME",
              help="Name of the broker; needed if several have a topic.")  # fmt: skip
def rmq_to_kafka(target: ClusterTarget, broker_name: str | None, **given: Any) -> None:
    """Copy messages of a broker's topics into topics of Kafka, until Ctrl-C or SIGTERM: queue q to partition q, each
    once and in order.

    Records and the position after them are one transaction, so a mirror that was killed continues where it was.
    Consumers need isolation.level=read_committed. A message that Kafka does not accept becomes a dead letter in
    NAME-dead-letters. Queues of several brokers would meet in one partition: so a mirror copies one broker, and a
    mirror of another name another one, into other topics (--rename). While the broker does not answer, its slave is
    read, or the mirror waits. In a power cut the broker may lose messages that Kafka has; the next start notices it.
    Exit status 1: topics have stopped; 4: another mirror of this name is running.
    """

    def open_source(stack: contextlib.ExitStack) -> tuple[MessageSource, bool]:
        from rmq_store.bridge.source.broker_source import BrokerSource

        return BrokerSource(stack.enter_context(target.open()), broker_name, target.pull_group), False

    copy(open_source, **given)
