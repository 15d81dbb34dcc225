"""One file of a checkpoint: text, and beside it the checksums that Hadoop's local file system keeps of it.

    NAME          UTF-8; in offsets/ and commits/ the first line is v and the version of what follows
    .NAME.crc     bytes     content (big-endian)
                  0-3       "crc" and a zero byte
                  4-7       bytes per checksum (512)
                  8-        CRC-32 of each so many bytes

Spark reads a file without checksums as it is, and refuses one with wrong ones.
Sources: ChecksumFileSystem.java, HDFSMetadataLog.scala, MetadataVersionUtil.scala.
"""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

from rmq_store.cli.plugin import durable
from rmq_store.errors import CorruptConfigError

FILE_BYTES_MAX = 32 << 20

_CHUNK_BYTES = 512
_HEADER = struct.Struct(">4sI")
_MAGIC = b"crc\0"
_SUMS_BYTES_MAX = _HEADER.size + 4 * (FILE_BYTES_MAX // _CHUNK_BYTES)


def read_text(path: Path) -> str:
    """The whole file, compared with its checksums if it has some.

    Raises:
        FileNotFoundError: no such file.
        CorruptConfigError: not what was written; larger than 32 MiB; no UTF-8.
        NotAStoreError: a symbolic link, or no regular file. UsageError, StoreFailedError: as `durable.read_limited`.
    """
    data = durable.read_limited(path, FILE_BYTES_MAX)
    try:
        sums = durable.read_limited(_checksum_file(path), _SUMS_BYTES_MAX)
    except FileNotFoundError:
        pass
    else:
        _compare(path, data, sums)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptConfigError(str(path), error.start, "not UTF-8") from error


def read_lines(path: Path, version_max: int) -> tuple[int, list[str]]:
    """Version and following lines of a file of offsets/ or commits/. Raises as `read_text`."""
    first, *lines = re.split("\r?\n", read_text(path).rstrip("\r\n"))
    version = re.fullmatch(r"v([1-9][0-9]{0,8})", first, re.ASCII)
    if version is None:
        what = f"begins with {first[:40]!r}" if first else "empty: its writer was stopped"
        raise CorruptConfigError(str(path), 0, f"{what}; the version is expected, v1")
    if int(version[1]) > version_max:
        raise CorruptConfigError(str(path), 0, f"version {version[1]} is of a newer Spark; {version_max} is known here")
    return int(version[1]), lines


def write_text(path: Path, text: str) -> None:
    """Write the file and its checksums; durable on return. Raises as `durable.write_atomically`."""
    data = text.encode()
    durable.write_atomically(_checksum_file(path), _HEADER.pack(_MAGIC, _CHUNK_BYTES) + _sums(data, _CHUNK_BYTES))
    durable.write_atomically(path, data)


def replace_text(path: Path, text: str) -> None:
    """Write new text in place of a file's; durable on return. A process that dies half way leaves the old text or the
    new one, perhaps without checksums, and never with wrong ones. Raises as `durable.write_atomically`.
    """
    with durable.typed(path):
        durable.before("unlink", _checksum_file(path))
        _checksum_file(path).unlink(missing_ok=True)
        durable.fsync_directory(path.parent)
    data = text.encode()
    durable.write_atomically(path, data)
    durable.write_atomically(_checksum_file(path), _HEADER.pack(_MAGIC, _CHUNK_BYTES) + _sums(data, _CHUNK_BYTES))


def _checksum_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _sums(data: bytes, chunk_bytes: int) -> bytes:
    chunks = (data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes))
    return b"".join(zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks)


def _compare(path: Path, data: bytes, sums: bytes) -> None:
    if len(sums) < _HEADER.size:
        return
    magic, chunk_bytes = _HEADER.unpack_from(sums)
    if magic != _MAGIC or not chunk_bytes:  # Hadoop says so in its log, and reads on without
        return
    kept = sums[_HEADER.size :]
    if -(-len(data) // chunk_bytes) * 4 == len(kept) and _sums(data, chunk_bytes) == kept:
        return
    raise CorruptConfigError(str(path), 0, f"{_checksum_file(path).name} says that other bytes were written")
