"""A read of one queue as a value: messages, columns and form of the result.

The modules that read pass one `ReadRequest` along. A long read is cut into requests for its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace

import numpy as np

from rmq_store.broker.filter.tags import TagFilter
from rmq_store.errors import UsageError
from rmq_store.format.tables.schema import MESSAGE_SCHEMA, READABLE_SCHEMA
from rmq_store.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """Messages [start, end) of one queue.

    `columns` are names of READABLE_SCHEMA, in the order of the result. `tags` is a tag expression ("TagA || TagB");
    None and "*" match every message. Bodies are decompressed unless `raw_body`.

    `only`: of [start, end), just these queue offsets, (n,) int64, ascending. Offsets outside [start, end) are ignored.
    `two_threads`: a second thread decodes every other batch. `skip_lost`: messages in accepted damage are left out;
    otherwise they end the read with CorruptRecordError.

    Raises:
        UsageError: an unknown column, a tag expression without a tag, or `only` is not ascending.
    """

    topic: str
    queue_id: int
    start: int
    end: int
    columns: Sequence[str] = tuple(MESSAGE_SCHEMA.names)
    tags: str | None = None
    raw_body: bool = False
    only: np.ndarray | None = None
    two_threads: bool = False
    skip_lost: bool = False
    tag_filter: TagFilter | None = field(init=False)

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in READABLE_SCHEMA.names]
        if unknown:
            raise UsageError(f"unknown column {unknown[0]!r}; known are {', '.join(READABLE_SCHEMA.names)}")
        object.__setattr__(self, "tag_filter", TagFilter.parse(self.tags))
        only = self.only
        if only is not None:
            if only.ndim != 1 or only.dtype.kind not in "iu" or bool((only[1:] <= only[:-1]).any()):
                raise UsageError("only: ascending queue offsets are expected, as a numpy array of integers")
            inside = slice(*np.searchsorted(only, (self.start, self.end)).tolist())
            object.__setattr__(self, "only", only[inside])

    def queue_offsets(self) -> np.ndarray:
        """The requested queue offsets, (n,) int64, ascending."""
        return np.arange(self.start, self.end, dtype=np.int64) if self.only is None else self.only

    def parts(self, count: int) -> Iterator[ReadRequest]:
        """This request as requests for at most `count` messages each, in queue order; none if it is empty."""
        if self.only is None:
            for first in range(self.start, self.end, count):
                yield replace(self, start=first, end=min(first + count, self.end))
        else:
            for row in range(0, len(self.only), count):
                yield replace(self, only=self.only[row : row + count])
