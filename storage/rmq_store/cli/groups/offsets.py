"""`rmq offsets`: show, export and reset the offsets of a consumer group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.completion import GROUP, TOPIC
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.output import lmq_option, printable, tell, wide_option, write_json, write_table
from rmq_store.cli.shared.targets import one_of, target_options
from rmq_store.cli.target.command import by_target, target_command
from rmq_store.cli.target.rows import ChangeRow, PlaceRow, queue_json, queue_name

if TYPE_CHECKING:
    from rmq_store.cli.target.view import QueueName, Target
    from rmq_store.protocol.messages import MessageQueue

_COLUMNS = ("TOPIC", "QUEUE", "MIN", "MAX", "NOW", "THEN", "LAG NOW", "LAG THEN")


@click.group(short_help="Show, save and move the offsets of a consumer group.")
def offsets() -> None:
    """Show, save and move the offsets of a consumer group."""


@target_command(
    short_help="The committed offsets of a group.",
    epilog="\b\nExample:\n  rmq offsets show cg_orders --store /data/rocketmq/store",
)
@by_target(lmq_option)
@wide_option
@click.argument("group", type=GROUP)
@click.option("-t", "--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
def show(target: Target, as_json: bool, group: str, topics: tuple[str, ...]) -> None:
    """The committed offsets of a group in every queue of its topics, and the number of messages between each and the
    end.

    A queue without an offset counts from 0, as in mqadmin. [cluster: Brokers of 4.x show the offset 0 for it. The
    numbers of a queue are `?`, and null in JSON, if its broker does not answer; exit code 1 then.]
    """
    with target.view(tell) as view:
        places = view.places(group, topics)
    if as_json:
        write_json([_place_json(one) if isinstance(one, PlaceRow) else _unknown_json(one) for one in places])
    else:
        rows = [
            (*_place_cells(one), one.lag)
            if isinstance(one, PlaceRow)
            else (one.topic, queue_name(one.broker_name, one.queue_id), *["?"] * 4)
            for one in places
        ]
        write_table(("TOPIC", "QUEUE", "MIN", "MAX", "COMMITTED", "LAG"), rows, flexible=("TOPIC",))
    view.failures.report()


@target_command(
    short_help="The committed offsets as a file for `reset --to-offsets`.",
    epilog="\b\nExample:\n  rmq offsets export cg_orders --store /data/rocketmq/store > cg_orders.json",
)
@by_target(lmq_option)
@click.argument("group", type=GROUP)
def export(target: Target, as_json: bool, group: str) -> None:
    """Print the committed offsets of a group as JSON, {topic: {[cluster: broker:]queue: offset}}, which `reset
    --to-offsets` reads. [cluster: Brokers of 4.x show the offset 0 for a queue without one.]

    [cluster: Nothing is printed if a broker does not answer: a file that lacks its queues would look complete.]
    """
    with target.view(tell) as view:
        committed = view.committed(group)
    view.failures.report()
    found: dict[str, dict[str, int]] = {}
    for topic, broker_name, queue_id, offset in committed:
        found.setdefault(topic, {})[str(queue_name(broker_name, queue_id))] = offset
    write_json(found)


@target_command(
    short_help="Move a group: to a time, an end, an offset, a file.",
    epilog="\b\nExamples:\n  rmq offsets reset cg_orders --to-time 2h --dry-run --store /data/rocketmq/store\n"
    "  rmq offsets reset cg_orders -t Orders --shift -100 --store /data/rocketmq/store\n"
    "  rmq offsets reset cg_orders --to-offsets cg_orders.json --yes --store /data/rocketmq/store",
)
@by_target(lmq_option)
@wide_option
@changing_options
@click.argument("group", type=GROUP)
@click.option("-t", "--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@by_target(
    click.option("--queue", type=click.IntRange(0), help="Only this queue."),
    click.option("--queue", metavar="BROKER:ID", help="Only this queue, as broker-a:0."),
)
@target_options
@click.option("--to-offsets", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="To the offsets in a file of `rmq offsets export`. Queues that are not in the "
                   "file stay.")  # fmt: skip
def reset(
    target: Target, as_json: bool, group: str, topics: tuple[str, ...], queue: QueueName | None, dry_run: bool,
    yes: bool, **asked: Any,
) -> None:  # fmt: skip
    """Move a group to other offsets; first show the lag before and after.

    Without -t, all topics on which the group has committed are moved, except its %RETRY% topic. An offset outside of
    its queue becomes the queue's first or last one. The command is refused while
    [store: a consumer or stream of the group is running, because it would overwrite the offsets. Only SimpleConsumers
    may run: they continue at the new offsets.][cluster: members of the group are online, because they would overwrite
    the offsets: `rmq resetOffsetByTime` tells members. It is refused, too, if a broker of the topics does not answer.]
    A stream that has a checkpoint starts at the position in its checkpoint. [cluster: A broker that has a reset for the
    group which is not delivered yet keeps that one; then stderr says so, and the exit code is 1.]
    """
    with target.view(tell) as view:
        there = view.offset_reset(group, topics, queue, *one_of(asked))
        changes: Sequence[ChangeRow] = there.plan()
        if not as_json:
            _write_changes(changes)
        if not dry_run:
            there.require_idle()
        for member in there.members():
            tell(f"it would be refused now: {member}")
        moving = sum(change.then != change.place.committed for change in changes)
        kept: Sequence[PlaceRow] = ()
        if moving and not dry_run:
            confirm(f"Set {moving} offsets of group {printable(group)}?", yes=yes)
            changes, kept = there.apply()
    for place in kept:
        name = f"{place.topic} {queue_name(place.broker_name, place.queue_id)}"
        tell(f"{name} stays at {place.committed}: another reset is pending")
    if as_json:
        is_done = bool(moving) and not kept and not dry_run
        write_json({"reset": is_done, "queues": [_change_json(change) for change in changes]})
    elif not dry_run:
        click.echo(f"{moving - len(kept)} offsets set", err=True)
    if kept:
        raise click.exceptions.Exit(1)


def _write_changes(changes: Sequence[ChangeRow]) -> None:
    rows = [(*_place_cells(one.place), one.then, one.place.lag, one.lag) for one in changes]
    write_table(_COLUMNS, rows, flexible=("TOPIC",))
    outside = sum(change.wanted != change.then for change in changes)
    if outside:
        click.echo(f"rmq: {outside} offsets lay outside of their queues and became the nearest ones", err=True)


def _place_cells(place: PlaceRow) -> tuple[str | int, ...]:
    committed = "-" if place.committed is None else place.committed
    queue = queue_name(place.broker_name, place.queue_id)
    return place.topic, queue, place.min_offset, place.max_offset, committed


def _place_json(place: PlaceRow) -> dict[str, Any]:
    return {
        "topic": place.topic, **queue_json(place.broker_name, place.queue_id), "minOffset": place.min_offset,
        "maxOffset": place.max_offset, "committedOffset": place.committed, "lag": place.lag,
    }  # fmt: skip


def _unknown_json(queue: MessageQueue) -> dict[str, Any]:
    numbers = dict.fromkeys(("minOffset", "maxOffset", "committedOffset", "lag"))
    return {"topic": queue.topic, **queue_json(queue.broker_name, queue.queue_id), **numbers}


def _change_json(change: ChangeRow) -> dict[str, Any]:
    shown = _place_json(change.place)
    lag = shown.pop("lag")
    return {**shown, "newOffset": change.then, "lag": lag, "newLag": change.lag}


for _command in (show, export, reset):
    offsets.add_command(_command)
