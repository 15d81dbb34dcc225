"""From the text of an option to its value: one function for each kind. Control plane, no I/O.

Each takes the text and the name of the option, and raises `UsageError`, which names the option.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from pyspark_rmq.position.position import (
    INT64_MAX,
    Position,
    check_time_ms,
    parse_offsets,
    refuse,
)

FROM_LAST = "CONSUME_FROM_LAST_OFFSET"
FROM_FIRST = "CONSUME_FROM_FIRST_OFFSET"
FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"

SKIP = "skip"

# format/text/names.py: the longest name of a group that today's brokers take.
_GROUP_LENGTH_MAX = 120

# Leading zeros are digits, too; beyond that nobody has typed a number.
_DIGITS_MAX = 40

_UNITS_MS = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def plain_text(text: str, name: str) -> str:
    """A text that is not empty, without blanks around it."""
    value = text.strip()
    if not value:
        refuse(f"option {name} is empty")
    return value


def group_name(text: str, name: str) -> str:
    """Parse the name of a consumer group. The retry or dead-letter topic of a group is refused: as a group it would get
    a retry topic of its own.
    """
    value = plain_text(text, name)
    prefix = re.match("%(RETRY|DLQ)%", value)
    if prefix is not None:
        refuse(f"option {name}: {value!r} is a topic; its group is {value[prefix.end():]!r}")
    from rmq_store import validate_group, validate_topic
    from rmq_store.errors import UsageError

    try:
        # As long a name as its topics may have: brokers of 4.9 took more than the 120 characters of today's.
        validate_group(value[:_GROUP_LENGTH_MAX])
        validate_topic(f"%DLQ%{value}")
    except UsageError as error:
        refuse(f"option {name}: {error}")
    return value


def topic_name(text: str, name: str) -> str:
    """The name of a topic."""
    value = plain_text(text, name)
    from rmq_store import validate_topic
    from rmq_store.errors import UsageError

    try:
        validate_topic(value)
    except UsageError as error:
        refuse(f"option {name}: {error}")
    return value


def local_path(text: str, name: str) -> str:
    """Parse an absolute path. The driver parses options, and a task on another host has another working directory."""
    value = plain_text(text, name)
    from rmq_store.arguments import local_path as path_of
    from rmq_store.errors import UsageError

    try:
        return str(path_of(value).expanduser().absolute())
    except UsageError as error:
        refuse(f"option {name}: {error}")
    except RuntimeError as error:
        refuse(f"option {name}: {value!r}: {error}")


def boolean(text: str, name: str) -> bool:
    """`true` or `false`."""
    value = text.strip().lower()
    if value not in ("true", "false"):
        refuse(f"option {name}: {text!r} is neither true nor false")
    return value == "true"


def integer(lowest: int, highest: int = INT64_MAX) -> Callable[[str, str], int]:
    """The function for integers in [lowest, highest]."""

    def parse(text: str, name: str) -> int:
        value = text.strip()
        # The length first: int() refuses a text of thousands of digits with an error of its own.
        if not re.fullmatch(r"[0-9]+", value, re.ASCII) or (len(value) <= _DIGITS_MAX and int(value) < lowest):
            refuse(f"option {name}: {text!r} is not an integer of at least {lowest}")
        if len(value) > _DIGITS_MAX or int(value) > highest:
            refuse(f"option {name}: {text[:40]!r} is more than {highest}, the largest value")
        return int(value)

    return parse


def duration_ms(text: str, name: str) -> int:
    """A duration with a unit (`500ms`, `30s`, `15m`, `1h`), in ms."""
    match = re.fullmatch(r"([0-9]{1,12})\s*(ms|s|m|min|h|d)?", text.strip().lower())
    if match is None:
        refuse(f"option {name}: {text!r} is not a duration such as 500ms, 30s, 15m or 1h")
    return int(match[1]) * _UNITS_MS[match[2]]


def topic_names(text: str, name: str) -> tuple[str, ...]:
    """Topics, separated by commas."""
    topics = tuple(dict.fromkeys(topic_name(part, name) for part in text.split(",") if part.strip()))
    if not topics:
        refuse(f"option {name} names no topic")
    return topics


def word_list(text: str, name: str) -> tuple[str, ...]:
    """Words, separated by white space."""
    words = tuple(dict.fromkeys(word for word in re.split(r"[ \t\r\n]+", text) if word))
    if not words:
        refuse(f"option {name} is empty")
    return words


def topic_pattern(text: str, name: str) -> str:
    """A regular expression for whole names of topics."""
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        refuse(f"option {name}: {text!r} is not a regular expression: {error}")
    return text


def tag_expression(text: str, name: str) -> str | None:
    """`TagA || TagB`; None for `*`, which all messages match."""
    # FilterAPI.buildSubscriptionData: "*" and an empty expression subscribe to everything.
    value = text.strip()
    if value in ("", "*"):
        return None
    if not all(tag.strip() for tag in value.split("||")):
        refuse(f"option {name}: {text!r} has an empty tag; write it as 'TagA || TagB'")
    return value


def sql92_condition(text: str, name: str) -> str:
    """A condition on properties. Brokers take one that they cannot parse for one that all messages fulfil."""
    value = plain_text(text, name)
    from rmq_store.cluster import compile_selector
    from rmq_store.errors import UsageError

    try:
        compile_selector(value)
    except UsageError as error:
        refuse(f"option {name}: {error}")
    return value


def consume_from_where(text: str, name: str) -> str:
    """One of RocketMQ's three words (ConsumeFromWhere.java)."""
    value = text.strip().upper()
    if value not in (FROM_LAST, FROM_FIRST, FROM_TIMESTAMP):
        refuse(f"option {name}: {text!r} is none of {FROM_LAST}, {FROM_FIRST}, {FROM_TIMESTAMP}")
    return value


def on_corruption(text: str, name: str) -> str:
    """`fail` or `skip`."""
    value = text.strip().lower()
    if value not in ("fail", SKIP):
        refuse(f"option {name}: {text!r} is neither fail nor {SKIP}")
    return value


def local_time_ms(text: str, name: str) -> int:
    """A local time as `yyyyMMddHHmmss`, in ms since the epoch."""
    try:
        return int(time.mktime(time.strptime(text.strip(), "%Y%m%d%H%M%S"))) * 1000
    except (ValueError, OverflowError):
        refuse(f"option {name}: {text!r} is not a local time as yyyyMMddHHmmss")


def starting_position(text: str, name: str) -> Position:
    """The start of a read: one of three words, or JSON."""
    return parse_offsets(text, name, ("earliest", "latest", "group"))


def ending_position(text: str, name: str) -> Position:
    """The end of a batch: a word, or JSON."""
    return parse_offsets(text, name, ("latest",))


def one_timestamp(text: str, name: str) -> Position:
    """One time for all queues, ms since the epoch."""
    return Position("timestamp", timestamp_ms=check_time_ms(integer(0)(text, name), f"option {name}"))
