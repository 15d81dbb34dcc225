"""The progress record: old or new, never something in between."""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
import zlib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from rmq_store.errors import NotAStoreError, StoreFailedError, StoreFullError
from rmq_store.files import durable, progress
from rmq_store.files.progress import Progress, ProgressRecord

RECORD = ProgressRecord(
    end=1000, last_record=900, flushed_end=950, index_file=20230101000000000, index_header=bytes(range(40)),
    clean=True, timestamp=1_700_000_000_000, crc_from=700,
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress"


def test_the_table_of_the_module_covers_the_record_without_gaps() -> None:
    rows = re.findall(r"^    (\d+)-(\d+) +\w+", progress.__doc__ or "", re.MULTILINE)
    edges = [(int(first), int(last) + 1) for first, last in rows]
    assert edges[0][0] == 0
    assert all(end == start for (_, end), (start, _) in pairwise(edges))
    assert edges[-1][1] == progress._RECORD.size + progress._CRC.size


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, crc_from=None),
        replace(RECORD, clean=False, last_record=-1, end=0, flushed_end=0, index_file=-1, crc_from=0),
    ],
)
def test_what_was_written_is_read_and_known_to_be_of_this_file(path: Path, record: ProgressRecord) -> None:
    Progress(path).write(record)
    assert Progress(path).load() == (record, True)
    assert path.stat().st_size == 512


def test_a_copied_record_says_that_it_was_copied(path: Path, tmp_path: Path) -> None:
    Progress(path).write(RECORD)
    shutil.copy(path, tmp_path / "copy")
    assert Progress(tmp_path / "copy").load() == (RECORD, False)


def test_every_flipped_bit_of_the_record_makes_it_missing(path: Path) -> None:
    Progress(path).write(RECORD)
    data = path.read_bytes()
    for bit in range(8 * (progress._RECORD.size + progress._CRC.size)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert Progress(path).load() is None


def test_a_record_of_a_development_version_is_refused_by_name_and_never_missing(path: Path) -> None:
    Progress(path).write(RECORD)
    body = b"pyrmqpr1" + path.read_bytes()[8:112]
    path.write_bytes((body + struct.pack("<I", zlib.crc32(body))).ljust(512, b"\0"))
    with pytest.raises(NotAStoreError, match=r"development version of pyspark-rmq \(progress record pyrmqpr1\)"):
        Progress(path).load()
    assert Progress(path).load_for_repair() is None
    path.write_bytes(b"pyrmqpr2" + path.read_bytes()[8:])
    assert Progress(path).load() is None


@pytest.mark.parametrize("size", [0, 1, 100, 115, 123])
def test_a_missing_or_short_record_is_missing(path: Path, size: int) -> None:
    assert Progress(path).load() is None
    Progress(path).write(RECORD)
    path.write_bytes(path.read_bytes()[:size])
    assert Progress(path).load() is None


def test_zeros_are_no_record(path: Path) -> None:
    path.write_bytes(bytes(512))
    assert Progress(path).load() is None


@pytest.mark.parametrize("name", ["end", "flushed_end", "index_file", "crc_from"])
def test_negative_offsets_are_refused_even_with_a_good_checksum(path: Path, name: str) -> None:
    Progress(path).write(replace(RECORD, **{name: -2}))
    assert Progress(path).load() is None


def test_the_record_and_its_name_are_on_disk_on_return(path: Path) -> None:
    operations = []
    durable.hook = lambda operation, where: operations.append(operation)
    try:
        Progress(path).write(RECORD)
    finally:
        durable.hook = None
    assert operations == ["open", "allocate", "write", "fsync", "fsync_directory"]


@pytest.mark.parametrize(("code", "expected"), [(28, StoreFullError), (5, StoreFailedError)])
def test_failures_are_typed(path: Path, code: int, expected: type[Exception]) -> None:
    def fail(operation: str, where: str) -> None:
        if operation == "write":
            raise OSError(code, "no")

    durable.hook = fail
    try:
        with pytest.raises(expected):
            Progress(path).write(RECORD)
    finally:
        durable.hook = None


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, StoreFailedError), (errno.ENOSPC, StoreFullError)])
def test_a_record_that_cannot_be_opened_is_a_typed_error_with_its_name(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    def fail(operation: str, _: str) -> None:
        if operation == "open":
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(durable, "hook", fail)
    with pytest.raises(kind, match=re.escape(str(path))):
        Progress(path).load()
