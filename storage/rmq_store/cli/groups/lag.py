"""`rmq lag`: how far consumer groups are behind, in messages and in time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from rmq_store.cli.shared.completion import GROUP
from rmq_store.cli.shared.formatting import duration_text, rate_text
from rmq_store.cli.shared.output import lmq_option, tell, wide_option, write_json, write_table
from rmq_store.cli.shared.parameters import DAY_S, Seconds
from rmq_store.cli.target.command import by_target, target_command
from rmq_store.cli.target.lag_lines import LagGauge, LagLine
from rmq_store.cli.target.rows import away_json

if TYPE_CHECKING:
    from rmq_store.cli.target.view import Target

_COLUMNS = ("GROUP", "TOPIC", "QUEUE", "COMMITTED", "END", "LAG", "WAITING", "LAG TIME")
_WATCHED = (*_COLUMNS, "RATE", "ETA")
_EVERY_S: Final = 2.0


@target_command(
    short_help="Lag of consumer groups, and when they will have caught up.",
    epilog="\b\nExamples:\n  rmq lag --store /data/rocketmq/store\n  rmq lag cg_orders --watch",
)
@by_target(lmq_option)
@wide_option
@click.argument("names", metavar="[GROUP]...", nargs=-1, type=GROUP)
@click.option("--queues", "per_queue", is_flag=True, help="One line per queue, as with names of groups.")
@click.option("--watch", "every_s", metavar="[SECONDS]", type=Seconds(0.05, DAY_S), is_flag=False,
              flag_value=_EVERY_S, help="Poll repeatedly, every 2 seconds by default, and show rates and times to "
                                        "catch up.")  # fmt: skip
def lag(target: Target, as_json: bool, names: tuple[str, ...], per_queue: bool, every_s: float | None) -> None:
    """Lag of consumer groups: of the named groups for each queue, or of all groups for each topic.

    LAG is counted as in mqadmin's consumerProgress. [store: WAITING, in the first line of a topic, counts messages
    whose delay or delivery time has not passed; for a %RETRY% topic these are the group's failed messages.]
    [cluster: WAITING is `-`: a broker does not tell what waits for its delay.]
    LAG TIME is the age of the oldest unconsumed message[cluster: , by the clocks of the broker and of this host]; `-`
    if there is none[store: .][cluster: : one message of each queue with a lag is read, as TOOLS_CONSUMER or
    --pull-group.] With --watch: RATE is messages consumed per second since the previous poll, and ETA the time until
    the group has caught up at this rate. On a terminal the screen is redrawn until q or Ctrl-C. In a pipe every poll
    prints a table, with --json a line.
    [cluster: Stderr names a broker that does not answer, once; if no broker answers, the command ends. Numbers that
    only this broker knows are `?`, in a sum 12+?, and null in JSON, where `away` names it. Exit code 1 then.]
    """
    gauge = LagGauge()
    with target.view(tell) as view:
        view.tell_conflicts()

        def poll() -> list[LagLine]:
            with view.poll():
                return view.lags(names, gauge, per_queue=per_queue or bool(names))

        _show_polls(poll, as_json=as_json, every_s=every_s)
    if view.failures.missing:  # stderr says so already
        raise click.exceptions.Exit(1)


def _show_polls(poll: Callable[[], list[LagLine]], *, as_json: bool, every_s: float | None) -> None:
    """Print the lines of one poll, or with `every_s` poll until q or Ctrl-C."""
    if every_s is None:
        _show(poll(), as_json, watched=False)
    elif sys.stdout.isatty() and not as_json:
        from rmq_store.cli.shared.live_screen import table, watch

        watch(lambda: table("", _WATCHED, [_cells(line, watched=True) for line in poll()], left=2), every_s)
    else:
        try:
            while True:
                _show(poll(), as_json, watched=True)
                time.sleep(every_s)
        except KeyboardInterrupt:
            return


def _show(lines: Sequence[LagLine], as_json: bool, *, watched: bool) -> None:
    if as_json:
        write_json([_json(line, watched=watched) for line in lines], one_line=watched)
        return
    columns = _WATCHED if watched else _COLUMNS
    write_table(columns, [_cells(line, watched=watched) for line in lines], flexible=("GROUP", "TOPIC"))
    if watched:
        click.echo()


def _cells(line: LagLine, *, watched: bool) -> tuple[str | int, ...]:
    waiting = "-" if line.waiting is None else line.waiting
    numbers = line.committed.cell, line.end.cell, line.lag.cell, waiting, line.lag_ms.text(duration_text)
    cells = (line.group, line.topic, line.queue, *numbers)
    return (*cells, rate_text(line.rate), duration_text(line.eta_ms)) if watched else cells


def _json(line: LagLine, *, watched: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "group": line.group, "topic": line.topic, "queue": line.queue, "committedOffset": line.committed.exact,
        "endOffset": line.end.exact, "lag": line.lag.exact, "waiting": line.waiting, "lagMs": line.lag_ms.exact,
        **away_json(line.lag.away),
    }  # fmt: skip
    return {**shown, "rate": line.rate, "etaMs": line.eta_ms} if watched else shown
