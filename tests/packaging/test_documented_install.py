"""The examples of the README in an environment that has what the README says, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(scratch: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """In a directory without a checkout around it, and without what this test run has on its path."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    environment = outside | {
        "PATH": f"{scratch / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_SUBMIT_ARGS": "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": str(scratch),
    }
    done = subprocess.run(
        [str(part) for part in command], cwd=scratch, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_readmes_examples_run_after_the_documented_install(tmp_path: Path) -> None:
    """After `pip install .[spark]` the retry example failed: PySpark's mapInArrow wants a pandas that nobody had named.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (install,) = re.findall(r"^    (pip install \.\[spark\]) ", readme, re.MULTILINE)
    source = tmp_path / "source"
    leave_out = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info", "build")
    for name in ("storage", "connector"):
        shutil.copytree(ROOT / name, source / name, ignore=leave_out)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = (tmp_path / "venv" / "bin" / "python", "-m", *install.split()[:2], "--quiet", "--disable-pip-version-check")
    run(tmp_path, *pip, f"{source}[spark]")

    first = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)[0]
    done = run(tmp_path, "python", "-c", first.replace('"/data/', f'"{tmp_path}/'))
    assert "bill for two teas" in done.stdout
    assert re.search(r"pandas +.*[23]\.", run(tmp_path, "rmq", "doctor").stdout)
    # The newest pandas 3, which pip has chosen, and the newest 2.
    for version in ("3", "2"):
        if version == "2":
            run(tmp_path, *pip, "pandas<3")
        found = run(tmp_path, "python", "-c", "import pandas; print(pandas.__version__)").stdout
        assert found.startswith(f"{version}.")
        done = run(tmp_path, "python", ROOT / "examples" / "retry.py")
        assert "LookupError" in done.stdout and "no such customer" in done.stdout
        # PySpark warns when it is imported, too; this is where it makes a function for mapInArrow.
        assert "pyspark/sql/pandas/functions.py" not in done.stderr
