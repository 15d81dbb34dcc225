"""The settings of a store that is being opened, from three sources: store.json, the store's files, and the caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from rmq_store.broker.metadata.store_config import CHANGEABLE, DEFAULTS, StoreConfig
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.store.directory import is_ours
from rmq_store.errors import (
    CorruptConfigError,
    CorruptIndexError,
    CorruptionError,
    UsageError,
)
from rmq_store.files import durable
from rmq_store.log.core.file_sizes import size_of_files
from rmq_store.log.core.geometry import infer
from rmq_store.log.views.index_search import damaged_index

_INDEX_SIZES = frozenset({"max_hash_slot_num", "max_index_num"})


def settings_that_hold(
    root: Path,
    known: StoreFile | None,
    config: StoreConfig | None,
    damage: list[CorruptIndexError],
    *,
    ours: bool,
    paths: Sequence[Path] = (),
) -> StoreConfig:
    """The effective settings: those in store.json. A store without store.json has those of `config` and of its files.

    Errors about the index are added to `damage`, not raised: messages can be read without the index.

    Raises:
        UsageError: `config` has another value than the store was made with.
        CorruptionError: the sizes of the files contradict store.json.
    """
    wanted = config or DEFAULTS
    given = {field.name for field in fields(StoreConfig) if getattr(wanted, field.name) != field.default}
    if wanted.dlq_archive_path:
        durable.refuse_inside(wanted.dlq_archive_path, root)
    if known is None:
        asked = wanted.geometry()
        return wanted.with_geometry(infer(root, asked, frozenset(given), without_index=damage, log_paths=paths))
    made_with = known.config.geometry()
    found = infer(root, made_with, ours=ours, without_index=damage, log_paths=paths)
    if found.of_index() != made_with.of_index():
        # A broker with other settings has used the store, or the files are of another one.
        reason = f"the files have maxHashSlotNum, maxIndexNum = {found.of_index()}"
        damage.append(damaged_index(str(root / "index"), 0, f"{reason}, store.json says {made_with.of_index()}"))
        found = found.with_index(made_with)
    if damage and given >= _INDEX_SIZES:  # nobody knew them before
        damage.clear()
        made_with = made_with.with_index(wanted.geometry())
        found = infer(root, made_with, _INDEX_SIZES)
        known = replace(known, config=known.config.with_geometry(made_with))
    for name in sorted(given - set(CHANGEABLE)):
        asked, made = getattr(wanted, name), getattr(known.config, name)
        if asked != made:
            raise UsageError(f"{name}={asked!r} was asked for, but {root} was made with {made!r}")
    if found != made_with:
        # For example a file that was cut: nothing may be written at places computed from that.
        raise CorruptionError(str(root), 0, f"the files are of {found}, store.json says {made_with}")
    return known.config.with_operational(wanted)


def described_before(root: Path) -> StoreFile | None:
    """Check again for a store.json that was missing. None if the store never had one; the content if another process
    has just written it.

    store.json is written before any file marks the store as ours. If such a file and messages are there, store.json is
    lost. Only `rmq repair`, which asks first, may go on with the defaults (ASYNC_FLUSH!) and a new identity.

    Raises:
        CorruptConfigError: store.json and its backup are lost.
    """
    is_described = is_ours(root) and (root / "pyrmq" / "progress").exists()
    if not is_described or size_of_files(root / "commitlog") is None:
        return None
    known = StoreFile.load(root)
    if known is None:
        reason = "missing, and so is its backup, although this is a store of ours; see `rmq repair`"
        raise CorruptConfigError(str(root / "pyrmq" / "store.json"), 0, reason)
    return known
