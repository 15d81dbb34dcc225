"""Answers to pulls as record batches: frames of one queue in buffers, in queue order (data plane).

A broker gives few messages in one answer, so many answers become one batch. The frames are checked, decoded and
filtered as those of a store's own log are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.errors import CorruptRecordError
from rmq_store.format.batches.frame_decoder import BatchTooLargeError, NotOwnedError, Owner, decode_frames
from rmq_store.format.bytes.gather import repeated
from rmq_store.format.frames.compression import PLAIN_BYTES_MAX
from rmq_store.format.frames.frame_walk import WalkedFrames
from rmq_store.format.tables.schema import message_schema
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.memory import BatchMemory

BATCH_ROWS: Final = 32_768
BATCH_BYTES: Final = 2 << 20
"""Larger batches cost more for each row: between the steps their bytes leave the cache of the processor."""

# Of MessageDecoder.java: int32 queue id at 12, int64 queue offset at 20, int64 commit-log offset at 28.
_QUEUE_OFFSET_AT = 20
_COMMIT_LOG_OFFSET_AT = 28

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Messages of one queue of a broker, and the form in which they are wanted.

    `columns` are names of READABLE_SCHEMA, in the order of the result. Bodies are decompressed unless `raw_body`; one
    that `compression.inflate` refuses stays as it lies.
    `topic` is the name in the frames, `shown_topic` the one of the column: they differ with a namespace. `keep_tags`
    answers for the tags (n,) of messages which of them are wanted, bool (n,); None: all.
    """

    broker_name: str
    topic: str
    queue_id: int
    columns: Sequence[str]
    raw_body: bool = False
    shown_topic: str | None = None
    keep_tags: Callable[[pa.Array], pa.Array] | None = None
    body_limit_bytes: int = PLAIN_BYTES_MAX


def answer_batches(
    answers: Iterable[bytes | WalkedFrames],
    request: AnswerRequest,
    *,
    only: Int64 | None = None,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
    memory: BatchMemory | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of `answers`, bodies of answers to pulls of one queue in queue order. Of them just the queue
    offsets `only`, (n,) int64, ascending. No batch is empty. Frames that were walked over are not checked again.

    Answers are gathered until they have `batch_bytes` bytes, or end; no batch has more than `batch_rows` rows.

    Raises:
        CorruptRecordError: a frame is damaged, not of the queue, or out of order; `.path` names the broker, `.offset`
            is the frame's in the broker's log, if it is known.
        UsageError: an unknown column, or more than 2 GiB in one column.
    """
    memory = memory or BatchMemory()
    gathered: list[WalkedFrames] = []
    size_bytes, last = 0, -1
    for answer in answers:
        gathered.append(answer if isinstance(answer, WalkedFrames) else _walked(answer, request))
        size_bytes += len(gathered[-1].data)
        if size_bytes >= batch_bytes:
            last = yield from _batches(gathered, request, only, last, batch_rows, memory)
            gathered, size_bytes = [], 0
    yield from _batches(gathered, request, only, last, batch_rows, memory)


def _batches(
    answers: list[WalkedFrames],
    request: AnswerRequest,
    only: Int64 | None,
    last: int,
    batch_rows: int,
    memory: BatchMemory,
) -> Generator[pa.RecordBatch, None, int]:
    """Yield the batches of some answers behind the queue offset `last`, and return their last queue offset."""
    body, positions, sizes, known = answers[0] if len(answers) == 1 else _joined(answers)
    if not body:
        return last
    queue_offsets = _int64_at(body, positions + _QUEUE_OFFSET_AT) if known is None else known
    if queue_offsets[0] <= last or (queue_offsets[1:] <= queue_offsets[:-1]).any():
        raise _damaged(request, None, f"its messages are not in queue order behind {last}")
    if only is not None:
        wanted = np.isin(queue_offsets, only, assume_unique=True)
        positions, sizes, queue_offsets_wanted = positions[wanted], sizes[wanted], queue_offsets[wanted]
    else:
        queue_offsets_wanted = queue_offsets
    buffer = pa.py_buffer(body)
    for first in range(0, len(positions), batch_rows):
        rows = slice(first, first + batch_rows)
        yield from _decoded(buffer, positions[rows], sizes[rows], queue_offsets_wanted[rows], request, memory)
    return int(queue_offsets[-1])


def _walked(answer: bytes, request: AnswerRequest) -> WalkedFrames:
    try:
        return WalkedFrames.of(answer)
    except CorruptRecordError as error:
        raise _damaged(request, None, error.reason) from error


def _joined(answers: list[WalkedFrames]) -> WalkedFrames:
    starts = np.cumsum([0, *(len(answer.data) for answer in answers)])
    positions = [answer.positions + start for answer, start in zip(answers, starts, strict=False)]
    known = [answer.queue_offsets for answer in answers if answer.queue_offsets is not None]
    return WalkedFrames(
        b"".join([answer.data for answer in answers]),
        np.concatenate([*positions, np.empty(0, np.int64)]),
        np.concatenate([*(answer.sizes for answer in answers), np.empty(0, np.int64)]),
        np.concatenate(known) if known and len(known) == len(answers) else None,
    )


def _decoded(
    buffer: pa.Buffer,
    positions: Int64,
    sizes: Int64,
    queue_offsets: Int64,
    request: AnswerRequest,
    memory: BatchMemory,
) -> Iterator[pa.RecordBatch]:
    decoded = list(dict.fromkeys([*request.columns, *(["tags"] if request.keep_tags is not None else [])]))
    try:
        batch = decode_frames(
            buffer,
            positions,
            sizes.astype(np.int32),
            base_offset=None,
            columns=decoded,
            broker_name=request.broker_name,
            raw_body=request.raw_body,
            body_limit_bytes=request.body_limit_bytes,
            owner=Owner(request.topic, request.queue_id, queue_offsets),
            memory=memory,
        )
    except BatchTooLargeError:
        half = len(positions) // 2
        for rows in (slice(half), slice(half, None)):
            yield from _decoded(buffer, positions[rows], sizes[rows], queue_offsets[rows], request, memory)
        return
    except NotOwnedError as error:
        raise _damaged(
            request, _commit_log_offset(buffer, positions[error.row]), f"it has a message of {[*error.found]}"
        ) from error
    except CorruptRecordError as error:
        row = int(np.flatnonzero(positions == error.offset)[0]) if (positions == error.offset).any() else 0
        reason = f"message {queue_offsets[row]}: {error.reason}"
        raise _damaged(request, _commit_log_offset(buffer, positions[row]), reason) from error
    if request.keep_tags is not None:
        batch = batch.filter(request.keep_tags(batch.column("tags")))
    if batch.num_rows:
        yield _shown(batch, request)


def _shown(batch: pa.RecordBatch, request: AnswerRequest) -> pa.RecordBatch:
    """The columns that are asked for, with the topic's name as it is shown."""
    renamed = request.shown_topic is not None and request.shown_topic != request.topic and "topic" in request.columns
    if not renamed and batch.schema.names == [*request.columns]:
        return batch
    shown = repeated(request.shown_topic, batch.num_rows) if renamed and request.shown_topic is not None else None
    columns = [shown if shown is not None and name == "topic" else batch.column(name) for name in request.columns]
    return pa.RecordBatch.from_arrays(columns, schema=message_schema(tuple(request.columns)))


def _int64_at(body: bytes | memoryview, positions: Int64) -> Int64:
    data = np.frombuffer(body, np.uint8)
    values: Int64 = data[positions[:, None] + np.arange(8)].view(">i8").ravel().astype(np.int64)
    return values


def _commit_log_offset(buffer: pa.Buffer, position: int) -> int:
    start = int(position) + _COMMIT_LOG_OFFSET_AT
    return int.from_bytes(memoryview(buffer)[start : start + 8], "big", signed=True)


def _damaged(request: AnswerRequest, commit_log_offset: int | None, reason: str) -> CorruptRecordError:
    queue = f"queue {request.queue_id} of {request.shown_topic or request.topic}"
    where = f"broker {request.broker_name}"
    return CorruptRecordError(where, -1 if commit_log_offset is None else commit_log_offset, f"{queue}: {reason}")
