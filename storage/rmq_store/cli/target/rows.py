"""What commands find at a target, row by row. A queue of a cluster has the name of its broker; of a store None."""

from __future__ import annotations

from typing import Any, NamedTuple


class QueueRow(NamedTuple):
    """A queue and its range [min_offset, max_offset)."""

    broker_name: str | None
    queue_id: int
    min_offset: int
    max_offset: int


class TopicRow(NamedTuple):
    """A topic. `perm`: as `perm_text` makes it. `kind`: the form of its queues, if they are not read here; then there
    are no `queues`, and `messages` is None. `in_table`: whether it has settings.
    """

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: str
    messages: int | None
    queues: tuple[QueueRow, ...]
    in_table: bool = True
    kind: str | None = None


def queue_name(broker_name: str | None, queue_id: int) -> str | int:
    """A queue as tables show it: its number, in a cluster `broker-a:0`."""
    return queue_id if broker_name is None else f"{broker_name}:{queue_id}"


def queue_json(broker_name: str | None, queue_id: int) -> dict[str, Any]:
    """The members of a JSON object that name a queue."""
    return {"queueId": queue_id} if broker_name is None else {"brokerName": broker_name, "queueId": queue_id}
