"""The directory of a store: checks if a store is there and which program wrote it, and makes a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rmq_store import kinds
from rmq_store.errors import (
    NotAStoreError,
    StoreKindError,
)
from rmq_store.files import durable
from rmq_store.log.recovery.starting_point import OUR_LOCK_TEXT

BEING_MADE: Final = "a store that is being made, or whose maker died: nothing tells how its files are cut; try again"
_NOT_EMPTY: Final = "not an empty directory, and no store: create one in a directory of its own"


def is_store(root: Path) -> bool:
    """True if a store is there.

    Raises:
        StoreKindError: a store is there without a log. The log is made first, so it is elsewhere or lost, and no new
            store may begin there. Or the log is of another kind.
    """
    log = root / "commitlog"
    if log.is_dir():
        return True
    with durable.typed_reading(root):
        missing = kinds.missing_log(root)
        if missing is not None:
            raise StoreKindError(str(root), missing.text, missing.kind.name)
        kinds.refuse_to_read(root)
    return (root / "pyrmq" / "store.json").is_file()


def why_no_store(root: Path) -> str:
    """The reason of the error for a directory without a store."""
    reason = "no RocketMQ store is here (no commitlog/ and no pyrmq/store.json)"
    if nearby := kinds.store_nearby(root):
        return reason + nearby
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        return reason
    return f"{reason}; check the path, or make a store with `rmq init` or Store.open(path, create=True)"


def is_ours(root: Path) -> bool:
    """True if the last writer of the store was this engine: a broker writes another text to `lock` at every start."""
    try:
        return durable.read_limited(root / "lock", 4096).startswith(OUR_LOCK_TEXT)
    except FileNotFoundError:
        return False


def has_been_written(root: Path) -> bool:
    """True if a broker has begun to write a log, which may still be empty: it writes a text to `lock` first. A process
    of ours makes pyrmq/ before it takes the lock, and tells by store.json how its files are cut.
    """
    try:
        return (root / "lock").stat().st_size > 0 and not (root / "pyrmq").is_dir()
    except FileNotFoundError:
        return False


def make_root(root: Path) -> None:
    """Make the directory of a new store, durably. NotAStoreError: other files are there."""
    # Looked at last whether it is a store: another process may be creating it at this moment.
    if root.exists() and (not root.is_dir() or (any(root.iterdir()) and not is_store(root))):
        raise NotAStoreError(str(root), f"{_NOT_EMPTY}{kinds.store_nearby(root)}")
    missing = [path for path in [root, *root.parents] if not path.is_dir()]
    try:
        for path in reversed(missing):
            durable.make_directory(path)
        durable.make_directory(root / "commitlog")
    except OSError as error:
        raise durable.translate(error, root) from error
