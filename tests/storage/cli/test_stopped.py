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
