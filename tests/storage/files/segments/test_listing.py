"""Names are read again when, and as soon as, the directory has changed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest import mock

import pytest

from rmq_store.files.segments.listing import Listing, shared_listing


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "3").touch()
    return tmp_path


def numbers(names: list[str]) -> tuple[int, ...]:
    return tuple(sorted(int(name) for name in names))


def age(directory: Path, seconds: int) -> None:
    changed_ns = time.time_ns() - seconds * 10**9
    os.utime(directory, ns=(changed_ns, changed_ns))


def test_an_unchanged_directory_is_read_once(directory: Path) -> None:
    listing = Listing(str(directory), numbers)
    age(directory, 10)
    assert listing.get() == (3,)
    with mock.patch("os.listdir") as read:
        assert listing.get() == (3,)
    read.assert_not_called()
    (directory / "1").touch()
    assert listing.get() == (1, 3)
    (directory / "3").unlink()
    assert listing.get() == (1,)


@pytest.mark.parametrize("seconds", [0, 2, -10])
def test_a_time_that_may_come_again_says_nothing(directory: Path, seconds: int) -> None:
    """A second file made within the same tick of the file system's clock leaves the directory's time as it is; and
    after the clock was set back, a time in the future may be reached once more.
    """
    listing = Listing(str(directory), numbers)
    age(directory, seconds)
    same = directory.stat().st_mtime_ns
    assert listing.get() == (3,)
    (directory / "1").touch()
    os.utime(directory, ns=(same, same))
    assert listing.get() == (1, 3)


def test_another_directory_of_the_same_name_and_time_is_read(directory: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "4", tmp_path / "5"
    for path, name in ((old, "1"), (new, "2")):
        path.mkdir()
        (path / name).touch()
        os.utime(path, ns=(10**18, 10**18))
    listing = Listing(str(old), numbers)
    assert listing.get() == (1,)
    old.rename(tmp_path / "6")
    new.rename(old)
    assert listing.get() == (2,)


def test_a_directory_that_was_put_back_with_its_old_time_is_read(directory: Path) -> None:
    """As rsync and tar do, which leave another time than the one that they set."""
    listing = Listing(str(directory), numbers)
    age(directory, 10)
    same = directory.stat().st_mtime_ns
    assert listing.get() == (3,)
    (directory / "3").unlink()
    os.utime(directory, ns=(same, same))
    assert listing.get() == ()


def test_who_asks_again_in_the_same_process_is_told_what_is_known(directory: Path) -> None:
    age(directory, 10)
    assert shared_listing(str(directory), numbers).get() == (3,)
    with mock.patch("os.listdir") as read:
        assert shared_listing(str(directory), numbers).get() == (3,)
    read.assert_not_called()
    (directory / "1").touch()
    assert shared_listing(str(directory), numbers).get() == (1, 3)


def test_a_missing_directory_is_told_each_time(tmp_path: Path) -> None:
    listing = Listing(str(tmp_path / "7"), numbers)
    with pytest.raises(FileNotFoundError):
        listing.get()
    (tmp_path / "7").mkdir()
    assert listing.get() == ()
