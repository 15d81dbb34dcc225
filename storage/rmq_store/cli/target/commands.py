"""The commands over a cluster, made of the table; each is imported when it is asked for."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

from rmq_store.cli.target.command import TargetCommand
from rmq_store.cli.target.named_target import Named, named, of_environment
from rmq_store.cli.target.table import COMMANDS, Row, Support
from rmq_store.errors import UsageError


class ClusterGroup(click.Group):
    """A command with subcommands, as `rmq offsets`, over a cluster. `store` is the group for a store."""

    def __init__(self, path: str, store: click.Group) -> None:
        super().__init__(store.name, help=store.help, short_help=store.short_help, epilog=store.epilog)
        self._path = path
        self._store = store

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, those that are refused included."""
        return self._store.list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name over a cluster."""
        return command_of(f"{self._path} {cmd_name}", self._store.get_command(ctx, cmd_name))


def command_of(path: str, store: click.Command | None) -> click.Command | None:
    """The command of a path, as `offsets show`, over a cluster. `store`: that for a store, if there is one. None: there
    is none.
    """
    if isinstance(store, click.Group):
        return ClusterGroup(path, store)
    row = COMMANDS.get(path)
    if row is None:
        return None
    if row.support == Support.REFUSED:
        return _refusing(path, row)
    if row.home:
        return _imported(row.home)
    return store.over_cluster() if isinstance(store, TargetCommand) else store


def cluster_only(name: str) -> click.Command | None:
    """A command that no store has, by its name in any case."""
    for path, row in COMMANDS.items():
        if row.support == Support.ONLY and path.lower() == name.lower():
            return _imported(row.home)
    return None


def cluster_of(ctx: click.Context, command: click.Command, arguments: list[str]) -> tuple[str, list[str]] | None:
    """The text that names a cluster, on the command line or in the environment, and the other arguments. None: no
    cluster is named. `ctx` is the context of `rmq` itself.

    Raises:
        UsageError: two clusters, or a store and a cluster, are named.
    """
    found = named(command, arguments)
    before = ctx.params.get("name_server")
    clusters = [*([before] if before else []), *found.clusters]
    if len(clusters) > 1:
        raise UsageError("a cluster is named twice; name it once, before or behind the command")
    if clusters and found.has_store:
        raise UsageError("name a store (--store) or a cluster (-n), not both")
    if not clusters and not found.has_store:
        text, is_ours = of_environment(os.environ)
        row = COMMANDS.get(_path_of(command, found))
        # The variable of RocketMQ does not keep a command for stores from asking for its store.
        if text and (is_ours or row is None or row.support != Support.REFUSED):
            clusters = [text]
    return (clusters[0], found.arguments) if clusters else None


def _path_of(command: click.Command, found: Named) -> str:
    """The path of the command that the arguments name, as `offsets show`."""
    words = [str(command.name)]
    for word in found.arguments:
        if isinstance(command, click.Group) and (inner := command.get_command(click.Context(command), word)):
            command = inner
            words.append(word)
    return " ".join(words)


def _imported(home: str) -> click.Command:
    module, _, name = home.partition(":")
    full = module[1:] if module.startswith("/") else f"rmq_store.cli.{module}"
    found: Any = getattr(import_module(full), name)
    assert isinstance(found, click.Command)
    return found


def _refusing(path: str, row: Row) -> click.Command:
    """A command that fails with the sentence of its row."""

    def refuse() -> None:
        raise UsageError(f"rmq {path} over a cluster is refused: {row.sentence}")

    settings: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}
    text = f"Refused over a cluster: {row.sentence}."
    return click.Command(path.split()[-1], callback=refuse, context_settings=settings, short_help=text, help=text)
