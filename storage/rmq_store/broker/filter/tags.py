"""Tag expressions: `*`, or tags separated by `||` (FilterAPI#buildSubscriptionData).

A queue entry holds only a hash of the tag, so a broker's result may contain messages with other tags. So the texts are
compared last.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmq_store.errors import UsageError
from rmq_store.format.text.hashing import java_hash
from rmq_store.format.views.consume_queue import is_extension_address
from rmq_store.lazy.arrow_compute import pc

ALL_TAGS = "*"


class TagFilter:
    """A parsed expression that does not match everything."""

    def __init__(self, tags: tuple[str, ...]) -> None:
        self.tags = tags
        self._codes = np.array(sorted({java_hash(tag) for tag in tags}), dtype=np.int64)

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter | None:
        """Parse an expression; None if it matches every message.

        Raises:
            UsageError: bars without a tag between them.
        """
        if expression is None or expression.strip() in ("", ALL_TAGS):
            return None
        tags = tuple(dict.fromkeys(tag for tag in (part.strip() for part in expression.split("||")) if tag))
        if not tags:
            raise UsageError(f"tag expression {expression!r} names no tag; write * for all, or TagA || TagB")
        return cls(tags)

    def may_match(self, tags_codes: np.ndarray) -> np.ndarray:
        """bool (n,): entries whose message may match; extension addresses (consumequeue_ext) always may."""
        codes = tags_codes.astype(np.int64)
        matching: np.ndarray = np.isin(codes, self._codes) | is_extension_address(codes)
        return matching

    def matches(self, tags: pa.Array) -> pa.Array:
        """bool (n,): whose tag text is in the expression; messages without a tag do not match."""
        return pc.is_in(tags, pa.array(self.tags, pa.string()))
