"""`rmq dlq list`, `show` and `export` over a cluster: the options and the output of those for a store."""

from __future__ import annotations

import time
from pathlib import Path

import click

from rmq_store.cli.cluster_mqadmin.common import like
from rmq_store.cli.dlq import dlq_export, dlq_list
from rmq_store.cli.dlq.dlq_export import LetterFile
from rmq_store.cli.dlq.dlq_list import Tally, write_groups, write_letters
from rmq_store.cli.shared.message_text import rows_of
from rmq_store.cli.shared.progress import counting_bar
from rmq_store.cli.shared.times import parse_time
from rmq_store.cli.target.cluster_target import ClusterTarget


@like(dlq_list.list_)
def list_(target: ClusterTarget, as_json: bool, groups: tuple[str, ...]) -> None:
    """Groups with dead letters at any broker: their number, times, reasons and topics.

    REDRIVEN counts dead letters that were sent back to the group, by records at their brokers; they also stay here, and
    are part of COUNT. ARCHIVED is `-`: brokers have no archive. REASONS are the most frequent error classes; (unknown)
    if the consumer recorded none, as RocketMQ's own do. TOPICS are the original topics. All dead letters are read.
    """
    from rmq_store.cli.cluster_dlq.letter_rows import ClusterLetterRows
    from rmq_store.cli.target.answers import Answers
    from rmq_store.format.text.names import DLQ_PREFIX

    found = []
    with target.open() as cluster, counting_bar("dlq list") as tell:
        answers = Answers(cluster)
        names = groups or sorted(
            name.removeprefix(DLQ_PREFIX) for name in cluster.topics() if name.startswith(DLQ_PREFIX)
        )
        for name in names:
            rows = ClusterLetterRows(cluster, target, answers, name)
            tally = Tally(tell)
            for batch in rows.batches(Tally.COLUMNS):
                tally.add(batch)
            found.append(tally.summary(name, rows.count(), rows.redriven_count(), None))
    write_groups([entry for entry in found if entry["deadLetters"] or groups], as_json=as_json)
    answers.report()


@like(dlq_list.show)
def show(
    target: ClusterTarget, as_json: bool, group: str, limit: int, reason: str | None, since: str | None, body: str
) -> None:
    """Dead letters of a group, the newest first: origin, number of tries, time of death, and reason.

    ORIGIN is topic, queue and offset of the first copy, as far as it is known. QUEUE and OFFSET are the position in the
    dead-letter topic. The order is that of store times: brokers have clocks of their own. With --json every dead letter
    is a line, with all columns.
    """
    from rmq_store.broker.dlq.archive_schema import DEAD_LETTER_SCHEMA
    from rmq_store.broker.monitoring.dead_letter_rows import Wanted
    from rmq_store.cli.cluster_dlq.letter_rows import ClusterLetterRows
    from rmq_store.cli.target.answers import Answers

    columns = [name for name in DEAD_LETTER_SCHEMA.names if body != "none" or name != "body"]
    wanted = Wanted(since_ms=_since_ms(since), reason=reason)
    with target.open() as cluster:
        answers = Answers(cluster)
        rows = ClusterLetterRows(cluster, target, answers, group, wanted)
        found = [row for batch in rows.newest(limit, columns) for row in rows_of(batch)]
    write_letters(found, body, as_json=as_json, of_cluster=True)
    answers.report()


@like(dlq_export.export)
def export(
    target: ClusterTarget, as_json: bool, group: str, path: Path, reason: str | None, since: str | None,
    overwrite: bool, raw: bool,
) -> None:  # fmt: skip
    """Write the dead letters of a group to a file: the message, the position of its first copy, and the reason of its
    failure.

    The file is that of a store: bodies are bytes in Parquet, and text or bodyHex in JSON Lines and CSV, where --raw
    leaves formulas as they are. It appears when it is complete, and only its owner may read it. No file is written if a
    broker does not answer: one that lacks its dead letters would look complete.
    """
    from rmq_store.broker.monitoring.dead_letter_rows import Wanted
    from rmq_store.cli.cluster_dlq.letter_rows import ClusterLetterRows
    from rmq_store.cli.target.answers import Answers

    file = LetterFile(path, raw=raw, overwrite=overwrite)
    wanted = Wanted(since_ms=_since_ms(since), reason=reason)
    with target.open() as cluster:
        answers = Answers(cluster)
        rows = ClusterLetterRows(cluster, target, answers, group, wanted)
        answers.report()
        count = file.write(rows.batches())
    file.tell(group, count, as_json=as_json)
    answers.report()


def _since_ms(text: str | None) -> int | None:
    return None if text is None else parse_time(text, time.time_ns() // 1_000_000)


COMMANDS: tuple[click.Command, ...] = (list_, show, export)
