"""One run of `rmq dlq redrive`, whoever keeps the dead letters: the plan, the question, the calls, the totals."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from rmq_store.cli.shared.confirm import confirm
from rmq_store.cli.shared.output import printable, write_json, write_table

if TYPE_CHECKING:
    import pyarrow as pa

# Dead letters that one call of the engine gets: what it answers is in memory.
CALL_ROWS = 20_000

OUTCOMES = ("REDRIVEN", "PARKED", "ALREADY_REDRIVEN", "REFUSED", "GONE")
_PLANNED = {"WOULD_REDRIVE": "REDRIVEN", "WOULD_PARK": "PARKED"}
_REASONS_SHOWN = 5


class Totals:
    """Outcomes of all calls together, and the reasons of refusals."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()

    @property
    def moving(self) -> int:
        """The number of messages that are moved, or would be."""
        return self.outcomes["REDRIVEN"] + self.outcomes["PARKED"]

    def add(self, result: pa.RecordBatch) -> None:
        """Count the outcomes of some rows."""
        import pyarrow.compute as pc

        for entry in result.column("outcome").value_counts().to_pylist():
            self.outcomes[_PLANNED.get(entry["values"], entry["values"])] += entry["counts"]
        refused = result.filter(pc.equal(result.column("outcome"), "REFUSED"))
        for entry in refused.column("reason").value_counts().to_pylist():
            self.reasons[entry["values"]] += entry["counts"]


def in_calls(
    calls: Iterator[pa.RecordBatch],
    limit: int | None,
    ask: Callable[[pa.RecordBatch, int | None], pa.RecordBatch],
    *,
    rate: float | None = None,
) -> Totals:
    """Call `ask` with the places of each call, and with how many more may be moved; return the outcomes of all.

    `rate` (messages per second) makes it wait between two calls. A call that moves more than those of one second
    waits by itself.
    """
    totals = Totals()
    moved = 0
    for places in calls:
        left = None if limit is None else limit - totals.moving
        if left == 0:
            break
        if rate is not None and moved:
            time.sleep(min(moved, max(int(rate), 1)) / rate)
        before = totals.moving
        totals.add(ask(places, left))
        moved = totals.moving - before
    return totals


def run(
    group: str,
    to_topic: str | None,
    *,
    plan: Callable[[], Totals],
    move: Callable[[], Totals],
    as_json: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Show what would be moved, ask, move, and print the totals. Ends the command with 1 if messages were refused."""
    totals = plan()
    moving = totals.moving
    if not dry_run and moving:
        if not yes:
            show_totals(group, totals, as_json=False, err=True)
        goal = to_topic or f"the retry topic of {group}"
        confirm(printable(f"Move {moving} dead letters of {group} to {goal}?"), yes=yes)
        totals = move()
    show_totals(group, totals, as_json, dry_run=dry_run)
    if totals.outcomes["REFUSED"]:
        raise click.exceptions.Exit(1)


def show_totals(group: str, totals: Totals, as_json: bool, *, dry_run: bool = False, err: bool = False) -> None:
    """Print the outcomes; with `err` one line for the question."""
    if as_json:
        counts = {outcome: totals.outcomes[outcome] for outcome in OUTCOMES}
        write_json({"group": group, "dryRun": dry_run, **counts, "refusedBecause": dict(totals.reasons)})
        return
    if err:
        counted = ", ".join(f"{totals.outcomes[outcome]} {outcome}" for outcome in OUTCOMES if totals.outcomes[outcome])
        click.echo(printable(f"{group}: this would be {counted}"), err=True)
        return
    row: list[str | int] = [group, *(totals.outcomes[outcome] for outcome in OUTCOMES)]
    write_table(("GROUP", *OUTCOMES), [row], flexible=("GROUP",))
    if dry_run:
        click.echo("nothing was moved: this is what would be")
    for reason, count in totals.reasons.most_common(_REASONS_SHOWN):
        click.echo(printable(f"refused {count}: {reason}"))
