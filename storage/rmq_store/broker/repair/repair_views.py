"""Queues and index that `rmq repair` builds again: which ones it must build, and what it needs of the old ones."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from rmq_store.broker.metadata.store_log import log_of
from rmq_store.broker.repair.repair_settings import Settings
from rmq_store.broker.store.directory import is_ours
from rmq_store.errors import CorruptIndexError, CorruptionError, StoreFullError
from rmq_store.files.progress import Progress
from rmq_store.format.text.names import is_index_file_name
from rmq_store.format.views.index import file_size
from rmq_store.log.core.checkpoint import load_checkpoint
from rmq_store.log.core.geometry import Geometry, infer
from rmq_store.log.recovery.index_repair import indexes_tags
from rmq_store.log.views.hash_index import NO_FILE

# Other files that an opener writes: progress, checkpoint, tables.
_SMALL_FILES_BYTES = 1 << 20


def also_built(root: Path, wanted: set[str]) -> set[str]:
    """`wanted` of "queues" and "index", plus every view that recovery cannot leave unchanged then.

    In a store of this engine recovery builds the index alone only if it is missing; a rebuild of the queues includes
    it. In a broker's store the index stays when the queues are built, because only its broker builds it.
    """
    ours, known = is_ours(root), Progress(root / "pyrmq" / "progress").load()
    if "queues" in wanted and ours:
        return {"queues", "index"}
    if "index" in wanted and not (ours and known and known[0].index_file != NO_FILE):
        return {"queues", "index"}
    return wanted


def index_tells_geometry(root: Path, geometry: Geometry) -> bool:
    """Whether the index has the expected geometry, has a readable one, or is missing. True as well if damage of other
    files prevents the check.
    """
    try:
        found = infer(root, geometry)
    except CorruptIndexError:
        return False
    except CorruptionError:
        return True
    expected_bytes = file_size(found.max_hash_slot_num, found.max_index_num)
    files = (path for path in (root / "index").glob("*") if is_index_file_name(path.name))
    return all(path.lstat().st_size == expected_bytes for path in files)


def describe(root: Path, settings: Settings) -> None:
    """Write the store.json of a store that has none, or replace an unreadable one. A readable index must still exist:
    it has its own geometry, and shows whether it holds tags.

    Raises:
        UsageError: a size that was given is not that of the files.
        CorruptionError: files of one kind differ in size.
    """
    geometry = infer(root, settings.config.geometry(), settings.known & frozenset(Geometry.__slots__))
    with closing(log_of(root, settings.config.with_geometry(geometry), writable=False)) as log:
        try:
            tags = indexes_tags(log)
        except CorruptionError:  # a damaged index: as if there were none
            tags = load_checkpoint(log).logics_physical_offset > 0
    settings.file(geometry, index_tags=tags).restore(root)


def look_for_room(root: Path, rebuild: set[str]) -> None:
    """Raise StoreFullError if the disk has no space for a second index. Queues need none: they are written over the old
    ones.
    """
    if "index" not in rebuild:
        return
    files = (root / "index").rglob("*") if (root / "index").is_dir() else ()
    needed = sum(path.lstat().st_blocks * 512 for path in files) + _SMALL_FILES_BYTES
    disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize
    if free < needed:
        raise StoreFullError(
            f"{root}: {needed} bytes are needed to build the index again, {free} are free; nothing was changed"
        )
