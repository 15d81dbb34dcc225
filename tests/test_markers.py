"""The Makefile runs some kinds of tests from their directories alone. One that lies elsewhere would never run there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
MAKEFILE = (TESTS.parent / "Makefile").read_text(encoding="utf-8")


def directories(name: str) -> list[Path]:
    (words,) = re.findall(rf"^{name} := (.+)$", MAKEFILE, re.MULTILINE)
    return [TESTS.parent / word for word in words.split()]


@pytest.mark.parametrize(
    ("marker", "name"),
    [
        ("harness", "HARNESS"), ("teeth", "HARNESS"), ("compat", "COMPAT"), ("cluster", "CLUSTER"),
        ("interop", "INTEROP"),
    ],
)
def test_all_tests_of_a_marker_are_in_the_directories_that_the_makefile_names(marker: str, name: str) -> None:
    places = directories(name)
    assert all(place.is_dir() for place in places)
    used = [path for path in TESTS.rglob("*.py") if re.search(rf"\bmark\.{marker}\b", path.read_text(encoding="utf-8"))]
    assert used
    assert [path for path in used if not any(path.is_relative_to(place) for place in places)] == []


def test_each_directory_of_the_makefile_is_used_by_its_target() -> None:
    for name, targets in (("HARNESS", 2), ("COMPAT", 1), ("CLUSTER", 2), ("INTEROP", 1)):
        assert MAKEFILE.count(f"$({name})") == targets
