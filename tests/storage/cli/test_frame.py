"""The frame of `rmq`: every command has its place in the help, an example that parses, and JSON; mistakes are answered
with the nearest name; the pages in docs/ are what the commands say.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner, Result

from rmq_store.cli import commands
from rmq_store.cli.mqadmin import ABSENT
from rmq_store.cli.sections import SectionedGroup

Run = Callable[..., Result]
TESTS = Path(__file__).resolve().parents[2]
DOCS = TESTS.parent / "docs"

# They print what happens while they run, a line at a time, for people.
WITHOUT_JSON = {"rmq broker run", "rmq broker clock advance", "rmq namesrv run"}


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, member in command.commands.items():
            yield from walk(member, f"{path} {name}")


commands.add_plugins()
EVERY = [(path, command) for path, command in walk(commands, "rmq") if path != "rmq"]
LEAVES = [(path, command) for path, command in EVERY if not isinstance(command, click.Group)]


@pytest.fixture(scope="module")
def cli_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cli_pages", TESTS / "cli_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- help


def test_every_command_is_in_one_section(run: Run) -> None:
    placed = [command for rows in commands.sections.values() for row in rows for command in row.commands]
    assert sorted(str(command.name) for command in placed) == sorted(commands.commands)
    text = run("--help").stdout
    for title in commands.sections:
        assert f"\n{title}:\n" in text


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[path for path, _ in EVERY])
def test_every_command_says_what_it_does(run: Run, path: str, command: click.Command) -> None:
    assert command.short_help
    assert len(command.short_help) <= 75, "it has one line in the help"
    assert command.help and command.help[0].isupper()
    result = run(*path.split()[1:], "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: {path} ")


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[path for path, _ in LEAVES])
def test_every_command_has_examples_that_parse_and_json(path: str, command: click.Command) -> None:
    lines = (command.epilog or "").replace("\\\n", " ").splitlines()
    examples = [line.strip().replace("rmq -n ns1:9876 ", "rmq ") for line in lines if line.strip().startswith("rmq ")]
    examples = [line for line in examples if line.startswith(f"{path} ")]
    assert examples
    for example in examples:
        words = shlex.split(example)[len(path.split()) :]
        command.make_parser(click.Context(command)).parse_args(words)  # raises for an option that is not there
    options = [name for param in command.params for name in param.opts]
    assert ("--json" in options) is (path not in WITHOUT_JSON)


def test_the_text_of_every_command_is_kept() -> None:
    """In `expected/`, named after the command, for mqadmin's with or without a prefix; what else is behind a `-`."""
    kept = {path.stem.removeprefix("mqadmin-") for path in (Path(__file__).parent / "expected").glob("*.txt")}
    names = {path: "-".join(path.split()[1:]) for path, _ in LEAVES}
    assert not {
        path for path, name in names.items() if not any(text == name or text.startswith(f"{name}-") for text in kept)
    }


# ---- mistakes


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["topcis"], "Did you mean topics"),
        (["consumerprogres"], "Did you mean consumerProgress"),
        (["QUERYMSGBYKY"], "Did you mean queryMsgByKey"),
        (["qcq"], "Did you mean queryCq"),
        (["topics", "--quees"], "--queues"),
        (["queryMsgByKey", "--topik", "x"], "--topic"),
    ],
)
def test_the_nearest_name_is_suggested(run: Run, words: list[str], hint: str) -> None:
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert hint in result.stderr


def test_a_name_that_is_near_nothing_has_no_suggestion(run: Run) -> None:
    assert run("xyzzy").stderr.endswith("Error: No such command 'xyzzy'.\n")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("producerConnection", "producerConnection is not here: a directory has no connections of producers"),
        ("WIPEWRITEPERM", "wipeWritePerm is not here: a directory has no name server."),
        ("consumerStatus", "a directory has no way into a client"),
        ("updateTopicList", "updateTopicList is not here: call `rmq updateTopic` for each."),
    ],
)
def test_a_name_of_mqadmin_that_a_directory_cannot_have_says_why(run: Run, name: str, reason: str) -> None:
    """Commands of MQAdminStartup that need a server, clients or a name server."""
    result = run(name, "-t", "x")
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert "Did you mean" not in result.stderr


def test_no_command_that_is_here_is_called_absent() -> None:
    here = {name.lower() for name in commands.commands}
    assert not [name for name in ABSENT if name.lower() in here]


def test_a_name_in_its_own_letters_goes_first() -> None:
    group = SectionedGroup()
    own, other = (click.Command(name, callback=lambda: None, help=name) for name in ("send", "SEND"))
    group.add_section("One", [own, other])
    found = [group.get_command(click.Context(group), name) for name in ("send", "SEND", "Send", "sent")]
    assert found == [own, other, own, None]


def test_help_takes_a_name_as_mqadmin_does(run: Run) -> None:
    """MQAdminStartup: `mqadmin help topicStatus`."""
    assert run("help", "topicStatus").stdout == run("topicStatus", "--help").stdout
    assert run("help", "dlq", "show").stdout == run("dlq", "show", "--help").stdout
    assert run("help").stdout == run("--help").stdout
    unknown = run("help", "topicStatu")
    assert (unknown.exit_code, "Did you mean topicStatus" in unknown.stderr) == (2, True)


def test_names_without_lines_are_one_paragraph_each() -> None:
    group = SectionedGroup("rmq")
    group.add_section("Ours", [click.Command("a", short_help="Does a.")])
    group.add_names("Theirs", {"some": [click.Command("b"), click.Command("c")]})
    text = CliRunner().invoke(group, ["--help"]).stdout
    assert "Ours:\n  a  Does a.\n\nTheirs:\n  some  b, c\n" in text


def test_completion_offers_mqadmins_names_and_options() -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "_RMQ_COMPLETE": "bash_complete",
        "COMP_WORDS": "rmq queryMsgByKey --m",
        "COMP_CWORD": "2",
    }
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert {line.split(",")[1] for line in result.stdout.split()} == {"--maxNum", "--msgKey"}


# ---- pages


def test_the_pages_of_the_commands_are_what_the_commands_say(cli_pages: ModuleType) -> None:
    made = cli_pages.pages()
    assert {page.name for page in (DOCS / "cli").glob("*.md")} == set(made)
    for name, text in made.items():
        assert (DOCS / "cli" / name).read_text(encoding="utf-8") == text, "python tests/cli_pages.py"


def test_every_answer_of_the_cookbook_is_what_its_command_prints(
    cli_pages: ModuleType, broker_store: object, copy_store: Callable[[Path, Path], Path], scratch: Path
) -> None:
    store = copy_store(broker_store.path, scratch / "store")  # type: ignore[attr-defined]
    text = (DOCS / "cookbook.md").read_text(encoding="utf-8")
    assert (text.count("\n## "), text.count("\n$ rmq ")) >= (12, 12)
    run_on = cli_pages.run_on(store)

    def run(words: list[str]) -> str:
        printed: str = run_on(words)
        assert "Error" not in printed and not printed.startswith("rmq: "), words
        return printed

    assert cli_pages.cookbook(text, run) == text, "python tests/cli_pages.py STORE"
