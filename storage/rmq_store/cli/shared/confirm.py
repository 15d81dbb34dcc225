"""Commands that change something: they print their plan, ask, and continue only if a person or --yes agrees."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from rmq_store.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])


def changing_options(command: Command) -> Command:
    """Add --dry-run and --yes; the command gets `dry_run: bool` and `yes: bool`."""
    command = click.option("--yes", is_flag=True, help="Do not ask.")(command)
    return click.option("--dry-run", is_flag=True, help="Only show what the command would do; change nothing.")(command)


def confirm(question: str, *, yes: bool) -> None:
    """Return if `yes`, or if somebody at the terminal agrees.

    Raises:
        UsageError: nobody can be asked.
        click.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask: repeat it with --yes")
    click.confirm(question, abort=True, err=True)
