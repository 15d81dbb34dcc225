"""What `import rmq_store` gives, and whether its examples are true."""

from __future__ import annotations

import ast
import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import rmq_store
from rmq_store import StoreError
from rmq_store import errors as error_module

ROOT = Path(rmq_store.__file__).parents[1]


def test_the_examples_in_the_package_docstring_are_true() -> None:
    results = doctest.testmod(rmq_store, raise_on_error=True)
    assert results.attempted >= 5


def test_a_type_checker_sees_what_is_imported_when_it_is_asked_for() -> None:
    """`import X as X`: only such a name may be imported from here by a program that is checked strictly."""
    (for_checkers,) = (
        node
        for node in ast.parse(inspect.getsource(rmq_store)).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    imports = [node for node in for_checkers.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert all(alias.asname == alias.name for node in imports for alias in node.names)
    assert seen.pop("failure") == "rmq_store.broker.rules"
    assert seen.pop("new_message") == "rmq_store.format.properties"
    modules = ("failure", "new_message")
    assert {name: f"rmq_store.{home}" for name, home in rmq_store._HOME_OF.items() if name not in modules} == seen
    assert sorted(rmq_store.__all__) == sorted([*seen, *modules])
    assert set(rmq_store.__all__) <= set(dir(rmq_store))


def test_a_name_that_is_not_offered_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="'rmq_store' has no attribute 'Stroe'"):
        rmq_store.Stroe  # noqa: B018 - the look is what is tested
    with pytest.raises(ImportError, match="cannot import name 'Stroe'"):
        from rmq_store import Stroe  # noqa: F401


@pytest.mark.parametrize("name", rmq_store.__all__)
def test_everything_offered_says_what_it_is(name: str) -> None:
    value = getattr(rmq_store, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert inspect.getdoc(value)
        # A dataclass without a docstring gets its signature as one.
        assert not inspect.getdoc(value).startswith(f"{name}(")
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            if inspect.isfunction(member) and not attribute.startswith("_"):
                assert inspect.getdoc(member), f"{name}.{attribute}"


def test_every_error_is_offered() -> None:
    defined = {
        name
        for name, value in vars(error_module).items()
        if inspect.isclass(value) and issubclass(value, StoreError) and value.__module__ == error_module.__name__
    }
    assert defined <= set(rmq_store.__all__)


def test_importing_the_package_starts_nothing_and_needs_no_spark() -> None:
    code = (
        "import sys, threading; "
        "from rmq_store import *; "
        "assert threading.active_count() == 1; "
        "assert not {'pyspark', 'py4j', 'pandas', 'click', 'rich'} & set(sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(rmq_store.__file__).parent / "py.typed").exists()
