"""One version: of both packages, of the distribution, of the changelog."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pyspark_rmq
import rmq_store

ROOT = Path(__file__).resolve().parents[1]


def test_both_packages_and_the_distribution_have_one_version() -> None:
    assert rmq_store.__version__ == pyspark_rmq.__version__ == importlib.metadata.version("pyspark-rmq")
    assert re.fullmatch(r"\d+\.\d+\.\d+", rmq_store.__version__)


def test_the_version_is_written_once() -> None:
    """setup.py reads it; a second place would be forgotten at the next release."""
    sources = [ROOT / "setup.py", *(ROOT / "storage").rglob("*.py"), *(ROOT / "connector").rglob("*.py")]
    wanted = f'"{rmq_store.__version__}"'
    assert [path for path in sources if wanted in path.read_text(encoding="utf-8")] == [
        ROOT / "storage" / "rmq_store" / "__init__.py"
    ]


def test_asking_for_the_version_loads_nothing_heavy() -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'storage')!r}, {str(ROOT / 'connector')!r}]; import pyspark_rmq; "
        "early = 'rmq_store' in sys.modules; print(pyspark_rmq.__version__, early, *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    version, early, *loaded = done.stdout.split()
    assert (version, early) == (rmq_store.__version__, "False")
    assert not {"numpy", "pyarrow", "pyspark", "importlib.metadata"} & set(loaded)


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^\]]+)\] - (?:unreleased|\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    assert versions[0] == rmq_store.__version__
    assert len(versions) == len(re.findall(r"^## ", text, re.MULTILINE))
