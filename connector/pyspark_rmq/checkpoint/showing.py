"""The output of `rmq checkpoint`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from pyspark_rmq.checkpoint.committing import GroupEnd
from pyspark_rmq.checkpoint.comparing import QueueState
from pyspark_rmq.checkpoint.forgetting import Forgetting, LostQueue
from pyspark_rmq.checkpoint.reading import Batch, Checkpoint, span
from pyspark_rmq.checkpoint.rewinding import Move, Rewind
from pyspark_rmq.position.fingerprint import Fingerprint
from pyspark_rmq.position.position import ANY_TOPIC
from pyspark_rmq.position.queue_ids import number_of
from rmq_store.cli.plugin import printable, time_text, write_table

if TYPE_CHECKING:
    from rmq_store.cluster import Holders

_OTHER_SHOWN = 60


def write_checkpoint(found: Checkpoint, planned: Batch | None, done: Batch | None) -> None:
    """Print the query, its batches, and a table of the ends of `planned`, with the ends of `done` in the next column.
    """
    for label, text in _facts(found, planned):
        click.echo(f"{label:<10}{printable(text)}")
    rows = [] if planned is None else _rows(planned, done)
    if rows:
        click.echo()
        write_table(("SOURCE", "TOPIC", "QUEUE", "COMMITTED", "PLANNED"), rows, flexible=("TOPIC",))


def _facts(found: Checkpoint, planned: Batch | None) -> list[tuple[str, str]]:
    facts = [
        ("query", found.query_id),
        ("planned", f"batches {span(found.planned)}"),
        ("committed", f"batches {span(found.committed)}"),
    ]
    if found.last is None:
        facts.append(("next", "batch 0, from where the options of the query say"))
    elif found.is_complete:
        facts.append(("next", f"batch {found.last + 1}"))
    else:
        facts.append(("next", f"batch {found.last} again: it is planned and not committed"))
    facts.append(("state", "yes" if found.has_state else "none"))
    commit = found.commit(found.committed[-1]) if found.committed else None
    facts += [("sink", sink) for sink in (commit.sinks() if commit is not None else ())]
    if planned is not None:
        facts.append((f"batch {planned.number}", f"planned {_time(planned) or 'at an unknown time'}"))
        for source in planned.sources:
            name = "" if source.name in (None, str(source.number)) else f"{source.name}, "
            if source.position is not None:
                what = f"rmq, store {source.position.store or 'of a broker'}"
            else:
                what = f"other source: {source.text[:_OTHER_SHOWN]}{'...' * (len(source.text) > _OTHER_SHOWN)}"
            facts.append((f"source {source.number}", name + what))
            if source.position is not None and source.position.since:
                facts.append(("", f"queues that turn up later are read {_since_text(source.position.since)}"))
    return facts


def _since_text(since: Mapping[str, int]) -> str:
    """`since` of a position: from when on which topics."""
    names = {topic: "from" if topic == ANY_TOPIC else f"in {topic} from" for topic in since}
    return ", ".join(f"{names[topic]} {time_text(time_ms * 1000)} on" for topic, time_ms in sorted(since.items()))


def _time(batch: Batch) -> str:
    time_ms = batch.about.get("batchTimestampMs")
    return time_text(time_ms * 1000) if type(time_ms) is int else ""


def _rows(planned: Batch, done: Batch | None) -> list[tuple[int | str, ...]]:
    rows: list[tuple[int | str, ...]] = []
    for source in planned.sources:
        before = done.position(source.key) if done is not None else None
        for queue, end in sorted(source.position.next.items() if source.position is not None else ()):
            rows.append((source.number, *queue, "-" if before is None else before.next.get(queue, "-"), end))
    return rows


def checkpoint_json(found: Checkpoint, planned: Batch | None, done: Batch | None) -> dict[str, Any]:
    """As `write_checkpoint`, with commit-log offset and store time (ms) of the message before each position."""
    commit = found.commit(found.committed[-1]) if found.committed else None
    shown: dict[str, Any] = {
        "queryId": found.query_id, "planned": found.planned, "committed": found.committed,
        "runsAgain": None if found.is_complete else found.last, "state": found.has_state,
        "sinks": commit.sinks() if commit is not None else [],
    }  # fmt: skip
    if planned is None:
        return shown | {"batch": None, "sources": []}
    sources: list[dict[str, Any]] = []
    for source in planned.sources:
        about: dict[str, Any] = {"source": source.number, "name": source.name}
        if source.position is None:
            sources.append(about | {"offset": source.text})
            continue
        position, before = source.position, done.position(source.key) if done is not None else None
        queues = [
            {"topic": queue.topic, "queueId": queue.queue_id,
             "committed": None if before is None else before.next.get(queue), "planned": end,
             "began": position.began.get(queue), **_fingerprint_json(position.after.get(queue))}
            for queue, end in sorted(position.next.items())
        ]  # fmt: skip
        since = {"since": dict(position.since)} if position.since else {}
        sources.append(about | {"store": position.store, **since, "queues": queues})
    return shown | {"batch": planned.number, "time": _time(planned), "sources": sources}


def _fingerprint_json(fingerprint: Fingerprint | None) -> dict[str, int | None]:
    return {
        "lastCommitLogOffset": None if fingerprint is None else fingerprint.commit_log_offset,
        "lastStoreTimestamp": None if fingerprint is None else fingerprint.store_timestamp_ms,
    }


def state_json(state: QueueState) -> dict[str, Any]:
    """One queue of `rmq checkpoint diff`."""
    return {
        "source": state.source, "topic": state.topic, "queueId": state.queue_id, "minOffset": state.min_offset,
        "maxOffset": state.max_offset, "position": state.position, "planned": state.planned,
        "committedOffset": state.committed, "behind": state.behind, "lost": state.lost, "state": state.state,
    }  # fmt: skip


def write_states(states: list[QueueState], *, with_group: bool) -> None:
    """The table of `rmq checkpoint diff`."""
    columns = ["SOURCE", "TOPIC", "QUEUE", "MIN", "MAX", "POSITION", "BEHIND"]
    rows: list[list[Any]] = [
        [s.source, s.topic, s.queue_id, s.min_offset, s.max_offset, s.position, s.behind] for s in states
    ]
    if with_group:
        columns += ["GROUP", "AHEAD"]
        for row, s in zip(rows, states, strict=True):
            row += [s.committed, None if s.committed is None else s.position - s.committed]
    shown = [[*("-" if cell is None else cell for cell in row), s.state] for row, s in zip(rows, states, strict=True)]
    write_table([*columns, "STATE"], shown, flexible=("TOPIC",))


def write_plan(plan: Rewind) -> None:
    """The table of `rmq checkpoint rewind`."""
    rows = []
    for move in plan.moves:
        place = move.change.place
        now = "-" if place.committed is None else place.committed
        rows.append((move.source, place.topic, place.queue_id, place.min_offset, place.max_offset, now,
                     move.change.then, move.again, move.skipped))  # fmt: skip
    columns = ("SOURCE", "TOPIC", "QUEUE", "MIN", "MAX", "NOW", "THEN", "AGAIN", "SKIPPED")
    write_table(columns, rows, flexible=("TOPIC",))


def notes(plan: Rewind) -> list[str]:
    """Remarks for the user before the checkpoint is written."""
    found = []
    outside = sum(move.change.wanted != move.change.then for move in plan.moves)
    if outside:
        found.append(f"{outside} positions lay outside of their queues and became the nearest ones")
    if plan.left_out:
        names = ", ".join(map(str, plan.left_out))
        found.append(f"left out, because they are gone or were not read then; new ones begin at their start: {names}")
    if not plan.checkpoint.is_complete:
        found.append(
            f"batch {plan.checkpoint.last} is planned and not committed: what a sink has of it, it gets again, unless "
            "the query finishes it first"
        )
    if plan.drop_state:
        found.append(
            "batches begin at 0 again: a sink that knows them by their number (Spark's file sink, txnVersion in "
            "foreachBatch) needs a new place or txnAppId, or it passes over them"
        )
    return found


def move_json(move: Move) -> dict[str, Any]:
    """One queue of `rmq checkpoint rewind`."""
    place = move.change.place
    return {
        "source": move.source, "topic": place.topic, "queueId": place.queue_id, "minOffset": place.min_offset,
        "maxOffset": place.max_offset, "position": place.committed, "newPosition": move.change.then,
        "again": move.again, "skipped": move.skipped,
    }  # fmt: skip


def write_lost_queues(plan: Forgetting) -> None:
    """The table of `rmq checkpoint forget-broker`."""
    rows = [
        (one.source, one.queue.topic, one.queue.queue_id, *("-" if cell is None else cell for cell in _figures(one)))
        for one in plan.queues
    ]
    if rows:
        columns = ("SOURCE", "TOPIC", "QUEUE", "POSITION", "PLANNED", "END", "LOST")
        write_table(columns, rows, flexible=("TOPIC",))


def _figures(one: LostQueue) -> tuple[int | None, ...]:
    return one.position, one.planned, one.end, one.lost


def forgetting_notes(plan: Forgetting, holders: Holders | None, groups: Sequence[str]) -> list[str]:
    """Remarks for the user before a broker is forgotten. `groups`: those of the query."""
    broker, found = plan.broker, []
    if plan.queues:
        lost = sum(one.lost or 0 for one in plan.queues)
        unknown = sum(one.lost is None for one in plan.queues)
        found.append(
            f"lost: {lost} messages that are known, in {len(plan.queues)} queues of {broker}"
            + (f"; of {unknown} queues nobody knows the end" if unknown else "")
        )
        of_groups = f"of {', '.join(groups)} and of all other groups" if groups else "of all groups"
        found.append(f"lost: the committed offsets {of_groups} at {broker}")
    if plan.in_planned:
        found.append(
            f"batch {plan.checkpoint.last} is planned and not committed, with {plan.in_planned} messages of {broker}: "
            "it runs again without them. Its tasks get other numbers, so what a sink has of the batch it may get again"
        )
    if holders is not None and broker in holders.brokers:
        found.append(
            f"lost: the records of all sinks of the cluster at {broker}; the list of brokers that may hold records is "
            f"{', '.join(holders.brokers)} now. Rows of a batch whose only record was there may be stored twice"
        )
    return found


def forgetting_json(
    plan: Forgetting, holders: Holders | None, groups: Sequence[str], *, is_holder: bool, written: bool
) -> dict[str, Any]:
    """As `write_lost_queues`, with the brokers that may hold records: afterwards, if it was written."""
    queues = [
        {"source": one.source, "topic": one.queue.topic, "queueId": number_of(one.queue.queue_id),
         "position": one.position, "planned": one.planned, "end": one.end, "lost": one.lost}
        for one in plan.queues
    ]  # fmt: skip
    return {
        "written": written, "broker": plan.broker, "batches": sorted(plan.files), "queues": queues,
        "inPlannedBatch": plan.in_planned, "groups": list(groups), "recordsLost": is_holder,
        "recordBrokers": [] if holders is None else list(holders.brokers),
    }  # fmt: skip


def write_group_ends(ends: Sequence[GroupEnd]) -> None:
    """Print a table of what is committed: for each queue the first message that was not read."""
    rows = [tuple(row.values()) for end in ends for row in group_end_json(end)]
    write_table(("GROUP", "BATCH", "TOPIC", "QUEUE", "POSITION"), rows, flexible=("TOPIC", "GROUP"))


def group_end_json(end: GroupEnd) -> list[dict[str, Any]]:
    """The queues of one source, as `write_group_ends` prints them."""
    return [
        {"group": end.group, "batch": end.batch, "topic": queue.topic, "queueId": queue.queue_id, "position": offset}
        for queue, offset in sorted(end.position.next.items())
    ]
