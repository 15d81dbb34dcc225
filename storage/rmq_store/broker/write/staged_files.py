"""Staged files: rows that sink tasks encoded, and that one commit will append (step S2 of docs/design.md section 7).

    <root>/pyrmq/staging/<write id>/<partition>-<attempt>-<uuid>.arrow      an Arrow IPC stream of ENCODED_SCHEMA,
                                                                            or of STAGED_COPY_SCHEMA

Later commits and aborts sweep files that no commit names. Files of a write that the caller knows to be over are removed
at once, even if a task still writes them: their rows will never be committed. All other files are removed only if the
directory was not changed for a long time and no process has a file of it locked.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmq_store import real_time
from rmq_store.arguments import checked
from rmq_store.broker.write.page_release import PageRelease
from rmq_store.errors import NotAStoreError, StagingError, UsageError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.format.bytes.gather import sum_words
from rmq_store.format.frames.crc import extend_crc
from rmq_store.format.frames.frame_check import FRAME_BYTES_MIN
from rmq_store.format.tables.schema import ENCODED_SCHEMA
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.append.frame_writer import frame_bounds
from rmq_store.threads import map_in_threads

# Sums of body CRCs: a unit keeps one as a signed number of 64 bits.
CONTENT_SUM_MASK = (1 << 63) - 1

_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)

# For less, threads do not pay: where other processes want the processors, their turn can come milliseconds later.
_IN_THREADS_BYTES = 4 << 20

# Body CRC lies 8 bytes into a frame.
_BODY_CRC = 8


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A task's report of its file; plain data.

    `name` is relative to the staging directory. `topics`: (topic, number of queues that it must have). `content_sum`:
    sum of the stored body CRCs, modulo 2^63; it depends neither on the order of the rows nor on their split into files.
    """

    name: str
    size_bytes: int
    crc32: int
    row_count: int
    content_sum: int
    topics: tuple[tuple[str, int], ...]

    @property
    def partition_id(self) -> int:
        """The partition whose rows these are."""
        return int(self.name.partition("/")[2].partition("-")[0])


def staging_directory(root: Path, write_id: str) -> Path:
    """The directory of the files of a write's tasks. UsageError if its id cannot be a name."""
    if not _NAME.fullmatch(write_id) or write_id in (".", ".."):
        raise UsageError(f"{write_id!r} cannot name a staging directory")
    return root / "pyrmq" / "staging" / write_id


def content_sum_of(batches: Sequence[pa.RecordBatch]) -> int:
    """`StagedFile.content_sum` of encoded batches (ENCODED_SCHEMA)."""
    return sum(map(_body_crc_sum, batches)) & CONTENT_SUM_MASK


def _body_crc_sum(encoded: pa.RecordBatch) -> int:
    frames = encoded.column("frame")
    starts = np.frombuffer(frames.buffers()[1], np.int64, len(frames), 8 * frames.offset)
    return sum_words(np.frombuffer(frames.buffers()[2], np.uint8), starts + _BODY_CRC)


def _has_short_frames(encoded: pa.RecordBatch) -> bool:
    return int(np.diff(frame_bounds(encoded)).min(initial=FRAME_BYTES_MIN)) < FRAME_BYTES_MIN


def _staged_path(root: Path, staged: StagedFile) -> Path:
    directory, _, name = staged.name.partition("/")
    if not _NAME.fullmatch(directory) or not _NAME.fullmatch(name) or ".." in (directory, name):
        raise StagingError(f"{staged.name!r} is no name of a staged file")
    return root / "pyrmq" / "staging" / directory / name


def discard_staged(root: Path, files: Sequence[StagedFile]) -> None:
    """Remove committed files. Call it before the store is closed, because the sync on close would still write them to
    the disk. A file that cannot be removed is left to `sweep`: the commit has succeeded.
    """
    for staged in files:
        path = _staged_path(root, staged)
        with contextlib.suppress(OSError):
            durable.before("unlink", path)
            path.unlink(missing_ok=True)


def open_all_staged(
    root: Path, files: Sequence[StagedFile], used: PageRelease | None = None, schema: pa.Schema = ENCODED_SCHEMA
) -> list[pa.RecordBatch]:
    """The batches of all files in their order, as `open_staged`. Large files are read on all processors."""
    look = partial(open_staged, root, used=used, schema=schema)
    is_much = sum(file.size_bytes for file in files) >= _IN_THREADS_BYTES
    opened = map_in_threads(look, files) if is_much else map(look, files)
    return [batch for batches in opened for batch in batches]


def open_staged(
    root: Path, staged: StagedFile, used: PageRelease | None = None, schema: pa.Schema = ENCODED_SCHEMA
) -> list[pa.RecordBatch]:
    """Map a staged file and return its batches, which keep the map alive, after checking that it is the reported one.
    `used` gets the map.

    Raises:
        StagingError: the file is missing, of another size, CRC or schema, or unreadable.
    """
    path = _staged_path(root, staged)
    try:
        fd = durable.open_nofollow(path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise StagingError(f"{path}: the file that a task reported is missing; nothing was written") from error
    except (NotAStoreError, OSError) as error:
        raise StagingError(f"{path}: {error}; nothing was written") from error
    try:
        size = os.fstat(fd).st_size
        if size != staged.size_bytes or not size:
            raise StagingError(f"{path}: {size} bytes, its task reported {staged.size_bytes}; nothing was written")
        mapped = pa.py_buffer(mmap.mmap(fd, size, prot=mmap.PROT_READ))
        if used is not None:
            used.add(mapped, path)
    finally:
        os.close(fd)
    if extend_crc(0, memoryview(mapped)) != staged.crc32:
        raise StagingError(f"{path}: the content is not what its task wrote; nothing was written")
    try:
        batches = list(pa.ipc.open_stream(mapped))
        for batch in batches:
            batch.validate(full=True)  # Arrow believes the offsets that a file gives
    except (pa.ArrowException, OSError) as error:
        raise StagingError(f"{path}: {error}") from error
    if any(batch.schema != schema for batch in batches):
        raise StagingError(f"{path}: written by another version of this package; nothing was written")
    batches = [batch for batch in batches if batch.num_rows]
    if any(_has_short_frames(batch) for batch in batches):
        raise StagingError(f"{path}: with frames that are too short to be any; nothing was written")
    if sum(batch.num_rows for batch in batches) != staged.row_count:
        raise StagingError(f"{path}: not the {staged.row_count} rows that its task reported")
    return batches


@checked
def sweep(
    path: str | Path,
    write_ids: Sequence[str] = (),
    older_than_ms: int | None = None,
    *,
    is_over: Callable[[str], bool] | None = None,
) -> int:
    """Remove staging directories: those of `write_ids` and of writes that `is_over` names, even if a task works there.
    Also directories that were not changed for `older_than_ms`, unless a task has a file in them open. Returns how many.
    """
    staging = Path(path) / "pyrmq" / "staging"
    removed = 0
    try:
        directories = list(staging.iterdir())
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise durable.translate(error, staging) from error
    now_s = real_time.file_time_ns() / 1e9
    for directory in directories:
        over = directory.name in write_ids or (is_over is not None and is_over(directory.name))
        try:
            if over or (older_than_ms is not None and _is_forgotten(directory, now_s - older_than_ms / 1000)):
                removed += _remove(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue  # swept by somebody else; or nothing of ours
    return removed


def _is_forgotten(directory: Path, since_s: float) -> bool:
    """True if a staging directory was not changed since then, and no task is writing there."""
    if directory.stat().st_mtime > since_s:
        return False
    for path in directory.iterdir():
        # A task that gives up takes its file away at any moment.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime > since_s or OfdLock(path).who().kind != "free":
                return False
    return True


def _remove(directory: Path) -> bool:
    """Remove a directory with its files; False if a part of it stays. That is no error: the commit that sweeps is done,
    and the next one sweeps again.
    """
    try:
        for path in directory.iterdir():
            durable.before("unlink", path)
            path.unlink(missing_ok=True)
        durable.before("rmdir", directory)
        directory.rmdir()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError:
        return False
    return True
