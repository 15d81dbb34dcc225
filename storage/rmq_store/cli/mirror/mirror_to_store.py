"""`rmq mirror kafka-to-rmq`: copy Kafka topics into a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from rmq_store.bridge.kafka.connection import KafkaConnection


@click.command(
    "kafka-to-rmq",
    short_help="Copy Kafka topics into the store.",
    epilog="\b\nExamples:\n"
    "  rmq mirror kafka-to-rmq /data/store --name in --cluster-id rmq-eu --bootstrap-servers kafka:9092 \\\n"
    "      --topics orders --create-topics\n"
    "  rmq mirror kafka-to-rmq /data/store --name in --cluster-id rmq-eu --bootstrap-servers kafka:9093 \\\n"
    "      --pattern 'shop[.].*' --dots-as _ --kafka security_protocol=SASL_SSL \\\n"
    "      --kafka sasl_mechanism=PLAIN --kafka sasl_plain_username=rmq --kafka sasl_plain_password=env:KAFKA_PASSWORD",
)
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a line every few seconds, and one at the end.")
@kafka_options
@topic_options
@click.option("--from", "start", default="earliest", show_default=True, metavar="START",
              help=f"Start of partitions without a position: earliest, latest, or a time: {TIMES}.")  # fmt: skip
@run_options
@click.option("--on-data-loss", type=click.Choice(["fail", "count"]), default="fail", show_default=True,
              help="If Kafka deleted records that were not copied: stop the partition, or count them and "
                   "continue.")  # fmt: skip
@click.option("--on-bad-batch", type=click.Choice(["fail", "letter"]), default="fail", show_default=True,
              help="If a record batch is damaged: stop the partition, or make a dead letter with "
                   "its position.")  # fmt: skip
@click.option(
    "--restart-replaced", is_flag=True, help="If a topic was deleted and made again, copy it from its beginning."
)
@click.option("--tags-from-header", "tags_header", metavar="NAME", help="Header whose value becomes the tag.")
@click.option("--born-timestamp", type=click.Choice(["keep", "mirror"]), default="keep", show_default=True,
              help="Born time of a message: the record's timestamp, or the time of the copy.")  # fmt: skip
@click.option("--max-topics", "topics_max", type=click.IntRange(1), default=1_000, show_default=True, metavar="N",
              help="A pattern that matches more topics is refused.")  # fmt: skip
@click.option("--max-partitions", "partitions_max", type=click.IntRange(1), default=1_024, show_default=True,
              metavar="N", help="A topic with more partitions is refused.")  # fmt: skip
def kafka_to_rmq(
    root: Path,
    connection: KafkaConnection,
    start: str,
    name: str,
    once: bool,
    display: Display,
    **given: Any,
) -> None:
    """Copy records of Kafka topics into topics of a store, until Ctrl-C or SIGTERM: partition p to queue p, committed
    records only, each once and in order.

    Records and the position after them are one append, so a mirror that was killed continues where it was. A record
    that the store cannot hold becomes a dead letter in %DLQ%mirror_NAME. On a terminal one line shows lag and rate.
    Opens the store for writing: no RocketMQ broker may run on it. Exit status 1: partitions have stopped; 4: another
    mirror of this name is running.
    """
    from rmq_store import Store
    from rmq_store.bridge.kafka.connect import connected
    from rmq_store.bridge.mirror.into_store import IntoStore
    from rmq_store.bridge.mirror.options import EARLIEST, LATEST, IntoStoreOptions
    from rmq_store.clock import system_clock

    options = IntoStoreOptions(
        name,
        start=start if start in (EARLIEST, LATEST) else parse_time(start, system_clock()),  # type: ignore[arg-type]
        **given,
    )
    with (
        conflict_exit(),
        stopped_by_signals() as stop,
        Store.open(root) as store,
        connected(connection) as (administration, reader),
    ):
        mirror = IntoStore(
            store, reader, administration, options,
            wait=stop.wait, on_report=display.show, patience_s=PATIENCE_ONCE_S if once else None,
        )  # fmt: skip
        report = mirror.run(until_caught_up=once)
    display.end(report)
    if report.failures:
        raise click.exceptions.Exit(1)
