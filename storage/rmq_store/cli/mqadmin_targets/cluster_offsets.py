"""The offsets of groups at the brokers of a cluster: plans to set them.

Source: ResetOffsetByTimeCommand.java, SkipAccumulationSubCommand.java, CloneGroupOffsetCommand.java. mqadmin's clone
writes the ends of the queues, not the offsets of the source, and it does so for all topics of the source: here the
offsets of one topic are copied.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mqadmin_print.offsets import OffsetRow, ResetTo, offset_json
from rmq_store.cli.mqadmin_targets.cluster_scope import Scope, masters_of, require_route
from rmq_store.cli.shared.output import printable
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.remoting.admin.resets import ResetDone
    from rmq_store.remoting.admin.scope import BrokerProcess


@dataclass
class ClusterReset:
    """A reset of a group at the masters of a topic. `planned`: master -> its queues, with the offsets now and then."""

    scope: Scope
    group: str
    topic: str
    to: ResetTo
    planned: Sequence[tuple[BrokerProcess, Mapping[MessageQueue, OffsetRow]]]

    def __post_init__(self) -> None:
        self._done: dict[str, ResetDone] = {}

    @property
    def rows(self) -> list[OffsetRow]:
        """Of all masters that have answered."""
        return [row for _, found in self.planned for row in found.values()]

    def check(self, *, dry_run: bool) -> None:
        """Members may run: the brokers tell them."""

    def carry_out(self) -> None:
        """Tell each master, so that members that run go on at the new offsets; write them where a broker refuses."""
        from rmq_store.remoting.admin.resets import reset_at
        from rmq_store.remoting.questions.offsets import ALL_QUEUES

        queue_id = ALL_QUEUES if self.to.queue is None else self.to.queue
        for process, found in self.planned:
            wanted = {queue: row.timestamp_offset for queue, row in found.items() if row.goes}
            if wanted:
                call = partial(
                    reset_at, self.scope.cluster, process, self.group, self.topic, self.to.time_ms,
                    force=self.to.force, wanted=wanted, queue_id=queue_id, offset=self.to.offset,
                )  # fmt: skip
                one = self.scope.report.ask(process, call)
                if one is not None:
                    self._done[process.broker_name] = one

    @property
    def remarks(self) -> list[str]:
        """The way of each broker to set the offsets, and the queues that one has not set."""
        lines = [f"{name}: {done.way}" for name, done in sorted(self._done.items())]
        for name, done in sorted(self._done.items()):
            if done.left_out:
                numbers = ", ".join(str(queue.queue_id) for queue in done.left_out)
                lines.append(
                    f"rmq: {name} has not set queue {numbers}: a broker of 4.x sets only queues that may be written "
                    "while members run; stop the members and repeat the command"
                )
        return lines

    @property
    def is_partial(self) -> bool:
        """Whether a broker has left out queues."""
        return any(done.left_out for done in self._done.values())

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        """The queues that are set, or would be, and how each broker has set them."""
        queues = []
        for queue, row in ((queue, row) for _, found in self.planned for queue, row in found.items() if row.goes):
            done = self._done.get(queue.broker_name)
            if (done is None and not dry_run) or (done is not None and queue in done.left_out):
                continue
            then = row.timestamp_offset if done is None else done.offsets.get(queue, row.timestamp_offset)
            queues.append(offset_json(row._replace(timestamp_offset=then), with_broker=True))
        brokers = {name: str(done.way) for name, done in self._done.items()}
        return {"reset": bool(self._done), "queues": queues, "brokers": brokers}


@dataclass
class ClusterClone:
    """Offsets of a group on a topic that would be those of another group. The group must have no members."""

    scope: Scope
    group: str
    masters: Sequence[BrokerProcess]
    planned: Mapping[MessageQueue, OffsetRow]

    def __post_init__(self) -> None:
        self._kept: dict[MessageQueue, int] = {}

    @property
    def rows(self) -> list[OffsetRow]:
        """One for each queue in which the source has an offset."""
        return list(self.planned.values())

    def check(self, *, dry_run: bool) -> None:
        """Raise UsageError if the group has members, which would write their own offsets again. MQBrokerError,
        RemotingError: a broker does not tell them: there may be some.
        """
        from rmq_store.cli.target.failure_report import ProcessFailureReport
        from rmq_store.remoting.questions.groups import ask_consumer_connections, read_consumer_connections

        asked = self.scope._replace(report=ProcessFailureReport())
        command = ask_consumer_connections(self.scope.cluster, self.group)
        answers = asked.ask_each(self.masters, command, read_consumer_connections)
        asked.report.require_all()
        names = sorted({one.client_id for _, online in answers for one in online.connection_set})
        if names and not dry_run:
            raise UsageError(f"group {self.group!r} has running members, stop them first: {', '.join(names)}")

    def carry_out(self) -> None:
        """Write the offsets; make the group where it is not: brokers of 5.x take offsets of groups that they know."""
        from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
        from rmq_store.remoting.admin.groups import group_config
        from rmq_store.remoting.admin.scope import ask
        from rmq_store.remoting.cluster import offsets
        from rmq_store.remoting.questions.answer import checked
        from rmq_store.remoting.questions.groups import ask_update_group

        cluster = self.scope.cluster
        for process in self.masters:
            if group_config(cluster, process, self.group) is None:
                config = SubscriptionGroupConfig(group_name=cluster.wire_group(self.group))
                ask(cluster, process, ask_update_group(config), checked)
        wanted = {queue: row.timestamp_offset for queue, row in self.planned.items()}
        stands = offsets.update_consumer_offsets(cluster, self.group, wanted)
        self._kept = {queue: stands[queue] for queue, then in wanted.items() if stands[queue] != then}

    @property
    def remarks(self) -> list[str]:
        """The queues that keep their offset: a broker has a reset for the group that is not delivered yet."""
        return [
            f"{_text_of(queue)}: stays at {offset}: another reset is pending" for queue, offset in self._kept.items()
        ]

    @property
    def is_partial(self) -> bool:
        """Whether some queues keep their offset."""
        return bool(self._kept)

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        """The queues, and their offsets then."""
        rows = [
            row._replace(timestamp_offset=self._kept.get(queue, row.timestamp_offset))
            for queue, row in self.planned.items()
        ]
        is_reset = not dry_run and not self._kept
        return {"reset": is_reset, "queues": [offset_json(row, with_broker=True) for row in rows]}


class ClusterOffsets:
    """Plans for the offsets of groups at the brokers of a scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._cluster = scope.cluster

    def now_ms(self) -> int:
        """The time of this machine."""
        return time.time_ns() // 1_000_000

    def reset(self, group: str, topic: str, to: ResetTo) -> ClusterReset:
        """UnknownTopicError, UsageError: no broker has the topic, or the chosen one not this queue."""
        masters = self._scope.masters_of(topic)
        planned = self._scope.report.ask_each(masters, partial(self._plan, group, topic, to))
        return ClusterReset(self._scope, group, topic, to, planned)

    def clone(self, source: str, group: str, topic: str) -> ClusterClone:
        """The offsets of `source` for `group`, without those that may be none: stderr names these queues. UsageError:
        no broker has the topic, or there is nothing to clone.
        """
        from rmq_store.remoting.cluster import offsets

        cluster = self._cluster
        route = require_route(cluster, topic)
        ends = offsets.queue_ranges(cluster, route.read_queues())
        given = {}
        for queue, one in sorted(offsets.query_consumer_offsets(cluster, source, route.read_queues()).items()):
            if one.may_be_none:
                text = f"left out: the broker is older than 5.0, and answers 0 whether or not {source} has an offset"
                click.echo(printable(f"{_text_of(queue)}: {text}"), err=True)
            else:
                given[queue] = one.offset
        if not given:
            raise UsageError(f"group {source!r} has no offsets on topic {topic!r}: nothing to clone")
        now = offsets.query_consumer_offsets(cluster, group, given)
        planned = {
            queue: _row(queue, ends[queue].max_offset, now[queue].offset if queue in now else None, then, goes=True)
            for queue, then in given.items()
        }
        return ClusterClone(self._scope, group, masters_of(route), planned)

    def _plan(self, group: str, topic: str, to: ResetTo, process: BrokerProcess) -> dict[MessageQueue, OffsetRow]:
        """The queues of one broker, with the offsets now and then."""
        from rmq_store.remoting.cluster import offsets

        cluster = self._cluster
        queues = [
            queue
            for queue in cluster.known_route(topic).read_queues()
            if queue.broker_name == process.broker_name and to.queue in (None, queue.queue_id)
        ]
        if not queues:
            raise UsageError(f"topic {topic!r} has no such queue at broker {process.broker_name}")
        ends = offsets.queue_ranges(cluster, queues)
        now = offsets.query_consumer_offsets(cluster, group, queues)
        rows = {}
        for queue in queues:
            committed = now[queue].offset if queue in now else None
            end = ends[queue].max_offset
            if to.offset is not None:
                then = to.offset
            else:
                then = end if to.time_ms < 0 else offsets.search_offset(cluster, queue, to.time_ms)
            rows[queue] = _row(queue, end, committed, then, goes=to.goes(committed, then))
        return rows


def _row(queue: MessageQueue, end: int, now: int | None, then: int, *, goes: bool) -> OffsetRow:
    return OffsetRow(queue.topic, queue.broker_name, queue.queue_id, end, now, then, goes)


def _text_of(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name} queue {queue.queue_id}"
