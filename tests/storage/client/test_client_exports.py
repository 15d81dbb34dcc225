"""What `import rmq_store.client` gives, and whether its example is true."""

from __future__ import annotations

import ast
import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import rmq_store
from rmq_store import client
from rmq_store.protocol import errors


def test_the_example_in_the_package_docstring_is_true() -> None:
    assert doctest.testmod(client, raise_on_error=True).attempted >= 5


def test_all_names_what_the_package_offers_and_nothing_else() -> None:
    imported = {
        alias.name
        for node in ast.parse(inspect.getsource(client)).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(client.__all__) == imported


@pytest.mark.parametrize("name", client.__all__)
def test_everything_offered_says_what_it_is(name: str) -> None:
    value = getattr(client, name)
    documentation = inspect.getdoc(value)
    assert documentation
    # A dataclass without a docstring gets its signature as one.
    assert not documentation.startswith(f"{name}(")
    for attribute, member in vars(value).items():
        if inspect.isfunction(member) and not attribute.startswith("_"):
            assert inspect.getdoc(member), f"{name}.{attribute}"


def test_every_error_of_the_clients_is_offered() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.ClientError) and value.__module__ == errors.__name__
    }
    assert defined <= set(client.__all__)


def test_the_clients_are_loaded_only_when_they_are_asked_for() -> None:
    """Spark starts processes for each batch that import the engine: what they do not need must cost them nothing."""
    code = "import sys, rmq_store; assert not [name for name in sys.modules if name.startswith('rmq_store.client')]"
    root = Path(rmq_store.__file__).parents[1]
    answer = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
