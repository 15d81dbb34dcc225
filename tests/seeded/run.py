"""Runs the tests of the table in a copy of the tree: first as it is, when they must pass; then with one fault at a
time, when the fault's test must fail.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from seeded.faults import FAULTS, Fault

ROOT: Final = Path(__file__).resolve().parents[2]
# Exit codes of pytest. Others (no such test, an error while collecting) prove nothing.
_FAILED, _PASSED = 1, 0


def copy_tree(into: Path) -> Path:
    """The files that Git knows, and the built extension."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    names = [Path(os.fsdecode(name)) for name in listed.split(b"\0") if name]
    names += [path.relative_to(ROOT) for path in (ROOT / "storage" / "rmq_store").glob("*.so")]
    for name in names:
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)
    return into


class Ran(NamedTuple):
    """Pytest's exit code, and its output."""

    code: int
    output: str


def run_tests(tree: Path, tests: Sequence[str]) -> Ran:
    """Run tests in `tree`; programs that they start import that tree, too. None of them is left: with a fault in it, a
    test may leave a JVM.
    """
    sources = os.pathsep.join(str(tree / name) for name in ("storage", "connector", "tests"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *tests]
    environment = {**os.environ, "PYTHONPATH": sources, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        started = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        code = started.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        output.seek(0)
        return Ran(code, output.read())


def is_noticed(tree: Path, fault: Fault) -> bool:
    """True if the fault's test fails in `tree` with the fault, which is taken out again."""
    path = tree / fault.module
    sound = path.read_text(encoding="utf-8")
    if sound.count(fault.sound) != 1:
        raise SystemExit(f"{fault.module} has this text {sound.count(fault.sound)} times, not once: {fault.sound!r}")
    path.write_text(sound.replace(fault.sound, fault.broken), encoding="utf-8")
    try:
        return run_tests(tree, [fault.test]).code == _FAILED
    finally:
        path.write_text(sound, encoding="utf-8")


def main(wanted: Sequence[str]) -> int:
    """Run the faults whose rows begin with one of `wanted`, or all. Returns how many no test notices."""
    faults = [fault for fault in FAULTS if not wanted or any(fault.row.startswith(start) for start in wanted)]
    if not faults:
        raise SystemExit(f"no row begins with {' or '.join(map(repr, wanted))}")
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="seeded-") as directory:
        tree = copy_tree(Path(directory))
        without = run_tests(tree, sorted({fault.test for fault in faults}))
        if without.code != _PASSED:
            raise SystemExit(f"{without.output[-4000:]}\nThese tests do not pass without a fault.")
        for number, fault in enumerate(faults, 1):
            noticed = is_noticed(tree, fault)
            unnoticed += not noticed
            sys.stdout.write(f"{number}/{len(faults)} {'noticed' if noticed else 'NOT NOTICED'}: {fault.row}\n")
            sys.stdout.flush()
    return unnoticed
