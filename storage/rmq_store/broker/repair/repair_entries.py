"""Unusable entries of a table that itself can be read (`rmq repair`).

The repair takes an entry from the table's .bak if the .bak has it whole. A topic that has queues gets as many as exist.
All other entries stay unchanged: no process of this engine needs them, but a broker may.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rmq_store.broker.metadata.json_table import ConfigFile, Table
from rmq_store.broker.metadata.odd_entries import shown
from rmq_store.broker.metadata.offset_files import integer_members, merged_members
from rmq_store.broker.metadata.topics import topic_entry
from rmq_store.broker.repair.repair_finding import Finding
from rmq_store.broker.repair.repair_topics import TOPICS_FILE, topics_of_queues
from rmq_store.broker.repair.repair_trash import Trash
from rmq_store.errors import CorruptionError, NotAStoreError, StoreFailedError

_NAMED = 3


class JudgedTable(Protocol):
    """A table whose single entries can be judged; `part` is the member that holds them."""

    part: str

    def odd_keys(self, table: Table) -> list[Any]:
        """The keys of the unusable entries of `table`, as the table has them. CorruptConfigError."""


def find_odd_entries(root: Path, trash: Trash, path: Path, table: JudgedTable) -> Finding | None:
    """The repair of the unusable entries of a readable table; None if none is needed."""
    relative = str(path.relative_to(root))
    found = _better_entries(root, path, table)
    if not found:
        return None

    def put_back() -> None:
        trash.keep(path)
        trash.keep(path.with_name(f"{path.name}.bak"))

        def mutate(content: Table) -> None:
            content[table.part].update(found)

        ConfigFile(root, path.name).update(mutate)

    names = ", ".join(shown(key) for key in list(found)[:_NAMED])
    names += f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    where = f"from {path.name}.bak" + (", or from its queues" if relative == TOPICS_FILE else "")
    return Finding("config", relative, f"entries that cannot be used: {names}", f"each comes back {where}", put_back)


def _better_entries(root: Path, path: Path, table: JudgedTable) -> Mapping[Any, Any]:
    """{key: entry} for the entries that can be restored."""
    content = _load(root, path.name)
    odd = [key for key in table.odd_keys(content) if isinstance(key, str | int)]
    if not odd:
        return {}
    try:
        backup = _load(root, f"{path.name}.bak")
        spoiled = set(table.odd_keys(backup))
    except (CorruptionError, NotAStoreError, StoreFailedError):
        backup, spoiled = {}, set()
    earlier = backup.get(table.part, {})
    found = {
        key: better
        for key in odd
        if key in earlier and key not in spoiled
        if (better := _joined(content[table.part][key], earlier[key])) is not None
    }
    if path == root / TOPICS_FILE:
        entries = content[table.part]
        for topic in topics_of_queues(root):
            name = topic.topic_name
            if name in odd and name not in found:
                there = entries[name] if isinstance(entries[name], dict) else {}
                found[name] = {**there, **topic_entry(topic)}
    return found


def _joined(entry: Any, earlier: Any) -> Any:
    """The earlier entry. For offsets, which are numbers by number, it is the entry plus the earlier numbers that it
    lacks; None if it lacks none.
    """
    numbers = integer_members("", "", earlier)[0] if isinstance(earlier, dict) else {}
    if not numbers or not isinstance(entry, dict):
        return earlier
    usable, _ = integer_members("", "", entry)
    lost = {number: value for number, value in numbers.items() if number not in usable}
    return merged_members(entry, lost) if lost else None


def _load(root: Path, name: str) -> Table:
    return ConfigFile(root, name).load()
