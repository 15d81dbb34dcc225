"""The reason for which a handler failed a message: error class, message and a hash of the stack. No I/O.

`rmq_store.failure` makes the reason of an exception, as for consumers without Spark. A failure that the handler
returned gets a reason, too, so that the reason of an earlier failure does not stay on the message.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from rmq_store import failure

# The error class of a row for which the handler answered nothing.
NO_RESULT: Final = "NoResult"


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason of one failure. All texts are short, and none is empty."""

    error_class: str
    error_message: str
    stack_hash: str


def reason_of(error: BaseException) -> Reason:
    """Return the reason of an exception that a handler raised. Never raises."""
    try:
        known = failure.failure_properties(error, now_ms=0)
    except Exception as second:
        # Its text is made by code of the user's, too.
        return _without_stack(type(error).__qualname__, f"the error has no text: {type(second).__name__} in __str__")
    # Columns of Arrow are UTF-8, so a text with half a surrogate pair (file names have them) would fail the query.
    name = failure.storable(known[failure.ERROR_CLASS])
    return Reason(name, failure.storable(known.get(failure.ERROR_MESSAGE, name)), known[failure.STACK_HASH])


def returned(result: str) -> Reason:
    """Return the reason for a handler that raised nothing, but returned RECONSUME_LATER or DLQ."""
    return _without_stack(result, "returned by the handler")


def no_result() -> Reason:
    """Return the reason for a handler that returned None."""
    return _without_stack(NO_RESULT, "the handler returned None, which is RECONSUME_LATER: is a return missing?")


def _without_stack(error_class: str, error_message: str) -> Reason:
    return Reason(error_class, error_message, hashlib.sha256(error_class.encode()).hexdigest()[:16])
