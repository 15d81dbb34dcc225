"""Opens a store for its one server: clients are told one address, so that a directory has one server at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.store.store import Store
from rmq_store.errors import UsageError
from rmq_store.files.locks.lock import OfdLock
from rmq_store.log.replica_role import refuse_writer
from rmq_store.log.replication import server_lock_of


def server_lock(root: Path) -> OfdLock:
    """The lock of a store's one server, taken.

    Raises:
        UsageError: another server serves the store.
        FileNotFoundError: this engine has not opened the store yet.
    """
    lock = server_lock_of(root / "pyrmq")
    if not lock.try_exclusive():
        raise UsageError(f"{root}: another `rmq broker run --listen` serves this store")
    return lock


def open_alone(
    path: str | Path,
    address: str,
    config: StoreConfig | None = None,
    *,
    create: bool = False,
    check_name: Callable[[str], None] | None = None,
) -> tuple[Store, OfdLock]:
    """The store, open for writing, and its server's lock. From now on `address` is the store host of new messages, for
    all programs. `check_name` gets the broker's name before, and may raise; a server that is refused has changed
    nothing of a store.

    Raises:
        UsageError: another server serves the store; and what `Store.open` and `check_name` raise.
    """
    root = Path(path).absolute()
    known = StoreFile.load(root)
    refuse_writer(root, known.replica if known is not None else None)
    try:
        lock = server_lock(root)
    except FileNotFoundError:  # no store yet, or one that a broker made: the lock has no directory
        Store.open(root, create=create, config=config).close()
        lock = server_lock(root)
    served = replace(config or StoreConfig(), broker_host=address)
    try:
        if check_name is not None:
            with Store.open(root, create=create, config=config) as store:
                name = store.broker_name
            check_name(name)
        store = Store.open(root, create=create, config=served)
        if store.config.broker_host == address:
            return store, lock
        # StoreConfig's own default does not count as given when a store is opened.
        try:
            store.retention.configure(broker_host=address)
        finally:
            store.close()
        return Store.open(root, config=served), lock
    except BaseException:
        lock.close()
        raise
