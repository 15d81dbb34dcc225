"""Messages with an absolute delivery time: the properties that request one, and the timer queue of each message.

RocketMQ 5.x stores them in a timer wheel and its log, whose topic is `rmq_sys_wheel_timer`. This engine uses a topic of
its own, which a broker does not touch, and leaves the wheel alone. Both take the same properties with the same limits:
HookUtils.java (transformTimerMessage). Times are exact to the millisecond, not rounded.

    rmq_sys_pyrmq_timer   queue 0: due within a minute, 1: an hour, 2: a day, 3: later
        properties        REAL_TOPIC, REAL_QID, TIMER_OUT_MS = when it is due
        tags code         the same time, so that a look for due messages reads queue entries only
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from rmq_store.errors import UsageError
from rmq_store.format.properties import property_string as names
from rmq_store.format.text.names import PYRMQ_TIMER_TOPIC

__all__ = [
    "CANNOT_CANCEL",
    "DELAY_MS_MAX",
    "NUMBER_PATTERN",
    "PYRMQ_TIMER_TOPIC",
    "TIMER_PROPERTIES",
    "TIMER_QUEUES",
    "due_ms",
    "timer_queue_id",
    "timer_queue_ids",
]

# MessageStoreConfig.java timerMaxDelaySec: three days.
DELAY_MS_MAX: Final = 259_200 * 1000

TIMER_PROPERTIES: Final = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
"""The properties that request a time; of several the first one counts."""

TIMER_PROPERTY_SET: Final = frozenset(TIMER_PROPERTIES)

_REMAINING_MS_MAX = (60_000, 3_600_000, 86_400_000)
TIMER_QUEUES: Final = len(_REMAINING_MS_MAX) + 1

NUMBER_PATTERN: Final = r"^-?[0-9]{1,18}$"
"""Valid values of the timer properties."""

CANNOT_CANCEL: Final = f"{names.TIMER_DEL_UNIQUE_KEY}: a message that waits in this store cannot be cancelled"

_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def due_ms(properties: Mapping[str, str], now_ms: int, delay_ms_max: int = DELAY_MS_MAX) -> int | None:
    """The delivery time (ms) of a message with these properties; None: at once, because it requests no time or a past
    one.

    A message with a delay level requests no time: the level counts (the caller removes the timer properties, as Java
    does).

    Raises:
        UsageError: no number, or more than `delay_ms_max` ahead; or the message cancels another one, which only a timer
            wheel can do.
    """
    name = next((name for name in TIMER_PROPERTIES if name in properties), None)
    if name is None or names.TIMER_OUT_MS in properties:
        return None
    if names.TIMER_DEL_UNIQUE_KEY in properties:
        raise UsageError(CANNOT_CANCEL)
    text = properties[name]
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{name}={text[:40]!r} is no number")
    due = int(text)
    if name == names.TIMER_DELAY_SEC:
        due = now_ms + due * 1000
    elif name == names.TIMER_DELAY_MS:
        due += now_ms
    if due - now_ms > delay_ms_max:
        raise UsageError(f"{name}={text}: more than {delay_ms_max // 1000} s ahead (timerMaxDelaySec)")
    return due if due > now_ms else None


def timer_queue_id(remaining_ms: int) -> int:
    """The queue of PYRMQ_TIMER_TOPIC for a message that waits for `remaining_ms`. Separate queues keep scans for near
    messages short.
    """
    return bisect_left(_REMAINING_MS_MAX, remaining_ms)


def timer_queue_ids(remaining_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`timer_queue_id` of each, (n,)."""
    queue_ids: npt.NDArray[np.int64] = np.searchsorted(_REMAINING_MS_MAX, remaining_ms, side="left")
    return queue_ids
