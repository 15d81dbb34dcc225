"""Lines of a Java format, and values as Java prints them."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from rmq_store.cli.shared.output import printable

_PERMS = ((4, "R"), (2, "W"), (1, "X"))


def write_line(form: str, *values: object) -> None:
    """Print one line of a Java format such as `%-32s  %-4d`; texts are made safe for a terminal."""
    safe = tuple(printable(value) if isinstance(value, str) else value for value in values)
    click.echo((form % safe).rstrip())


def date_text(time_ms: int, *, millis: bool = False) -> str:
    """`2026-11-21 00:21:54`, with `millis` `...54,856` (UtilAll#timeMillisToHumanString2); UTC. As a number if no
    calendar has it.
    """
    try:
        moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}" + (f",{time_ms % 1000:03d}" if millis else "")


def perm_text(perm: int) -> str:
    """`RW-` (PermName#perm2String)."""
    return "".join(letter if perm & bit else "-" for bit, letter in _PERMS)


def java_text(value: object) -> str:
    """A value as Java's toString prints it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
