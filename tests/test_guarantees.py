"""Each row of docs/guarantees.md is held: by a fault that a test notices, or by a protection of the crash proof.
`make seeded-faults` runs the faults; here table, page and code are held together.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from crash.catalogue import parts
from crash.protections import PROTECTIONS
from seeded.faults import FAULTS, OUTSIDE, TEETH, Fault
from seeded.run import is_noticed

ROOT = Path(__file__).resolve().parents[1]
_OUTSIDE_MAX = 12
ROWS = [
    line.removeprefix("| ")
    for line in (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| event")
]


def test_each_row_is_held_by_one_thing_and_each_thing_holds_a_row() -> None:
    held = [*(fault.row for fault in FAULTS), *TEETH, *OUTSIDE]
    assert [row for row in ROWS if len([start for start in held if row.startswith(start)]) != 1] == []
    assert [start for start in held if not any(row.startswith(start) for row in ROWS)] == []
    assert len(OUTSIDE) <= _OUTSIDE_MAX


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.row[:40])
def test_a_fault_can_be_put_in_and_its_test_is_there(fault: Fault) -> None:
    module = (ROOT / fault.module).read_text(encoding="utf-8")
    assert module.count(fault.sound) == 1
    ast.parse(module.replace(fault.sound, fault.broken))
    path, _, name = fault.test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.long
def test_a_part_of_the_crash_proof_notices_each_protection() -> None:
    noticed = {name for part in parts() for name in part.protections}
    assert set(TEETH.values()) <= noticed & set(PROTECTIONS)


@pytest.mark.long
def test_a_fault_that_nobody_notices_is_told_and_the_tree_is_as_before(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("VALUE = 1\n")
    (tmp_path / "test_it.py").write_text("import module\n\n\ndef test_it():\n    assert module.VALUE == 1\n")
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n")
    fault = Fault("a row", "module.py", "VALUE = 1", "VALUE = 2", "test_it.py::test_it")
    assert is_noticed(tmp_path, fault)
    assert not is_noticed(tmp_path, fault._replace(test="test_other.py::test_other"))
    assert not is_noticed(tmp_path, fault._replace(test="test_it.py::test_that_is_not_there"))
    assert (tmp_path / "module.py").read_text() == "VALUE = 1\n"
    with pytest.raises(SystemExit, match="0 times"):
        is_noticed(tmp_path, fault._replace(sound="VALUE = 3"))
