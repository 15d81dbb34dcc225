"""The messages of a topic that a consumer wants: a tag expression, or a condition on properties.

The broker evaluates tags: it compares their hashes in the queue, then the texts. This module evaluates conditions.
Sources: MessageSelector.java, FilterAPI.java, SubscriptionData.java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from rmq_store.broker.filter.tags import ALL_TAGS, TagFilter
from rmq_store.lazy.dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """A selector for `subscribe`: `by_tag("TagA || TagB")` or `by_sql("a > 5 AND b IS NOT NULL")`."""

    expression_type: str
    expression: str

    @classmethod
    def by_tag(cls, expression: str) -> MessageSelector:
        """Messages with one of the tags; `*` for all."""
        return cls("TAG", expression)

    @classmethod
    def by_sql(cls, expression: str) -> MessageSelector:
        """Messages whose properties satisfy an SQL92 condition."""
        return cls("SQL92", expression)


class Subscription:
    """One topic of a consumer, its selector compiled.

    Raises (when constructed):
        UsageError: the expression is wrong.
    """

    def __init__(self, topic: str, selector: MessageSelector) -> None:
        self.topic = topic
        self.selector = selector
        self.tags: str | None = None
        self._matches: Callable[[Mapping[str, str]], bool] | None = None
        if selector.expression_type == "SQL92":
            # Parsers and their tables are needed by few.
            from rmq_store.broker.filter.sql92 import compile_selector

            self._matches = compile_selector(selector.expression).matches
        elif TagFilter.parse(selector.expression) is not None:
            self.tags = selector.expression

    @classmethod
    def of(cls, topic: str, selector: str | MessageSelector) -> Subscription:
        """A subscription by selector or tag expression; `*` and "" mean all."""
        return cls(topic, MessageSelector.by_tag(selector or ALL_TAGS) if isinstance(selector, str) else selector)

    def select(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The selected rows of a batch with a column `properties`, whose tags the broker has filtered. Without a
        condition it returns the batch itself; with one, it makes a dict for each row.
        """
        if self._matches is None:
            return rows
        return rows.filter(pa.array([self._matches(dict(pairs)) for pairs in rows.column("properties").to_pylist()]))

    def matches(self, properties: Mapping[str, str]) -> bool:
        """True if a message, whose tags the broker has filtered, is selected."""
        return self._matches is None or self._matches(properties)
