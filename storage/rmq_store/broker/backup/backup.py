"""A consistent copy of a store that other processes write, without stopping them. The source is only read.

Each step leaves out the files that the next ones must not see (docs/operations.md):

    B1  offsets, POP state, unit table        before the end is taken: none of them is ahead of the copied log
    B2  the end; the segments below it pinned the end always lies between two appends, so a unit is in or out as a whole
    B3  topics and groups                     after it: every message of the copy has its topic
    B4  the log, segment by segment           each record is checked in the copy, and put into new queues and index
    B5  queues whose messages retention took  their next offset does not change
    B6  opened and closed, renamed            before this the target does not exist

Files of others in the store (timers, RocksDB, unknown ones) are copied between B1 and B2, byte for byte; those of
credentials are left out (`credential_files`). A store that a broker wrote last, or of a kind that is not written here,
is copied file by file. That is done only while nobody uses it: a broker publishes no end that a copy could trust.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rmq_store import kinds
from rmq_store.arguments import checked
from rmq_store.broker.backup.backup_at_rest import copy_at_rest
from rmq_store.broker.backup.backup_files import BackupReport, Progress
from rmq_store.broker.backup.backup_live import LiveBackup
from rmq_store.broker.store.directory import is_ours
from rmq_store.broker.store.store import Store
from rmq_store.errors import UsageError
from rmq_store.files import durable
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.rooted import plain_name
from rmq_store.format.text.names import LOCK_FILE

__all__ = ["BackupReport", "backup"]


@checked
def backup(
    path: str | Path, target: str | Path, *, progress: Progress | None = None, with_credentials: bool = False
) -> BackupReport:
    """Copy the store at `path` to `target`, a new directory, while other processes of this engine continue to write it.

    The copy is a cleanly stopped store. It has every message acknowledged before the call, and later ones up to one
    moment; units as a whole. Queue offsets, topics, groups, group offsets and identity are the same. On return the copy
    is on disk; until then `target` does not exist. Nothing at `path` is changed. `progress` is called after every file.

    Files in which a RocketMQ broker keeps passwords and secret keys are left out, and named in the report, unless it is
    `with_credentials`. A broker on the copy knows no users without them.

    Raises:
        UsageError: `target` exists, or cannot be made.
        NotAStoreError: no store at `path`.
        StoreLockedError: a RocketMQ broker runs on the store (its pid is named), or another process opens a store that
            a broker wrote last.
        CorruptRecordError: a record of the store is damaged; repair it first.
        OffsetOutOfRangeError: retention removed a segment by force while it waited to be copied; run it again.
        StoreFullError, StoreFailedError: the copy could not be written.
    """
    new = Path(os.path.normpath(Path(target).absolute()))
    tell = progress or (lambda messages, done, total: None)
    with durable.typed_reading(path), Store.open(path, read_only=True) as store:
        _check_target(store.path, new)
        try:
            with _workshop(new) as made:
                if is_ours(store.path) and not kinds.is_only_read(store.path):
                    report = LiveBackup(store, made, tell, with_credentials=with_credentials).run(new)
                else:
                    report = copy_at_rest(store, made, new, tell, with_credentials=with_credentials)
                durable.before("rename", new)
                _rename(made, new)
                durable.fsync_directory(new.parent)
        except OSError as error:
            raise durable.translate(error, plain_name(error, new)) from error
    return report


def _check_target(root: Path, target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target} exists: a backup makes a directory of its own")
    if not target.parent.is_dir():
        raise UsageError(f"{target}: {target.parent} is no directory")
    durable.refuse_inside(target, root)


def _rename(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError as error:
        if target.exists():
            raise UsageError(f"{target} exists: somebody has made it meanwhile, perhaps another backup") from error
        raise


@contextlib.contextmanager
def _workshop(target: Path) -> Iterator[Path]:
    """A directory beside `target` to build the copy in. It is removed afterwards; so are the directories of killed
    backups.
    """
    prefix, suffix = f".{target.name}.", ".partial"
    for leftover in target.parent.iterdir():
        if leftover.name.startswith(prefix) and leftover.name.endswith(suffix):
            # The prefix may be that of another target, too, whose backup ends meanwhile.
            with contextlib.suppress(FileNotFoundError), contextlib.closing(OfdLock(leftover / LOCK_FILE)) as lock:
                if lock.try_exclusive():
                    shutil.rmtree(leftover)
    directory, lock = _locked_directory(target.parent, prefix, suffix)
    try:
        durable.make_directory(directory / "store")
        yield directory / "store"
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        lock.close()


def _locked_directory(parent: Path, prefix: str, suffix: str) -> tuple[Path, OfdLock]:
    while True:
        directory = Path(tempfile.mkdtemp(suffix, prefix, parent))
        lock = OfdLock(directory / LOCK_FILE)
        try:
            if lock.try_exclusive():
                return directory, lock
        except FileNotFoundError:
            pass
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        lock.close()  # before it was locked, another backup took it for that of a killed one, and removes it
