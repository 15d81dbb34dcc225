"""Writes a new checkpoint that begins at chosen positions; the old one is only read.

The new query is another one for Spark and for every sink: it has a new id. With the old id our sinks would take the
repeated messages for a repeated batch, and refuse it (MarkerError). The batch numbers continue after the last number
that the old query planned. Some sinks recognise batches by the number alone, and would skip a number that they have
seen: Spark's file sink, and writes with txnVersion in foreachBatch.

    offsets/<n>   n: the last batch that the old query planned; ends at the chosen positions
    offsets/<n-1> a copy: Spark takes the start of n from it
    commits/<n>   n counts as completed
    sources/      a copy

State cannot be set back. Without state the new query is at batch 0, planned and not committed, because a state store
without files expects that. That batch begins and ends at the chosen positions: `began` in
pyspark_rmq.position.position. Sources: MicroBatchExecution.scala (populateStartOffsets), FileStreamSink.scala
(addBatch).
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pyspark_rmq.checkpoint.comparing import is_of
from pyspark_rmq.checkpoint.log_file import write_text
from pyspark_rmq.checkpoint.reading import Batch, Checkpoint, Commit, Standing
from pyspark_rmq.position.fingerprint import fingerprint_before
from pyspark_rmq.position.position import Queue, StreamPosition
from rmq_store.cli.plugin import RETRY_PREFIX, OffsetChange, QueuePlace, Target, copy_tree, durable
from rmq_store.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from rmq_store import Store


@dataclass(frozen=True, slots=True)
class Move:
    """A queue of a source that gets a new position. `change.place.committed` is the old one; None if it had none."""

    source: int
    change: OffsetChange

    @property
    def again(self) -> int:
        """The number of existing messages that were read and will be read again."""
        now = self.change.place.committed
        return 0 if now is None else max(min(now, self.change.place.max_offset) - self.change.then, 0)

    @property
    def skipped(self) -> int:
        """The number of existing messages that the new query leaves out and that were perhaps never read."""
        place = self.change.place
        now = place.min_offset if place.committed is None else place.committed
        return max(self.change.then - max(now, place.min_offset), 0)


@dataclass(frozen=True, slots=True)
class Rewind:
    """The content of the new checkpoint: `base` with the new positions of the moved sources, by their keys. `left_out`:
    queues that the new checkpoint lacks, because their topic is gone or the earlier batch did not have them.
    """

    checkpoint: Checkpoint
    base: Batch
    positions: Mapping[int | str, StreamPosition]
    moves: tuple[Move, ...]
    left_out: tuple[Queue, ...]
    drop_state: bool

    @property
    def batch(self) -> int:
        """The number of the last batch of the new checkpoint."""
        return 0 if self.drop_state else self.checkpoint.planned[-1]


@dataclass(frozen=True, slots=True)
class Selection:
    """The queues to move: of all topics except retry topics, or of `topics`; with a queue id, one of each topic."""

    topics: Collection[str] = ()
    queue_id: int | None = None

    def has(self, queue: Queue, *, retry: bool) -> bool:
        """True if the queue is selected. `retry`: retry topics are selected without being named."""
        if self.queue_id not in (None, queue.queue_id):
            return False
        return queue.topic in self.topics if self.topics else retry or not queue.topic.startswith(RETRY_PREFIX)


def plan_rewind(
    store: Store,
    checkpoint: Checkpoint,
    target: Target | Batch,
    selection: Selection,
    *,
    drop_state: bool,
) -> Rewind:
    """Plan the files with which a query begins at `target`; changes nothing.

    If `target` is a batch, the query begins at the end of that batch. Then retry topics and sources of other formats
    are moved, too, unless `selection` names topics or a queue. Sources of other stores keep their positions, and so do
    queues that `selection` leaves out.

    Raises:
        UsageError: there is no committed batch; nothing is selected; the query has state and `drop_state` is not set;
            state cannot be dropped, because there are other sources.
        CorruptConfigError, NotAStoreError: as `Checkpoint.batch`.
    """
    if checkpoint.done is None:
        raise UsageError(
            f"{checkpoint.path}: no batch was committed: begin with a new checkpoint and startingOffsets instead"
        )
    if checkpoint.has_state and not drop_state:
        raise UsageError(
            f"{checkpoint.path}: the query has state (aggregations, joins, deduplication), which cannot be set back: "
            "--drop-state begins without any"
        )
    earlier = target if isinstance(target, Batch) else None
    base = earlier if earlier is not None and selection == Selection() else checkpoint.batch(checkpoint.done)
    standings = [standing for standing in checkpoint.standings() if is_of(store, standing)]
    if not standings:
        raise UsageError(f"{checkpoint.path}: none of its sources reads the store {store.identity or store.path}")
    if drop_state and len(standings) < len(base.sources):
        raise UsageError(f"{checkpoint.path}: state can be dropped only if all sources read this store")
    _require_topics(selection, standings)
    positions: dict[int | str, StreamPosition] = {}
    moves: list[Move] = []
    left_out: list[Queue] = []
    for standing in standings:
        old = earlier.position(standing.source.key) if earlier is not None else standing.begin
        if old is None:
            continue
        aim = _ends_of(old) if isinstance(target, Batch) else target
        retry = earlier is not None
        chosen = {queue for queue in {*standing.begin.next, *old.next} if selection.has(queue, retry=retry)}
        there = {queue for queue in chosen if queue in _offsets(old) and store.find_topic(queue.topic)}
        changes = {queue: _change(store, standing, queue, aim) for queue in sorted(there)}
        # Queues that are closed are as they were then.
        closed = {queue for queue in standing.begin.closed if selection.has(queue, retry=retry)}
        then = _only(old, closed & old.closed.keys())
        stays = _only(standing.begin, _offsets(standing.begin).keys() - chosen - closed)
        positions[standing.source.key] = _position(store, stays, then, changes)
        moves += (Move(standing.source.number, change) for change in changes.values())
        left_out += sorted((chosen | closed) - there - then.closed.keys())
    if not moves:
        raise UsageError(f"{checkpoint.path}: no queue is left to move")
    return Rewind(checkpoint, base, positions, tuple(moves), tuple(left_out), drop_state)


def write_rewind(rewind: Rewind, target: Path) -> str:
    """Write the new checkpoint, and return the id of the new query. All or nothing; durable on return.

    Raises:
        UsageError: `target` exists already; its parent directory does not exist, or cannot be written.
        StoreFullError, StoreFailedError: nothing was written.
        NotAStoreError: `sources/` has a symbolic link.
    """
    check_target(rewind.checkpoint, target)
    query_id = str(uuid.uuid4())
    partial = target.with_name(f".{target.name}.{query_id}.partial")
    try:
        durable.make_directory(partial)
        for name, text in _files(rewind, query_id).items():
            durable.make_directory((partial / name).parent)
            write_text(partial / name, text)
        if not rewind.drop_state and (rewind.checkpoint.path / "sources").is_dir():
            durable.make_directory(partial / "sources")
            copy_tree(rewind.checkpoint.path / "sources", partial / "sources", _no_link)
            for directory, _, _ in os.walk(partial / "sources"):
                durable.fsync_directory(directory)
        with durable.typed(target):
            durable.before("rename", target)
            partial.rename(target)
            durable.fsync_directory(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return query_id


def check_target(checkpoint: Checkpoint, target: Path) -> None:
    """UsageError if the new checkpoint cannot be made at `target`."""
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} exists: a new checkpoint needs a directory of its own")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: {target.parent} is no directory")
    if target.parent.resolve().is_relative_to(checkpoint.path.resolve()):
        raise UsageError(f"{target} lies in the old checkpoint")


def _require_topics(selection: Selection, standings: Sequence[Standing]) -> None:
    known = {queue.topic for standing in standings for queue in standing.begin.next}
    for topic in selection.topics:
        if topic not in known:
            hint = did_you_mean(topic, sorted(known))
            raise UsageError(f"the checkpoint has no topic {topic!r}; it has {', '.join(sorted(known))}{hint}")


def _ends_of(position: StreamPosition) -> Target:
    offsets = _offsets(position)
    return lambda place: offsets.get(Queue(place.topic, place.queue_id))


def _offsets(position: StreamPosition) -> dict[Queue, int]:
    """The next offset of each queue, also of closed ones."""
    return {**position.closed, **position.next}


def _only(position: StreamPosition, queues: Collection[Queue]) -> StreamPosition:
    return StreamPosition(
        position.store,
        {queue: offset for queue, offset in position.next.items() if queue in queues},
        {queue: fingerprint for queue, fingerprint in position.after.items() if queue in queues},
        closed={queue: offset for queue, offset in position.closed.items() if queue in queues},
        since=position.since,
    )


def _change(store: Store, standing: Standing, queue: Queue, aim: Target) -> OffsetChange:
    now = standing.begin.next.get(queue)
    place = QueuePlace(*queue, *store.queue_range(*queue), now)
    wanted = aim(place)
    if wanted is None:
        wanted = place.min_offset if now is None else now
    return OffsetChange(place, wanted, place.nearest(wanted))


def _position(
    store: Store, stays: StreamPosition, closed: StreamPosition, changes: Mapping[Queue, OffsetChange]
) -> StreamPosition:
    """`stays`, with the closed queues of `closed`, and the other queues at the offsets of `changes`."""
    following = {**stays.next, **{queue: change.then for queue, change in changes.items()}}
    after = {**stays.after, **closed.after}
    for queue, change in changes.items():
        before = fingerprint_before(store, queue, change.then)
        if before is not None:
            after[queue] = before
    return StreamPosition(
        stays.store, following, after, closed={**stays.closed, **closed.closed}, since=stays.since
    )


def _files(rewind: Rewind, query_id: str) -> dict[str, str]:
    """{name: text} of the new checkpoint. With old watermarks, messages that are read again would be late."""
    base, number = rewind.base, rewind.batch
    lines = [f"v{base.version}", _compact(base.about | {"batchWatermarkMs": 0}) if base.about else ""]
    for source in base.sources:
        position = rewind.positions.get(source.key)
        if position is not None and rewind.drop_state:
            position = replace(position, began=position.next)
        text = source.text if position is None else json.dumps(position.to_json())
        lines.append(text if source.name is None else f"{source.name}:{text}")
    offsets = "\n".join(lines)
    files = {"metadata": _compact({"id": query_id}), f"offsets/{number}": offsets}
    if rewind.drop_state:
        return files
    if number:
        files[f"offsets/{number - 1}"] = offsets
    commit = rewind.checkpoint.commit(rewind.checkpoint.done or 0) or Commit(1, {})
    return files | {f"commits/{number}": f"v{commit.version}\n{_compact(commit.about | {'nextBatchWatermarkMs': 0})}"}


def _no_link(path: PurePath) -> bool:
    durable.refuse_links(Path(path))
    return True


def _compact(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
