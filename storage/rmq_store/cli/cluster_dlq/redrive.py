"""`rmq dlq redrive` over a cluster: have dead letters consumed again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rmq_store.cli.cluster_mqadmin.common import like
from rmq_store.cli.dlq import dlq_redrive, redrive_run
from rmq_store.cli.dlq.redrive_run import CALL_ROWS, Totals, in_calls
from rmq_store.cli.shared.progress import counting_bar
from rmq_store.cli.shared.times import parse_time
from rmq_store.cli.target.cluster_target import ClusterTarget

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.cli.cluster_dlq.letter_rows import ClusterLetterRows
    from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters

_PLACES = ("brokerName", "queueId", "queueOffset", "msgId")


@like(dlq_redrive.redrive)
def redrive(
    target: ClusterTarget,
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

    First shows what it will do, and asks. Dead letters that were sent back before are skipped, by records in the topic
    PYRMQ_REDRIVEN at their brokers, so you can repeat the command, also after it was killed. With --max, each run sends
    the next ones, until none is left. Dead letters also stay in the dead-letter topic. The command is refused if a
    broker of the dead letters does not answer. Exit code 1 if messages were refused.
    """
    from rmq_store.broker.filter.sql92 import compile_selector
    from rmq_store.broker.monitoring.dead_letter_rows import Wanted
    from rmq_store.cli.cluster_dlq.letter_rows import ClusterLetterRows
    from rmq_store.cli.target.answers import Answers
    from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters

    since_ms = None if since is None else parse_time(since, time.time_ns() // 1_000_000)
    wanted = Wanted(since_ms=since_ms, reason=reason, selector=compile_selector(sql) if sql else None)
    goals: dict[str, Any] = {"to_topic": to_topic, "max_replays": max_replays, "parking_topic": parking_topic}
    with target.open() as cluster:
        answers = Answers(cluster)
        rows = ClusterLetterRows(cluster, target, answers, group, wanted)
        answers.report()
        letters = ClusterDeadLetters(cluster, pull_group=target.pull_group)
        redrive_run.run(
            group,
            to_topic,
            plan=lambda: in_calls(
                _calls(rows, CALL_ROWS), limit, lambda places, left: letters.plan(group, places, limit=left, **goals)
            ),
            move=lambda: _move(letters, group, rows, limit, goals, rate),
            as_json=as_json,
            dry_run=dry_run,
            yes=yes,
        )


def _move(
    letters: ClusterDeadLetters,
    group: str,
    rows: ClusterLetterRows,
    limit: int | None,
    goals: dict[str, Any],
    rate: float | None,
) -> Totals:
    # A call to brokers does not wait by itself: it gets what one second may move.
    call_rows = CALL_ROWS if rate is None else max(min(int(rate), CALL_ROWS), 1)
    done = 0
    with counting_bar("redrive") as tell:

        def ask(places: pa.RecordBatch, left: int | None) -> pa.RecordBatch:
            nonlocal done
            result = letters.redrive(group, places, limit=left, **goals)
            done += places.num_rows
            if tell is not None:
                tell(done, 0)
            return result

        return in_calls(_calls(rows, call_rows), limit, ask, rate=rate)


def _calls(rows: ClusterLetterRows, call_rows: int) -> Iterator[pa.RecordBatch]:
    """The places of what is wanted, CLUSTER_ROWS_SCHEMA, for a call of the engine each."""
    for batch in rows.batches(_PLACES):
        for start in range(0, batch.num_rows, call_rows):
            yield batch.slice(start, call_rows)


COMMANDS = (redrive,)
