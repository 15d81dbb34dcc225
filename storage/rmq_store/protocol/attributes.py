"""Attributes of topics and groups as they are changed: `+message.type=FIFO,-reserve.time`. Source:
AttributeParser.java, AttributeUtil.java.
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
            raise UsageError(f"attributes {text!r}: {item!r} is neither +name=value nor -name, or comes twice")
        if known is not None:
            allowed = known.get(name)
            if allowed is None or (separator and value not in allowed):
                what = f"{name} is one of {', '.join(allowed)}" if allowed else f"known are {', '.join(known)}"
                raise UsageError(f"attributes {text!r}: {item!r}: {what}")
        changes[name] = value if separator else None
    return changes


def changes_of_pairs(pairs: Mapping[str, str]) -> dict[str, str | None]:
    """`{"+k": v, "-k": anything}`, as a group's settings have them on the wire, as {k: v, or None to remove it}. Raises
    UsageError.
    """
    changes: dict[str, str | None] = {}
    for key, value in pairs.items():
        sign, name = key[:1], key[1:]
        if sign not in ("+", "-") or not name or name in changes:
            raise UsageError(f"attribute {key!r} is neither +name nor -name, or comes twice")
        changes[name] = value if sign == "+" else None
    return changes


def changed_attributes(known: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the attributes after these changes; those that no change names stay."""
    kept = {name: value for name, value in known.items() if name not in changes}
    return kept | {name: value for name, value in changes.items() if value is not None}
