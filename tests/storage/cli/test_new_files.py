"""A command that writes a file names the directory that is missing, and no file that only it knows."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from rmq_store.cli.dlq import dlq_export
from rmq_store.cli.shared.parameters import NewFile

from .test_frame import LEAVES

Run = Callable[..., Result]
DEAD = "cg_fifo"
# Options of files that commands read; these say so by `exists`.
WRITES = {
    (path, option.opts[-1])
    for path, command in LEAVES
    for option in command.params
    if isinstance(option.type, click.Path) and not option.type.exists and option.type.file_okay
    and not option.type.dir_okay
}  # fmt: skip


def test_every_option_of_a_new_file_checks_its_directory() -> None:
    assert WRITES >= {("rmq dlq export", "--to"), ("rmq metrics", "--output"), ("rmq broker run", "--port-file")}
    for path, command in LEAVES:
        for option in command.params:
            if (path, option.opts[-1]) in WRITES:
                assert isinstance(option.type, NewFile), (path, option.opts)


@pytest.mark.parametrize(
    "words",
    [
        f"dlq export {DEAD} --to FILE.jsonl",
        "metrics --output FILE.prom",
        "broker run --listen 127.0.0.1:0 --port-file FILE",
        "mirror rmq-to-kafka --kafka 127.0.0.1:1 --metrics FILE",
    ],
)
def test_a_missing_directory_is_named(run: Run, tmp_path: Path, words: str) -> None:
    missing = tmp_path / "missing"
    result = run(*words.replace("FILE", str(missing / "file")).split())
    assert result.exit_code == 2
    text = " ".join(result.stderr.split())
    assert f"the directory {missing} does not exist; make it, or name a file somewhere else" in text
    assert ".part" not in text
    assert not missing.exists()


def test_a_directory_that_is_a_file_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("dlq", "export", DEAD, "--to", str(tmp_path / "file" / "dead.csv"))
    assert (result.exit_code, f"the directory {tmp_path / 'file'} is no directory" in result.stderr) == (2, True)


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_an_error_of_the_disk_names_the_file_that_was_asked_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    def refuse(path: Path, **_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(dlq_export, "_new_file", refuse)
    path = tmp_path / f"dead.{ending}"
    result = run("dlq", "export", DEAD, "--to", str(path))
    assert (result.exit_code, result.stderr) == (2, f"rmq: {path}: Read-only file system\n")
