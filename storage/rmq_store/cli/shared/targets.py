"""Options for the position of a reader: `--from WHERE` of commands that read, and the same words for the new position
of a group's offsets and of a stream's checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from rmq_store.cli.shared.times import TIMES, parse_time
from rmq_store.errors import OffsetOutOfRangeError, UsageError

if TYPE_CHECKING:
    from rmq_store import QueueRange, Store
    from rmq_store.broker.monitoring.offset_reset import Target

EARLIEST, LATEST, OFFSET, TIME = "earliest", "latest", "offset", "time"

FROM: Final = (
    "earliest, latest, a queue offset (100, or offset:100), or a time (2026-11-21T00:21Z, ms since 1970, or 10m: 10 "
    "minutes ago)"
)
"""What `parse_start` takes, for the help of --from."""

# Longer numbers are offsets, and of 11 to 15 digits times in ms, as everywhere.
_NUMBER: Final = re.compile(r"[0-9]{1,10}|[0-9]{16,19}", re.ASCII)
_OFFSET: Final = re.compile(r"offset:([0-9]{1,19})", re.ASCII)
_OFFSET_MAX: Final = (1 << 63) - 1

Command = TypeVar("Command", bound=Callable[..., Any])

class Start(NamedTuple):
    """Where to begin: `kind` is EARLIEST, LATEST, OFFSET with the queue offset in `value`, or TIME with ms since 1970.
    """

    kind: str
    value: int = 0

    def first_offset(self, present: QueueRange, at_time: Callable[[int], int]) -> int:
        """The offset at which a queue begins, moved into its range. `at_time` finds that of a time in ms."""
        if self.kind == EARLIEST:
            return present.min_offset
        if self.kind == LATEST:
            return present.max_offset
        wanted = self.value if self.kind == OFFSET else at_time(self.value)
        return min(max(wanted, present.min_offset), present.max_offset)

    def require_in(self, present: QueueRange, queue: object, topic: str) -> None:
        """Raise OffsetOutOfRangeError for an offset that the one wanted queue does not have."""
        if self.kind == OFFSET and not present.min_offset <= self.value <= present.max_offset:
            limits = present.min_offset, present.max_offset
            text = f"offset {self.value} is not in queue {queue} of {topic}: {limits[0]} to {limits[1]}"
            raise OffsetOutOfRangeError(text, self.value, *limits)


def parse_start(text: str, now_ms: int) -> Start:
    """The beginning that --from names, see FROM. A number of up to 10 digits is an offset. Raises UsageError."""
    text = text.strip()
    if text in (EARLIEST, LATEST):
        return Start(text)
    number = text if _NUMBER.fullmatch(text) else found[1] if (found := _OFFSET.fullmatch(text)) else None
    if number is not None and int(number) <= _OFFSET_MAX:
        return Start(OFFSET, int(number))
    try:
        return Start(TIME, parse_time(text, now_ms))
    except UsageError as error:
        raise UsageError(f"{text!r} is no time and no offset; --from takes {FROM}") from error


def start_option(command: Command) -> Command:
    """Add --from WHERE; the command gets `start: str | None`, for `parse_start`."""
    return click.option("--from", "start", metavar="WHERE", help=f"Where to begin: {FROM}.")(command)


_OPTIONS = (
    click.option("--to-earliest", is_flag=True, help="To the oldest message of the queue."),
    click.option("--to-latest", is_flag=True, help="To the end of the queue, after the newest message."),
    click.option("--to-time", metavar="TIME", help=f"To the first message stored at this time or later: now, {TIMES}."),
    click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To this offset."),
    click.option("--shift", type=int, metavar="N", help="By N messages forward; by -N messages back."),
)


def target_options(command: Command) -> Command:
    """Add the options that `target` understands; the command gets each under its name."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def one_of(asked: Mapping[str, Any]) -> tuple[str, Any]:
    """Name and value of the single option of these that was given. Raises UsageError if none or several were given."""
    given = [(name, value) for name, value in asked.items() if value is not None and value is not False]
    if len(given) != 1:
        raise UsageError(f"name one of {', '.join('--' + name.replace('_', '-') for name in asked)}")
    return given[0]


def target(store: Store, name: str, value: Any) -> Target:
    """The offset of a queue that an option of `target_options` names. Raises UsageError for an invalid time."""
    from rmq_store.broker.monitoring import offset_reset

    targets: dict[str, Callable[[], Target]] = {
        "to_earliest": lambda: offset_reset.earliest,
        "to_latest": lambda: offset_reset.latest,
        "to_time": lambda: offset_reset.at_time(store, parse_time(value, store.clock())),
        "to_offset": lambda: offset_reset.at_offset(value),
        "shift": lambda: offset_reset.shifted(value),
    }
    return targets[name]()
