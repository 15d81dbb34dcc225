"""RocketMQ's JSON tables under `config/`. Any process reads them at any time; one process at a time changes them.

    config/<name>.json        the table, always there once it was written
    config/<name>.json.bak    the content before the last change; read when the table is missing, empty or unparsable
    pyrmq/config.lock         held while a table is changed, so that no change is lost

A change reads the table again under the lock and merges its own fields, so fields and entries that this version does
not know stay. `dataVersion` counts the changes. After a crash at any point the table is the old or the new one.
Sources: ConfigManager.java (load, loadBak, persist), DataVersion.java, MixAll#string2File.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from rmq_store.clock import system_clock
from rmq_store.errors import CorruptConfigError, StoreFullError, UsageError
from rmq_store.files import durable
from rmq_store.files.durable import make_directory, read_limited, remove_leftovers, write_atomically
from rmq_store.files.locks.lock import OfdLock
from rmq_store.files.locks.locked_call import call_locked
from rmq_store.files.rooted import as_path, refuse_if_replaced
from rmq_store.format.bytes import native
from rmq_store.format.tables.config_json import SIZE_MAX, ConfigJsonError, Style, dumps, loads
from rmq_store.format.text.names import CONFIG_DIRECTORY

Table = dict[str, Any]
Stamp = tuple[tuple[int, int, int] | None, ...]

LOCK_TIMEOUT_MS = 10_000
_INT64 = 1 << 63

# fastjson 1 (4.x, early 5.x) opens a map with integer keys and goes on in the same line; fastjson 2 breaks the line.
_INLINE_INTEGER_KEY = re.compile(rb'(?<!\\)":\{-?[0-9]')


class ConfigFile:
    """One table of the store at `root`. It holds no descriptor and no cache, so threads may share it.

    `name` is the file name in `config/`. `lock` makes a new lock object for one change; None: `pyrmq/config.lock`.
    `has_version`: a new table gets a `dataVersion`.
    """

    def __init__(
        self,
        root: str | Path,
        name: str,
        *,
        clock: Callable[[], int] = system_clock,
        lock: Callable[[], OfdLock] | None = None,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        has_version: bool = True,
    ) -> None:
        self._root = as_path(root)
        self.path = self._root / CONFIG_DIRECTORY / name
        self.backup = self.path.with_name(f"{name}.bak")
        self._names = str(self.path), str(self.backup)  # asked for with every message: no Path object each time
        self._clock = clock
        self._lock = lock or (lambda: OfdLock(self._root / "pyrmq" / "config.lock"))
        self._lock_timeout_ms = lock_timeout_ms
        self._has_version = has_version

    def load(self) -> Table:
        """Return the table as it is on disk now, {} if there is none yet. Takes no lock and touches nothing.

        Raises:
            CorruptConfigError: neither the file nor its backup can be parsed.
        """
        return self._read()[0]

    def stamp(self) -> Stamp:
        """Identity of both files now, (inode, mtime in ns, size) each: equal stamps mean equal content. UsageError."""
        return tuple(map(_stamp, self._names))

    def load_stamped(self) -> tuple[Table, Stamp]:
        """As `load`, with the stamp for `is_as_of`: that of the table alone, if it could be read."""
        stamp = self.stamp()  # first: a change in between is read now, and once more at the next look
        table, _, is_main = self._read()
        return table, stamp[:1] if is_main else stamp

    def is_as_of(self, stamp: Stamp) -> bool:
        """True if the content is still valid. It costs one stat call, or two if the content came from the backup.
        UsageError.
        """
        return stamp == tuple(map(_stamp, self._names[: len(stamp)]))

    def update(self, mutate: Callable[[Table], bool | None]) -> None:
        """Change the table: `mutate` gets the content on disk and changes it in place. It returns False if it changed
        nothing.

        On return the change is durable. If `mutate` raises, the files stay as they were.

        Raises:
            StoreLockedError: another process held the config lock for `lock_timeout_ms`.
            StoreReplacedError: the store is not in its place any more.
            CorruptConfigError: neither the file nor its backup can be parsed; both are left alone.
            StoreFullError, StoreFailedError: as `write_atomically`. A table of more than SIZE_MAX bytes is refused as
                full: it could not be read again.
        """

        def change() -> None:
            table, text, is_main = self._read()
            style = _style(table, text)
            if mutate(table) is False:
                return
            _bump(table, is_new=self._has_version and not text, now_ms=self._clock())
            try:
                new_text = dumps(table, style=style).encode()
            except ConfigJsonError as error:
                raise UsageError(f"{self.path}: {error}; nothing was changed") from error
            if len(new_text) > SIZE_MAX:
                raise StoreFullError(
                    f"{self.path} would have {len(new_text)} bytes, and no more than {SIZE_MAX} can be read again: "
                    "nothing was changed. Delete topics or groups that nobody uses (`rmq deleteTopic`, `rmq "
                    "deleteSubGroup -r true`), and offsets on topics that are gone (`rmq cleanUnusedTopic`)"
                )
            # The backup is replaced only by a table that could be read: never by the torn file it stands in for.
            write_atomically(self.path, new_text, backup=self.backup if is_main else None)

        self._alone(change)

    def replace(self, table: Table, style: Style) -> bool:
        """Write `table` as it is, in place of all that is there, also of what cannot be read; its `dataVersion` is not
        counted up. False: the file has this text already, and was left alone. Durable on return.

        Raises:
            StoreLockedError, StoreReplacedError, StoreFullError, StoreFailedError: as `update`; nothing was changed.
            UsageError: `table` has a key or a value that such a file cannot hold.
        """
        try:
            text = dumps(table, style=style).encode()
        except ConfigJsonError as error:
            raise UsageError(f"{self.path}: {error}; nothing was changed") from error
        if len(text) > SIZE_MAX:
            raise StoreFullError(f"{self.path} would have {len(text)} bytes, and no more than {SIZE_MAX} can be read")
        is_changed = False

        def change() -> None:
            nonlocal is_changed
            try:
                _, known, is_main = self._read()
            except CorruptConfigError:
                known, is_main = b"", False
            is_changed = not is_main or known != text
            if is_changed:
                write_atomically(self.path, text, backup=self.backup if is_main else None)

        self._alone(change)
        return is_changed

    def start_anew(self, table: Table) -> None:
        """Write `table` in place of an unreadable one, and remove the backup, which is unreadable too. The caller has
        copies of both.

        Raises:
            StoreLockedError: another process held the config lock for `lock_timeout_ms`.
            StoreFullError, StoreFailedError: as `write_atomically`.
        """

        def change() -> None:
            _bump(table, is_new=self._has_version, now_ms=self._clock())
            write_atomically(self.path, dumps(table, style=_style(table, b"")).encode())
            with durable.typed(self.backup):
                durable.before("unlink", self.backup)
                self.backup.unlink(missing_ok=True)
                durable.fsync_directory(self.backup.parent)

        self._alone(change)

    def _alone(self, change: Callable[[], None]) -> None:
        make_directory(self._root / "pyrmq")
        make_directory(self.path.parent)

        def change_alone() -> None:
            refuse_if_replaced(self._root)
            remove_leftovers(self.path)
            change()

        call_locked(self._lock(), self._lock_timeout_ms, change_alone)

    def _read(self) -> tuple[Table, bytes, bool]:
        """Return (table, its text, True if the text is the main file's and not the backup's)."""
        problem: CorruptConfigError | None = None
        for path in (self.path, self.backup):
            try:
                text = read_limited(path, SIZE_MAX)
                if text:
                    return loads(text), text, path == self.path
            except FileNotFoundError:
                pass
            except CorruptConfigError as error:
                problem = problem or error
            except ConfigJsonError as error:
                problem = problem or CorruptConfigError(str(path), 0, f"not the JSON of a table: {error}")
        if problem:
            # Java starts with an empty table here, and then writes that: every topic or offset is gone for good.
            raise problem
        return {}, b"", False

    def part(self, table: Table, name: str) -> Table:
        """Return the object `name` of a loaded table, adding an empty one; CorruptConfigError for another type."""
        value = table.setdefault(name, {})
        if not isinstance(value, dict):
            raise self.corrupt(f"{name} is not an object")
        return value

    def corrupt(self, reason: str) -> CorruptConfigError:
        """Return the error for a table that can be parsed, but has a wrong value."""
        return CorruptConfigError(str(self.path), 0, reason)


T = TypeVar("T")


class CachedView(Generic[T]):
    """The decoded table, cached until the file changes. The value is shared: `decode` returns frozen ones.

    It serves readers only: a change starts from the file, under the lock.
    """

    def __init__(self, file: ConfigFile, decode: Callable[[Table], T]) -> None:
        self._file = file
        self._decode = decode
        self._cached: tuple[Stamp, T] | None = None

    def get(self) -> T:
        """Return the decoded table as of now; CorruptConfigError as `load`, UsageError."""
        cached = self._cached
        if cached is None or not self._file.is_as_of(cached[0]):
            table, stamp = self._file.load_stamped()
            self._cached = cached = stamp, self._decode(table)
        return cached[1]


def _stamp(path: str) -> tuple[int, int, int] | None:
    if native.LOADED and (stamp := native.functions.file_stamp(path)) is not False:
        return stamp  # type: ignore[return-value]
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    return status.st_ino, status.st_mtime_ns, status.st_size


def _style(table: Table, text: bytes) -> Style:
    if _INLINE_INTEGER_KEY.search(text):
        return "4.x"
    version = table.get("dataVersion")
    return "5.x" if not text or (isinstance(version, dict) and "stateVersion" in version) else "4.x"


def _bump(table: Table, *, is_new: bool, now_ms: int) -> None:
    """Count the change in `dataVersion`, which has no stateVersion in 4.x and is missing from its offset tables."""
    if is_new:
        # First, as in Java's alphabetical order of fields.
        rest = dict(table)
        table.clear()
        table["dataVersion"] = {"counter": 0, "stateVersion": 0}
        table.update((name, value) for name, value in rest.items() if name != "dataVersion")
    version = table.get("dataVersion")
    if isinstance(version, dict):
        counter = version.get("counter")
        version["counter"] = (counter + 1 + _INT64) % (2 * _INT64) - _INT64 if type(counter) is int else 1  # AtomicLong
        version["timestamp"] = now_ms
