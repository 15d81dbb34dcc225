"""The settings of a store whose store.json is damaged or missing (`rmq repair`).

The first source that has a setting wins: values that the caller gives; store.json.bak; the readable lines of
store.json; a broker.conf that the caller names. A setting that is then still unknown is *lost*. The repair uses a
default for it (ASYNC_FLUSH!) only if the caller agrees, because hardly any setting can be changed later. Sizes are
never lost: the files of the store have them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from rmq_store.broker.metadata.store_config import DEFAULTS, JAVA_NAMES, StoreConfig, parse_settings
from rmq_store.broker.metadata.store_file import STORE_FILE_BYTES_MAX, StoreFile
from rmq_store.broker.repair.repair_finding import Finding
from rmq_store.broker.repair.repair_trash import Trash
from rmq_store.broker.store.directory import is_ours
from rmq_store.errors import CorruptConfigError, CorruptionError, NotAStoreError, StoreFailedError, UsageError
from rmq_store.files import durable
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.geometry import Geometry
from rmq_store.log.replica_role import refuse_repair

# As StoreFile.save writes them: one setting in each line.
_LINE = re.compile(r'^\s*"([A-Za-z0-9]+)":\s*(.*?),?\s*$', re.MULTILINE)
_SIZES = frozenset(Geometry.__slots__)
_DELAYS = "message_delay_level"
# Nobody needs it as long as the files of offsets agree, and few store.json have it.
_UNNEEDED = "enable_lmq"


@dataclass(frozen=True, slots=True)
class Given:
    """The caller's values of lost settings: `settings` and `config` as StoreConfig has them. `defaults`: use defaults
    for all lost settings.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    config: StoreConfig | None = None
    defaults: bool = False

    def __bool__(self) -> bool:
        return bool(self.settings or self.config or self.defaults)


@dataclass(frozen=True, slots=True)
class Settings:
    """The values for a new store.json. `identity`: "" for a new one. `known`: the fields of `config` that have a
    source. `lost`: RocketMQ's names of the fields that have none. `problem`: the fault of the present or missing
    store.json ("": none was expected). `action`: the source of the settings.
    """

    identity: str
    config: StoreConfig
    known: frozenset[str]
    lost: tuple[str, ...] = ()
    problem: str = ""
    action: str = ""

    def size(self, name: str) -> int | None:
        """One of the sizes; None if only the files have it."""
        return getattr(self.config, name) if name in self.known else None

    def file(self, geometry: Geometry, *, index_tags: bool) -> StoreFile:
        """The new store.json of a store whose files have these sizes."""
        config = self.config.with_geometry(geometry)
        if "message_index_tags" not in self.known:
            config = replace(config, message_index_tags=index_tags)
        if _DELAYS not in self.known and not config.tells_delays():
            config = replace(config, message_delay_level="")  # the messages tell them
        return StoreFile(self.identity or str(uuid.uuid4()), config)


def refuse_replica(root: Path) -> None:
    """Raise ReadOnlyError if the store says that it is a replica; one that says nothing is refused by `find_settings`.
    """
    with contextlib.suppress(CorruptConfigError, StoreFailedError, NotAStoreError):
        known = StoreFile.load(root)
        if known is not None:
            refuse_repair(root, True, known.replica)


def find_settings(root: Path, given: Given) -> Settings | None:
    """The settings of a store that has no readable store.json; None if it has one.

    Raises:
        NotAStoreError: a newer version wrote it.
        ReadOnlyError: a replica, which is taken from its master again instead.
        UsageError: settings are given for a store that knows its own, or they make no sense.
    """
    try:
        known = StoreFile.load(root)
        refuse_repair(root, known is not None, known.replica if known is not None else None)
    except (CorruptConfigError, StoreFailedError, NotAStoreError) as error:
        if "newer version" in str(error):
            raise
        return _salvage(root, given, str(error))
    if known is not None and given:
        raise UsageError(
            f"{root}/pyrmq/store.json is whole, and its settings stay: `rmq updateBrokerConfig` changes those that may "
            "be changed in the life of a store"
        )
    if known is not None:
        return None
    if is_ours(root) or (root / "pyrmq" / "progress").exists():
        return _salvage(root, given, "missing")
    config = replace(given.config or DEFAULTS, **given.settings)
    differing = {name for name in _names() if given.config and getattr(given.config, name) != getattr(DEFAULTS, name)}
    return Settings("", config, frozenset(differing | given.settings.keys()))


def find_store_file(root: Path, trash: Trash, settings: Settings) -> Finding:
    """The repair of the store.json that `settings` replace. The file stays until `describe` replaces it. So its
    readable lines are not lost to the next repair if this one is killed, and nobody can open the store without
    settings.
    """
    path = root / "pyrmq" / "store.json"
    backup = path.with_name("store.json.bak")
    also = _load_backup(root) is None and os.path.lexists(backup)

    def keep() -> None:
        trash.keep(path)
        if also:
            trash.keep(backup)

    action = settings.action + ("; so is its backup, which is no better" if also else "")
    return Finding("own files", "pyrmq/store.json", settings.problem, action, keep)


def _salvage(root: Path, given: Given, problem: str) -> Settings:
    backup = _load_backup(root)
    refuse_repair(root, backup is not None, backup.replica if backup is not None else None)
    if backup is not None:
        action = "its content before the last change comes back from store.json.bak"
        return Settings(backup.identity, replace(backup.config, **given.settings), _names(), (), problem, action)
    identity, found = _read_what_can_be_read(root)
    known = {**found, **given.settings}
    config = replace(given.config or DEFAULTS, **known)
    known_names = {*known, *_SIZES, _UNNEEDED}
    lost = [name for name, field in JAVA_NAMES.items() if field.name not in known_names]
    if given.config is not None or given.defaults or lost == ["messageDelayLevel"]:  # which not every store.json has
        lost = []
    action = f"it is made anew: {len(found)} of {len(JAVA_NAMES)} settings can be read, the files tell the sizes, "
    action += f"the identity is {'the same' if identity else 'a new one'}"
    names = known.keys() | ({name for name in _names() if name not in {*_SIZES, _DELAYS}} if not lost else set())
    return Settings(identity, config, frozenset(names), tuple(lost), problem, action)


def _load_backup(root: Path) -> StoreFile | None:
    try:
        return StoreFile.load_backup(root)
    except (CorruptionError, StoreFailedError, NotAStoreError):
        return None


def _read_what_can_be_read(root: Path) -> tuple[str, dict[str, Any]]:
    """(identity, settings as StoreConfig has them) of a damaged store.json; senseless values are left out."""
    try:
        text = durable.read_limited(root / "pyrmq" / "store.json", STORE_FILE_BYTES_MAX).decode(errors="replace")
    except (FileNotFoundError, CorruptConfigError, StoreFailedError, NotAStoreError):
        return "", {}
    identity = ""
    found: dict[str, Any] = {}
    for name, value in _LINE.findall(text):
        try:
            if name == "identity":
                identity = str(uuid.UUID(json.loads(value)))
            elif name in JAVA_NAMES:
                setting = parse_settings({name: json.loads(value)}, name)
                StoreConfig(**setting)
                found |= setting
        except (ValueError, TypeError, AttributeError, RecursionError):  # a UsageError of this one setting, too
            continue
    return identity, found


def _names() -> frozenset[str]:
    return frozenset(field.name for field in JAVA_NAMES.values())
