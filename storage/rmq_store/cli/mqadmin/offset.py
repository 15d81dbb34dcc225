"""Moving offsets as mqadmin does while no consumer is online. Source: tools/command/offset/*.java,
DefaultMQAdminExtImpl#resetOffsetByTimestampOld.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mqadmin.common import mqadmin_options
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.mqadmin_print.offsets import OffsetRow, reset_head, write_offsets
from rmq_store.cli.shared.completion import GROUP, TOPIC
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.name_lookup import require_group, require_topic
from rmq_store.cli.shared.output import open_store, open_to_write, printable, write_json
from rmq_store.cli.shared.times import parse_time
from rmq_store.errors import UsageError
from rmq_store.late.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.offset_reset import OffsetChange

_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)

_BEHIND_THE_NEWEST = -1


@click.command(
    "resetOffsetByTime",
    short_help="Move a group to a time.",
    epilog="\b\nExamples:\n"
    "  rmq resetOffsetByTime -g cg_orders -t Orders -s 2026-11-21#08:00:00:000 --store /data/store\n"
    "  rmq resetOffsetByTime -g cg_orders -t Orders -s now --dry-run --store /data/store",
)
@mqadmin_options()
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
def reset_offset_by_time(
    root: Path, as_json: bool, group: str, topic: str, timestamp: str, force: bool, queue: int | None,
    offset: int | None, dry_run: bool, yes: bool,
) -> None:  # fmt: skip
    """Move a group to the first message of each queue that was stored at a time or later.

    `rmq offsets reset` has more ways, and shows the lag before and after.
    """
    if offset is not None and queue is None:
        raise UsageError("-o needs -q: one offset does not fit every queue")
    with open_store(root) as store:
        time_ms = timestamp_ms(timestamp, store.clock())
    head = reset_head(group, topic, force, timestamp, time_ms)
    _Reset(group, topic, time_ms, force, queue, offset).run(root, as_json, dry_run, yes, head, "#resetOffset")


@click.command(
    "skipAccumulatedMessage",
    short_help="Move a group to the ends of the queues.",
    epilog="\b\nExample:\n  rmq skipAccumulatedMessage -g cg_orders -t Orders --dry-run --store /data/store",
)
@mqadmin_options()
@changing_options
@click.option("-g", "--group", type=GROUP, required=True, help="Name of the group.")
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option(
    "-f", "--force", type=bool, default=True, show_default=True, help="false: move offsets only back, never forward."
)
def skip_accumulated_message(
    root: Path, as_json: bool, group: str, topic: str, force: bool, dry_run: bool, yes: bool
) -> None:
    """Move a group to the end of each queue of a topic: it skips all messages before."""
    _Reset(group, topic, _BEHIND_THE_NEWEST, force).run(root, as_json, dry_run, yes, "", "#rollbackOffset")


@click.command(
    "cloneGroupOffset",
    short_help="Copy the offsets of another group.",
    epilog="\b\nExample:\n  rmq cloneGroupOffset -s cg_orders -d cg_audit -t Orders --store /data/store",
)
@mqadmin_options()
@changing_options
@click.option("-s", "--srcGroup", "source", type=GROUP, required=True,
              help="Group whose offsets are copied.")  # fmt: skip
@click.option("-d", "--destGroup", "target_group", type=GROUP, required=True,
              help="Group whose offsets are set; it may be a new group.")  # fmt: skip
@click.option("-t", "--topic", type=TOPIC, required=True, help="Name of the topic.")
@click.option("-o", "--offline", hidden=True, expose_value=False)
def clone_group_offset(
    root: Path, as_json: bool, source: str, target_group: str, topic: str, dry_run: bool, yes: bool
) -> None:
    """Set a group's offsets on a topic to those of another group."""
    from rmq_store.broker.monitoring.active_consumers import require_idle
    from rmq_store.broker.monitoring.offset_reset import apply_reset, given, plan_reset

    def plan(store: Store) -> list[OffsetChange]:
        offsets = store.committed_offsets(require_group(store, source))
        changes = plan_reset(store, target_group, [require_topic(store, topic)], given(offsets))
        if not changes:
            raise UsageError(f"group {source!r} has no offsets on topic {topic!r}: nothing to clone")
        return changes

    with open_store(root) as store:
        changes = plan(store)
        for change in changes:
            now = "no offset" if change.place.committed is None else change.place.committed
            click.echo(printable(f"{topic} queue {change.place.queue_id}: {now} -> {change.then}"), err=True)
        if not dry_run:
            require_idle(store, target_group)
    if not dry_run:
        confirm(f"Set {len(changes)} offsets of group {printable(target_group)}?", yes=yes)
        with open_to_write(root) as store:
            apply_reset(store, target_group, plan(store))
    if as_json:
        write_json({"reset": not dry_run, "queues": [_json(change) for change in changes]})
    elif not dry_run:
        write_line("clone group offset success. srcGroup[%s], destGroup=[%s], topic[%s]", source, target_group, topic)


def timestamp_ms(text: str, now_ms: int) -> int:
    """Any number of milliseconds, RocketMQ's forms of a time, or ISO 8601. UsageError."""
    return int(text) if _NUMBER.fullmatch(text.strip()) else parse_time(text, now_ms)


@dataclass(frozen=True)
class _Reset:
    """A reset of one group on one topic; to `offset`, or else to a time."""

    group: str
    topic: str
    time_ms: int
    force: bool
    queue: int | None = None
    offset: int | None = None

    def run(self, root: Path, as_json: bool, dry_run: bool, yes: bool, head: str, last_column: str) -> None:
        from rmq_store.broker.monitoring.active_consumers import require_idle
        from rmq_store.broker.monitoring.offset_reset import apply_reset

        with open_store(root) as store:
            require_group(store, self.group)
            changes = self._plan(store)
            if not as_json:
                shown = [self._shown(change, store.broker_name) for change in changes]
                write_offsets(shown, head, last_column)
            if not dry_run:
                require_idle(store, self.group)
        going = [change for change in changes if self._goes(change)]
        if going and not dry_run:
            confirm(f"Set {len(going)} offsets of group {printable(self.group)}?", yes=yes)
            with open_to_write(root) as store:
                going = [change for change in self._plan(store) if self._goes(change)]
                apply_reset(store, self.group, going)
        if as_json:
            write_json({"reset": not dry_run, "queues": [_json(change) for change in going]})

    def _plan(self, store: Store) -> list[OffsetChange]:
        from rmq_store.broker.monitoring.offset_reset import at_offset, at_time, plan_reset

        target = at_time(store, self.time_ms) if self.offset is None else at_offset(self.offset)
        return plan_reset(store, self.group, [require_topic(store, self.topic)], target, queue_id=self.queue)

    def _goes(self, change: OffsetChange) -> bool:
        return self.force or change.then <= (change.place.committed or 0)

    def _shown(self, change: OffsetChange, broker: str) -> OffsetRow:
        place = change.place
        return OffsetRow(
            broker, place.queue_id, place.max_offset, place.committed, change.then, goes=self._goes(change)
        )


def _json(change: OffsetChange) -> dict[str, Any]:
    place = change.place
    return {
        "topic": place.topic,
        "queueId": place.queue_id,
        "brokerOffset": place.max_offset,
        "consumerOffset": place.committed,
        "resetOffset": change.then,
    }


COMMANDS = (reset_offset_by_time, skip_accumulated_message, clone_group_offset)
