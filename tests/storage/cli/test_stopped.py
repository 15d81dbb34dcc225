"""Ctrl-C and SIGTERM: the store is closed, and the exit code is not one that means something is wrong with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rmq_store import Message, Store
from rmq_store.cli import commands
from rmq_store.cli.messages import message_lines

Run = Callable[..., Result]


@pytest.fixture
def root(scratch: Path) -> Path:
    with Store.open(scratch / "store", create=True) as store:
        store.create_topic("Orders", 1)
        store.send(Message("Orders", b"here"))
    return scratch / "store"


def _started(root: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "RMQ_STORE": str(root)}
    command = [sys.executable, "-uc", "from rmq_store.cli import main; main()", *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


def test_tail_ends_at_sigterm_as_at_ctrl_c(root: Path) -> None:
    with _started(root, "tail", "-f", "Orders") as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline().endswith(b"  here\n")
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_verification_has_found_nothing(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    """Exit code 1 is kept for damage."""
    monkeypatch.setattr("rmq_store.verify.verify_store", lambda *_: signal.raise_signal(number))
    before = signal.getsignal(signal.SIGTERM)
    result = run("verify", store=root)
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", "rmq: interrupted\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_at_a_question_is_no_answer_and_no_is_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object, **__: object) -> None:
        click.confirm("Really?", abort=True)

    monkeypatch.setattr("rmq_store.verify.verify_store", ask)
    command = ["verify", "--store", str(root)]
    assert CliRunner().invoke(commands, command, input="n\n").exit_code == 1

    def interrupt(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise click.Abort from None  # as click's prompts do

    monkeypatch.setattr("rmq_store.verify.verify_store", interrupt)
    assert CliRunner().invoke(commands, command).exit_code == 130


def test_what_the_operating_system_refuses_is_no_damage(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/store/commitlog/0")

    monkeypatch.setattr("rmq_store.verify.verify_store", refuse)
    result = run("verify", store=root)
    assert (result.exit_code, result.stderr) == (2, "rmq: /store/commitlog/0: Permission denied\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_sends_lines_and_is_stopped_closes_the_store_and_says_how_many_are_stored(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    whole = message_lines.batches_of_lines

    def stopped(*arguments: object) -> object:
        yield next(iter(whole(*arguments)))  # type: ignore[arg-type]
        signal.raise_signal(number)

    monkeypatch.setattr(message_lines, "batches_of_lines", stopped)
    result = CliRunner().invoke(commands, ["send", "Orders", "--lines", "-", "--store", str(root)], input="a\n")
    assert result.exit_code == code
    assert result.stderr.endswith("rmq: 1 messages are stored in Orders, and then:\nrmq: interrupted\n")
    assert not (root / "abort").exists()


# Ctrl-C arrives while this module is imported.
_INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupts())
sys.argv = ["rmq", *{words!r}]
from rmq_store.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("click", ["--version"]),  # the first one
        ("rmq_store.cli.monitoring.topics", ["--version"]),  # in the middle of the commands
        ("rmq_store.verify", ["verify"]),  # of one command, when it runs
        ("pyarrow", ["topics"]),
        ("pyspark_rmq.checkpoint.command", ["--help"]),  # of another package
    ],
)
def test_ctrl_c_while_modules_are_imported_is_one_line(root: Path, module: str, words: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "RMQ_STORE": str(root)}
    code = _INTERRUPTED_IMPORT.format(module=module, words=words)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "rmq: interrupted\n")


def test_the_script_is_the_entry_point_that_imports_late() -> None:
    setup = Path(__file__).resolve().parents[3] / "setup.py"
    assert '"rmq = rmq_store.__main__:main"' in setup.read_text(encoding="utf-8")
    code = "import sys, rmq_store.__main__; print(sorted({'click', 'numpy', 'rmq_store.cli'} & sys.modules.keys()))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"
