"""Sectors that the disk does not give back: `rmq verify` names the bytes, `rmq repair` gets everything else out.

To touch such a page of a map is death by SIGBUS, so both read before they map; tests/crash/write_back.py does the same
on a real device.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.verify import verify_store

if TYPE_CHECKING:
    from .conftest import Lab

Break = Callable[[Path, int, int], None]


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Break]:
    """Make pages [start, end) of a file give EIO, whatever name it has later; a map of it is not looked at."""
    bad: dict[int, tuple[int, int]] = {}
    pread, preadv = os.pread, os.preadv

    def check(fd: int, position: int, size: int) -> None:
        start, end = bad.get(os.fstat(fd).st_ino, (0, 0))
        if position < end and start < position + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def checked_pread(fd: int, size: int, position: int) -> bytes:
        check(fd, position, size)
        return pread(fd, size, position)

    def checked_preadv(fd: int, buffers: Any, position: int) -> int:
        check(fd, position, sum(len(buffer) for buffer in buffers))
        return preadv(fd, buffers, position)

    monkeypatch.setattr(os, "pread", checked_pread)
    monkeypatch.setattr(os, "preadv", checked_preadv)

    def make(path: Path, start: int, end: int) -> None:
        bad[path.stat().st_ino] = start, end

    yield make
    bad.clear()


def _first(directory: Path) -> Path:
    return next(path for path in sorted(directory.rglob("*")) if path.is_file())


def test_an_unreadable_page_of_the_log_is_named_and_costs_its_records(lab: Lab, unreadable: Break) -> None:
    with lab.open() as store:
        store.append(lab.batch(120, body_bytes=300))
        end = store.log_range()[1]
    before = lab.verify()
    segment = sorted((lab.root / "commitlog").iterdir())[1]
    unreadable(segment, 4096, 8192)
    report = lab.verify()
    name = f"commitlog/{segment.name}"
    assert [(bad.path, bad.offset, bad.end) for bad in report.unreadable] == [(name, 4096, 8192)]
    assert report.status == "damaged"
    text = "4096 bytes cannot be read: Input/output error"
    assert text in [bad.text for bad in report.problems if bad.path == name]
    (gone,) = report.bad_ranges
    base = int(segment.name)
    starts = lab.boundaries(0, end)
    assert gone.start == max(start for start in starts if start <= base + 4096)
    assert gone.end == base + 8192
    lost = [start for start in starts if gone.start <= start < gone.end]

    found = examine(lab.root)
    assert [finding.path for finding in found.findings] == [name]
    after = carry_out(found)
    assert (after.status, after.unreadable) == ("kept", [])
    # A frame of those that are lost was the blank at the end of the segment.
    assert before.messages - after.messages in (len(lost), len(lost) - 1)
    kept = next((lab.root / "pyrmq" / "removed").rglob(segment.name)).read_bytes()
    assert kept[4096:] == bytes(4096)
    assert kept[:4096] == segment.read_bytes()[:4096] != bytes(4096)
    with lab.open() as store:
        assert store.queue_range("Alpha", 0).max_offset > 0


def test_unreadable_views_are_named_and_built_again(lab: Lab, unreadable: Break) -> None:
    with lab.open() as store:
        store.append(lab.batch(60))
        numbers = lab.numbers(store)
    views, queue, index = lab.views(), _first(lab.root / "consumequeue"), _first(lab.root / "index")
    for path in (queue, index):
        unreadable(path, 0, path.stat().st_size)
    report = lab.verify()
    assert {bad.path for bad in report.unreadable} == {str(path.relative_to(lab.root)) for path in (queue, index)}
    after = carry_out(examine(lab.root))
    assert after.status == "clean"
    assert {name: data for name, data in lab.views().items() if "index" not in name} == {
        name: data for name, data in views.items() if "index" not in name
    }
    with lab.open() as store:
        assert lab.numbers(store) == numbers


def test_neighbouring_pages_are_one_range_and_pages_apart_are_two(tmp_path: Path, unreadable: Break) -> None:
    from rmq_store.verify.files import map_file

    path = tmp_path / "file"
    content = os.urandom(3 << 20)
    path.write_bytes(content)
    unreadable(path, (1 << 20) - 8192, (1 << 20) + 100)  # over the end of a step; the page is lost as a whole
    data, bad = map_file(path)
    assert [(start, end) for start, end, _ in bad] == [((1 << 20) - 8192, (1 << 20) + 4096)]
    start, end, _ = bad[0]
    assert bytes(data[:]) == content[:start] + bytes(end - start) + content[end:]


def test_a_small_file_that_cannot_be_read_is_a_finding(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    from rmq_store.files import durable

    with lab.open() as store:
        store.append(lab.batch(5))

    def fail(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(("topics.json", "progress", "state")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(durable, "hook", fail)
    found = {finding.path: finding.problem for finding in examine(lab.root).findings}
    assert found.keys() >= {"config/topics.json", "pyrmq/progress", "pyrmq/state"}
    assert "cannot be read: Input/output error" in found["pyrmq/state"]
    assert verify_store(lab.root).status == "clean"
