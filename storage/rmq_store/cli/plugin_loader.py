"""Commands that other packages add to `rmq`.

A package names them as entry points of the group `rmq.commands`, each the name of a `Plugin`. They are loaded only for
a command that `rmq` itself does not have, or for a list of all commands: reading the entry points of an environment
takes longer than most commands. Source: https://packaging.python.org/specifications/entry-points/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from rmq_store.errors import StoreError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS: Final = "rmq.commands"

_BROKEN_SECTION: Final = "Not loaded"


class Plugin(NamedTuple):
    """A command, and the heading under which the help of `rmq` lists it."""

    section: str
    command: click.Command


def plugins() -> Iterator[Plugin]:
    """The commands of all installed packages. One that cannot be loaded is replaced by a command of the same name that
    fails with the reason; `rmq` itself and all other commands work.
    """
    from importlib import metadata

    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        try:
            found = entry.load()
            if not isinstance(found, Plugin):
                raise TypeError(f"{entry.value} is not a Plugin")
        except Exception as error:
            yield Plugin(_BROKEN_SECTION, _broken(entry, error))
        else:
            yield found


def _broken(entry: EntryPoint, error: Exception) -> click.Command:
    package = entry.dist.name if entry.dist is not None else entry.value

    def fail() -> None:
        raise StoreError(
            f"command {entry.name!r} of package {package} cannot be loaded: {type(error).__name__}: {error}"
        ) from error

    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    text = f"Of package {package}; cannot be loaded. Run it to see why."
    return click.Command(entry.name, callback=fail, context_settings=settings, short_help=text, help=text)
