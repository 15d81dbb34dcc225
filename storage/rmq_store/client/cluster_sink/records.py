"""Records of where queues ended before a task's first send to them. Pure.

A record is one message or file, in JSON; offsets are those of the next message:

    {"version": 1, "write": "...", "batch": 7, "partition": 3, "attempt": "5f...",
     "offsets": {"Orders": {"broker-a:0": 23}}, "holders": {...}}

`holders` are the brokers that may have records (`holders`), as its task knew them. Records in a directory have none.
`left`, if it is there, has queues that the task left out, because their brokers were away: it sends nothing to them.

It is durable before anything is sent, so all rows of the task, whichever attempt sent them, lie behind it. Of several
records of one task the earliest counts: the lowest offset of each queue, because ends of queues only grow. A topic that
no record names got no rows. A queue that a record of its topic does not name was added later. One that is only left out
got no rows, either: its end is recorded before the first row goes there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rmq_store.client.cluster_sink.holders import Holders
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.messages import MessageQueue

_VERSION: Final = 1

Offsets = dict[MessageQueue, int]
LEFT_OUT: Final = (1 << 63) - 1
"""In place of the offset of a queue that got nothing: any offset of another attempt is lower, and counts."""


@dataclass(frozen=True, slots=True)
class WritePart:
    """The part of a write that one task has: `write` is the id of a query, or what a batch write calls itself. `batch`
    grows with each write of that id.
    """

    write: str
    batch: int
    partition: int

    @property
    def key(self) -> str:
        """The same as a text."""
        return f"{self.write}/{self.batch}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Record:
    """A record and the part of a write that it belongs to. `attempt` is different for each task, so that one knows its
    own records. `holders`: the list that its task knew.
    """

    part: WritePart
    offsets: Mapping[MessageQueue, int]
    attempt: str = ""
    holders: Holders | None = None

    def to_json(self) -> bytes:
        """The text of the record."""
        topics: dict[str, dict[str, int]] = {}
        left: dict[str, list[str]] = {}
        for queue, offset in sorted(self.offsets.items()):
            name = f"{queue.broker_name}:{queue.queue_id}"
            if offset == LEFT_OUT:
                left.setdefault(queue.topic, []).append(name)
            else:
                topics.setdefault(queue.topic, {})[name] = offset
        value: dict[str, Any] = {
            "version": _VERSION,
            "write": self.part.write,
            "batch": self.part.batch,
            "partition": self.part.partition,
            "attempt": self.attempt,
            "offsets": topics,
        }
        if left:
            value["left"] = left
        if self.holders is not None:
            value["holders"] = self.holders.to_value()
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Record | None:
        """Read a record; None: the text is none, or of a version that is not known."""
        try:
            found = json.loads(text)
            if found["version"] != _VERSION:
                return None
            part = WritePart(str(found["write"]), int(found["batch"]), int(found["partition"]))
            offsets = {
                _queue(topic, name): int(offset)
                for topic, queues in found["offsets"].items()
                for name, offset in queues.items()
            }
            offsets |= {
                _queue(topic, name): LEFT_OUT for topic, names in found.get("left", {}).items() for name in names
            }
            return cls(part, offsets, str(found.get("attempt", "")), Holders.from_json(text))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _queue(topic: str, name: str) -> MessageQueue:
    broker_name, _, queue_id = name.rpartition(":")
    return MessageQueue(topic, broker_name, int(queue_id))


def earliest(records: Iterable[Record], part: WritePart) -> Offsets:
    """The offsets that count for a part of a write: of each queue the lowest one."""
    offsets: Offsets = {}
    for record in records:
        if record.part == part:
            for queue, offset in record.offsets.items():
                offsets[queue] = min(offset, offsets.get(queue, offset))
    return offsets


def lower(first: Offsets, second: Offsets) -> Offsets:
    """Both, and of a queue in both the lower offset."""
    return {
        queue: min(found for found in (first.get(queue), second.get(queue)) if found is not None)
        for queue in (*first, *second)
    }


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a task before it sends to a topic: read the queues of `read` from these offsets on, and make
    `record` durable. Both are in queues of the topic; either may be empty.
    """

    read: Offsets
    record: Offsets


def plan(known: Mapping[MessageQueue, int], topic: str, reachable: Mapping[MessageQueue, tuple[int, int]]) -> Plan:
    """`known`: the earliest offsets of this part of the write. `reachable`: begin and end of each queue of the topic
    that rows can go to now.
    """
    recorded = {queue: offset for queue, offset in known.items() if queue.topic == topic}
    if not recorded:
        return Plan({}, {queue: end for queue, (_, end) in reachable.items()})
    added = {queue: begin for queue, (begin, _) in reachable.items() if queue not in recorded}
    sent = {queue: offset for queue, offset in recorded.items() if offset != LEFT_OUT}
    left = {queue: end for queue, (_, end) in reachable.items() if queue in recorded and queue not in sent}
    return Plan(sent | added, added | left)
