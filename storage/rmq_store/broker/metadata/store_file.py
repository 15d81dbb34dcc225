"""The file of a store's settings and identity, `<root>/pyrmq/store.json`.

    {"format": 1, "identity": "<uuid>", "settings": {"mappedFileSizeCommitLog": 67108864, ...}}

A replica (`rmq_store.log.replica_role`) has "format": 2 and {"replica": {...}} beside these.

messageDelayLevel is missing if a broker wrote the store and no caller has given its levels
(`rmq_store.log.recovery.delay_inference`).

store.json.bak exists from the first write on. It has the content before the last change, for `rmq repair`.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from rmq_store.broker.metadata.store_config import OLD_NAMES, StoreConfig, parse_settings
from rmq_store.errors import CorruptConfigError, NotAStoreError, StoreFailedError, development_version
from rmq_store.files import durable
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.replica_role import ReplicaRole

STORE_FORMAT = 1
REPLICA_FORMAT = 2
STORE_FILE_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class StoreFile:
    """The content of store.json."""

    identity: str
    config: StoreConfig
    replica: ReplicaRole | None = None

    @classmethod
    def load(cls, root: Path) -> StoreFile | None:
        """Read store.json; None if the store has none (a broker made it).

        Raises:
            NotAStoreError: written by a newer version.
            CorruptConfigError: unreadable, or missing although its backup exists.
        """
        path = _store_file(root)
        found = cls._read(root, path)
        if found is None and _backup(path).exists():
            found = cls._read(root, path)  # the store was just being made, perhaps
        if found is None and _backup(path).exists():
            reason = f"missing, although {_backup(path).name} is there; see `rmq repair`"
            raise CorruptConfigError(str(path), 0, reason)
        return found

    @classmethod
    def load_backup(cls, root: Path) -> StoreFile | None:
        """Read store.json.bak; None if there is none. Raises as `load`."""
        return cls._read(root, _backup(_store_file(root)))

    @classmethod
    def _read(cls, root: Path, path: Path) -> StoreFile | None:
        try:
            raw = durable.read_limited(path, STORE_FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        try:
            data = json.loads(raw)
            # First: of what a newer version writes, nothing but this has to be as we know it.
            version = data["format"]
            if not isinstance(version, int) or version > REPLICA_FORMAT:
                reason = f"written by a newer version (format {version}, we know {REPLICA_FORMAT})"
                raise NotAStoreError(str(root), reason)
            identity, settings = data["identity"], data["settings"]
            replica = ReplicaRole.parse(data["replica"]) if version == REPLICA_FORMAT else None
            for old, name in OLD_NAMES.items():
                if old in settings:
                    advice = f"write {name} instead, here and in store.json.bak"
                    raise development_version(path, f"setting {old}", advice)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptConfigError(str(path), 0, f"not a description of a store: {error}") from error
        try:
            config = StoreConfig(**{"message_delay_level": "", **parse_settings(settings, str(path))})
            return cls(str(uuid.UUID(identity)), config, replica)
        except (ValueError, AttributeError, TypeError) as error:
            raise CorruptConfigError(str(path), 0, str(error)) from error

    def save(self, root: Path) -> None:
        """Write store.json durably, and its backup."""
        text, path = self._text(), _store_file(root)
        durable.write_atomically(path, text, backup=_backup(path))
        if not _backup(path).exists():
            durable.write_atomically(_backup(path), text)  # most settings never change: one file alone would know them

    def restore(self, root: Path) -> None:
        """Write store.json durably in place of a lost or unreadable one, which does not become the backup. An
        unreadable backup is replaced too.
        """
        text, path = self._text(), _store_file(root)
        durable.write_atomically(path, text)
        try:
            known = self.load_backup(root)
        except (CorruptConfigError, StoreFailedError, NotAStoreError):
            known = None
        if known is None:
            durable.write_atomically(_backup(path), text)

    def _text(self) -> bytes:
        settings = self.config.broker_conf()
        if not self.config.message_delay_level:
            del settings["messageDelayLevel"]  # a guess would be taken for what somebody told
        version = STORE_FORMAT if self.replica is None else REPLICA_FORMAT
        content: dict[str, Any] = {"format": version, "identity": self.identity, "settings": settings}
        if self.replica is not None:
            content["replica"] = self.replica.content()
        return json.dumps(content, indent=1).encode() + b"\n"


def _store_file(root: Path) -> Path:
    return root / "pyrmq" / "store.json"


def _backup(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")
