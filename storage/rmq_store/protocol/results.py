"""Results of a store: plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from enum import Enum
from typing import NamedTuple

from rmq_store.lazy.dataclasses import dataclass


class QueueRange(NamedTuple):
    """Messages [min_offset, max_offset) of a queue can be read."""

    min_offset: int
    max_offset: int


def lag_of(end: int, committed: int | None) -> int:
    """Messages of a queue that a group has to consume, as mqadmin counts them: without an offset from 0 on."""
    return end - (committed or 0)


class SendStatus(Enum):
    """As in RocketMQ's client. Any status but SEND_OK: stored and visible, but perhaps not on disk, or only at the
    master. A store that no SYNC_MASTER serves answers FLUSH_DISK_TIMEOUT at worst.
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class SendResult:
    """The queue and offset of one message. `msg_id` is its UNIQ_KEY, `offset_msg_id` encodes its commit-log offset in
    this store. A producer sets `broker_name`, because it may have several brokers. `recall_handle`: by which a message
    with a delivery time can be taken back; None for any other message, and for one that was due already. `end_offset`:
    where its record ends in the log, of a batch that of the last one; 0 if a broker does not tell.
    """

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    msg_id: str
    offset_msg_id: str
    status: SendStatus = SendStatus.SEND_OK
    broker_name: str = ""
    recall_handle: str | None = None
    end_offset: int = field(default=0, compare=False)


def result_of_batch(results: Sequence[SendResult]) -> SendResult:
    """The answer to a batch, of one message at least: that of the first one, with the ids of all as comma lists. No
    message of a batch has a handle.
    """
    return replace(
        results[0],
        msg_id=",".join(result.msg_id for result in results),
        offset_msg_id=",".join(result.offset_msg_id for result in results),
        status=next((one.status for one in results if one.status is not SendStatus.SEND_OK), SendStatus.SEND_OK),
        recall_handle=None,
        end_offset=results[-1].end_offset,
    )


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result of a batch append: `row_count` messages in bytes [start_offset, end_offset) of the log."""

    row_count: int
    start_offset: int
    end_offset: int
    status: SendStatus = SendStatus.SEND_OK


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit of staged files. Not `committed`: the store had this key and value already. `status` says
    whether slaves have it now, in both cases.
    """

    row_count: int
    committed: bool
    status: SendStatus = SendStatus.SEND_OK
