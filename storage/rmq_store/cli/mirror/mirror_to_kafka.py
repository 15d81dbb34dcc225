"""`rmq mirror rmq-to-kafka`: copy topics of a store into Kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.mirror.mirror_options import (
    PATIENCE_ONCE_S,
    Display,
    conflict_exit,
    kafka_options,
    run_options,
    topic_options,
)
from rmq_store.cli.shared.parameters import store_options
from rmq_store.cli.shared.stop_signal import stopped_by_signals
from rmq_store.cli.shared.times import TIMES, parse_time
from rmq_store.errors import StoreLockedError, UsageError

if TYPE_CHECKING:
    from rmq_store.bridge.kafka.connection import KafkaConnection
    from rmq_store.bridge.positions.topics import TopicChoice
    from rmq_store.bridge.source.message_source import MessageSource

Command = TypeVar("Command", bound=Callable[..., Any])

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


def copy_options(command: Command) -> Command:
    """Add all options of a mirror into Kafka but those of its RocketMQ side; the command gives what it gets to `copy`.
    """
    options: tuple[Callable[[Any], Any], ...] = (
        kafka_options,
        topic_options,
        click.option("--from", "start", default="earliest", show_default=True, metavar="START",
                      help=f"Start of queues without a position: earliest, latest, or a time: {TIMES}."),
        run_options,
        click.option("--on-data-loss", type=click.Choice(["fail", "count"]), default="fail", show_default=True,
                      help="If retention deleted messages that were not copied: stop the topic, or count them and "
                           "continue."),
        click.option("--on-source-change", type=click.Choice(["fail", "common", "restart"]), default="fail",
                      show_default=True,
                      help="If the store is not the one that was copied (a copy was restored, a topic was made again): "
                           "stop the topic, continue after the last common message, or start again."),
        click.option("--begin-again", is_flag=True,
                      help="Copy a topic without stored positions from its beginning, although its target has copies. "
                           "These will be there twice."),
        click.option("--old-timestamps", type=click.Choice(["refuse", "keep", "now"]), default="refuse",
                      show_default=True,
                      help="For messages so old that the topic's retention.ms deletes them at once: stop the topic, "
                           "copy them unchanged, or copy them with the current time."),
        click.option("--compacted-target", "compacted", is_flag=True,
                      help="Also copy to a compacted topic. Of messages with the same key only the last one "
                           "stays there."),
        click.option("--topic-setting", "topic_settings", multiple=True, metavar="NAME=VALUE",
                      help="Kafka setting of topics that the mirror makes, such as retention.ms=-1. May be "
                           "repeated."),
        click.option("--replication-factor", type=click.IntRange(1), metavar="N",
                      help="Replication factor of topics that the mirror makes; Kafka's default if not given."),
        click.option("--compression", type=click.Choice(_COMPRESSIONS), default="none", show_default=True,
                      help="Compression of record batches, unless the topic sets one."),
    )  # fmt: skip
    made: Any = command
    for option in reversed(options):
        made = option(made)
    return made  # type: ignore[no-any-return]


@click.command(
    "rmq-to-kafka",
    short_help="Copy topics of the store into Kafka.",
    epilog="\b\nExamples:\n"
    "  rmq mirror rmq-to-kafka /data/store --name out --cluster-id rmq-eu --bootstrap-servers kafka:9092 \\\n"
    "      --topics Orders --create-topics\n"
    "  rmq mirror rmq-to-kafka /data/store --name out --cluster-id rmq-eu --bootstrap-servers kafka:9092 \\\n"
    "      --pattern 'Shop.*' --from latest --old-timestamps now --compression lz4",
)
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a line every few seconds, and one at the end.")
@copy_options
@click.option(
    "--namesrv", metavar="HOST:PORT", help="Refused: a cluster is named by `rmq -n ADDRESSES mirror rmq-to-kafka`."
)
def rmq_to_kafka(root: Path, namesrv: str | None, **given: Any) -> None:
    """Copy messages of a store's topics into topics of Kafka, until Ctrl-C or SIGTERM: queue q to partition q, each
    once and in order.

    Records and the position after them are one transaction, so a mirror that was killed continues where it was.
    Consumers need isolation.level=read_committed. A message that Kafka does not accept becomes a dead letter in
    NAME-dead-letters. On a terminal one line shows lag and rate. A RocketMQ broker may run on the store: then the
    mirror only reads the store, and in a power cut the broker may lose messages that Kafka has. Exit status 1: topics
    have stopped; 4: another mirror of this name is running.
    """
    if namesrv is not None:
        raise UsageError(
            "--namesrv: a cluster is named before the command, in place of the directory of a store: rmq -n ADDRESSES "
            "mirror rmq-to-kafka ..."
        )
    copy(partial(_open, root), **given)


def copy(
    open_source: Callable[[contextlib.ExitStack], tuple[MessageSource, bool]],
    *,
    connection: KafkaConnection,
    choice: TopicChoice,
    create_topics: bool,
    start: str,
    name: str,
    cluster_id: str,
    once: bool,
    display: Display,
    on_data_loss: Any,
    on_source_change: Any,
    begin_again: bool,
    old_timestamps: Any,
    compacted: bool,
    topic_settings: tuple[str, ...],
    replication_factor: int | None,
    compression: str,
    **given: Any,
) -> None:
    """Run the mirror of these options. `open_source` opens the RocketMQ side, which the stack closes; True with it: its
    log is written, and flushed, by this process.
    """
    from rmq_store.bridge.kafka.connect import connected, open_writers
    from rmq_store.bridge.mirror.into_kafka import IntoKafka
    from rmq_store.bridge.mirror.kafka_side import CopyRules, KafkaSide
    from rmq_store.bridge.mirror.kafka_targets import TargetRules
    from rmq_store.bridge.positions.kafka_positions import KafkaPositions
    from rmq_store.bridge.positions.topics import check_mirror_name
    from rmq_store.clock import system_clock

    check_mirror_name(name)
    where: Any = start if start in ("earliest", "latest") else parse_time(start, system_clock())
    rules = CopyRules(where, on_data_loss, on_source_change, begin_again)
    made = dict(_setting(text) for text in topic_settings)
    targets = TargetRules(create_topics, made, replication_factor or -1, old_timestamps, compacted)
    with conflict_exit(), contextlib.ExitStack() as stack:
        stop = stack.enter_context(stopped_by_signals())
        source, is_writable = open_source(stack)
        administration, reader = stack.enter_context(connected(connection))
        writers = stack.enter_context(
            contextlib.closing(
                open_writers(connection, administration, compression=compression, is_stopping=lambda: stop.wait(0))
            )
        )
        positions = KafkaPositions(name, cluster_id, reader, administration, writers, is_stopping=lambda: stop.wait(0))
        side = KafkaSide(name, cluster_id, administration.cluster_id(), administration, writers, positions)
        positions.prepare()
        mirror = IntoKafka(
            source, side, choice, rules, targets,
            wait=stop.wait, on_report=display.show,
            is_writable=is_writable, patience_s=PATIENCE_ONCE_S if once else None, **given,
        )  # fmt: skip
        report = mirror.run(until_caught_up=once)
    display.end(report)
    if report.failures:
        raise click.exceptions.Exit(1)


def _open(root: Path, stack: contextlib.ExitStack) -> tuple[MessageSource, bool]:
    """The store, and True if it is open for writing and its log can be flushed; beside a broker it is not."""
    from rmq_store import Store

    try:
        return stack.enter_context(Store.open(root)), True
    except StoreLockedError:
        return stack.enter_context(Store.open(root, read_only=True)), False


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--topic-setting {text!r}: NAME=VALUE is expected, such as retention.ms=-1.")
    return name, value
