"""`rmq mirror retry`: RocketMQ's retries for consumers of Kafka."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.mirror.mirror_options import conflict_exit, kafka_options, names_of, write_remarks
from rmq_store.cli.shared.completion import GROUP
from rmq_store.cli.shared.output import common_options, write_json, write_table
from rmq_store.cli.shared.progress import counting_bar
from rmq_store.cli.shared.stop_signal import stopped_by_signals

if TYPE_CHECKING:
    from rmq_store.bridge.kafka.connection import KafkaConnection


@click.command(
    short_help="Retry records on which consumers of Kafka failed.",
    epilog="\b\nExample:\n  rmq mirror retry billing --store /data/store --cluster-id rmq-eu \\\n"
    "      --bootstrap-servers kafka:9092 --failed orders-failed --topic orders",
)
@common_options
@click.argument("group", type=GROUP)
@kafka_options
@click.option("--failed", "failed", multiple=True, required=True, metavar="NAME",
              help="Kafka topics to which consumers write failed records; commas or repetition for more.")  # fmt: skip
@click.option("--topic", "kafka_topics", multiple=True, required=True, metavar="NAME",
              help="Kafka topics to which records may return. If there is only one, records of unknown origin "
                   "return to it.")  # fmt: skip
@click.option("--name", default="retry", show_default=True, metavar="NAME",
              help="Name under which the position is stored.")  # fmt: skip
@click.option("--cluster-id", required=True, metavar="ID",
              help="Cluster id of the RocketMQ side, as for `rmq mirror kafka-to-rmq`.")  # fmt: skip
@click.option("--max-attempts", type=click.IntRange(min=0), metavar="N",
              help="Number of retries before a record becomes a dead letter. Changes the group's setting, which "
                   "is 16 by default.")  # fmt: skip
@click.option("--on-data-loss", type=click.Choice(["fail", "count"]), default="fail", show_default=True,
              help="If Kafka deleted records that were not read: end, or count them and continue.")  # fmt: skip
@click.option("--once", is_flag=True, help="Read the records that are there now, return the due ones, then end.")
def retry(
    root: Path,
    as_json: bool,
    group: str,
    connection: KafkaConnection,
    failed: tuple[str, ...],
    kafka_topics: tuple[str, ...],
    name: str,
    cluster_id: str,
    max_attempts: int | None,
    on_data_loss: str,
    once: bool,
) -> None:
    """Give consumers of Kafka RocketMQ's retries: read the topics of failed records, let each record wait as RocketMQ's
    retry of this attempt does (10 s, 30 s, 1 min, ... 2 h), and return it to its topic, until Ctrl-C or SIGTERM.

    Header rmq.attempts counts the failures. Consumers must copy it, with all other headers, to the topic of failed
    records; otherwise the retries never end. After the last attempt a record goes to NAME-dead-letters, which is made
    if it is missing. All groups of a topic get the records that return to it; rmq.retry-group names the group that
    failed. The group must not consume topics of the store. Opens the store for writing: no RocketMQ broker may run on
    it. Exit status 4: another process handles retries of this group.
    """
    from rmq_store import Store
    from rmq_store.bridge.dead_letters.retry_return import transactional_id
    from rmq_store.bridge.dead_letters.retry_topic import KafkaRetry
    from rmq_store.bridge.kafka.connect import connected, open_writers

    with conflict_exit(), stopped_by_signals() as stop, Store.open(root) as store, contextlib.ExitStack() as opened:
        administration, reader = opened.enter_context(connected(connection))
        writers = opened.enter_context(contextlib.closing(open_writers(connection, administration)))
        writer = opened.enter_context(contextlib.closing(writers.writer(transactional_id(group))))
        ladder = KafkaRetry(
            store, reader, administration, writer, group, mirror=name, cluster_id=cluster_id,
            failed=names_of(failed), topics=names_of(kafka_topics), max_attempts=max_attempts,
            count_losses=on_data_loss == "count",
        )  # fmt: skip
        tell = opened.enter_context(counting_bar("retry"))

        def show() -> None:
            if tell is not None:
                tell(ladder.returning.returned.total() + ladder.returning.dead.total(), 0)

        ladder.run(wait=stop.wait, until_caught_up=once, on_step=show)
    returning = ladder.returning
    unfit_count = ladder.refused_count + returning.refused_count
    if as_json:
        write_json({
            "group": group, "read": {"waiting": ladder.waiting_count, "dead": ladder.dead_count},
            "returned": dict(sorted(returning.returned.items())), "dead": dict(sorted(returning.dead.items())),
            "refused": unfit_count, "lost": ladder.intake.lost_count,
        })  # fmt: skip
        return
    rows: list[list[str | int]] = [
        [topic, count] for counts in (returning.returned, returning.dead) for topic, count in sorted(counts.items())
    ]
    write_table(("TOPIC", "RETURNED"), rows, flexible=("TOPIC",))
    write_remarks((
        (ladder.waiting_count, "wait for their retry"),
        (ladder.refused_count, f"do not fit a message: they are in %DLQ%mirror_{name}"),
        (returning.refused_count, f"were not taken by Kafka: they are in %DLQ%{group}"),
        (ladder.intake.lost_count, "were deleted by Kafka before they were read"),
    ))  # fmt: skip
