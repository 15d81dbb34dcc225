"""Offsets of groups at the brokers of a cluster: reset by time, and skipped to the end.

Source: ResetOffsetByTimeCommand.java, SkipAccumulationSubCommand.java.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.cluster_mqadmin.common import BROKER, CLUSTER, Brokers, like, masters_of, require_route
from rmq_store.cli.cluster_mqadmin.offset_clone import queue_json
from rmq_store.cli.mqadmin import offset as store_commands
from rmq_store.cli.mqadmin.offset import timestamp_ms
from rmq_store.cli.mqadmin_print.offsets import OffsetRow, reset_head, write_offsets
from rmq_store.cli.shared.confirm import confirm
from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.target.cluster_target import ClusterTarget
from rmq_store.errors import UsageError
from rmq_store.late.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.protocol.messages import MessageQueue
    from rmq_store.remoting.admin.resets import ResetDone
    from rmq_store.remoting.admin.scope import BrokerProcess
    from rmq_store.remoting.cluster.cluster import Cluster

_BEHIND_THE_NEWEST = -1


@like(store_commands.reset_offset_by_time, BROKER, CLUSTER)
def reset_offset_by_time(
    target: ClusterTarget, as_json: bool, group: str, topic: str, timestamp: str, force: bool, queue: int | None,
    offset: int | None, dry_run: bool, yes: bool, broker_address: str | None, cluster_name: str | None,
) -> None:  # fmt: skip
    """Move a group to the first message of each queue that was stored at a time or later.

    Each master of the topic is told first, so that members that run go on at the new offsets. A broker older than 5.0
    refuses if no member is online; then the offsets are written. While members run, it sets only queues that may be
    written: stderr names the others, and the exit code is 1. With -q, name the broker by -b.
    """
    if offset is not None and queue is None:
        raise UsageError("-o needs -q: one offset does not fit every queue")
    if queue is not None and broker_address is None:
        raise UsageError("-q needs -b: each broker has a queue of this number")
    time_ms = timestamp_ms(timestamp, time.time_ns() // 1_000_000)
    head = reset_head(group, topic, force, timestamp, time_ms)
    reset = _Reset(group, topic, time_ms, force, broker_address, cluster_name, queue, offset)
    reset.run(target, as_json, dry_run, yes, head, "#resetOffset")


@like(store_commands.skip_accumulated_message, CLUSTER)
def skip_accumulated_message(
    target: ClusterTarget, as_json: bool, group: str, topic: str, force: bool, dry_run: bool, yes: bool,
    cluster_name: str | None,
) -> None:  # fmt: skip
    """Move a group to the end of each queue of a topic, at all of its masters: it skips all messages before."""
    reset = _Reset(group, topic, _BEHIND_THE_NEWEST, force, None, cluster_name)
    reset.run(target, as_json, dry_run, yes, "", "#rollbackOffset")


@dataclass(frozen=True)
class _Reset:
    """A reset of one group on one topic; to `offset`, or else to a time."""

    group: str
    topic: str
    time_ms: int
    force: bool
    broker_address: str | None
    cluster_name: str | None
    queue: int | None = None
    offset: int | None = None

    def run(
        self, target: ClusterTarget, as_json: bool, dry_run: bool, yes: bool, head: str, last_column: str
    ) -> None:
        brokers = Brokers()
        done: dict[str, ResetDone] = {}
        with target.open() as cluster:
            masters = self._masters(cluster)
            answers = brokers.ask_each(masters, partial(self._plan, cluster))
            rows = {queue: row for _, found in answers for queue, row in found.items()}
            if not as_json:
                write_offsets(list(rows.values()), head, last_column)
            going = {queue: row.timestamp_offset for queue, row in rows.items() if row.goes}
            if going and not dry_run:
                confirm(f"Set {len(going)} offsets of group {printable(self.group)}?", yes=yes)
                for process, found in answers:
                    wanted = {queue: going[queue] for queue in found if queue in going}
                    if wanted:
                        one = brokers.ask(process, partial(self._carry_out, cluster, process, wanted))
                        if one is not None:
                            done[process.broker_name] = one
        if as_json:
            write_json(self._json(rows, going, done, dry_run=dry_run))
        for broker_name, result in sorted(done.items()):
            click.echo(printable(f"{broker_name}: {result.way}"), err=True)
        left_out = [(name, result.left_out) for name, result in sorted(done.items()) if result.left_out]
        for broker_name, queues in left_out:
            numbers = ", ".join(str(queue.queue_id) for queue in queues)
            text = (
                f"rmq: {broker_name} has not set queue {numbers}: a broker of 4.x sets only queues that may be "
                "written while members run; stop the members and repeat the command"
            )
            click.echo(printable(text), err=True)
        brokers.tell()
        if left_out:
            raise click.exceptions.Exit(1)

    def _masters(self, cluster: Cluster) -> list[BrokerProcess]:
        from rmq_store.remoting.admin.scope import process_at

        masters = masters_of(require_route(cluster, self.topic), self.cluster_name)
        if self.broker_address is None:
            return masters
        wanted = process_at(cluster, self.broker_address)
        found = [one for one in masters if one.broker_name == wanted.broker_name]
        if not found or found[0].address != wanted.address:
            raise UsageError(f"-b {self.broker_address}: this is no master that has the topic {self.topic!r}")
        return found

    def _plan(self, cluster: Cluster, process: BrokerProcess) -> dict[MessageQueue, OffsetRow]:
        """The queues of one broker, with the offsets now and then."""
        from rmq_store.remoting.cluster import offsets

        queues = [
            queue
            for queue in cluster.known_route(self.topic).read_queues()
            if queue.broker_name == process.broker_name and self.queue in (None, queue.queue_id)
        ]
        if not queues:
            raise UsageError(f"topic {self.topic!r} has no such queue at broker {process.broker_name}")
        ends = offsets.queue_ranges(cluster, queues)
        now = offsets.query_consumer_offsets(cluster, self.group, queues)
        rows = {}
        for queue in queues:
            committed = now[queue].offset if queue in now else None
            then = self._then(cluster, queue, ends[queue].max_offset)
            goes = self.force or then <= (committed or 0)
            rows[queue] = OffsetRow(
                queue.broker_name, queue.queue_id, ends[queue].max_offset, committed, then, goes=goes
            )
        return rows

    def _then(self, cluster: Cluster, queue: MessageQueue, end: int) -> int:
        from rmq_store.remoting.cluster import offsets

        if self.offset is not None:
            return self.offset
        return end if self.time_ms < 0 else offsets.search_offset(cluster, queue, self.time_ms)

    def _carry_out(
        self, cluster: Cluster, process: BrokerProcess, wanted: Mapping[MessageQueue, int]
    ) -> ResetDone:
        from rmq_store.remoting.admin.resets import reset_at
        from rmq_store.remoting.questions.offsets import ALL_QUEUES

        queue_id = ALL_QUEUES if self.queue is None else self.queue
        return reset_at(
            cluster, process, self.group, self.topic, self.time_ms, force=self.force, wanted=wanted,
            queue_id=queue_id, offset=self.offset,
        )  # fmt: skip

    def _json(
        self,
        rows: Mapping[MessageQueue, OffsetRow],
        going: Mapping[MessageQueue, int],
        done: Mapping[str, ResetDone],
        *,
        dry_run: bool,
    ) -> dict[str, Any]:
        queues = []
        for queue, planned in going.items():
            one = done.get(queue.broker_name)
            if (one is None and not dry_run) or (one is not None and queue in one.left_out):
                continue
            then = planned if one is None else one.offsets.get(queue, planned)
            queues.append(queue_json(queue, rows[queue].broker_offset, rows[queue].consumer_offset, then))
        return {"reset": bool(done), "queues": queues, "brokers": {name: str(one.way) for name, one in done.items()}}


COMMANDS = (reset_offset_by_time, skip_accumulated_message)
