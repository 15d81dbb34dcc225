"""`rmq offsets` over a cluster: show, export and reset the offsets of a consumer group."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.groups.offsets import changes_json, read_offsets, write_changes, write_places
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.output import printable, wide_option, write_json
from rmq_store.cli.shared.targets import one_of, target_options
from rmq_store.cli.shared.times import parse_time
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options
from rmq_store.errors import LeaseHeldError, UsageError

if TYPE_CHECKING:
    from rmq_store.cli.target.answers import Answers
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.remoting.cluster.cluster import Cluster


@click.command(
    cls=ClusterCommand,
    short_help="The committed offsets of a group.",
    epilog="\b\nExample:\n  rmq -n ns1:9876 offsets show cg_orders",
)
@cluster_options()
@wide_option
@click.argument("group")
@click.option("-t", "--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
def show(target: ClusterTarget, as_json: bool, group: str, topics: tuple[str, ...]) -> None:
    """The committed offsets of a group in every queue of its topics, and the number of messages between each and the
    end.

    A queue without an offset counts from 0, as in mqadmin. Brokers of 4.x show the offset 0 for it.
    """
    from rmq_store.cli.target.answers import Answers

    with target.open() as cluster:
        answers = Answers(cluster)
        places = _places(cluster, answers, group, topics)
        answers.require_any()
    write_places([_place(queue, *place) for queue, place in places.items()], as_json=as_json)
    answers.report()


@click.command(
    cls=ClusterCommand,
    short_help="The committed offsets as a file for `reset --to-offsets`.",
    epilog="\b\nExample:\n  rmq -n ns1:9876 offsets export cg_orders > cg_orders.json",
)
@cluster_options()
@click.argument("group")
def export(target: ClusterTarget, as_json: bool, group: str) -> None:
    """Print the committed offsets of a group as JSON, {topic: {broker:queue: offset}}, which `reset --to-offsets`
    reads. Brokers of 4.x show the offset 0 for a queue without one.

    Nothing is printed if a broker does not answer: a file that lacks its queues would look complete.
    """
    from rmq_store.cli.cluster.progress import progress_of, require_groups
    from rmq_store.cli.cluster.queues import shown
    from rmq_store.cli.target.answers import Answers

    found: dict[str, dict[str, int]] = {}
    with target.open() as cluster:
        answers = Answers(cluster)
        require_groups(cluster, answers, [group])
        for progress in progress_of(cluster, answers, [group]):
            for one in progress.queues:
                if one.committed is not None:
                    found.setdefault(one.queue.topic, {})[shown(one.queue)] = one.committed
    answers.report()
    write_json(found)


@click.command(
    cls=ClusterCommand,
    short_help="Move a group: to a time, an end, an offset, a file.",
    epilog="\b\nExamples:\n  rmq -n ns1:9876 offsets reset cg_orders --to-time 2h --dry-run\n"
    "  rmq -n ns1:9876 offsets reset cg_orders -t Orders --shift -100\n"
    "  rmq -n ns1:9876 offsets reset cg_orders --to-offsets cg_orders.json --yes",
)
@cluster_options()
@wide_option
@changing_options
@click.argument("group")
@click.option("-t", "--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@click.option("--queue", metavar="BROKER:ID", help="Only this queue, as broker-a:0.")
@target_options
@click.option("--to-offsets", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="To the offsets in a file of `rmq offsets export`. Queues that are not in the "
                   "file stay.")  # fmt: skip
def reset(
    target: ClusterTarget, as_json: bool, group: str, topics: tuple[str, ...], queue: str | None, dry_run: bool,
    yes: bool, **asked: Any,
) -> None:  # fmt: skip
    """Move a group to other offsets; first show the lag before and after.

    Without -t, all topics on which the group has committed are moved, except its %RETRY% topic. An offset outside of
    its queue becomes the queue's first or last one. The command is refused while members of the group are online,
    because they would overwrite the offsets: `rmq resetOffsetByTime` tells members. It is refused, too, if a broker of
    the topics does not answer. A stream that has a checkpoint starts at the position in its checkpoint. A broker that
    has a reset for the group which is not delivered yet keeps that one; then stderr says so, and the exit code is 1.
    """
    from rmq_store.cli.target.answers import Answers
    from rmq_store.remoting.cluster.offsets import update_consumer_offsets

    with target.open() as cluster:
        answers = Answers(cluster)
        changes = _plan(cluster, answers, group, topics, queue, asked)
        for error in answers.missing.values():  # a part of the group must not move alone
            raise error
        rows = [_change(*change) for change in changes]
        if not as_json:
            write_changes(rows)
        members = _members(cluster, group)
        if members and not dry_run:
            raise LeaseHeldError(
                f"group {group!r} has members online: {', '.join(members)}; stop them, or use `rmq resetOffsetByTime`, "
                "which tells them",
                ", ".join(members),
            )
        for member in members:
            click.echo(printable(f"rmq: it would be refused now: a member of the group is online: {member}"), err=True)
        moving = {one: then for one, place, _, then in changes if then != place[2]}
        kept: list[MessageQueue] = []
        if moving and not dry_run:
            confirm(f"Set {len(moving)} offsets of group {printable(group)}?", yes=yes)
            stands = update_consumer_offsets(cluster, group, moving)
            kept = [one for one, then in moving.items() if stands[one] != then]
            for one in kept:
                place = f"{one.topic} {one.broker_name}:{one.queue_id}"
                click.echo(printable(f"rmq: {place} stays at {stands[one]}: another reset is pending"), err=True)
    if as_json:
        write_json({"reset": bool(moving) and not kept and not dry_run, "queues": changes_json(rows)})
    elif not dry_run:
        click.echo(f"{len(moving) - len(kept)} offsets set", err=True)
    if kept:
        raise click.exceptions.Exit(1)


# Of a queue: first offset, end, committed offset or None.
_Place = tuple[int, int, int | None]


def _places(cluster: Cluster, answers: Answers, group: str, named: Sequence[str]) -> dict[MessageQueue, _Place]:
    """The queues of the named topics; without names, those of all topics on which the group has offsets, except retry
    topics.
    """
    from rmq_store.cli.cluster.progress import progress_of, require_groups
    from rmq_store.cli.cluster.queues import require_topic, topic_ends
    from rmq_store.format.text.names import RETRY_PREFIX

    require_groups(cluster, answers, [group])
    for topic in named:
        require_topic(cluster, topic)
    (progress,) = progress_of(cluster, answers, [group])
    committed = {one.queue: one.committed for one in progress.queues}
    topics = named or sorted({queue.topic for queue in committed if not queue.topic.startswith(RETRY_PREFIX)})
    if not topics:
        answers.require_any()
        raise UsageError(f"group {group!r} has no offsets on any topic: name one with -t")
    ends = topic_ends(cluster, answers, topics)
    return {queue: (*ends[queue], committed.get(queue)) for queue in sorted(ends)}


def _plan(
    cluster: Cluster, answers: Answers, group: str, topics: Sequence[str], queue: str | None, asked: Mapping[str, Any]
) -> list[tuple[MessageQueue, _Place, int, int]]:
    """(queue, its place, the offset that is wanted, the nearest one in the queue)."""
    from rmq_store.cli.cluster.queues import named_queues, require_topic

    name, value = one_of(asked)
    if name == "to_offsets":
        return _plan_file(cluster, answers, group, topics, queue, value)
    places = _places(cluster, answers, group, topics)
    if queue is not None:
        wanted = {one for topic in {place.topic for place in places}
                  for one in named_queues(require_topic(cluster, topic), queue)}  # fmt: skip
        places = {one: place for one, place in places.items() if one in wanted}
    goal = _goal(cluster, name, value)
    return [_nearest(one, place, goal(one, place)) for one, place in places.items()]


def _plan_file(
    cluster: Cluster, answers: Answers, group: str, topics: Sequence[str], queue: str | None, path: Path
) -> list[tuple[MessageQueue, _Place, int, int]]:
    from rmq_store.cli.cluster.queues import named_queues, require_topic

    wanted = {
        one: offset
        for (topic, text), offset in read_offsets(path).items()
        if not topics or topic in topics
        for one in named_queues(require_topic(cluster, topic), text)
    }
    if queue is not None:
        known = {topic: set(named_queues(require_topic(cluster, topic), queue)) for topic in {q.topic for q in wanted}}
        wanted = {one: offset for one, offset in wanted.items() if one in known[one.topic]}
    places = _places(cluster, answers, group, sorted({one.topic for one in wanted}))
    return [_nearest(one, places[one], offset) for one, offset in sorted(wanted.items()) if one in places]


def _goal(cluster: Cluster, name: str, value: Any) -> Callable[[MessageQueue, _Place], int]:
    from rmq_store.remoting.cluster.offsets import search_offset

    if name == "to_time":
        timestamp_ms = parse_time(value, time.time_ns() // 1_000_000)
        return lambda queue, place: search_offset(cluster, queue, timestamp_ms)
    goals: dict[str, Callable[[MessageQueue, _Place], int]] = {
        "to_earliest": lambda queue, place: place[0],
        "to_latest": lambda queue, place: place[1],
        "to_offset": lambda queue, place: int(value),
        "shift": lambda queue, place: (place[0] if place[2] is None else place[2]) + int(value),
    }
    return goals[name]


def _nearest(queue: MessageQueue, place: _Place, wanted: int) -> tuple[MessageQueue, _Place, int, int]:
    return queue, place, wanted, min(max(wanted, place[0]), place[1])


def _members(cluster: Cluster, group: str) -> list[str]:
    """The ids of the members that are online, at any broker."""
    from rmq_store.remoting.cluster.groups import consumer_connections

    connections = consumer_connections(cluster, group).values()
    return sorted({client.client_id for found in connections for client in found.connection_set})


def _place(queue: MessageQueue, start: int, end: int, committed: int | None) -> dict[str, Any]:
    return {
        "topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id, "minOffset": start,
        "maxOffset": end, "committedOffset": committed, "lag": end - (committed or 0),
    }  # fmt: skip


def _change(queue: MessageQueue, place: _Place, wanted: int, then: int) -> dict[str, Any]:
    shown = _place(queue, *place)
    lag = shown.pop("lag")
    return {**shown, "newOffset": then, "lag": lag, "newLag": place[1] - then, "outside": wanted != then}
