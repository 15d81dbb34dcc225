"""Look-ups of messages by the indexes of brokers (12) and by place (33), of dead letters and of groups. Control plane.

A broker finds 64 messages of a key, or 32 of a unique key, at most. A full answer may be cut, and a warning says so. It
compares hashes, so whoever reads the found rows compares the texts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from pyspark_rmq.position.queue_ids import BrokerQueueId
from rmq_store.cluster import (
    Cluster,
    Found,
    frame_columns,
    frames_of_answer,
    query_by_key,
    query_by_unique_key,
    view_message,
)

if TYPE_CHECKING:
    from pyspark_rmq.access.queue_source import Redriven

_log = logging.getLogger(__name__)

# MessageDecoder.createMessageId: address and commit-log offset, of IPv4 and of IPv6.
_OFFSET_ID = re.compile("[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")


class ClusterRows(NamedTuple):
    """See `queue_source.FoundRows`: nothing is uncovered, as brokers index all messages."""

    found: Mapping[BrokerQueueId, np.ndarray]
    uncovered: Mapping[BrokerQueueId, Sequence[tuple[int, int]]]


def find_rows(
    cluster: Cluster,
    topic: str,
    texts: Sequence[str],
    spans: Mapping[BrokerQueueId, tuple[int, int]],
    by: Literal["key", "unique key", "id"],
) -> ClusterRows:
    """The messages of some ranges (queue id -> [start, end)) that the brokers find for the texts. Others may be among
    them, whose texts have the same hash.

    Raises:
        MQBrokerError: a broker refuses. RemotingError: neither master nor slave of a broker answers.
    """
    offsets: dict[BrokerQueueId, set[int]] = {}
    for text in texts:
        for found in _asked(cluster, topic, text, by):
            if found.is_full:
                _log.warning(
                    "broker %s gives no more messages for %r than these: the rows may not be all of them",
                    found.broker_name, text,
                )  # fmt: skip
            for queue_id, offset in _places(found, cluster.wire_topic(topic)):
                start, end = spans.get(queue_id, (0, 0))
                if start <= offset < end:
                    offsets.setdefault(queue_id, set()).add(offset)
    return ClusterRows({queue_id: np.array(sorted(rows), np.int64) for queue_id, rows in sorted(offsets.items())}, {})


def _asked(cluster: Cluster, topic: str, text: str, by: str) -> Iterable[Found]:
    if by == "key":
        return query_by_key(cluster, topic, text)
    found = list(query_by_unique_key(cluster, topic, text))
    if by == "id" and _OFFSET_ID.fullmatch(text):
        found += _at_place(cluster, text)
    return found


def _at_place(cluster: Cluster, text: str) -> list[Found]:
    from rmq_store.errors import UsageError

    try:
        found = view_message(cluster, text)
    except UsageError as error:
        # A unique key looks the same: its first digits are an address, too.
        _log.info("%s", error)
        return []
    return [] if found is None else [found]


def _places(found: Found, wire_topic: str) -> list[tuple[BrokerQueueId, int]]:
    """The queues and queue offsets of frames, of those that are of the topic."""
    import pyarrow as pa

    positions, sizes = frames_of_answer(found.frames)
    headers = frame_columns(pa.py_buffer(found.frames), positions, sizes.astype(np.int32))
    rows = zip(headers.topics().to_pylist(), headers.queue_id.tolist(), headers.queue_offset.tolist(), strict=True)
    return [(BrokerQueueId(found.broker_name, number), offset) for topic, number, offset in rows if topic == wire_topic]


def redriven_letters(cluster: Cluster, group: str, queue_id: BrokerQueueId, pull_group: str) -> Redriven | None:
    """The dead letters of a queue of `%DLQ%group` that were moved on, as its broker recorded it; None: none were."""
    from rmq_store.cluster import ClusterDeadLetters

    letters = ClusterDeadLetters(cluster, pull_group=pull_group)
    return letters.redriven(group, queue_id.broker_name).get(queue_id.queue_id)


def group_names(cluster: Cluster) -> list[str]:
    """The groups of the namespace that any broker knows, sorted, without it (201). Raises as `find_rows`; by a `Look`
    brokers that are away are left out.
    """
    from pyspark_rmq.cluster_read.look import Look
    from rmq_store.cluster import gather_group_configs

    gathered = gather_group_configs(cluster)
    found = gathered.those_that_answer() if isinstance(cluster, Look) else gathered.required()
    return cluster.plain_names(group for configs in found.values() for group in configs)
