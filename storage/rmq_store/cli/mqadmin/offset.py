"""Moving offsets as mqadmin does. Source: tools/command/offset/*.java, DefaultMQAdminExtImpl#resetOffsetByTimestampOld.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from rmq_store.cli.mqadmin.common import Target, choosing, mqadmin_command, offsets_of
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.mqadmin_print.offsets import ResetTo, reset_head, write_offsets
from rmq_store.cli.shared.completion import GROUP, TOPIC
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.shared.times import parse_time
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.cli.mqadmin_targets.cluster_offsets import ClusterClone, ClusterReset
    from rmq_store.cli.mqadmin_targets.store_offsets import StorePlan

_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)

_BEHIND_THE_NEWEST = -1


@mqadmin_command(
    "resetOffsetByTime",
    short_help="Move a group to a time.",
    epilog="\b\nExamples:\n"
    "  rmq resetOffsetByTime -g cg_orders -t Orders -s 2026-11-21#08:00:00:000 --store /data/store\n"
    "  rmq resetOffsetByTime -g cg_orders -t Orders -s now --dry-run --store /data/store",
)
@changing_options
@click.option("-g", "--group", type=GROUP, required=True, help="Name of the group.")
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option("-s", "--timestamp", required=True, metavar="TIME",
              help="now, ms since 1970 (-1: behind the newest), yyyy-MM-dd#HH:mm:ss:SSS (UTC), ISO 8601.")  # fmt: skip
@click.option(
    "-f", "--force", type=bool, default=True, show_default=True, help="false: move offsets only back, never forward."
)
@click.option("-q", "--queue", type=click.IntRange(0), help="Only this queue.")
@click.option("-o", "--offset", type=click.IntRange(0), help="With -q: move to this offset instead of the time.")
@choosing("bc")
def reset_offset_by_time(
    target: Target, as_json: bool, group: str, topic: str, timestamp: str, force: bool, queue: int | None,
    offset: int | None, dry_run: bool, yes: bool, **chosen: str | None,
) -> None:  # fmt: skip
    """Move a group to the first message of each queue that was stored at a time or later.

    [store: `rmq offsets reset` has more ways, and shows the lag before and after.][cluster: Each master of the topic is
    told first, so that members that run go on at the new offsets. A broker older than 5.0 refuses if no member is
    online; then the offsets are written. While members run, it sets only queues that may be written: stderr names the
    others, and the exit code is 1. With -q, name the broker by -b.]
    """
    if offset is not None and queue is None:
        raise UsageError("-o needs -q: one offset does not fit every queue")
    if queue is not None and isinstance(target, ClusterTarget) and chosen.get("broker_address") is None:
        raise UsageError("-q needs -b: each broker has a queue of this number")
    with offsets_of(target, chosen) as offsets:
        time_ms = _timestamp_ms(timestamp, offsets.now_ms())
        plan = offsets.reset(group, topic, ResetTo(time_ms, force, queue, offset))
        if not as_json:
            head = reset_head(group, topic, force, timestamp, time_ms)
            write_offsets(plan.rows, head, "#resetOffset")
        _run(plan, group, as_json=as_json, dry_run=dry_run, yes=yes)
    _require_all(plan)


@mqadmin_command(
    "skipAccumulatedMessage",
    short_help="Move a group to the ends of the queues.",
    epilog="\b\nExample:\n  rmq skipAccumulatedMessage -g cg_orders -t Orders --dry-run --store /data/store",
)
@changing_options
@click.option("-g", "--group", type=GROUP, required=True, help="Name of the group.")
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option(
    "-f", "--force", type=bool, default=True, show_default=True, help="false: move offsets only back, never forward."
)
@choosing("c")
def skip_accumulated_message(
    target: Target, as_json: bool, group: str, topic: str, force: bool, dry_run: bool, yes: bool, **chosen: str | None
) -> None:
    """Move a group to the end of each queue of a topic[cluster: , at all of its masters]: it skips all messages before.
    """
    with offsets_of(target, chosen) as offsets:
        plan = offsets.reset(group, topic, ResetTo(_BEHIND_THE_NEWEST, force))
        if not as_json:
            write_offsets(plan.rows, "", "#rollbackOffset")
        _run(plan, group, as_json=as_json, dry_run=dry_run, yes=yes)
    _require_all(plan)


@mqadmin_command(
    "cloneGroupOffset",
    short_help="Copy the offsets of another group.",
    epilog="\b\nExample:\n  rmq cloneGroupOffset -s cg_orders -d cg_audit -t Orders --store /data/store",
)
@changing_options
@click.option("-s", "--srcGroup", "source", type=GROUP, required=True,
              help="Group whose offsets are copied.")  # fmt: skip
@click.option("-d", "--destGroup", "target_group", type=GROUP, required=True,
              help="Group whose offsets are set; it may be a new group.")  # fmt: skip
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option("-o", "--offline", hidden=True, expose_value=False)
def clone_group_offset(
    target: Target, as_json: bool, source: str, target_group: str, topic: str, dry_run: bool, yes: bool
) -> None:
    """Set a group's offsets on a topic to those of another group.[cluster:  The group that gets them must have no
    members: they would write their own offsets again.]

    [cluster: A broker that has a reset for the group which is not delivered yet keeps that one: stderr says so, and the
    exit code is 1. Brokers of 4.x do not tell offset 0 from no offset: stderr names queues that are left out for it.]
    """
    with offsets_of(target) as offsets:
        plan = offsets.clone(source, target_group, topic)
        for row in plan.rows:
            broker = f" {row.broker_name}" if isinstance(target, ClusterTarget) else ""
            now = "no offset" if row.consumer_offset is None else row.consumer_offset
            text = f"{row.topic}{broker} queue {row.queue_id}: {now} -> {row.timestamp_offset}"
            click.echo(printable(text), err=True)
        _run(plan, target_group, as_json=as_json, dry_run=dry_run, yes=yes)
        if not (as_json or dry_run or plan.is_partial):
            text = "clone group offset success. srcGroup[%s], destGroup=[%s], topic[%s]"
            write_line(text, source, target_group, topic)
    _require_all(plan)


def _run(
    plan: StorePlan | ClusterReset | ClusterClone, group: str, *, as_json: bool, dry_run: bool, yes: bool
) -> None:
    """Ask, set the offsets, and print what is done."""
    plan.check(dry_run=dry_run)
    count = sum(row.goes for row in plan.rows)
    if count and not dry_run:
        confirm(f"Set {count} offsets of group {printable(group)}?", yes=yes)
        plan.carry_out()
    if as_json:
        write_json(plan.as_json(dry_run=dry_run))
    for line in plan.remarks:
        click.echo(printable(line), err=True)


def _require_all(plan: StorePlan | ClusterReset | ClusterClone) -> None:
    """End with exit code 1 if some queues are not set; stderr has named them."""
    if plan.is_partial:
        raise click.exceptions.Exit(1)


def _timestamp_ms(text: str, now_ms: int) -> int:
    """Any number of milliseconds, RocketMQ's forms of a time, or ISO 8601. UsageError."""
    return int(text) if _NUMBER.fullmatch(text.strip()) else parse_time(text, now_ms)


COMMANDS = (reset_offset_by_time, skip_accumulated_message, clone_group_offset)
