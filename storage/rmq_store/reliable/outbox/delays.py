"""Messages that a broker delays before delivery: the time of delivery, and the same message without a delay.

    DELAY                                 a level of the broker's ladder; it wins over the others, as in a store
    TIMER_DELIVER_MS                      a point in time
    TIMER_DELAY_MS, TIMER_DELAY_SEC       a time span
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rmq_store.client import Message
from rmq_store.format.text.delay_levels import DELAY_LEVELS_MS

_RELATIVE: Final = {"TIMER_DELAY_MS": 1, "TIMER_DELAY_SEC": 1_000}
DELAYS: Final = ("DELAY", "TIMER_DELIVER_MS", *_RELATIVE)
_DELAYS: Final = frozenset(DELAYS)


def deliver_ms(message: Message, now_ms: int) -> int | None:
    """The time at which the broker delivers a message that is sent now, ms since 1970; None: at once."""
    if not is_delayed(message):
        return None
    properties = message.stored_properties()
    level = _number(properties.get("DELAY"))
    if level > 0:
        # A broker may have another table; all that rests on it is when a resend is thought of.
        return now_ms + DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
    if "TIMER_DELIVER_MS" in properties:
        return _number(properties["TIMER_DELIVER_MS"])
    for name, unit_ms in _RELATIVE.items():
        if name in properties:
            return now_ms + _number(properties[name]) * unit_ms
    return None


def is_delayed(message: Message) -> bool:
    """True if it has any of these properties; a batch cannot hold it."""
    if message.delay_level or message.deliver_timestamp_ms is not None:
        return True
    return not _DELAYS.isdisjoint(message.properties)


def without_delay(message: Message) -> Message:
    """The message for a resend after its time: it has waited already."""
    kept = {name: value for name, value in message.properties.items() if name not in DELAYS}
    return replace(message, properties=kept, delay_level=0, deliver_timestamp_ms=None)


def _number(text: str | None) -> int:
    """0 for a text that is no number: the broker refuses the message, or delivers it at once."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 16):
        return 0
    return int(text)
