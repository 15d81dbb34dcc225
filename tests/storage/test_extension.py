"""Whoever lacks the C extension learns why, and what to do; a package in a zip lacks it always."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from rmq_store import extension
from rmq_store.format.bytes import native

ROOT = Path(__file__).resolve().parents[2]

ASK = """
import json, rmq_store
from rmq_store import extension
print(json.dumps([rmq_store.__file__, extension.lack()]))
"""


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LOADED", False)


def test_with_the_extension_nothing_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LOADED", True)
    assert extension.lack({"RMQ_PURE": "1"}) is None


@pytest.mark.usefixtures("without")
def test_each_reason_has_a_fix() -> None:
    asked = extension.lack({"RMQ_PURE": "1"})
    assert asked is not None and asked.is_wanted and asked.fix == "unset RMQ_PURE"
    absent = extension.lack({}, lambda name: None)
    assert absent is not None and not absent.is_wanted
    assert "is not there" in absent.reason and "C compiler" in absent.fix and "pip install" in absent.fix
    other = extension.lack({}, lambda name: object())
    assert other is not None and not other.is_wanted
    assert "another version" in other.reason and "--force-reinstall" in other.fix


def test_a_package_in_a_zip_lacks_it_and_says_why(tmp_path: Path) -> None:
    """`spark-submit --py-files` does that to a wheel, though the wheel has the extension."""
    wheel = tmp_path / "pyspark_rmq.zip"
    with zipfile.ZipFile(wheel, "w") as packed:
        for path in (ROOT / "storage" / "rmq_store").rglob("*"):
            if path.suffix in (".py", ".so"):
                packed.write(path, path.relative_to(ROOT / "storage"))
    given = {name: value for name, value in os.environ.items() if name != "RMQ_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=given | {"PYTHONPATH": str(wheel)}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    place, (reason, fix, is_wanted) = json.loads(done.stdout)
    assert place.startswith(str(wheel))
    assert f"from the zip {wheel}" in reason and "no C extension from a zip" in reason
    assert "--archives" in fix and "--py-files" in fix
    assert not is_wanted
