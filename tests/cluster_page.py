"""The tables of options, commands and methods in docs/cluster.md: `python tests/cluster_page.py` writes them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "cluster.md"


def options() -> str:
    """A row for each option: its name, and same, differs, refused or only."""
    from pyspark_rmq.options.option_table import OPTIONS

    rows = []
    for option in OPTIONS:
        verdict, _, sentence = option.cluster.partition(": ")
        rows.append(_row(f"`{option.name}`", verdict, sentence))
    return "| option | with `nameServer` | how |\n|---|---|---|\n" + "".join(rows)


def commands() -> str:
    """A row for each command, in the order of `rmq --help`, and then for those that only a cluster has."""
    from rmq_store.cli.target.table import COMMANDS, Support

    paths = [*command_paths(), *(path for path, row in COMMANDS.items() if row.support == Support.ONLY)]
    rows = [_row(f"`{path}`", COMMANDS[path].support, COMMANDS[path].sentence) for path in paths]
    return "| command | over a cluster | how |\n|---|---|---|\n" + "".join(rows)


def methods() -> str:
    """A row for each public method."""
    from cluster_methods import METHODS

    rows = []
    for name, text in METHODS.items():
        verdict, _, sentence = text.partition(": ")
        rows.append(_row(f"`{name}`", verdict, sentence))
    return "| method | over a cluster | how |\n|---|---|---|\n" + "".join(rows)


def command_paths() -> list[str]:
    """Every command of `rmq` for a store, as `topics` and `offsets show`, in the order of the help."""
    from rmq_store.cli import commands

    commands.add_plugins()
    members = [command for rows in commands.sections.values() for row in rows for command in row.commands]
    return [" ".join(path) for command in members for path in _paths(command)]


def _paths(command: click.Command) -> Iterator[tuple[str, ...]]:
    name = str(command.name)
    if not isinstance(command, click.Group):
        yield (name,)
        return
    context = click.Context(command)
    for inner in command.list_commands(context):
        member = command.get_command(context, inner)
        assert member is not None
        yield from ((name, *rest) for rest in _paths(member))


def _row(name: str, verdict: str, sentence: str) -> str:
    return f"| {name} | {verdict} | {sentence[:1].upper()}{sentence[1:]} |\n"


_TABLES: Final = {"options": options, "commands": commands, "methods": methods}


def page_with_tables(page: str) -> str:
    """docs/cluster.md with each table between its two marks."""
    for name, table in _TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, rest = page.split(begin)
        page = before + begin + table() + end + rest.split(end)[1]
    return page


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "connector"), str(ROOT / "storage")]
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
