"""`rmq checkpoint`: show the checkpoint of a stream, compare it with its store, write one that begins elsewhere, take a
broker of its cluster out that never comes back, commit for its group what it has completed.

`rmq` finds `PLUGIN` by the entry point `checkpoint` of the group `rmq.commands` (setup.py). Only `commit-group` needs
PySpark, and starts no Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.plugin import (
    GROUP,
    TOPIC,
    ClusterCommand,
    ClusterTarget,
    Plugin,
    changing_options,
    cluster_options,
    common_options,
    confirm,
    one_of,
    open_store,
    printable,
    require_group,
    target,
    target_options,
    wide_option,
    write_json,
)

if TYPE_CHECKING:
    from pyspark_rmq.checkpoint.forgetting import Forgetting
    from pyspark_rmq.checkpoint.reading import Checkpoint
    from pyspark_rmq.checkpoint.rewinding import Rewind
    from rmq_store import Store
    from rmq_store.cluster import Cluster


@click.group(short_help="A stream's checkpoint: show, compare, rewind.")
def checkpoint() -> None:
    """The checkpoint of a Spark stream: show it, compare it with its store, make a new one with other positions, take
    a broker out that never comes back, or commit for its group.

    Spark is not needed. A checkpoint must be a local directory: copy one from another file system first.
    """


@checkpoint.command(
    short_help="Its batches, and the positions of its sources.",
    epilog="\b\nExamples:\n  rmq checkpoint show /data/checkpoint\n  rmq checkpoint show /data/checkpoint --batch 41",
)
@click.argument("location", metavar="CHECKPOINT")
@click.option(
    "--batch", type=click.IntRange(0), metavar="N", help="Show the position at the end of this batch instead."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@wide_option
def show(location: str, batch: int | None, as_json: bool) -> None:
    """The query of a checkpoint, its batches, and the position of each source in each queue.

    COMMITTED is the first unread message after the last committed batch, PLANNED the same after the last planned batch.
    If these are not one batch, the query runs the planned batch again when it starts.
    """
    from pyspark_rmq.checkpoint.reading import open_checkpoint
    from pyspark_rmq.checkpoint.showing import checkpoint_json, write_checkpoint

    found = open_checkpoint(location)
    number = found.last if batch is None else batch
    planned = None if number is None else found.batch(number)
    done = None if number is None else number if batch is not None else found.done
    before = None if done is None else found.batch(done)
    if as_json:
        write_json(checkpoint_json(found, planned, before))
    else:
        write_checkpoint(found, planned, before)


@checkpoint.command(
    short_help="Whether a query can continue from it, for each queue.",
    epilog="\b\nExample:\n  rmq checkpoint diff /data/checkpoint --group cg_orders --store /data/rocketmq/store",
)
@common_options
@wide_option
@click.argument("location", metavar="CHECKPOINT")
@click.option("-g", "--group", type=GROUP, metavar="GROUP",
              help="Show the committed offsets of this group, and their distance to the positions.")  # fmt: skip
def diff(root: Path, as_json: bool, location: str, group: str | None) -> None:
    """Compare the position of a stream with the messages in the store, and with the committed offsets of a group.

    POSITION is the first unread message, BEHIND the number of unread messages, AHEAD the distance from the group's
    committed offset to the checkpoint's position. Sources of other stores are left out, unless all sources are of other
    stores.

    \b
    STATE
      in range                the query can continue
      overtaken by retention  retention has deleted messages that the query has not read
      ahead of the log        the query has read messages that the store does not have: it was set back
      other messages          the messages before the position differ: the store was set back or replaced
      no such topic           the topic was deleted
      closed queue            unread messages are in a queue beyond readQueueNums
      other store             the checkpoint belongs to another store
    Exit codes: 0 the query can continue in all queues; 1 not in all; 2 wrong arguments.
    """
    from pyspark_rmq.checkpoint.comparing import IN_RANGE, compare
    from pyspark_rmq.checkpoint.reading import open_checkpoint
    from pyspark_rmq.checkpoint.showing import state_json, write_states

    standings = open_checkpoint(location).standings()
    with open_store(root) as store:
        states = compare(store, standings, None if group is None else require_group(store, group))
    if as_json:
        write_json([state_json(state) for state in states])
    else:
        write_states(states, with_group=group is not None)
    stuck = sum(state.state != IN_RANGE for state in states)
    if stuck:
        advice = "`rmq checkpoint rewind` makes one that can"
        click.echo(f"rmq: {stuck} of {len(states)} queues cannot go on; {advice}", err=True)
    sys.exit(1 if stuck else 0)


@checkpoint.command(
    short_help="Write a new checkpoint with other positions.",
    epilog="\b\nExamples:\n  rmq checkpoint rewind /data/checkpoint /data/checkpoint-again --to-time 1h --dry-run\n"
    "  rmq checkpoint rewind /data/checkpoint /data/checkpoint-again -t Orders --shift -100 --yes",
)
@common_options
@wide_option
@changing_options
@click.argument("location", metavar="CHECKPOINT")
@click.argument("new", metavar="NEW_CHECKPOINT")
@click.option("-t", "--topic", "topics", type=TOPIC, multiple=True, help="Only this topic; may be repeated.")
@click.option("--queue", type=click.IntRange(0), help="Only this queue.")
@target_options
@click.option("--to-batch", type=click.IntRange(0), metavar="N", help="To the end of this batch.")
@click.option("--to-group", type=GROUP, metavar="GROUP", help="To the committed offsets of this group.")
@click.option("--drop-state", is_flag=True, help="For a query with state: start without state, at batch 0.")
def rewind(
    root: Path, as_json: bool, location: str, new: str, topics: tuple[str, ...], queue: int | None, dry_run: bool,
    yes: bool, drop_state: bool, **asked: Any,
) -> None:  # fmt: skip
    """Write a new checkpoint with which the same query starts at other positions. The old one stays as it is.

    Without -t, all topics except %RETRY% topics are moved; --to-batch also moves those, and sources of other formats.
    --shift counts from the current position; --shift 0 moves only positions outside of their queue, to the nearest end.
    AGAIN counts messages that were read and will be read again, SKIPPED messages that were not read and will not be
    read.

    The new checkpoint has a new query id, so a sink that writes each batch once will write the repeated messages once
    more. Its batch numbers continue after the last one of the old checkpoint. The command is refused while a consumer
    or stream of the group runs whose %RETRY% topic the query reads. A query without such a topic cannot be recognised
    as running.
    """
    from pyspark_rmq.checkpoint.reading import local_directory, open_checkpoint
    from pyspark_rmq.checkpoint.rewinding import check_target, write_rewind
    from pyspark_rmq.checkpoint.showing import move_json, notes, write_plan

    found, path = open_checkpoint(location), local_directory(new)
    check_target(found, path)
    with open_store(root) as store:
        plan = _plan(store, found, topics, queue, drop_state, asked)
        if not as_json:
            write_plan(plan)
        for note in notes(plan):
            click.echo(f"rmq: {printable(note)}", err=True)
        _require_idle(store, plan, asked["to_group"], dry_run=dry_run)
    again, skipped = sum(move.again for move in plan.moves), sum(move.skipped for move in plan.moves)
    query_id = None
    if not dry_run:
        confirm(f"Write {printable(str(path))}: {again} messages again, {skipped} skipped?", yes=yes)
        query_id = write_rewind(plan, path)
    if as_json:
        queues = [move_json(move) for move in plan.moves]
        write_json({"written": not dry_run, "queryId": query_id, "batch": plan.batch, "again": again,
                    "skipped": skipped, "queues": queues})  # fmt: skip
    elif query_id is not None:
        click.echo(printable(f"{path}: query {query_id}, {again} messages again, {skipped} skipped"), err=True)


def _plan(
    store: Store, found: Checkpoint, topics: tuple[str, ...], queue: int | None, drop_state: bool, asked: dict[str, Any]
) -> Rewind:
    from pyspark_rmq.checkpoint.rewinding import Selection, plan_rewind
    from rmq_store.cli.plugin import given

    name, value = one_of(asked)
    targets: dict[str, Callable[[], Any]] = {
        "to_batch": lambda: found.batch(value),
        "to_group": lambda: given(store.committed_offsets(require_group(store, value))),
    }
    aim = targets[name]() if name in targets else target(store, name, value)
    return plan_rewind(store, found, aim, Selection(topics, queue), drop_state=drop_state)


def _require_idle(store: Store, plan: Rewind, group: str | None, *, dry_run: bool) -> None:
    """Of the groups that the query is known by: those of its retry topics, and `group`."""
    from rmq_store.cli.plugin import RETRY_PREFIX, active_consumers, retry_group
    from rmq_store.errors import LeaseHeldError

    queues = {queue for standing in plan.checkpoint.standings() for queue in standing.begin.next}
    groups = {retry_group(queue.topic) for queue in queues if queue.topic.startswith(RETRY_PREFIX)}
    for name in sorted(groups | ({group} if group is not None else set())):
        holders = active_consumers(store, name)
        if holders and not dry_run:
            who = "; ".join(holders)
            raise LeaseHeldError(f"stop the query first: running as its group {name!r}: {who}", holders[0])
        for who in holders:
            click.echo(printable(f"rmq: it would be refused now: running as its group {name!r}: {who}"), err=True)


@checkpoint.command(
    "forget-broker",
    cls=ClusterCommand,
    short_help="Go on without a broker that never comes back.",
    epilog="\b\nExamples:\n  rmq -n ns1:9876 checkpoint forget-broker /data/checkpoint broker-b --dry-run\n"
    "  rmq -n ns1:9876 checkpoint forget-broker /data/checkpoint broker-b --yes",
)
@cluster_options()
@wide_option
@changing_options
@click.argument("location", metavar="CHECKPOINT")
@click.argument("broker", metavar="BROKER")
@click.option("-g", "--group", "groups", type=GROUP, multiple=True, metavar="GROUP",
              help="The group of the query; may be repeated. Groups of its %RETRY% topics are known.")  # fmt: skip
@click.option("--replaced", is_flag=True,
              help="The broker that answers under this name is another one, without what the old one had.")  # fmt: skip
def forget_broker(
    target: ClusterTarget, as_json: bool, location: str, broker: str, groups: tuple[str, ...], dry_run: bool,
    yes: bool, replaced: bool,
) -> None:  # fmt: skip
    """Take a broker of a cluster that never comes back out of a stream's checkpoint, so that the query goes on without
    it. Stop the query first.

    POSITION is the first message that was not read, PLANNED the end of the batch that runs again, END the last end that
    anybody knows, LOST the number of messages between. They are lost, and so are the committed offsets of groups at
    this broker, and the records of sinks there, for all sinks of the cluster: of a batch whose only record was there,
    rows may be stored twice.

    The checkpoint is changed at its place, and keeps query id, state and watermark. The old text of each file that is
    changed stays beside it. A broker of the same name that is there later begins as a new one: never start the old one
    again.
    """
    from pyspark_rmq.checkpoint.forgetting import plan_forgetting, queues_of, write_forgetting
    from pyspark_rmq.checkpoint.reading import open_checkpoint
    from pyspark_rmq.checkpoint.showing import forgetting_json, forgetting_notes, write_lost_queues
    from rmq_store.cluster import Holders, RecordTopic
    from rmq_store.errors import UsageError

    found = open_checkpoint(location)
    with target.open() as cluster:
        _require_gone(cluster, broker, replaced=replaced)
        known = {} if replaced else _known_ends(cluster, queues_of(found, broker))
        plan = plan_forgetting(found, broker, f"cluster:{cluster.name}", known)
        known_groups = _groups_of(plan, groups)
        records = RecordTopic.of_command(cluster, target.pull_group)
        holders: Holders | None = records.holders(without=broker)
        is_holder = holders is not None and broker in holders.brokers
        if not plan.queues and not is_holder:
            raise UsageError(
                f"{location}: no position names a broker {broker!r} of the cluster {cluster.name!r}, and no list of "
                "brokers that have records of sinks does"
            )
        if not as_json:
            write_lost_queues(plan)
        for note in forgetting_notes(plan, holders, known_groups):
            click.echo(f"rmq: {printable(note)}", err=True)
        _require_stopped(cluster, known_groups, dry_run=dry_run)
        if not dry_run:
            confirm(f"Forget broker {printable(broker)} in {printable(str(found.path))}?", yes=yes)
            write_forgetting(plan)
            if is_holder:
                holders = records.forget(broker)
    if as_json:
        write_json(forgetting_json(plan, holders, known_groups, is_holder=is_holder, written=not dry_run))
    elif not dry_run:
        click.echo(printable(f"{found.path}: {len(plan.queues)} queues of {broker} forgotten"), err=True)


def _require_gone(cluster: Cluster, broker: str, *, replaced: bool) -> None:
    """UsageError: a master of this name answers, and nobody has said that it is another one."""
    from rmq_store.cluster import At, Question, ask_runtime_info, checked, gather
    from rmq_store.errors import UsageError

    known = cluster.routes.brokers(refresh=True).get(broker)
    if replaced or known is None or known.master is None:
        return
    question = Question(broker, ask_runtime_info(), checked)
    told = gather(cluster, {broker: question}, At.MASTERS).told[broker]
    if not told.is_away:  # a refusal is an answer, too
        raise UsageError(
            f"broker {broker!r} answers at {known.master}: a query goes on with it by itself. If it is another one, "
            "which has lost what the old one had, say so by --replaced"
        )


def _known_ends(cluster: Cluster, queues: list[Any]) -> dict[Any, int]:
    """The ends of queues that a slave of their broker tells; empty without one."""
    from rmq_store.cluster import MessageQueue, gather_ranges

    names = {MessageQueue(queue.topic, queue.queue_id.broker_name, queue.queue_id.queue_id): queue for queue in queues}
    told = gather_ranges(cluster, names).told
    return {names[one]: range_.required().max_offset for one, range_ in told.items() if range_.error is None}


def _groups_of(plan: Forgetting, groups: tuple[str, ...]) -> list[str]:
    """The groups that the query is known by: those of its retry topics, and those that were given."""
    from rmq_store.cli.plugin import RETRY_PREFIX, retry_group

    last = plan.checkpoint.last
    sources = () if last is None else plan.checkpoint.batch(last).sources
    topics = {queue.topic for one in sources if one.position is not None for queue in one.position.next}
    return sorted({retry_group(topic) for topic in topics if topic.startswith(RETRY_PREFIX)} | set(groups))


def _require_stopped(cluster: Cluster, groups: list[str], *, dry_run: bool) -> None:
    from rmq_store.cluster import live_members
    from rmq_store.errors import LeaseHeldError

    for name in groups:
        members = sorted(live_members(cluster, name))
        if members and not dry_run:
            raise LeaseHeldError(
                f"stop the query first: group {name!r} has members: {', '.join(members)}", members[0]
            )
        for member in members:
            click.echo(printable(f"rmq: it would be refused now: group {name!r} has the member {member}"), err=True)


@checkpoint.command(
    "commit-group",
    short_help="Commit for its group what a stream has completed.",
    epilog="\b\nExamples:\n  rmq checkpoint commit-group /data/checkpoint --dry-run\n"
    "  rmq checkpoint commit-group /data/checkpoint --option path=/data/rocketmq/store --option group=cg_orders --yes",
)
@changing_options
@click.argument("location", metavar="CHECKPOINT")
@click.option("--option", "pairs", multiple=True, metavar="NAME=VALUE",
              help="An option of the stream that its checkpoint does not have; may be repeated.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@wide_option
def commit_group(location: str, pairs: tuple[str, ...], as_json: bool, dry_run: bool, yes: bool) -> None:
    """Commit the end of the last completed batch for the group of a stream. A batch that Spark would repeat is not
    completed.

    Needed behind the end of a run with availableNow on a Spark before 4.2, which does not ask the source again. Without
    it the next run commits. Offsets of the group that are further already stay. The command is refused while the query,
    or a consumer of the group, runs.

    A stream that ran on Spark 4.2 or newer has no options in its checkpoint: give path or nameServer, and group.
    PySpark must be installed; no Spark is started.
    """
    from pyspark_rmq.checkpoint.committing import group_ends
    from pyspark_rmq.checkpoint.showing import group_end_json, write_group_ends
    from rmq_store.errors import UsageError

    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--option {pair!r} is not NAME=VALUE")
        options[name] = value
    ends = group_ends(location, options)
    if not as_json:
        write_group_ends(ends)
    if ends and not dry_run:
        try:
            from pyspark_rmq.older_spark.group_commit import commit_position
        except ImportError as error:
            raise UsageError(f"commit-group needs PySpark: pip install 'pyspark>=4.0' ({error})") from error
        groups = ", ".join(sorted({end.group for end in ends}))
        confirm(f"Commit for group {printable(groups)}?", yes=yes)
        for end in ends:
            commit_position(end.position, end.options)
    if as_json:
        queues = [row for end in ends for row in group_end_json(end)]
        write_json({"written": bool(ends) and not dry_run, "queues": queues})


PLUGIN = Plugin("Consumers", checkpoint)
