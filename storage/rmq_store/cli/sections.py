"""A click group with many commands: help in sections, names in any case as with mqadmin, nearest names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import click

from rmq_store.cli.plugin_loader import Plugin


class Row(NamedTuple):
    """One entry of a section: its text in the help, and its commands."""

    label: str
    text: str
    commands: tuple[click.Command, ...]


class SectionedGroup(click.Group):
    """A group whose help lists the commands under headings, in the order in which they were added."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.sections: dict[str, list[Row]] = {}
        self.plugins: Callable[[], Iterable[Plugin]] | None = None
        """Finds the commands of other packages; called once, and not before one of them may be asked for."""
        self.absent: Mapping[str, str] = {}
        """Names that somebody may type though there is no such command, and what to tell then."""

    def add_section(self, title: str, commands: Iterable[click.Command]) -> None:
        """Add commands, each with a line of its own in the help."""
        rows = self.sections.setdefault(title, [])
        for command in commands:
            self.add_command(command)
            rows.append(Row(str(command.name), command.get_short_help_str(limit=80), (command,)))

    def add_names(self, title: str, commands: Mapping[str, Collection[click.Command]]) -> None:
        """Add commands of which the help shows only the names, a paragraph per key."""
        rows = self.sections.setdefault(title, [])
        for kind, several in commands.items():
            row = Row(kind, ", ".join(str(command.name) for command in several), tuple(several))
            for command in row.commands:
                self.add_command(command)
            rows.append(row)

    def add_plugins(self) -> None:
        """Add the commands of other packages, at the end of their sections. A name that is taken is not replaced."""
        find, self.plugins = self.plugins, None
        for section, command in find() if find is not None else ():
            if command.name not in self.commands:
                self.add_section(section, [command])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, those of other packages included."""
        self.add_plugins()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, else one that differs only in case (MQAdminStartup#findSubCommand)."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            self.add_plugins()
            found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        return next((self.commands[name] for name in self.commands if name.lower() == cmd_name.lower()), None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, but the error about an unknown name suggests the nearest ones, whatever their case; and `help
        NAME`, as with mqadmin, is `NAME --help`.
        """
        if args[0] == "help" and not ctx.resilient_parsing:
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            for absent, reason in self.absent.items():
                if name.lower() == absent.lower():
                    ctx.fail(f"{absent} is not here: {reason}.")
            lower = {known.lower(): known for known in self.commands}
            near = [lower[found] for found in difflib.get_close_matches(name.lower(), lower, n=3)]
            ctx.fail(f"No such command '{name}'." + (f" Did you mean {' or '.join(near)}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        self.add_plugins()
        for title, rows in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(row.label, row.text) for row in rows])
