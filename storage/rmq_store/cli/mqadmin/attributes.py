"""Attributes as updateTopic and updateSubGroup take them: `+message.type=FIFO,-reserve.time`. Source:
AttributeParser.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_store.errors import UsageError

TOPIC_ATTRIBUTES: Final = {
    "message.type": ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
}
"""TopicAttributes.java: those that a store of files with 20-byte queue entries can have."""


def attribute_changes(text: str, known: Mapping[str, tuple[str, ...]] | None) -> dict[str, str | None]:
    """`+k=v,-k` as {k: v, or None to remove it} (AttributeParser#parseToMap). `known`: the existing attributes with
    their values; None: any. Raises UsageError.
    """
    changes: dict[str, str | None] = {}
    for item in filter(None, text.split(",")):
        name, separator, value = item[1:].partition("=")
        if (item[0], separator) not in (("+", "="), ("-", "")) or not name or name in changes:
            raise UsageError(f"--attributes {text!r}: {item!r} is neither +name=value nor -name, or comes twice")
        if known is not None:
            allowed = known.get(name)
            if allowed is None or (separator and value not in allowed):
                what = f"{name} is one of {', '.join(allowed)}" if allowed else f"known are {', '.join(known)}"
                raise UsageError(f"--attributes {text!r}: {item!r}: {what}")
        changes[name] = value if separator else None
    return changes
