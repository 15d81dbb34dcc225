"""Commits for its group what a stream has completed. Spark's own log of commits in the checkpoint decides what that is:
`Checkpoint.done`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark_rmq.checkpoint.reading import open_checkpoint
from pyspark_rmq.position.position import StreamPosition


class GroupEnd(NamedTuple):
    """The end of the last completed batch in one source, and the options with which it is committed for its group."""

    group: str
    batch: int
    position: StreamPosition
    options: dict[str, str]


def group_ends(checkpoint: str, options: Mapping[str, str]) -> list[GroupEnd]:
    """The offsets that `commit_groups` commits; empty if no batch is completed, or no source commits for a group.

    Raises:
        UsageError, CorruptConfigError, NotAStoreError: as `open_checkpoint` and `Checkpoint.batch`.
    """
    found = open_checkpoint(checkpoint)
    if found.done is None:
        return []
    ends = []
    for source in found.batch(found.done).sources:
        named = {} if source.position is None else {**source.position.source, **options}
        if source.position is not None and "group" in named:
            ends.append(GroupEnd(named["group"], found.done, source.position, named))
    return ends


def commit_groups(checkpoint: str, options: Mapping[str, str] | None = None) -> list[str]:
    """Commit for its group what a stream has completed, and return the groups. Call it behind a run with availableNow
    on a Spark before 4.2. A newer Spark needs no such call.

    `checkpoint` is the local directory `checkpointLocation` of the query. Spark's log of commits in it says what is
    completed; a batch that Spark would repeat is not. `options` are those of the stream that are not in the
    checkpoint: all of a stream that ran on Spark 4.2 or newer. Offsets that are further already stay. Killed before it
    returns, the next call or the next run of the query commits.

    Raises:
        UsageError: no checkpoint, or it belongs to another store.
        LeaseHeldError: the query, or a consumer of the group, runs: it commits by itself.
        DataLossError: the store was set back or replaced.
        ReadOnlyError, StoreLockedError, RemotingError, MQBrokerError: the place cannot be opened to commit.
    """
    from pyspark_rmq.older_spark.group_commit import commit_position

    return [commit_position(end.position, end.options) for end in group_ends(checkpoint, options or {})]
