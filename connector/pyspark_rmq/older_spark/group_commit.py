"""Commits for a group what a stream has completed, beside the stream. Control plane.

A Spark that tells a source no starts (`spark_api.TELLS_STARTS`) runs AvailableNow as one batch, and asks the source
nothing behind it. So the group's offsets stay where that batch began, until the next run. This commits its end:
`GroupListener` when Spark reports the end of the query, `commit_groups` and `rmq checkpoint commit-group` by the
checkpoint. All are a run of the stream that reads nothing: with its leases, and its checks of the position.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyspark_rmq.options.options import RETRY_PREFIX, source_options
from pyspark_rmq.position.position import StreamPosition, refuse


def commit_position(position: StreamPosition, options: Mapping[str, str]) -> str:
    """Commit a position that a stream has completed to the group of `options`, and return the group. `options` are
    those of the stream, or those of `position.source`; what they subscribe to is not needed.

    A group that has committed more is left as it is. The offsets are durable on return as after `Store.commit_offsets`.

    Raises:
        UsageError: no group; the position belongs to another store.
        LeaseHeldError: a query or a consumer of the group runs. It commits by itself.
        DataLossError: the messages before the position are other ones now: the store was set back or replaced.
        ReadOnlyError, StoreLockedError, RemotingError: as a stream that starts.
    """
    from pyspark_rmq.read.stream_reader import RmqStreamReader
    from pyspark_rmq.schema.schema import source_schema

    named = {**position.source, **options}
    group = named.get("group")
    if group is None:
        refuse("the position names no group for which its stream commits: give the option group")
    topics = sorted({queue.topic for queue in position.next if not queue.topic.startswith(RETRY_PREFIX)})
    has_retries = any(queue.topic.startswith(RETRY_PREFIX) for queue in position.next)
    named |= {"subscribe": ",".join(topics), "retryTopic": str(has_retries).lower()}
    reader = RmqStreamReader(source_options(named, "stream read", time.time_ns() // 1_000_000), source_schema(named))
    try:
        reader.commit(position.to_json())
    finally:
        reader.stop()
    return group
