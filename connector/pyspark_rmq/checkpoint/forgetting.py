"""Takes a broker that never comes back out of a checkpoint: `rmq checkpoint forget-broker`. The query goes on with the
other brokers, and a broker of the same name that is there later begins as a new one.

    offsets/<n>, <n-1>      n: the last batch that was planned. The broker's queues leave the positions of both; all
                            else stays, so that query id, state and watermark do
    offsets/<n>.<time>...   what the file said before; Spark reads numbers only

A batch that is planned and not committed runs again without the broker's messages. If it has some, its tasks get other
numbers, and a sink that knows rows by the number of their task (docs/cluster.md, section 3) stores them once more.

The records of sinks are in the cluster, and not here: `rmq_store.client.cluster_sink.holders`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from pyspark_rmq.checkpoint.log_file import read_text, replace_text, write_text
from pyspark_rmq.checkpoint.reading import Batch, Checkpoint, Source
from pyspark_rmq.position.position import Queue, StreamPosition, is_same_store
from pyspark_rmq.position.queue_ids import broker_of

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class LostQueue:
    """A queue of the broker in a source's position. `position`: the first message that was not read; None: the query
    begins where its options say. `planned`: the end of the batch that runs again; None if there is none. `end`: the
    last end that anybody knows, of a slave or of the plan; None: nobody.
    """

    source: int
    queue: Queue
    position: int | None
    planned: int | None
    end: int | None

    @property
    def lost(self) -> int | None:
        """How many messages are known to be lost unread; None: unknown."""
        return None if self.end is None or self.position is None else max(self.end - self.position, 0)


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The new content of files of a checkpoint: {batch: text}. `in_planned`: how many of the planned batch's messages
    are the broker's.
    """

    checkpoint: Checkpoint
    broker: str
    queues: tuple[LostQueue, ...]
    files: Mapping[int, str]
    in_planned: int


def plan_forgetting(
    checkpoint: Checkpoint, broker: str, cluster: str, known_ends: Mapping[Queue, int]
) -> Forgetting:
    """Plan the files without a broker of the cluster that is `cluster` in positions; changes nothing. `known_ends`:
    what others say of its queues.

    Raises:
        UsageError: as `Checkpoint.standings`. CorruptConfigError, NotAStoreError: as `Checkpoint.batch`.
    """
    if checkpoint.last is None:
        return Forgetting(checkpoint, broker, (), {}, 0)
    queues = []
    in_planned = 0
    for standing in checkpoint.standings():
        if not is_same_store(cluster, standing.begin.store):
            continue
        end = {} if standing.end is None else {**standing.end.closed, **standing.end.next}
        begin = {**standing.begin.closed, **standing.begin.next}
        for queue in sorted(queue for queue in {*begin, *end} if broker_of(queue.queue_id) == broker):
            position, planned = begin.get(queue), end.get(queue)
            ends = [one for one in (known_ends.get(queue), planned, position) if one is not None]
            known = max(ends) if queue in known_ends or planned is not None else None
            queues.append(LostQueue(standing.source.number, queue, position, planned, known))
            in_planned += max((planned or 0) - (position or 0), 0) if planned is not None else 0
    files = {}
    for number in {checkpoint.last, checkpoint.last - 1} & set(checkpoint.planned):
        batch = checkpoint.batch(number)
        text = _text(batch, broker, cluster)
        if text is not None:
            files[number] = text
    return Forgetting(checkpoint, broker, tuple(queues), files, in_planned)


def queues_of(checkpoint: Checkpoint, broker: str) -> list[Queue]:
    """All queues of a broker that the positions of a checkpoint name. Raises as `Checkpoint.standings`."""
    if checkpoint.last is None:
        return []
    found = {
        queue
        for standing in checkpoint.standings()
        for position in (standing.begin, standing.end)
        if position is not None
        for queue in (*position.next, *position.closed)
        if broker_of(queue.queue_id) == broker
    }
    return sorted(found)


def write_forgetting(plan: Forgetting) -> None:
    """Write the files; what they said before stays beside them. Durable on return. If it ends half way, the same
    command does the rest.

    Raises:
        StoreFullError, StoreFailedError: a file cannot be written.
    """
    time_ms = time.time_ns() // 1_000_000
    directory = plan.checkpoint.path / "offsets"
    for number, text in sorted(plan.files.items()):
        path = directory / str(number)
        write_text(directory / f"{number}.{time_ms}.before-forget-broker", read_text(path))
        replace_text(path, text)


def _text(batch: Batch, broker: str, cluster: str) -> str | None:
    """The batch's file without the broker; None: it has nothing of it."""
    lines = [f"v{batch.version}", json.dumps(batch.about, separators=(",", ":")) if batch.about else ""]
    has_changed = False
    for source in batch.sources:
        text = _source_text(source, broker, cluster)
        has_changed = has_changed or text != source.text
        lines.append(text if source.name is None else f"{source.name}:{text}")
    return "\n".join(lines) if has_changed else None


def _source_text(source: Source, broker: str, cluster: str) -> str:
    position = source.position
    if position is None or not is_same_store(cluster, position.store):
        return source.text
    left = _without(position, broker)
    return source.text if left == position else json.dumps(left.to_json())


def _without(position: StreamPosition, broker: str) -> StreamPosition:
    def others(values: Mapping[Queue, Value]) -> dict[Queue, Value]:
        return {queue: value for queue, value in values.items() if broker_of(queue.queue_id) != broker}

    return replace(
        position,
        next=others(position.next), after=others(position.after), began=others(position.began),
        closed=others(position.closed),
    )  # fmt: skip
