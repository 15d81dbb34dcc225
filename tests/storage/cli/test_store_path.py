"""One rule for the store of a command: PATH, unless the command has an argument of its own; --store; RMQ_STORE."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from rmq_store.cli import commands

from .test_frame import LEAVES

Run = Callable[..., Result]
OF_STORES = {path: command for path, command in LEAVES if any("--store" in param.opts for param in command.params)}


@pytest.mark.parametrize("path", OF_STORES)
def test_a_command_takes_path_unless_it_has_an_argument_of_its_own(path: str) -> None:
    arguments = [param for param in OF_STORES[path].params if isinstance(param, click.Argument)]
    assert arguments, f"{path}: neither PATH nor an argument; is `common_options` above its arguments?"
    assert len(arguments) == 1 or not any(param.envvar == "RMQ_STORE" for param in arguments)


@pytest.mark.parametrize("words", ["verify", "topics", "metrics", "retention status", "topicList", "doctor --no-spark"])
def test_path_option_and_variable_name_the_same_store(run: Run, golden: Path, words: str) -> None:
    store = str(golden / "store")
    command = [*words.split(), "--json"]
    named = [
        run(*command, store, store=None),
        run(*command, "--store", store, store=None),
        run(*command),
        run(*command, store, "--store", store, store=golden / "missing"),
    ]
    assert {result.exit_code for result in named} <= {0, 1}, [result.output for result in named]
    assert len({tuple(sorted(_keys(result))) for result in named}) == 1


def _keys(result: Result) -> set[str]:
    return {line.split(":")[0] for line in result.stdout.splitlines()}


def test_an_option_is_stronger_than_the_variable(run: Run, golden: Path) -> None:
    for variable in (golden / "missing", Path("rmq:") / "a:1"):
        assert run("topics", "--store", str(golden / "store"), store=variable).exit_code == 0


def test_two_stores_are_refused(run: Run, golden: Path, tmp_path: Path) -> None:
    result = run("verify", str(tmp_path), "--store", str(golden / "store"))
    assert (result.exit_code, "one store, but PATH is" in result.stderr) == (2, True)


@pytest.mark.parametrize("name", ["verify", "topics", "repair", "init", "brokerStatus"])
def test_a_command_without_a_store_says_how_to_name_one(run: Run, name: str) -> None:
    result = run(name, store=None)
    assert (result.exit_code, "Missing argument 'PATH' (env var: 'RMQ_STORE')" in result.stderr) == (2, True)


def test_init_makes_the_store_of_the_option_and_of_the_variable(run: Run, tmp_path: Path) -> None:
    assert run("init", "--store", str(tmp_path / "a")).exit_code == 0
    assert run("init", store=tmp_path / "b").exit_code == 0
    assert [(tmp_path / name / "commitlog").is_dir() for name in "ab"] == [True, True]


def test_a_path_that_is_an_address_is_a_cluster(tmp_path: Path) -> None:
    result = CliRunner().invoke(commands, ["verify", "rmq://a:1"], env={"RMQ_STORE": None}, prog_name="rmq")
    assert "rmq verify over a cluster is refused" in result.stderr


@pytest.mark.parametrize("form", [["{store}"], ["--store", "{store}"]])
def test_names_are_completed_for_either_form(golden: Path, form: list[str]) -> None:
    words = ["queryMsgByKey", *(word.format(store=golden / "store") for word in form), "-t"]
    found = ShellComplete(commands, {}, "rmq", "_RMQ_COMPLETE").get_completions(words, "Ord")
    assert [item.value for item in found] == ["OrderTopic"]
