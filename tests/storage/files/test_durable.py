"""Atomic replacement under every single failure, and what may be opened at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_store.errors import CorruptConfigError, NotAStoreError, StoreFailedError, StoreFullError
from rmq_store.files import durable


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(durable, "hook", lambda operation, path: seen.append((operation, Path(path).name)))
    return seen


def fail_at(k: int, code: int) -> Callable[[str, str], None]:
    count = iter(range(k + 1))

    def hook(operation: str, path: str) -> None:
        if next(count, k + 1) == k:
            raise OSError(code, os.strerror(code))

    return hook


def failures(
    monkeypatch: pytest.MonkeyPatch, action: Callable[[], object], code: int
) -> Iterator[type[Exception] | None]:
    """Run `action` with its 0th, 1st, ... operation failing until one run has none left to fail; yield each error."""
    outcome: type[Exception] | None = Exception
    k = 0
    while outcome is not None:
        with monkeypatch.context() as patch:
            patch.setattr(durable, "hook", fail_at(k, code))
            try:
                action()
                outcome = None
            except (StoreFailedError, StoreFullError) as error:
                outcome = type(error)
        yield outcome
        k += 1


def test_the_new_content_and_the_backup_are_in_place_with_private_modes(tmp_path: Path) -> None:
    path, backup = tmp_path / "a.json", tmp_path / "a.json.bak"
    durable.write_atomically(path, b"one", backup=backup)
    assert not backup.exists()
    durable.write_atomically(path, b"two", backup=backup)
    durable.write_atomically(path, b"three", backup=backup)
    assert (path.read_bytes(), backup.read_bytes()) == (b"three", b"two")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.json", "a.json.bak"]


def test_bytes_are_synced_before_the_rename_and_the_name_after_it(
    tmp_path: Path, operations: list[tuple[str, str]]
) -> None:
    durable.write_atomically(tmp_path / "a", b"one")
    assert [name for name, _ in operations] == ["open", "write", "fsync", "rename", "fsync_directory"]
    assert operations[3][1] == "a"


@pytest.mark.parametrize(("code", "expected"), [(errno.ENOSPC, StoreFullError), (errno.EIO, StoreFailedError)])
def test_whatever_operation_fails_the_file_is_whole_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception]
) -> None:
    path, backup = tmp_path / "a", tmp_path / "a.bak"
    durable.write_atomically(path, b"zero", backup=backup)
    durable.write_atomically(path, b"old", backup=backup)
    outcomes = []
    for outcome in failures(monkeypatch, lambda: durable.write_atomically(path, b"new", backup=backup), code):
        outcomes.append((outcome, path.read_bytes()))
        assert backup.read_bytes() in (b"zero", b"old")
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "a.bak"]
        path.unlink()
        backup.unlink()
        durable.write_atomically(path, b"zero", backup=backup)
        durable.write_atomically(path, b"old", backup=backup)
    assert outcomes[-1] == (None, b"new")
    assert outcomes[-2] == (expected, b"new"), "only the directory sync comes after the rename"
    assert set(outcomes[:-2]) == {(expected, b"old")}
    assert len(outcomes) == 8


def test_a_file_system_without_hard_links_gets_a_copied_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, backup = tmp_path / "a", tmp_path / "a.bak"
    durable.write_atomically(path, b"old")

    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    durable.write_atomically(path, b"new", backup=backup)
    assert (path.read_bytes(), backup.read_bytes()) == (b"new", b"old")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "a.bak"]


def test_after_a_writer_killed_between_its_two_renames_nothing_is_left_behind(tmp_path: Path) -> None:
    path, backup = tmp_path / "a", tmp_path / "a.bak"
    path.write_bytes(b"old")
    backup.hardlink_to(path)
    durable.write_atomically(path, b"new", backup=backup)
    assert (path.read_bytes(), backup.read_bytes()) == (b"new", b"old")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "a.bak"]


def test_a_symbolic_link_is_replaced_and_its_target_is_not_written(tmp_path: Path) -> None:
    target = tmp_path / "outside"
    target.write_bytes(b"precious")
    (tmp_path / "a").symlink_to(target)
    durable.write_atomically(tmp_path / "a", b"new")
    assert target.read_bytes() == b"precious"
    assert not (tmp_path / "a").is_symlink()


def test_links_directories_and_pipes_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "directory", "pipe"):
        for flags in (os.O_RDONLY, os.O_RDWR):
            with pytest.raises(NotAStoreError, match=name):
                durable.open_nofollow(tmp_path / name, flags)
    with pytest.raises(FileNotFoundError):
        durable.open_nofollow(tmp_path / "absent", os.O_RDONLY)


def test_a_file_of_exactly_the_limit_is_read_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345678")
    assert durable.read_limited(path, 8) == b"12345678"
    with pytest.raises(CorruptConfigError, match="larger than 7 bytes"):
        durable.read_limited(path, 7)


def test_a_huge_sparse_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(CorruptConfigError):
        durable.read_limited(path, 1 << 20)


def test_a_directory_is_private_made_once_and_never_taken_from_a_link(
    tmp_path: Path, operations: list[tuple[str, str]]
) -> None:
    assert durable.make_directory(tmp_path / "d") is True
    given_away = [("open", "d")] if os.geteuid() == 0 else []
    assert operations == [("mkdir", "d"), *given_away, ("fsync_directory", tmp_path.name)]
    assert durable.make_directory(tmp_path / "d") is False
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "d")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(NotAStoreError):
            durable.make_directory(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        durable.make_directory(tmp_path / "absent" / "d")


def test_write_fully_goes_on_after_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:3], offset))
    fd = durable.open_nofollow(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    durable.write_fully(fd, b"0123456789", 2)
    os.close(fd)
    assert (tmp_path / "a").read_bytes() == b"\0\0" b"0123456789"


def test_leftovers_of_one_file_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("a.json", "a.json.bak", "a.json.77-0.tmp", "a.json.bak.77-1.tmp", "b.json.77-0.tmp"):
        (tmp_path / name).touch()
    assert durable.remove_leftovers(tmp_path / "a.json") == 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.json", "a.json.bak", "b.json.77-0.tmp"]


@pytest.mark.parametrize("operation", ["open", "read"])
def test_an_io_error_while_reading_is_typed(tmp_path: Path, operation: str) -> None:
    path = tmp_path / "topics.json"
    path.write_bytes(b"{}")

    def fail(name: str, where: str) -> None:
        if name == operation:
            raise OSError(errno.EIO, "Input/output error")

    durable.hook = fail
    try:
        with pytest.raises(StoreFailedError, match=r"topics.json: cannot be read: Input/output error"):
            durable.read_limited(path, 100)
    finally:
        durable.hook = None
    assert durable.read_limited(path, 100) == b"{}"
