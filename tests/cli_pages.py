"""Writes docs/cli/ from the commands themselves, and the output that docs/cookbook.md shows.

    python tests/cli_pages.py           the pages: one per section of `rmq --help`, for mqadmin's names one per kind
    python tests/cli_pages.py STORE     the cookbook too; STORE: a copy of the store in examples/data

In the cookbook, what follows a line `$ rmq ...` of a `console` block, up to the next one or the end of the block, is
what the command prints. /data/checkpoint is the one that Spark wrote for the tests of `rmq checkpoint`.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from rmq_store.cli import commands

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH = 116  # of a docstring
SHOWN_STORE = "/data/rocketmq/store"
SHOWN_CHECKPOINT = "/data/checkpoint"
CHECKPOINT = DOCS.parent / "tests" / "storage" / "cli" / "spark-checkpoint"

_NOTE = "<!-- Generated from the commands: python tests/cli_pages.py -->"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> dict[str, str]:
    """{name of the file in docs/cli: its text}."""
    commands.add_plugins()
    made: dict[str, str] = {}
    index = ["# The `rmq` command\n", f"{_NOTE}\n", *_paragraphs(commands.help), "| page | commands |\n|---|---|"]
    for title, rows in commands.sections.items():
        several = [(title, title, [c for row in rows for c in row.commands])]
        if any(len(row.commands) != 1 for row in rows):
            several = [(f"mqadmin {row.label}", f"mqadmin's commands: {row.label}", list(row.commands)) for row in rows]
        for short, heading, members in several:
            name = f"{short.lower().replace(' ', '-')}.md"
            parts = [f"# {heading}\n", f"{_NOTE}\n", *(text for one in members for text in _command(one, "rmq"))]
            made[name] = "\n".join(parts).rstrip() + "\n"
            index.append(f"| [{heading}]({name}) | {', '.join(f'`{one.name}`' for one in members)} |")
    made["README.md"] = "\n".join([*index, "", *_paragraphs(commands.epilog)]).rstrip() + "\n"
    return made


def _command(command: click.Command, parent: str) -> Iterator[str]:
    path = f"{parent} {command.name}"
    context = click.Context(command, info_name=path, max_content_width=100)
    yield f"## `{path}`\n"
    yield f"    {path} {' '.join(command.collect_usage_pieces(context))}\n"
    yield from _paragraphs(command.help)
    options = [param for param in command.params if isinstance(param, click.Option)]
    own = [record for option in options if (record := option.get_help_record(context)) is not None]
    if own:
        yield "| option | meaning |\n|---|---|"
        yield from (f"| `{_cell(names)}` | {_cell(text)} |" for names, text in own)
        yield ""
    yield from _paragraphs(command.epilog)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            assert member is not None
            yield from _command(member, path)


def _paragraphs(text: str | None) -> Iterator[str]:
    """Help of a command as Markdown; what click does not wrap is a block, `Example:` above it a line."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        head, _, rest = paragraph.partition("\n")
        if head.strip() != "\b":
            # One whose parts depend on the target is a single line.
            yield f"{paragraph if rest else textwrap.fill(head, WIDTH, break_on_hyphens=False)}\n"
            continue
        lines = rest.splitlines()
        if lines and lines[0].rstrip().endswith(":"):
            yield f"{lines.pop(0).rstrip()}\n"
        yield "\n".join(f"    {line.strip()}" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def cookbook(text: str, run: Callable[[list[str]], str]) -> str:
    """The page with what its commands print now; `run` gets the words behind `rmq`."""

    def renew(block: re.Match[str]) -> str:
        asked = [line for line in block[1].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"{line}\n{run(shlex.split(line)[2:])}" for line in asked) + "```"

    return _BLOCK.sub(renew, text)


def run_on(store: Path) -> Callable[[list[str]], str]:
    """Runs a command on a store, and returns what it prints, with the places that the page shows."""

    def run(words: list[str]) -> str:
        environment = {"RMQ_STORE": str(store), "COLUMNS": "100"}
        words = [word.replace(SHOWN_CHECKPOINT, str(CHECKPOINT)) for word in words]
        result = CliRunner().invoke(commands, words, env=environment, prog_name="rmq", catch_exceptions=False)
        return result.output.replace(str(store), SHOWN_STORE)

    return run


def main(arguments: list[str]) -> None:
    """Write the pages, and with a store the cookbook."""
    if arguments and not Path(arguments[0], "commitlog").is_dir():
        sys.exit(__doc__)
    (DOCS / "cli").mkdir(exist_ok=True)
    made = pages()
    for old in (DOCS / "cli").glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (DOCS / "cli" / name).write_text(text, encoding="utf-8")
    if arguments:
        page = DOCS / "cookbook.md"
        page.write_text(cookbook(page.read_text(encoding="utf-8"), run_on(Path(arguments[0]))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
