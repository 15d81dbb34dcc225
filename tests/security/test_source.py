"""What must not be in the two packages: formats that run code, code made of data, other programs."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pyspark_rmq
import rmq_store
from rmq_store import CorruptionError, Store, StoreError
from security.hostile import names

pytestmark = pytest.mark.harness

MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "subprocess"}
MODULES |= {"multiprocessing", "runpy", "code", "codeop", "pty", "commands", "dbm"}
CALLS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
ATTRIBUTES = {("os", "system"), ("os", "popen"), ("pickle", "loads"), ("os", "startfile"), ("importlib", "reload")}
OS_PREFIXES = ("exec", "spawn", "posix_spawn")
# The only imports by name: of the attribute that somebody asked the package for, and of a command over a cluster; both
# out of a table of the package.
IMPORTS_BY_NAME = {
    "connector/pyspark_rmq/__init__.py", "storage/rmq_store/__init__.py", "storage/rmq_store/cli/plugin.py",
    "storage/rmq_store/cli/target/commands.py",
}  # fmt: skip

# Other programs: the one that the caller of `rmq consume --exec` names, the Python that Spark would start, and the
# openssl that makes a throw-away certificate.
PROGRAMS = {
    "storage/rmq_store/cli/messages/consume.py", "storage/rmq_store/cli/checks/spark.py",
    "storage/rmq_store/server/grpc_v2/tls.py",
}  # fmt: skip


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in (rmq_store, pyspark_rmq):
        assert package.__file__ is not None
        root = Path(package.__file__).parent
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root.parents[1]).as_posix()
            yield name, ast.parse(path.read_text(encoding="utf-8"), name)


def findings(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for module in node.names:
                allowed = module.name == "subprocess" and name in PROGRAMS
                if module.name.partition(".")[0] in MODULES and not allowed:
                    yield f"{name}:{node.lineno}: {module.name}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield f"{name}:{node.lineno}: {node.module}"
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in CALLS:
                yield f"{name}:{node.lineno}: {called.id}"
            elif isinstance(called, ast.Name) and called.id == "import_module" and name not in IMPORTS_BY_NAME:
                yield f"{name}:{node.lineno}: {called.id}"
            elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                pair = called.value.id, called.attr
                if pair in ATTRIBUTES or (pair[0] == "os" and pair[1].startswith(OS_PREFIXES)):
                    yield f"{name}:{node.lineno}: {'.'.join(pair)}"


def test_programs_are_started_without_a_shell() -> None:
    for name, tree in sources():
        for node in ast.walk(tree):
            if name in PROGRAMS and isinstance(node, ast.Call):
                assert not [word for word in node.keywords if word.arg == "shell"], name


def test_nothing_that_runs_data_or_programs_is_in_the_packages() -> None:
    found = {name: list(findings(name, tree)) for name, tree in sources()}
    assert len(found) > 150
    assert not [line for lines in found.values() for line in lines]


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from marshal import loads", "import yaml.loader", "eval('1')", "exec(data)",
        "__import__(name)",
        "import os\nos.system('x')", "os.execv('x', [])", "import subprocess", "import_module(data)",
    ],
)  # fmt: skip
def test_it_would_be_found(code: str) -> None:
    assert list(findings("x.py", ast.parse(code)))


def test_names_from_disk_break_no_line_of_a_log_or_of_an_error(
    copy: Callable[[], Path], caplog: pytest.LogCaptureFixture
) -> None:
    root = copy()
    caplog.set_level(logging.DEBUG)
    texts = []
    with Store.open(root) as store:
        for name in names():
            for call in (
                lambda name=name: store.create_topic(name),
                lambda name=name: store.queue_range(name, 0),
                lambda name=name: store.commit_offsets(name, {("Victim", 0): 1}),
                lambda name=name: store.pop.ack("billing", "Victim", name),
                lambda name=name: store.topic(name),
            ):
                try:
                    call()  # type: ignore[no-untyped-call]
                except StoreError as error:
                    texts.append(str(error))
    texts += [record.getMessage() for record in caplog.records]
    assert len(texts) > 800
    for text in texts:
        assert text.isprintable(), repr(text)
        assert len(text) < 256 + len(str(root)) + 200, text


def test_an_error_about_a_record_shows_no_body(copy: Callable[[], Path]) -> None:
    root = copy()
    path = root / "consumequeue" / "Victim" / "0" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[20:40] = raw[0:20]
    path.write_bytes(raw)
    with Store.open(root, read_only=True) as store, pytest.raises(CorruptionError) as raised:
        list(store.read("Victim", 0, *store.queue_range("Victim", 0)))
    assert "xxxx" not in str(raised.value)
    assert len(str(raised.value)) < 400 + len(str(root))
