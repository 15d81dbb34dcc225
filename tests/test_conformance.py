"""docs/conformance.md says which tests hold which statement, and nothing is left out: see tests/conformance.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def conformance() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformance", TESTS / "conformance.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["conformance"] = module  # Its dataclasses look themselves up there.
    spec.loader.exec_module(module)
    return module


def test_every_statement_has_a_test_or_a_reason_and_every_marker_a_statement(conformance: ModuleType) -> None:
    chapters, later = conformance.load_statements(TESTS / "statements.json")
    assert conformance.complaints(chapters, later, conformance.collect(TESTS)) == []


def test_the_page_is_what_the_tests_say(conformance: ModuleType) -> None:
    chapters, later = conformance.load_statements(TESTS / "statements.json")
    made = conformance.render(chapters, later, conformance.collect(TESTS), TESTS.parent)
    assert conformance.PAGE.read_text(encoding="utf-8") == made, "python tests/conformance.py"


def test_all_statements_of_the_five_articles_are_listed(conformance: ModuleType) -> None:
    chapters, _ = conformance.load_statements(TESTS / "statements.json")
    counts = {"A": 16, "B": 16, "C": 13, "D": 6, "E": 6, "F": 12, "G": 22, "H": 11}
    expected = [f"{letter}{number:02}" for letter, count in counts.items() for number in range(1, count + 1)]
    assert [id_ for chapter in chapters for id_ in chapter.statements] == expected


MARKED = """
import pytest
pytestmark = [pytest.mark.statement("A01")]

@pytest.mark.statement("A02", "A03")
@pytest.mark.parametrize("x", [1])
def test_f(x): ...

@pytest.mark.statement("B01")
class TestC:
    @pytest.mark.statement("B02")
    def test_g(self): ...
    def helper(self): ...

def test_h(): ...

TestMachine = pytest.mark.statement("E01", "E02")(Machine.TestCase)
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "test_x.py"
    path.write_text(text)
    return path


def test_markers_of_functions_classes_and_modules_are_found(conformance: ModuleType, tmp_path: Path) -> None:
    found = conformance.held_in(write(tmp_path, MARKED))
    assert [(test.name, test.ids) for test in found] == [
        ("TestMachine", ("E01", "E02")),
        ("test_f", ("A01", "A02", "A03")),
        ("test_g", ("A01", "B01", "B02")),
        ("test_h", ("A01",)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        'import pytest\n@pytest.mark.parametrize("x", [param(1, marks=pytest.mark.statement("A1"))])\ndef test_f(x): 0',
        'import pytest\nID = "A01"\n@pytest.mark.statement(ID)\ndef test_f(): ...',
        "import pytest\n@pytest.mark.statement()\ndef test_f(): ...",
        'import pytest\n@pytest.mark.statement("A01")\ndef helper(): ...',
        'import pytest\nmark = pytest.mark.statement("A01")',
    ],
    ids=["in a parameter", "in a name", "empty", "on a helper", "kept in a variable"],
)  # fmt: skip
def test_a_marker_that_would_be_overlooked_is_an_error(conformance: ModuleType, tmp_path: Path, text: str) -> None:
    with pytest.raises(conformance.WrongMarkerError):
        conformance.held_in(write(tmp_path, text))


def test_what_is_wrong_is_named(conformance: ModuleType, tmp_path: Path) -> None:
    chapters = [conformance.Chapter("A", "Sending", {"A01": "one", "A02": "two", "A03": "three"})]
    found = conformance.held_in(
        write(tmp_path, 'import pytest\n@pytest.mark.statement("A01", "Z99")\ndef test_f(): ...')
    )
    wrong = conformance.complaints(chapters, {"A01": "not yet", "A03": "not yet", "Y1": "why"}, found)
    assert wrong == [
        f"{tmp_path / 'test_x.py'}:3 Z99 is no statement",
        "Y1 is no statement, but has a reason",
        "A02 has no test, and no reason why not",
        "A01 has tests, so its reason goes",
    ]
