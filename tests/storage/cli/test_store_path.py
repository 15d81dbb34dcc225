"""One rule for the store of a command: PATH, unless the command has an argument of its own; --store; RMQ_STORE."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from rmq_store import NotAStoreError, Store
from rmq_store.cli import commands
from rmq_store.verify import verify_store

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


@pytest.mark.parametrize("words", ["topics", "verify", "repair", "top", "broker run", "groups --store"])
def test_the_parent_of_a_store_says_where_it_is(run: Run, scratch: Path, words: str) -> None:
    assert run("init", str(scratch / "parent" / "store")).exit_code == 0
    (scratch / "parent" / "another").mkdir()
    result = run(*words.split(), str(scratch / "parent"))
    assert result.exit_code == 2
    assert result.stderr.endswith(f"; did you mean {scratch / 'parent' / 'store'}?\n"), result.stderr


def test_a_store_of_another_name_and_the_directories_of_a_store_are_recognised(run: Run, scratch: Path) -> None:
    assert run("init", str(scratch / "parent" / "orders")).exit_code == 0
    for named in ("parent", "parent/orders/commitlog", "parent/orders/pyrmq"):
        assert f"; did you mean {scratch / 'parent' / 'orders'}?" in run("topics", str(scratch / named)).stderr
    assert "did you mean" in run("init", str(scratch / "parent")).stderr
    assert "did you mean" not in run("topics", str(scratch)).stderr


def test_the_other_openers_say_it_too(scratch: Path) -> None:
    Store.open(scratch / "parent" / "store", create=True).close()
    for opened in (Store.open, verify_store):
        with pytest.raises(NotAStoreError, match=r"; did you mean .*/parent/store\?$"):
            opened(scratch / "parent")
