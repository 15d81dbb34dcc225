"""Copies a store that a broker wrote last, file by file, while no process uses it.

The backup holds the broker's own lock (shared), so that no broker can start. But a broker takes the lock only at the
end of its start, so the files are checked once more at the end.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path, PurePath

from rmq_store.broker.backup.backup_files import BackupReport, Progress, copy_file
from rmq_store.broker.backup.credential_files import credential_of
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.store_log import log_of
from rmq_store.broker.store.store import Store
from rmq_store.errors import StoreLockedError
from rmq_store.files import durable
from rmq_store.files.locks.lock import lock_shared_quietly, process_text
from rmq_store.format.text.names import LOCK_FILE


def copy_at_rest(
    store: Store, made: Path, target: Path, tell: Progress, *, with_credentials: bool = False
) -> BackupReport:
    """Copy all files of `store` to the directory `made`, those of credentials only if they are wanted.

    Raises:
        StoreLockedError: another process uses it. NotAStoreError: a link.
    """
    log = log_of(store.path, store.config, writable=False)
    guard = None
    try:
        if (holder := log.store_lock.who()).kind != "free":
            raise StoreLockedError(
                f"{log.root}: a RocketMQ broker wrote this store last, and {process_text(holder.pid)} uses it now. "
                "Stop it first: only a store of our own can be copied while it is written",
                holder.pid,
            )
        with contextlib.suppress(FileNotFoundError):
            guard = durable.open_nofollow(store.path / LOCK_FILE, os.O_RDONLY)
            lock_shared_quietly(guard)
        before = _stamps(store.path)
        start, end = store.log_range()
        credentials = {} if with_credentials else {name: found for name in before if (found := _credential(name))}
        wanted = sorted(before.keys() - credentials.keys())
        total, done = sum(before[name][0] for name in wanted), 0
        tell(0, 0, total)
        for name in wanted:
            for parent in reversed(PurePath(name).parents[:-1]):
                durable.make_directory(made / parent)
            copy_file(store.path / name, made / name)
            done += before[name][0]
            tell(0, done, total)
        for directory in sorted({(made / name).parent for name in wanted}):
            durable.fsync_directory(directory)
        if log.store_lock.posix_holder() is not None or _stamps(store.path) != before:
            raise StoreLockedError(f"{store.path}: somebody changed the store while it was copied", None)
    finally:
        if guard is not None:
            os.close(guard)
        log.close()
    identity = StoreFile.load(store.path)
    return BackupReport(
        str(store.path), str(target), identity.identity if identity else "", start, end, 0, total,
        tuple(sorted(set(credentials.values()))),
    )  # fmt: skip


def _credential(name: str) -> str:
    found = credential_of(PurePath(name))
    return str(found) if found is not None else ""


def _stamps(root: Path) -> dict[str, tuple[int, int, int]]:
    """{path below root: (size, time of the last change in ns, inode)} of all files.

    Raises:
        NotAStoreError: a directory is a link: it might lead anywhere, and the copy would follow it.
    """
    found = {}

    def fail(error: OSError) -> None:
        raise error

    for directory, folders, names in os.walk(root, onerror=fail):
        durable.refuse_links(*(Path(directory, name) for name in folders))
        for name in names:
            path = Path(directory, name)
            status = path.lstat()
            found[str(path.relative_to(root))] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found
