"""`rmq dlq redrive`: have dead letters consumed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from rmq_store.cli.dlq.dlq_list import wanted_of
from rmq_store.cli.shared.completion import DEAD_GROUP, TOPIC
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.output import printable, wide_option, write_json, write_table
from rmq_store.cli.shared.parameters import FiniteRange
from rmq_store.cli.shared.progress import counting_bar
from rmq_store.cli.target.command import target_command

if TYPE_CHECKING:
    from rmq_store.cli.target.redrive_calls import Totals
    from rmq_store.cli.target.view import Target

# Messages per second: one in a quarter of an hour, and more than anybody writes.
_RATE_MIN, _RATE_MAX = 0.001, 1_000_000_000
_OUTCOMES: Final = ("REDRIVEN", "PARKED", "ALREADY_REDRIVEN", "REFUSED", "GONE")
_REASONS_SHOWN: Final = 5


@target_command(
    short_help="Send dead letters back to their group.",
    epilog="\b\nExamples:\n  rmq dlq redrive cg_orders --reason TimeoutError --dry-run --store /data/rocketmq/store\n"
    "  rmq dlq redrive cg_orders --since 1d --rate 100 --max-replays 3 --yes",
)
@wide_option
@click.argument("group", type=DEAD_GROUP)
@click.option(
    "--reason", help="Only dead letters of this error class, with or without its module, or of this stack hash."
)
@click.option("--filter", "sql", metavar="SQL92", help="Only messages whose properties match this SQL92 filter.")
@click.option("--since", metavar="TIME", help="Only dead letters of this time or later, or of the last 10m, 2h, 1d.")
@click.option("--max", "limit", type=click.IntRange(min=1), metavar="N",
              help="Send at most N dead letters, in the order of the queues. The next run sends the "
                   "next N.")  # fmt: skip
@click.option(
    "--to-topic", type=TOPIC, metavar="TOPIC", help="Send them to this topic instead of the group's %RETRY% topic."
)
@click.option("--max-replays", type=click.IntRange(min=0), metavar="N",
              help="Refuse messages that were sent back N times before.")  # fmt: skip
@click.option(
    "--parking-topic",
    type=TOPIC,
    metavar="TOPIC",
    help="Send messages beyond --max-replays to this topic instead of refusing them.",
)
@click.option("--rate", type=FiniteRange(_RATE_MIN, _RATE_MAX), metavar="PER_SECOND",
              help="Maximum number of messages per second.")  # fmt: skip
@changing_options
def redrive(
    target: Target,
    as_json: bool,
    group: str,
    reason: str | None,
    sql: str | None,
    since: str | None,
    limit: int | None,
    to_topic: str | None,
    max_replays: int | None,
    parking_topic: str | None,
    rate: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send dead letters back to their group: copy them to the group's %RETRY% topic, with all its retries.

    First shows what it will do, and asks. Dead letters that were sent back before are skipped, [cluster: by records in
    the topic PYRMQ_REDRIVEN at their brokers, ]so you can repeat the command, also after it was killed. With --max,
    each run sends the next ones, until none is left. Dead letters also stay in the dead-letter topic. [store: The store
    is opened for writing, also with --dry-run: no RocketMQ broker may run on it.][cluster: The command is refused if a
    broker of the dead letters does not answer.] Exit code 1 if messages were refused.
    """
    with target.redrive(group, to_topic=to_topic, max_replays=max_replays, parking_topic=parking_topic) as there:
        there.choose(wanted_of(there.now_ms(), since=since, reason=reason, sql=sql))
        there.failures.report()
        totals = there.plan(limit)
        moving = totals.moving
        if not dry_run and moving:
            if not yes:
                _show_totals(group, totals, as_json=False, err=True)
            goal = to_topic or f"the retry topic of {group}"
            confirm(printable(f"Move {moving} dead letters of {group} to {goal}?"), yes=yes)
            with counting_bar("redrive") as progress:
                totals = there.move(limit, rate, progress)
        _show_totals(group, totals, as_json, dry_run=dry_run)
        if totals.outcomes["REFUSED"]:
            raise click.exceptions.Exit(1)


def _show_totals(group: str, totals: Totals, as_json: bool, *, dry_run: bool = False, err: bool = False) -> None:
    """With `err` one line for the question."""
    if as_json:
        counts = {outcome: totals.outcomes[outcome] for outcome in _OUTCOMES}
        write_json({"group": group, "dryRun": dry_run, **counts, "refusedBecause": dict(totals.reasons)})
        return
    if err:
        counted = ", ".join(f"{count} {outcome}" for outcome in _OUTCOMES if (count := totals.outcomes[outcome]))
        click.echo(printable(f"{group}: this would be {counted}"), err=True)
        return
    row: list[str | int] = [group, *(totals.outcomes[outcome] for outcome in _OUTCOMES)]
    write_table(("GROUP", *_OUTCOMES), [row], flexible=("GROUP",))
    if dry_run:
        click.echo("nothing was moved: this is what would be")
    for reason, count in totals.reasons.most_common(_REASONS_SHOWN):
        click.echo(printable(f"refused {count}: {reason}"))
