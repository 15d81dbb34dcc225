"""Spark finds `format("rmq")` after each way of installing, without `register()`.

The look-up is `pkgutil.iter_modules()` over sys.path, for names that begin with `pyspark_`. What an import hook serves
is not listed, and setuptools' editable installs use such a hook for a project with several source roots: everything
imports, all tests pass, and only Spark does not find the source. So each kind of install is made for real, in an
environment of its own that borrows the big dependencies of this one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from rmq_store import __version__

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "storage", "connector")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
# No network, and nothing compiled or cached that this test would leave behind.
OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir")

LOOK_UP = """
import importlib.metadata, io, json, pathlib, pkgutil, struct
listed = {module.name for module in pkgutil.iter_modules()}
import pyspark_rmq, rmq_store
from rmq_store.format.bytes import native

# What Spark runs in a process of its own. It answers with a count, then names and pickled classes, each after its size.
from pyspark.sql.worker.lookup_data_sources import _main
_main(io.BytesIO(), answer := io.BytesIO())
answer.seek(0)
take = lambda: answer.read(struct.unpack("!i", answer.read(4))[0])
found = {take().decode(): len(take()) for _ in range(struct.unpack("!i", answer.read(4))[0])}

print(json.dumps({
    "listed": sorted(listed & {"pyspark_rmq", "rmq_store", "storage", "connector"}),
    "files": [pyspark_rmq.__file__, rmq_store.__file__],
    "found": sorted(found),
    "typed": [(pathlib.Path(module.__file__).parent / "py.typed").exists() for module in (pyspark_rmq, rmq_store)],
    "native": native.LOADED,
    "commands": [type(entry.load()).__name__ for entry in importlib.metadata.entry_points(group="rmq.commands")],
    "versions": [importlib.metadata.version("pyspark-rmq"), pyspark_rmq.__version__, rmq_store.__version__],
}))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is shipped: builds leave things in the tree that they build from."""
    copy = tmp_path_factory.mktemp("project")
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc", "*.so")
    for name in SHIPPED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=skip)
        else:
            shutil.copy(source, copy / name)
    return copy


def call(*command: str | Path, compiler: str = "/bin/false") -> subprocess.CompletedProcess[str]:
    """Without a C compiler, unless one is given: that must do, and takes less time."""
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "CC": compiler})


class Environment:
    """A virtual environment without pip that sees this one's packages behind its own."""

    def __init__(self, path: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
        self.python = path / "bin" / "python"
        self.path = path
        site = next((path / "lib").glob("python3*")) / "site-packages"
        # Directories named in a .pth file are only appended: no .pth file of *theirs* runs, so an editable install of
        # this project there (`make venv` makes one) stays invisible.
        borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        (site / "zz_borrowed.pth").write_text("".join(f"{path}\n" for path in sorted(borrowed)))

    def install(self, *arguments: str | Path, compiler: str = "/bin/false") -> None:
        run = call(*PIP, "--python", self.python, "install", *OFFLINE, *arguments, compiler=compiler)
        assert run.returncode == 0, run.stdout + run.stderr

    def look_up(self) -> dict[str, object]:
        # -I: neither PYTHONPATH nor the working directory may help.
        run = call(self.python, "-I", "-c", LOOK_UP)
        assert run.returncode == 0, run.stderr
        answer: dict[str, object] = json.loads(run.stdout)
        return answer


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "env")


def check(answer: dict[str, object], home: Path) -> None:
    assert answer["listed"] == ["pyspark_rmq", "rmq_store"], "Spark lists modules; the source roots are no packages"
    assert answer["found"] == ["rmq"]
    assert answer["typed"] == [True, True]
    assert answer["commands"] == ["Plugin"], "rmq checkpoint"
    assert answer["versions"] == [__version__] * 3
    files = answer["files"]
    assert isinstance(files, list)
    assert all(Path(file).is_relative_to(home) for file in files), files


def test_found_after_a_plain_install(environment: Environment, project: Path) -> None:
    environment.install(project)
    check(environment.look_up(), environment.path)


@pytest.mark.slow
def test_found_after_an_editable_install(environment: Environment, project: Path) -> None:
    environment.install("--editable", project)
    check(environment.look_up(), project)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.slow
def test_the_extension_is_built_where_there_is_a_compiler(environment: Environment, project: Path) -> None:
    """Into the source tree, which is what an editable install runs; and nobody else may find it there."""
    environment.install("--editable", project, compiler="cc")
    assert environment.look_up()["native"] is True
    (built,) = (project / "storage" / "rmq_store").glob("_native.*.so")
    built.unlink()
    assert environment.look_up()["native"] is False


@pytest.mark.slow
def test_found_after_installing_a_wheel(environment: Environment, project: Path, tmp_path: Path) -> None:
    # Kilobytes of packages, megabytes of stores for the tests: those stay in the repository.
    shutil.copytree(ROOT / "tests" / "data", project / "tests" / "data")
    wheels = tmp_path / "wheels"
    build = call(*PIP, "wheel", *OFFLINE, "--wheel-dir", wheels, project)
    assert build.returncode == 0, build.stdout + build.stderr
    (wheel,) = wheels.iterdir()
    assert wheel.name.startswith(f"pyspark_rmq-{__version__}-cp311-abi3-")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"pyspark_rmq", "rmq_store", f"pyspark_rmq-{__version__}.dist-info"}
    assert not [name for name in names if name.endswith((".xz", ".jsonl"))]
    environment.install(wheel)
    check(environment.look_up(), environment.path)


@pytest.mark.slow
def test_the_command_is_installed(environment: Environment, project: Path) -> None:
    environment.install(project)
    run = call(environment.path / "bin" / "rmq", "--help")
    assert run.returncode == 0, run.stderr
    assert "topics" in run.stdout
    assert "checkpoint" in run.stdout
    assert call(environment.path / "bin" / "rmq", "checkpoint", "show", "--help").returncode == 0


def test_an_environment_of_a_test_does_not_see_this_project_by_itself(environment: Environment) -> None:
    """Otherwise the tests above would pass with nothing installed."""
    run = call(environment.python, "-I", "-c", "import pyspark_rmq")
    assert "ModuleNotFoundError" in run.stderr
