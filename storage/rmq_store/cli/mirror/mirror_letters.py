"""`rmq mirror dead-letters` and `rmq mirror redrive`: import dead letters of Kafka into a store, and send them back."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.mirror.mirror_options import conflict_exit, kafka_options, names_of, write_remarks
from rmq_store.cli.shared.completion import DEAD_GROUP
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.output import common_options, printable, wide_option, write_json, write_table
from rmq_store.cli.shared.parameters import FiniteRange, store_options
from rmq_store.cli.shared.progress import counting_bar
from rmq_store.cli.shared.stop_signal import stopped_by_signals
from rmq_store.cli.shared.times import parse_time

if TYPE_CHECKING:
    from rmq_store.bridge.kafka.connection import KafkaConnection

_RATE_MIN, _RATE_MAX = 0.001, 1_000_000_000
_REASONS_SHOWN = 5


@click.command(
    "dead-letters",
    short_help="Import dead letters of Kafka.",
    epilog="\b\nExample:\n  rmq mirror dead-letters /data/store --cluster-id rmq-eu --bootstrap-servers kafka:9092 \\\n"
    "      --topics orders.DLT,dlq-orders-sink --group billing --once",
)
@store_options()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@kafka_options
@click.option("--topics", "letter_topics", multiple=True, required=True, metavar="NAME",
              help="Kafka topics of dead letters; commas or repetition for more.")  # fmt: skip
@click.option("--group", "group_rules", multiple=True, required=True, metavar="GROUP[=KAFKA_GROUP]",
              help="Group that gets the dead letters. With a Kafka group, only the letters of that group, which "
                   "for Kafka Connect is connect-NAME. One --group must be without a Kafka group.")  # fmt: skip
@click.option("--name", default="dead-letters", show_default=True, metavar="NAME",
              help="Name of this import, under which its position is stored.")  # fmt: skip
@click.option("--cluster-id", required=True, metavar="ID",
              help="Cluster id of the RocketMQ side, as for `rmq mirror kafka-to-rmq`.")  # fmt: skip
@click.option("--on-data-loss", type=click.Choice(["fail", "count"]), default="fail", show_default=True,
              help="If Kafka deleted letters that were not read: end, or count them and continue.")  # fmt: skip
@click.option("--once", is_flag=True, help="Import the letters that are there now, then end.")
def dead_letters(
    root: Path,
    as_json: bool,
    connection: KafkaConnection,
    letter_topics: tuple[str, ...],
    group_rules: tuple[str, ...],
    name: str,
    cluster_id: str,
    on_data_loss: str,
    once: bool,
) -> None:
    """Import dead letters of Kafka Connect (headers __connect.errors.*) and Spring (kafka_dlt-*, retry topics) as dead
    letters of a group, each once, until Ctrl-C or SIGTERM.

    `rmq dlq list`, `show` and `export` show them with topic, attempts and reason; `rmq mirror redrive` sends them back
    to Kafka. Records without such headers are imported too, with unknown origin. Opens the store for writing: no
    RocketMQ broker may run on it. Exit status 4: another process imports under this name.
    """
    from rmq_store import Store
    from rmq_store.bridge.dead_letters.into_triage import LettersIntoTriage
    from rmq_store.bridge.dead_letters.letter_rows import LetterGroups
    from rmq_store.bridge.kafka.connect import connected

    wanted = LetterGroups.parse(group_rules)
    with conflict_exit(), stopped_by_signals() as stop, Store.open(root) as store, contextlib.ExitStack() as opened:
        administration, reader = opened.enter_context(connected(connection))
        letters = LettersIntoTriage(
            store, reader, administration, mirror=name, cluster_id=cluster_id, topics=names_of(letter_topics),
            groups=wanted, count_losses=on_data_loss == "count",
        )  # fmt: skip
        tell = opened.enter_context(counting_bar("dead-letters"))

        def show(count: int) -> None:
            if tell is not None:
                tell(letters.counts.total(), 0)

        letters.intake.run(wait=stop.wait, until_caught_up=once, on_poll=show)
    lost_count = letters.intake.lost_count
    if as_json:
        write_json({
            "imported": dict(sorted(letters.counts.items())), "unknown": letters.unknown_count,
            "refused": letters.refused_count, "lost": lost_count,
        })  # fmt: skip
        return
    write_table(("GROUP", "IMPORTED"), sorted(letters.counts.items()), flexible=("GROUP",))
    write_remarks((
        (letters.unknown_count, "have no headers that say where they come from and why"),
        (letters.refused_count, f"do not fit a message: they are in %DLQ%mirror_{name}"),
        (lost_count, "were deleted by Kafka before they were read"),
    ))  # fmt: skip


@click.command(
    short_help="Send dead letters of Kafka back.",
    epilog="\b\nExamples:\n  rmq mirror redrive billing --store /data/store --bootstrap-servers kafka:9092 --dry-run\n"
    "  rmq mirror redrive billing --store /data/store --bootstrap-servers kafka:9092 --topic orders \\\n"
    "      --reason TimeoutException --since 1d --yes",
)
@common_options
@wide_option
@click.argument("group", type=DEAD_GROUP)
@kafka_options
@click.option("--topic", "kafka_topics", multiple=True, metavar="NAME",
              help="Kafka topics that may get letters; only letters from these topics are sent. Commas or "
                   "repetition for more. Required, except with --dry-run.")  # fmt: skip
@click.option("--to-topic", metavar="NAME", help="Kafka topic for letters of unknown origin.")
@click.option(
    "--reason", help="Only dead letters of this error class, with or without its package, or of this stack hash."
)
@click.option("--filter", "sql", metavar="SQL92", help="Only messages whose properties match this SQL92 filter.")
@click.option(
    "--since", metavar="TIME", help="Only dead letters imported at this time or later, or in the last 10m, 2h, 1d."
)
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Send at most N letters. The next run sends the next N.",
)
@click.option("--rate", type=FiniteRange(_RATE_MIN, _RATE_MAX), metavar="PER_SECOND",
              help="Maximum number of records per second.")  # fmt: skip
@changing_options
def redrive(
    root: Path,
    as_json: bool,
    group: str,
    connection: KafkaConnection,
    kafka_topics: tuple[str, ...],
    to_topic: str | None,
    reason: str | None,
    sql: str | None,
    since: str | None,
    limit: int | None,
    rate: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send dead letters that came from Kafka to the topics in which they failed, with their original key, value and
    headers, and the current time.

    First shows what it will do, and asks. Each letter is sent once, also if the command is killed or the store is set
    back: the transaction that sends letters records them in the topic __pyrmq.redriven.GROUP. Letters also stay in the
    store, and `rmq dlq list` shows them as redriven. Opens the store for writing, also with --dry-run: no RocketMQ
    broker may run on it. Exit status 1: letters were refused; 4: another process sends letters of this group.
    """
    from rmq_store import Store
    from rmq_store.bridge.dead_letters.redrive import REDRIVEN, REFUSED, KafkaRedrive
    from rmq_store.bridge.dead_letters.redriven_topic import transactional_id_of
    from rmq_store.bridge.kafka.connect import connected, open_writers
    from rmq_store.broker.filter.sql92 import compile_selector
    from rmq_store.broker.monitoring.dead_letter_rows import Wanted
    from rmq_store.errors import UsageError

    chosen = names_of(kafka_topics)
    if not chosen and not to_topic and not dry_run:
        raise UsageError("--topic: name the Kafka topics that letters may go to; --dry-run shows which ones they name")
    with conflict_exit(), Store.open(root) as store, contextlib.ExitStack() as opened:
        since_ms = None if since is None else parse_time(since, store.clock())
        wanted = Wanted(since_ms=since_ms, reason=reason, selector=compile_selector(sql) if sql else None)
        administration, reader = opened.enter_context(connected(connection))
        moving = KafkaRedrive(store, group, administration, reader, topics=chosen, to_topic=to_topic, wanted=wanted)
        totals = moving.plan(limit)
        if not dry_run and totals.outcomes[REDRIVEN]:
            if not yes:
                _show(group, totals.outcomes, totals.topics, totals.reasons, err=True)
            confirm(printable(f"Send {totals.outcomes[REDRIVEN]} dead letters of {group} to Kafka?"), yes=yes)
            writers = opened.enter_context(contextlib.closing(open_writers(connection, administration)))
            writer = opened.enter_context(contextlib.closing(writers.writer(transactional_id_of(group))))
            with counting_bar("redrive") as tell:
                totals = moving.run(writer, limit, rate_per_second=rate, progress=tell)
    if as_json:
        write_json({
            "group": group, "dryRun": dry_run, **{name: totals.outcomes[name] for name in _outcomes()},
            "topics": dict(sorted(totals.topics.items())), "refusedBecause": dict(totals.reasons),
        })  # fmt: skip
    else:
        _show(group, totals.outcomes, totals.topics, totals.reasons)
        if dry_run:
            click.echo("nothing was sent: this is what would be")
    if totals.outcomes[REFUSED]:
        raise click.exceptions.Exit(1)


def _outcomes() -> tuple[str, ...]:
    from rmq_store.bridge.dead_letters.redrive import OUTCOMES

    return OUTCOMES


def _show(
    group: str, outcomes: dict[str, int], topics: dict[str, int], reasons: dict[str, int], *, err: bool = False
) -> None:
    where = ", ".join(f"{topic} {count}" for topic, count in sorted(topics.items())) or "-"
    if err:
        counted = ", ".join(f"{outcomes[name]} {name}" for name in _outcomes() if outcomes.get(name))
        click.echo(printable(f"{group}: this would be {counted}; to {where}"), err=True)
        return
    row: list[str | int] = [group, *(outcomes.get(name, 0) for name in _outcomes()), where]
    write_table(("GROUP", *_outcomes(), "TOPICS"), [row], flexible=("GROUP", "TOPICS"))
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:_REASONS_SHOWN]:
        click.echo(printable(f"refused {count}: {reason}"))
