"""Recall handles: with the answer to its send, a producer gets the text by which it can take a timer back.

    v1 topic brokerName deliverTime messageId        joined by single spaces, in base64 for URLs

Source: RecallMessageHandle.java (HandleV1). Java adds one to the time, because its broker rounds it down.
"""

from __future__ import annotations

import base64
import binascii

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

_VERSION = "v1"
_FIELDS = 5
_TIME_DIGITS_MAX = 18
CHARACTERS_MAX = 64 << 10
"""More than any message id and topic have together."""


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """The message with this unique key that waits for `deliver_ms`."""

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str

    def __str__(self) -> str:
        text = " ".join((_VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.message_id))
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def parse(cls, text: str) -> RecallHandle:
        """Parse a handle. UsageError: the text is none."""
        try:
            if len(text) > CHARACTERS_MAX:
                raise ValueError
            decoded = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True).decode()
            version, topic, broker_name, time, message_id = decoded.split(" ", _FIELDS - 1)
            if version != _VERSION or not (time.isascii() and time.isdigit() and len(time) <= _TIME_DIGITS_MAX):
                raise ValueError
        except (ValueError, binascii.Error) as error:
            raise UsageError(f"{text[:100]!r} is no recall handle: it is in the result of a timer's send") from error
        return cls(topic, broker_name, int(time), message_id)
