"""Directories are 0700 and files 0600, whatever the umask; a store that others may write is named in the log."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store import Message, Store
from rmq_store.broker.backup.backup import backup
from security.conftest import TINY, fill
from security.test_planted import use

pytestmark = pytest.mark.harness


@pytest.fixture
def no_umask() -> Iterator[None]:
    """The umask that hides no carelessness."""
    kept = os.umask(0)
    yield
    os.umask(kept)


def modes(root: Path) -> dict[str, str]:
    found = {".": f"{root.stat().st_mode & 0o7777:o}"}
    for path in root.rglob("*"):
        found[path.relative_to(root).as_posix()] = f"{path.lstat().st_mode & 0o7777:o}"
    return found


def assert_private(root: Path) -> None:
    open_to_others = {
        name: mode for name, mode in modes(root).items() if mode != ("700" if (root / name).is_dir() else "600")
    }
    assert not open_to_others
    assert len(modes(root)) > 20


@pytest.mark.usefixtures("no_umask")
def test_everything_that_a_busy_store_makes_is_private(tmp_path: Path) -> None:
    root = tmp_path / "new" / "store"
    fill(root)
    use(root)
    store = Store.open(root)
    lease = store.lease("billing", "Victim", "me")
    store.send(Message("Victim", b"x" * 9000))  # a new segment
    assert_private(root)
    lease.release()
    assert (root / "abort").stat().st_mode & 0o777 == 0o600
    # A killed writer, then a recovery that takes bytes out of the log.
    store._flusher.stop()  # type: ignore[union-attr]
    store._log.close()
    newest = max((root / "commitlog").iterdir())
    with newest.open("r+b") as file:
        file.seek(-500, os.SEEK_END)
        file.write(b"torn" * 10)
    (root / "pyrmq" / "state").unlink()
    with Store.open(root) as again:
        assert again.recovery is not None
        assert again.recovery.removed_bytes > 0
    assert any((root / "pyrmq" / "removed").iterdir())
    assert_private(root)
    assert_private_of_backup(root, tmp_path / "copy")


def assert_private_of_backup(root: Path, target: Path) -> None:
    backup(root, target)
    assert_private(target)


@pytest.mark.usefixtures("no_umask")
def test_what_retention_keeps_elsewhere_is_private(tmp_path: Path) -> None:
    root, archive = tmp_path / "store", tmp_path / "archive"
    now = [1_700_000_000_000]
    config = replace(TINY, file_reserved_time=1, dlq_archive_path=str(archive))
    dead = "%DLQ%billing"
    with Store.open(root, create=True, config=config, clock=lambda: now[0]) as store:
        for topic in ("Victim", dead):
            store.create_topic(topic, queue_count=1)
        for number in range(40):
            store.send(Message(dead if number % 2 else "Victim", b"x" * 2000))
        now[0] += 100 * 3_600_000
        for path in (root / "commitlog").iterdir():
            os.utime(path, (1, 1))
        store.retention.run(manual=True)
        assert store.log_range()[0] > 0
    assert_private(root)
    assert set(modes(archive).values()) == {"700", "600"}


@pytest.mark.parametrize(
    ("mode", "warned"), [(0o700, False), (0o755, False), (0o770, True), (0o777, True), (0o702, True)]
)
def test_a_store_that_others_may_write_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    root = tmp_path / "store"
    with Store.open(root, create=True, config=TINY):
        pass
    root.chmod(mode)
    caplog.set_level(logging.WARNING)
    for options in ({}, {"read_only": True}):
        caplog.clear()
        with Store.open(root, **options):
            pass
        warnings = [record.getMessage() for record in caplog.records if "may write" in record.getMessage()]
        assert bool(warnings) is warned
        assert all(str(root) in text for text in warnings)
    assert root.stat().st_mode & 0o777 == mode  # and it is left as it is
