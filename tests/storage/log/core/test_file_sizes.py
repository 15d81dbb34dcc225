"""Every file of a log is looked at when a store is opened: by the extension, and by Python where that does not know."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from rmq_store import Store, StoreConfig
from rmq_store.errors import CorruptionError
from rmq_store.format.bytes import native
from rmq_store.log.core.file_sizes import size_of_files

SIZE = 4096
Change = Callable[[Path], object]


@pytest.fixture(params=["extension", "python"])
def directory(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three files."""
    if request.param == "extension" and not native.LOADED:
        pytest.skip("the extension was not built, or RMQ_PURE=1")
    monkeypatch.setattr(native, "LOADED", request.param == "extension")
    for number in range(3):
        (tmp_path / f"{number * SIZE:020d}").write_bytes(bytes(SIZE))
    return tmp_path


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: os.truncate(path, SIZE - 1), "its neighbours"),
        (lambda path: os.truncate(path, SIZE + 1), "its neighbours"),
        (a_link, "expected a regular file"),
        (a_directory, "expected a regular file"),
    ],
)
def test_one_file_that_is_not_as_the_others_is_told(directory: Path, number: int, change: Change, reason: str) -> None:
    change(directory / f"{number * SIZE:020d}")
    with pytest.raises(CorruptionError, match=reason) as caught:
        size_of_files(directory)
    if number:
        assert caught.value.path == str(directory / f"{number * SIZE:020d}")


def test_files_without_bytes_are_told_but_for_the_newest(directory: Path) -> None:
    assert size_of_files(directory) == SIZE
    os.truncate(directory / f"{2 * SIZE:020d}", 0)
    assert size_of_files(directory) == SIZE
    os.truncate(directory / f"{SIZE:020d}", 0)
    with pytest.raises(CorruptionError):
        size_of_files(directory)
    os.truncate(directory / f"{0:020d}", 0)
    with pytest.raises(CorruptionError):
        size_of_files(directory)


def test_a_file_that_retention_takes_meanwhile_is_passed_over(directory: Path) -> None:
    with mock.patch("os.listdir", return_value=[path.name for path in directory.iterdir()]):
        (directory / f"{0:020d}").unlink()
        assert size_of_files(directory) == SIZE


def test_a_directory_without_files_has_no_size(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    assert size_of_files(directory) is None
    directory.rmdir()
    assert size_of_files(directory) is None


def test_a_name_that_is_no_offset_of_java_is_a_file_like_others(directory: Path) -> None:
    strange = directory / ("9" * 20)
    strange.write_bytes(bytes(SIZE))
    assert size_of_files(directory) == SIZE
    os.truncate(strange, SIZE - 1)
    with pytest.raises(CorruptionError) as caught:
        size_of_files(directory)
    assert caught.value.path == str(strange)


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
def test_the_extension_looks_at_sound_files_alone(tmp_path: Path) -> None:
    """Or Python would do so for each file of each store, and an open would take longer the larger the store is."""
    for number in range(3):
        (tmp_path / f"{number * SIZE:020d}").write_bytes(bytes(SIZE))
    with mock.patch("os.lstat") as look:
        assert size_of_files(tmp_path) == SIZE
    look.assert_not_called()


@pytest.mark.skipif(not native.LOADED, reason="the extension was not built, or RMQ_PURE=1")
def test_the_extension_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    common_size = native.functions.common_size
    assert common_size(str(tmp_path / "missing"), np.zeros(1, np.int64)) == 0
    assert common_size(str(tmp_path), np.empty(0, np.int64)) == 0
    assert common_size(str(tmp_path), np.array([-1, 1 << 62])) == 0
    with pytest.raises(TypeError):
        common_size(str(tmp_path), np.zeros(1, np.int32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="null"):
        common_size("\0", np.zeros(1, np.int64))


def test_a_store_is_refused_for_a_segment_that_was_cut_since_it_was_last_open(tmp_path: Path) -> None:
    """The directory says nothing of it: what is remembered of one open must not be believed by the next."""
    root = tmp_path / "store"
    Store.open(root, create=True, config=StoreConfig(mapped_file_size_commit_log=SIZE)).close()
    for number in range(3):
        (root / "commitlog" / f"{number * SIZE:020d}").write_bytes(bytes(SIZE))
    os.utime(root / "commitlog", (1, 1))
    Store.open(root, read_only=True).close()
    os.truncate(root / "commitlog" / f"{SIZE:020d}", SIZE // 2)
    with pytest.raises(CorruptionError, match="its neighbours"):
        Store.open(root, read_only=True)
