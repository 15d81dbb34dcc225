"""The report of what queries went on without."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from rmq_store import ClockFile, Loss, Store, StoreFullError, record_losses, recorded_losses
from rmq_store.broker.monitoring import losses as module
from rmq_store.errors import CorruptConfigError
from rmq_store.files import durable

GONE = Loss("T", 0, 10, 20, "retention", group="cg")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Store.open(tmp_path / "store", create=True).close()
    ClockFile.create(tmp_path / "store" / "pyrmq" / "clock", 5000)
    return tmp_path / "store"


def ranges(losses: list[Loss]) -> list[tuple[int, int | None]]:
    return [(loss.start, loss.end) for loss in losses]


def test_a_loss_is_kept_once_with_the_time_of_the_store(root: Path) -> None:
    (first,) = record_losses(root, [GONE])
    assert (first.start, first.end, first.time_ms) == (10, 20, 5000)
    assert record_losses(root, [GONE]) == []
    assert recorded_losses(root) == [first]
    assert stat.S_IMODE((root / "pyrmq" / "dataloss.json").stat().st_mode) == 0o600


def test_what_lies_within_a_known_range_of_the_same_reader_is_nothing_new(root: Path) -> None:
    record_losses(root, [GONE, Loss("T", 0, 40, 50, "retention", group="cg")])
    within = [
        Loss("T", 0, 10, 15, "retention", group="cg"),
        Loss("T", 0, 15, 20, "retention", group="cg", query="a task knows it", batch=3),
    ]
    assert record_losses(root, within) == []
    assert ranges(record_losses(root, [Loss("T", 0, 5, 30, "retention", group="cg")])) == [(5, 30)]
    assert ranges(recorded_losses(root)) == [(40, 50), (5, 30)]
    others = [
        Loss("T", 0, 10, 20, "retention", group="other"),
        Loss("T", 1, 10, 20, "retention", group="cg"),
        Loss("T", 0, 29, 31, "retention", group="cg"),
        Loss("T", 0, 10, 20, "rolled back", group="cg"),
        Loss("T", 0, 10, None, "retention", group="cg"),
        Loss("T", 0, 10, 20, "retention", query="q1"),
        Loss("T", 0, 10, 20, "retention", query="q2"),
    ]
    assert len(record_losses(root, others)) == len(others)
    assert len(recorded_losses(root)) == 9


def test_the_newest_are_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 3)
    for start in range(5):
        record_losses(root, [Loss("T", 0, start, start + 1, "retention")])
    assert [loss.start for loss in recorded_losses(root)] == [2, 3, 4]


def test_a_store_of_a_broker_or_one_that_cannot_be_written_gets_no_report(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "foreign" / "commitlog").mkdir(parents=True)
    assert ranges(record_losses(tmp_path / "foreign", [GONE])) == [(10, 20)]
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["commitlog"]
    assert recorded_losses(tmp_path / "foreign") == []
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert ranges(record_losses(root, [GONE])) == [(10, 20)]
    assert not (root / "pyrmq" / "dataloss.json").exists()


def test_a_full_disk_leaves_the_old_report(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_losses(root, [GONE])

    def full(operation: str, path: str) -> None:
        if operation == "write" and "dataloss" in path:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "hook", full)
    with pytest.raises(StoreFullError):
        record_losses(root, [Loss("T", 0, 50, 60, "retention")])
    monkeypatch.setattr(durable, "hook", None)
    assert ranges(recorded_losses(root)) == [(10, 20)]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b'{"format": 2, "losses": []}', b'{"format": 1}', b'{"format": 1, "losses": [1]}',
        json.dumps({"format": 1, "losses": [{"topic": "T", "queue": "0", "start": 1, "reason": "x"}]}).encode(),
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_report_is_a_typed_error(root: Path, content: bytes) -> None:
    (root / "pyrmq" / "dataloss.json").write_bytes(content)
    for ask in (lambda: recorded_losses(root), lambda: record_losses(root, [GONE])):
        with pytest.raises(CorruptConfigError):
            ask()
    assert (root / "pyrmq" / "dataloss.json").read_bytes() == content
