"""`rmq dlq redrive`: have dead letters consumed again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.dlq import redrive_run
from rmq_store.cli.dlq.redrive_run import CALL_ROWS, Totals, in_calls
from rmq_store.cli.shared.completion import DEAD_GROUP, TOPIC
from rmq_store.cli.shared.confirm import changing_options
from rmq_store.cli.shared.output import common_options, wide_option
from rmq_store.cli.shared.parameters import FiniteRange
from rmq_store.cli.shared.progress import counting_bar
from rmq_store.cli.shared.times import parse_time

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store import Store
    from rmq_store.broker.monitoring.dead_letter_rows import DeadLetterRows

# Messages per second: one in a quarter of an hour, and more than anybody writes.
_RATE_MIN, _RATE_MAX = 0.001, 1_000_000_000


class _Sums:
    """Adds up the progress of the calls, for the bar."""

    def __init__(self, tell: Callable[[int, int], None] | None) -> None:
        self._show = tell
        self._before = self._now = (0, 0)

    def __call__(self, rows: int, size_bytes: int) -> None:
        """Add the progress of the present call."""
        self._now = self._before[0] + rows, self._before[1] + size_bytes
        if self._show is not None:
            self._show(*self._now)

    def call_ended(self) -> None:
        """The next call begins at 0."""
        self._before = self._now


@click.command(
    short_help="Send dead letters back to their group.",
    epilog="\b\nExamples:\n  rmq dlq redrive cg_orders --reason TimeoutError --dry-run --store /data/rocketmq/store\n"
    "  rmq dlq redrive cg_orders --since 1d --rate 100 --max-replays 3 --yes",
)
@common_options
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
    root: Path,
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

    First shows what it will do, and asks. Dead letters that were sent back before are skipped, so you can repeat the
    command, also after it was killed. With --max, each run sends the next ones, until none is left. Dead letters also
    stay in the dead-letter topic. The store is opened for writing, also with --dry-run: no RocketMQ broker may run on
    it. Exit code 1 if messages were refused.
    """
    from rmq_store import Store
    from rmq_store.broker.filter.sql92 import compile_selector
    from rmq_store.broker.monitoring.dead_letter_rows import DeadLetterRows, Wanted

    with Store.open(root) as store:
        since_ms = None if since is None else parse_time(since, store.clock())
        wanted = Wanted(since_ms=since_ms, reason=reason, selector=compile_selector(sql) if sql else None)
        rows = DeadLetterRows(store, group, wanted)
        target: dict[str, Any] = {"to_topic": to_topic, "max_replays": max_replays, "parking_topic": parking_topic}
        redrive_run.run(
            group,
            to_topic,
            plan=lambda: in_calls(
                _calls(rows), limit, lambda places, left: store.dead_letters.plan(group, places, limit=left, **target)
            ),
            move=lambda: _move(store, group, rows, limit, target, rate),
            as_json=as_json,
            dry_run=dry_run,
            yes=yes,
        )


def _move(
    store: Store, group: str, rows: DeadLetterRows, limit: int | None, target: dict[str, Any], rate: float | None
) -> Totals:
    with counting_bar("redrive") as tell:
        sums = _Sums(tell)

        def ask(places: pa.RecordBatch, left: int | None) -> pa.RecordBatch:
            result = store.dead_letters.redrive(
                group, places, limit=left, rate_per_second=rate, progress=sums, sleep=time.sleep, **target
            )
            sums.call_ended()
            return result

        return in_calls(_calls(rows), limit, ask, rate=rate)


def _calls(rows: DeadLetterRows) -> Iterator[pa.RecordBatch]:
    """The places of what is wanted, ROWS_SCHEMA without the ids, for a call of the engine each."""
    import pyarrow as pa

    waiting = pa.RecordBatch.from_pydict({"queueId": pa.array([], pa.int32()), "queueOffset": pa.array([], pa.int64())})
    for columns in rows.places():
        arrays = [pa.array(column) for column in columns]
        waiting = pa.concat_batches([waiting, pa.RecordBatch.from_arrays(arrays, schema=waiting.schema)])
        while waiting.num_rows >= CALL_ROWS:
            yield waiting.slice(0, CALL_ROWS)
            waiting = waiting.slice(CALL_ROWS)
    if waiting.num_rows:
        yield waiting
