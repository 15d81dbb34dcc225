"""Options for the new position of a reader: the same words for a group's offsets and for a stream's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.shared.times import TIMES, parse_time
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.broker.monitoring.offset_reset import Target

Command = TypeVar("Command", bound=Callable[..., Any])

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
