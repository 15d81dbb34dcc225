"""A store is deleted (shutil.rmtree) while another process, which has written to it, closes it.

A deletion lists names, removes them, and then their directory: a name that the closer makes in between makes it fail
with "Directory not empty".
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_store.errors import StoreReplacedError
from rmq_store.files import durable

if TYPE_CHECKING:
    from .conftest import Lab

MOST_STEPS = 80


class Deletion:
    """At the `step`-th operation of a close all files are removed, as rmtree does before it removes directories."""

    def __init__(self, root: Path, step: int) -> None:
        self.root, self.left = root, step

    def __call__(self, operation: str, path: str) -> None:
        self.left -= 1
        if self.left == 0:
            for file in files(self.root):
                file.unlink()


def files(root: Path) -> list[Path]:
    return [Path(parent) / name for parent, _, names in os.walk(root) for name in names]


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    durable.hook = None


def test_a_close_makes_no_file_while_its_store_is_deleted(lab: Lab) -> None:
    """At any of its operations."""
    for step in range(1, MOST_STEPS):
        with lab.open() as store:  # what a close replaces is there then
            store.append(lab.batch(2))
        store = lab.open()
        store.append(lab.batch(3))
        durable.hook = deletion = Deletion(lab.root, step)
        try:
            store.close()
        except StoreReplacedError:
            assert deletion.left <= 0
        durable.hook = None
        if deletion.left > 0:
            break
        assert files(lab.root) == [], step
    else:
        pytest.fail(f"a close of more than {MOST_STEPS} operations")


def test_a_close_of_a_store_that_is_half_deleted_stops(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(2))
    for name in ("lock", "pyrmq/append.lock", "pyrmq/state", "checkpoint", "pyrmq/queue_ends.json.bak"):
        store = lab.open()
        store.append(lab.batch(3))
        (lab.root / name).unlink()
        before = set(files(lab.root))
        with pytest.raises(StoreReplacedError, match="its files are being deleted: nothing more is written"):
            store.close()
        assert set(files(lab.root)) <= before, name
        with lab.open() as store:  # as after a kill
            assert store.recovery is not None


def test_the_table_of_queue_ends_and_its_spare_change_places(lab: Lab) -> None:
    table, spare = (lab.root / "pyrmq" / name for name in ("queue_ends.json", "queue_ends.json.bak"))
    with lab.open() as store:
        store.append(lab.batch(2))
    assert not spare.exists()
    first = table.read_bytes()
    for _ in range(2):
        with lab.open() as store:
            assert spare.exists()
            store.append(lab.batch(3))
        assert spare.read_bytes() == first != table.read_bytes()
        first = table.read_bytes()


@pytest.mark.parametrize("lacks", ["file system", "C library"])
def test_without_an_exchange_of_names_the_table_is_replaced(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """A file system that does not know it refuses the flag (EINVAL)."""
    with lab.open() as store:
        store.append(lab.batch(2))
    if lacks == "file system":
        monkeypatch.setattr(durable, "_EXCHANGE", 1 << 30)
    else:
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    before = (lab.root / "pyrmq" / "queue_ends.json").read_bytes()
    with lab.open() as store:
        store.append(lab.batch(3))
    assert (lab.root / "pyrmq" / "queue_ends.json").read_bytes() != before


def test_a_kill_while_the_spare_is_written_costs_no_table(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(2))
    table = lab.root / "pyrmq" / "queue_ends.json"
    before = table.read_bytes()
    store = lab.open()
    store.append(lab.batch(3))

    class Killed(BaseException):
        pass

    def kill(operation: str, path: str) -> None:
        if path.endswith("queue_ends.json.bak") and operation == "fsync":
            raise Killed

    durable.hook = kill
    with pytest.raises(Killed):
        store.close()
    durable.hook = None
    assert table.read_bytes() == before
    store.close()
