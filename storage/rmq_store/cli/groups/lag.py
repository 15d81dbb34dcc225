"""`rmq lag`: how far consumer groups are behind, in messages and in time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rmq_store.cli.shared.completion import GROUP
from rmq_store.cli.shared.formatting import Rates, duration_text, rate_text
from rmq_store.cli.shared.name_lookup import require_group
from rmq_store.cli.shared.output import (
    common_options,
    lmq_option,
    open_store,
    tell_conflicts,
    wide_option,
    write_json,
    write_table,
)
from rmq_store.cli.shared.parameters import DAY_S, Seconds
from rmq_store.format.text.names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.lag import GroupLag

_COLUMNS = ("GROUP", "TOPIC", "QUEUE", "COMMITTED", "END", "LAG", "WAITING", "LAG TIME")
_WATCHED = (*_COLUMNS, "RATE", "ETA")
EVERY_S = 2.0


class LagLine(NamedTuple):
    """One line: a queue, or the sum of a topic's queues (then `queue` is their number). Over a cluster `queue` has its
    broker in front, and `waiting` is unknown.
    """

    group: str
    topic: str
    queue: str | int
    committed: int | None
    end: int
    lag: int
    lag_ms: int | None
    rate: float | None = None
    eta_ms: float | None = None
    waiting: int | None = None


@click.command(
    short_help="Lag of consumer groups, and when they will have caught up.",
    epilog="\b\nExamples:\n  rmq lag --store /data/rocketmq/store\n  rmq lag cg_orders --watch",
)
@common_options
@lmq_option
@wide_option
@click.argument("names", metavar="[GROUP]...", nargs=-1, type=GROUP)
@click.option("--queues", "per_queue", is_flag=True, help="One line per queue, as with names of groups.")
@click.option("--watch", "every_s", metavar="[SECONDS]", type=Seconds(0.05, DAY_S), is_flag=False,
              flag_value=EVERY_S, help="Poll repeatedly, every 2 seconds by default, and show rates and times to "
                                        "catch up.")  # fmt: skip
def lag(root: Path, as_json: bool, names: tuple[str, ...], per_queue: bool, every_s: float | None) -> None:
    """Lag of consumer groups: of the named groups for each queue, or of all groups for each topic.

    LAG is counted as in mqadmin's consumerProgress. WAITING, in the first line of a topic, counts messages whose delay
    or delivery time has not passed; for a %RETRY% topic these are the group's failed messages. LAG TIME is the age of
    the oldest unconsumed message; `-` if there is none. With --watch: RATE is messages consumed per second since the
    previous poll, and ETA the time until the group has caught up at this rate. On a terminal the screen is redrawn
    until q or Ctrl-C. In a pipe every poll prints a table, with --json a line.
    """
    gauge = LagGauge()
    with open_store(root) as store:
        tell_conflicts(store)
        show_lag(lambda: _lines(store, names, per_queue, gauge), as_json=as_json, every_s=every_s)


def show_lag(poll: Callable[[], list[LagLine]], *, as_json: bool, every_s: float | None) -> None:
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


class LagGauge:
    """Remembers one poll, for the rates of the next one."""

    def __init__(self) -> None:
        self._consumed, self._lags = Rates(), Rates()

    def with_rates(self, lines: Sequence[LagLine], now_ms: int) -> list[LagLine]:
        """The lines with `rate` and `eta_ms`, as far as they are known."""
        consumed = self._consumed.sample(now_ms, {line[:3]: line.committed or 0 for line in lines})
        shrinking = self._lags.sample(now_ms, {line[:3]: line.lag for line in lines})
        return [
            line._replace(rate=consumed.get(line[:3]), eta_ms=_eta_ms(line.lag, shrinking.get(line[:3])))
            for line in lines
        ]


def _lines(store: Store, names: Sequence[str], per_queue: bool, gauge: LagGauge) -> list[LagLine]:
    from rmq_store.broker.monitoring.lag import all_lags, group_lag

    store.refresh()
    for name in names:
        require_group(store, name)
    now_ms = store.clock()
    waiting = store.backlog_by_topic()
    groups = [group_lag(store, name, now_ms) for name in sorted(set(names))] if names else all_lags(store, now_ms)
    # Of groups that have not committed anything yet, too.
    failed = [retry for retry in sorted(waiting) if retry.startswith(RETRY_PREFIX)]
    if names:
        failed = [retry for retry in failed if retry.removeprefix(RETRY_PREFIX) in names]
    found = [line for group in groups for line in _of_group(group, per_queue or bool(names))]
    shown = {line.topic for line in found}
    found = gauge.with_rates(found, now_ms)
    found += [_uncommitted(store, retry) for retry in failed if retry not in shown]
    found.sort(key=lambda line: (line.group, line.topic))
    return [
        line._replace(waiting=waiting.get(line.topic, 0) if line[:2] != before[:2] else None)
        for before, line in zip([("", ""), *found], found, strict=False)
    ]


def _uncommitted(store: Store, topic: str) -> LagLine:
    """The retry topic of a group that has not committed an offset on it."""
    ends = [found.max_offset for found in store.queue_ranges(topic).values()] if store.find_topic(topic) else []
    lag = sum(ends)
    return LagLine(
        topic.removeprefix(RETRY_PREFIX), topic, f"all {len(ends)}", None, lag, lag, None, eta_ms=_eta_ms(lag, None)
    )


def _eta_ms(lag: int, growth: float | None) -> float | None:
    if not lag:
        return 0
    return None if growth is None or growth >= 0 else lag / -growth * 1000


def _of_group(group: GroupLag, per_queue: bool) -> list[LagLine]:
    queues = [
        LagLine(group.group, queue.topic, queue.queue_id, queue.consumer_offset, queue.broker_offset, queue.diff,
              queue.lag_ms if queue.diff else None)
        for queue in group.queues
    ]  # fmt: skip
    if per_queue:
        return queues
    topics = sorted({line.topic for line in queues})
    return [together([line for line in queues if line.topic == topic]) for topic in topics]


def together(queues: Sequence[LagLine]) -> LagLine:
    """The sum of the queues of one topic."""
    times = [line.lag_ms for line in queues if line.lag_ms is not None]
    committed = [line.committed for line in queues if line.committed is not None]
    return queues[0]._replace(
        queue=f"all {len(queues)}",
        committed=sum(committed) if committed else None,
        end=sum(line.end for line in queues),
        lag=sum(line.lag for line in queues),
        lag_ms=max(times, default=None),
    )


def _show(lines: Sequence[LagLine], as_json: bool, *, watched: bool) -> None:
    if as_json:
        write_json([_json(line, watched=watched) for line in lines], one_line=watched)
        return
    columns = _WATCHED if watched else _COLUMNS
    write_table(columns, [_cells(line, watched=watched) for line in lines], flexible=("GROUP", "TOPIC"))
    if watched:
        click.echo()


def _cells(line: LagLine, *, watched: bool) -> tuple[str | int, ...]:
    committed = "-" if line.committed is None else line.committed
    waiting = "-" if line.waiting is None else line.waiting
    cells = (line.group, line.topic, line.queue, committed, line.end, line.lag, waiting, duration_text(line.lag_ms))
    return (*cells, rate_text(line.rate), duration_text(line.eta_ms)) if watched else cells


def _json(line: LagLine, *, watched: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "group": line.group, "topic": line.topic, "queue": line.queue, "committedOffset": line.committed,
        "endOffset": line.end, "lag": line.lag, "waiting": line.waiting, "lagMs": line.lag_ms,
    }  # fmt: skip
    return {**shown, "rate": line.rate, "etaMs": line.eta_ms} if watched else shown
