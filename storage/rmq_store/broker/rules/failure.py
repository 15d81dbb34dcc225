"""Failure reasons: user properties that stay with a message through retry and dead-letter topics.

RocketMQ stores no reasons. A caller that sends a message back may give these properties, and readers find them in
`properties`. They are left out if the property string would get longer than a frame can hold, so that no property of
the message itself is lost.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from rmq_store.format.properties.property_string import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

ERROR_CLASS: Final = "PYRMQ_ERROR_CLASS"
ERROR_MESSAGE: Final = "PYRMQ_ERROR_MESSAGE"
STACK_HASH: Final = "PYRMQ_STACK_HASH"
QUERY_ID: Final = "PYRMQ_QUERY_ID"
BATCH_ID: Final = "PYRMQ_BATCH_ID"
FIRST_FAILURE_MS: Final = "PYRMQ_FIRST_FAILURE_MS"
LAST_FAILURE_MS: Final = "PYRMQ_LAST_FAILURE_MS"
ORIGIN_TOPIC: Final = "PYRMQ_ORIGIN_TOPIC"
ORIGIN_QUEUE_ID: Final = "PYRMQ_ORIGIN_QUEUE_ID"
ORIGIN_QUEUE_OFFSET: Final = "PYRMQ_ORIGIN_QUEUE_OFFSET"
REPLAYS: Final = "PYRMQ_REPLAYS"
DEAD_LETTER: Final = "PYRMQ_DEAD_LETTER"
KAFKA_LETTER: Final = "KAFKA_LETTER"
"""For a dead letter of Kafka: the format of its headers there (`rmq_store.bridge.dead_letters.formats`)."""
MIRROR_LETTER: Final = "MIRROR_LETTER"
"""For a Kafka record that a mirror could not store as a message."""

FIRST_STAYS: Final = (FIRST_FAILURE_MS, ORIGIN_TOPIC, ORIGIN_QUEUE_ID, ORIGIN_QUEUE_OFFSET)
"""Reasons that a message keeps from its first failure on."""

REASONS: Final = (
    ERROR_MESSAGE, STACK_HASH, QUERY_ID, BATCH_ID, LAST_FAILURE_MS, FIRST_FAILURE_MS, ERROR_CLASS,
    ORIGIN_QUEUE_OFFSET, ORIGIN_QUEUE_ID, ORIGIN_TOPIC,
)  # fmt: skip
"""Reasons that are left out if there is no room, the least important first. REPLAYS and DEAD_LETTER guard against
loops, so they stay.
"""

ERROR_MESSAGE_CHARACTERS_MAX: Final = 2048

_STACK_HASH_DIGITS = 16
_SEPARATORS = dict.fromkeys(map(ord, (NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR)), "\N{REPLACEMENT CHARACTER}")


def failure_properties(
    error: BaseException, *, now_ms: int, query_id: str | None = None, batch_id: int | None = None
) -> dict[str, str]:
    """The reasons of an exception. The stack hash is the same for failures with the same call stack, whatever the line
    numbers and the message.
    """
    # Not extract_tb: it reads the source of each frame, which takes 10 ms where a recursion has found no end.
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    way = "\n".join(f"{PurePath(code.co_filename).name}:{code.co_name}" for code in codes)
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    reasons = {
        ERROR_CLASS: kind,
        ERROR_MESSAGE: str(error)[:ERROR_MESSAGE_CHARACTERS_MAX],
        STACK_HASH: hashlib.sha256(f"{kind}\n{way}".encode(errors="replace")).hexdigest()[:_STACK_HASH_DIGITS],
        QUERY_ID: query_id or "",
        BATCH_ID: "" if batch_id is None else str(batch_id),
        FIRST_FAILURE_MS: str(now_ms),
        LAST_FAILURE_MS: str(now_ms),
    }
    return {name: value for name, value in reasons.items() if value}


def storable(text: str) -> str:
    """`text` in a form that a property can hold: separators and lone surrogates become U+FFFD and `?`."""
    return text.translate(_SEPARATORS).encode(errors="replace").decode()


def with_reasons(own: Mapping[str, str], given: Mapping[str, str], bytes_max: int) -> dict[str, str] | None:
    """`own` updated with `given`, in at most `bytes_max` bytes of property string; None if `own` alone is too long. If
    there is no room, the error message is cut, then reasons are left out, the least important first, then other given
    properties, the last first. Reasons that `own` has from an earlier failure count like new ones.
    """
    properties = {**own, **{name: value for name, value in given.items() if name not in own or name not in FIRST_STAYS}}
    excess = size_bytes(properties) - bytes_max
    if excess <= 0:
        return properties
    message = properties.get(ERROR_MESSAGE)
    if message is not None:
        raw = message.encode()
        short = raw[: max(len(raw) - excess, 0)].decode(errors="ignore")
        if short:
            return {**properties, ERROR_MESSAGE: short}
    others = [name for name in given if name not in REASONS]
    for name in (*REASONS, *reversed(others)):
        if name in properties:
            properties.pop(name)
            if name in own and name not in REASONS:
                properties[name] = own[name]
            if size_bytes(properties) <= bytes_max:
                return properties
    return None


def size_bytes(properties: Mapping[str, str]) -> int:
    """Length of the property string in bytes."""
    return sum(len(name.encode()) + len(value.encode()) + 2 for name, value in properties.items())
