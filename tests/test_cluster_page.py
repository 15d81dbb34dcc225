"""docs/cluster.md says of each option, command and method whether it is the same over a cluster."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import pytest

import pyspark_rmq
import rmq_store
from cluster_methods import METHODS, public_methods
from cluster_page import PAGE, command_paths, commands_by_path, page_with_tables
from pyspark_rmq.options.option_table import OPTIONS, Option
from pyspark_rmq.retry.consumed_from import ConsumedCluster, consumed_from
from rmq_store.cli.target.command import TargetCommand
from rmq_store.cli.target.table import COMMANDS, Row, Support


def test_the_page_has_the_rows_of_the_tables() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_tables(page) == page, "python tests/cluster_page.py writes the tables"


def test_each_command_has_a_row() -> None:
    both = {path for path, row in COMMANDS.items() if row.support != Support.ONLY}
    assert sorted(both) == sorted(command_paths()), "a row in rmq_store/cli/target/table.py"


def test_each_public_method_has_a_row() -> None:
    assert sorted(METHODS) == sorted(public_methods()), "a row in tests/cluster_methods.py"


@pytest.mark.parametrize("text", METHODS.values(), ids=METHODS)
def test_each_row_of_a_method_says_how_it_differs(text: str) -> None:
    verdict, _, sentence = text.partition(": ")
    assert verdict in ("same", "differs", "refused", "only")
    assert bool(sentence) is (verdict != "same")


REFUSALS: Mapping[str, Callable[[], object]] = {
    "rmq_store.Store": lambda: rmq_store.Store.open("rmq://127.0.0.1:9876"),
}


def test_each_method_that_is_called_refused_is_refused() -> None:
    refused = {name for name, text in METHODS.items() if text.startswith("refused")}
    assert refused == set(REFUSALS), "a call in REFUSALS for each row of a refused method"
    for name, call in REFUSALS.items():
        with pytest.raises(rmq_store.StoreError):
            call()
            pytest.fail(name)


def test_a_function_that_takes_options_of_a_cluster_is_not_called_refused() -> None:
    taking = {
        name
        for name in METHODS
        if name.startswith("pyspark_rmq.")
        and inspect.isfunction(function := getattr(pyspark_rmq, name.partition(".")[2]))
        and "options" in inspect.signature(function).parameters
    }
    assert taking == {"pyspark_rmq.commit_groups", "pyspark_rmq.consume", "pyspark_rmq.redrive"}
    for name in taking - {"pyspark_rmq.commit_groups"}:  # whose options name the place of a checkpoint's group
        assert METHODS[name].startswith("differs: `options` name the cluster, in place of `path`")
        place = consumed_from(None, {"nameServer": "127.0.0.1:9876"}, name)
        assert isinstance(place, ConsumedCluster)


@pytest.mark.parametrize("path", COMMANDS)
def test_each_row_of_a_command_says_how_it_differs(path: str) -> None:
    row: Row = COMMANDS[path]
    assert bool(row.sentence) or row.support == Support.SAME
    assert not row.sentence.endswith(".") and "|" not in row.sentence
    assert len(row.sentence.split()) <= 60
    assert row.home or row.support != Support.ONLY
    assert not row.home or row.support != Support.REFUSED


def test_a_command_that_differs_is_declared_for_both_targets_or_has_a_place_of_its_own() -> None:
    for path, command in commands_by_path().items():
        if COMMANDS[path].support == Support.DIFFERS:
            assert isinstance(command, TargetCommand) is not bool(COMMANDS[path].home), path


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_says_what_it_is_with_a_cluster(option: Option) -> None:
    verdict, _, sentence = option.cluster.partition(": ")
    assert verdict in ("same", "only", "differs", "refused")
    assert bool(sentence) is (verdict in ("differs", "refused"))
