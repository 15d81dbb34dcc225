"""`rmq offsets`: show, export and reset the offsets of a consumer group."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.completion import GROUP, TOPIC
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.name_lookup import require_group, require_topic
from rmq_store.cli.shared.output import (
    common_options,
    lmq_option,
    open_store,
    open_to_write,
    printable,
    queue_text,
    wide_option,
    write_json,
    write_table,
)
from rmq_store.cli.shared.targets import one_of, target, target_options
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.offset_reset import OffsetChange

_FILE_BYTES_MAX = 64 << 20
_COLUMNS = ("TOPIC", "QUEUE", "MIN", "MAX", "NOW", "THEN", "LAG NOW", "LAG THEN")


@click.group(short_help="Show, save and move the offsets of a consumer group.")
def offsets() -> None:
    """Show, save and move the offsets of a consumer group."""


@offsets.command(
    short_help="The committed offsets of a group.",
    epilog="\b\nExample:\n  rmq offsets show cg_orders --store /data/rocketmq/store",
)
@common_options
@lmq_option
@wide_option
@click.argument("group", type=GROUP)
@click.option("-t", "--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
def show(root: Path, as_json: bool, group: str, topics: tuple[str, ...]) -> None:
    """The committed offsets of a group in every queue of its topics, and the number of messages between each and the
    end.

    A queue without an offset counts from 0, as in mqadmin.
    """
    from rmq_store.broker.monitoring.offset_reset import latest, plan_reset

    with open_store(root) as store:
        require_group(store, group)
        places = [change.place for change in plan_reset(store, group, _topics(store, group, topics), latest)]
    names = ("topic", "queueId", "minOffset", "maxOffset", "committedOffset", "lag")
    rows = [(p.topic, p.queue_id, p.min_offset, p.max_offset, p.committed, p.lag) for p in places]
    write_places([dict(zip(names, row, strict=True)) for row in rows], as_json=as_json)


def write_places(places: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the offsets of a group; queues with a `brokerName` are named by it."""
    if as_json:
        write_json(places)
        return
    rows = [
        (p["topic"], queue_text(p), p["minOffset"], p["maxOffset"], _dash(p["committedOffset"]), p["lag"])
        for p in places
    ]
    write_table(("TOPIC", "QUEUE", "MIN", "MAX", "COMMITTED", "LAG"), rows, flexible=("TOPIC",))


@offsets.command(
    short_help="The committed offsets as a file for `reset --to-offsets`.",
    epilog="\b\nExample:\n  rmq offsets export cg_orders --store /data/rocketmq/store > cg_orders.json",
)
@common_options
@lmq_option
@click.argument("group", type=GROUP)
def export(root: Path, as_json: bool, group: str) -> None:
    """Print the committed offsets of a group as JSON, {topic: {queue: offset}}, which `reset --to-offsets` reads."""
    with open_store(root) as store:
        committed = store.committed_offsets(require_group(store, group))
    found: dict[str, dict[str, int]] = {}
    for (topic, queue_id), offset in sorted(committed.items()):
        found.setdefault(topic, {})[str(queue_id)] = offset
    write_json(found)


@offsets.command(
    short_help="Move a group: to a time, an end, an offset, a file.",
    epilog="\b\nExamples:\n  rmq offsets reset cg_orders --to-time 2h --dry-run --store /data/rocketmq/store\n"
    "  rmq offsets reset cg_orders -t Orders --shift -100 --store /data/rocketmq/store\n"
    "  rmq offsets reset cg_orders --to-offsets cg_orders.json --yes --store /data/rocketmq/store",
)
@common_options
@lmq_option
@wide_option
@changing_options
@click.argument("group", type=GROUP)
@click.option("-t", "--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@click.option("--queue", type=click.IntRange(0), help="Only this queue.")
@target_options
@click.option("--to-offsets", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="To the offsets in a file of `rmq offsets export`. Queues that are not in the "
                   "file stay.")  # fmt: skip
def reset(
    root: Path, as_json: bool, group: str, topics: tuple[str, ...], queue: int | None, dry_run: bool, yes: bool,
    **asked: Any,
) -> None:  # fmt: skip
    """Move a group to other offsets; first show the lag before and after.

    Without -t, all topics on which the group has committed are moved, except its %RETRY% topic. An offset outside of
    its queue becomes the queue's first or last one. The command is refused while a consumer or stream of the group is
    running, because it would overwrite the offsets. Only SimpleConsumers may run: they continue at the new offsets. A
    stream that has a checkpoint starts at the position in its checkpoint.
    """
    from rmq_store.broker.monitoring.active_consumers import active_consumers, require_idle
    from rmq_store.broker.monitoring.offset_reset import apply_reset

    with open_store(root) as store:
        require_group(store, group)
        changes = _plan(store, group, topics, queue, asked)
        if not as_json:
            write_changes([_row(change) for change in changes])
        if not dry_run:
            require_idle(store, group)
        for who in active_consumers(store, group):
            click.echo(printable(f"rmq: it would be refused now: at work as the group is {who}"), err=True)
    moving = sum(change.then != change.place.committed for change in changes)
    if moving and not dry_run:
        confirm(f"Set {moving} offsets of group {printable(group)}?", yes=yes)
        with open_to_write(root) as store:
            changes = _plan(store, group, topics, queue, asked)
            apply_reset(store, group, changes)
    if as_json:
        write_json({"reset": bool(moving) and not dry_run, "queues": changes_json([_row(one) for one in changes])})
    elif not dry_run:
        click.echo(f"{moving} offsets set", err=True)


def _topics(store: Store, group: str, named: Sequence[str]) -> list[str]:
    """The named topics; without names, all existing topics on which the group has offsets, except retry topics."""
    from rmq_store.format.text.names import RETRY_PREFIX

    if named:
        return [require_topic(store, topic) for topic in named]
    committed = {topic for topic, _ in store.committed_offsets(group) if not topic.startswith(RETRY_PREFIX)}
    topics = sorted(topic for topic in committed if store.find_topic(topic) is not None)
    if not topics:
        raise UsageError(f"group {group!r} has no offsets on any topic: name one with -t")
    return topics


def _plan(
    store: Store, group: str, topics: Sequence[str], queue: int | None, asked: Mapping[str, Any]
) -> list[OffsetChange]:
    from rmq_store.broker.monitoring.offset_reset import plan_reset

    name, value = one_of(asked)
    if name == "to_offsets":
        return _plan_file(store, group, topics, queue, value)
    return plan_reset(store, group, _topics(store, group, topics), target(store, name, value), queue_id=queue)


def _plan_file(store: Store, group: str, topics: Sequence[str], queue: int | None, path: Path) -> list[OffsetChange]:
    from rmq_store.broker.monitoring.offset_reset import given, plan_reset

    wanted = {
        key: offset
        for key, offset in _offsets_of_store(path).items()
        if (not topics or key[0] in topics) and queue in (None, key[1])
    }
    changes = plan_reset(store, group, _topics(store, group, sorted({topic for topic, _ in wanted})), given(wanted))
    missing = wanted.keys() - {(change.place.topic, change.place.queue_id) for change in changes}
    if missing:
        topic, queue_id = min(missing)
        raise UsageError(f"{path}: topic {topic!r} has no queue {queue_id}")
    return changes


def _offsets_of_store(path: Path) -> dict[tuple[str, int], int]:
    found = read_offsets(path)
    for topic, queue in found:
        if not (queue.isascii() and queue.isdigit()):
            raise UsageError(f"{path}: {topic!r} queue {queue!r}: a store has queues 0, 1, ...")
    return {(topic, int(queue)): offset for (topic, queue), offset in found.items()}


def read_offsets(path: Path) -> dict[tuple[str, str], int]:
    """{(topic, queue): offset} of a file that `export` wrote; a queue is `0`, of a cluster `broker-a:0`. Raises
    UsageError.
    """
    from rmq_store.files.durable import read_limited

    try:
        content = json.loads(read_limited(path, _FILE_BYTES_MAX))
        found = {
            (str(topic), str(queue)): offset
            for topic, of_topic in content.items()
            for queue, offset in of_topic.items()
        }
    except (ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}: no offsets as `rmq offsets export` writes them: {error}") from error
    for key, offset in found.items():
        if type(offset) is not int or offset < 0:
            raise UsageError(f"{path}: {key[0]!r} queue {key[1]}: {offset!r} is no offset")
    if not found:
        raise UsageError(f"{path}: no offsets in it")
    return found


def write_changes(changes: Sequence[Mapping[str, Any]]) -> None:
    """Print a plan; queues with a `brokerName` are named by it. `outside`: the nearest offset took the place of one."""
    rows = [
        (c["topic"], queue_text(c), c["minOffset"], c["maxOffset"], _dash(c["committedOffset"]), c["newOffset"],
         c["lag"], c["newLag"])
        for c in changes
    ]  # fmt: skip
    write_table(_COLUMNS, rows, flexible=("TOPIC",))
    outside = sum(change["outside"] for change in changes)
    if outside:
        click.echo(f"rmq: {outside} offsets lay outside of their queues and became the nearest ones", err=True)


def changes_json(changes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A plan for `write_json`."""
    return [{name: value for name, value in change.items() if name != "outside"} for change in changes]


def _row(change: OffsetChange) -> dict[str, Any]:
    place = change.place
    return {
        "topic": place.topic, "queueId": place.queue_id, "minOffset": place.min_offset, "maxOffset": place.max_offset,
        "committedOffset": place.committed, "newOffset": change.then, "lag": place.lag, "newLag": change.lag,
        "outside": change.wanted != change.then,
    }  # fmt: skip


def _dash(offset: int | None) -> int | str:
    return "-" if offset is None else offset
