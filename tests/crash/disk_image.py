"""What may be on a disk after a power cut, given what was done to its files: the model of fault class "power loss".

Operations (from recorded_disk):

    ("write", inode, offset, bytes)          ("size", inode, bytes)         ("grow", inode, at least so many bytes)
    ("name", path, inode)                    ("rename", old, new, inode)    ("unlink", path, inode)   ("mkdir", path)
    ("fsync", inode)   ("fsync_directory", path)   ("syncfs",)

After fsync of a file its bytes and its size are on the disk, after fsync of a directory the names in it (a rename with
either of its directories), after syncfs everything. Of all else any part may be there, whatever came first: of each
512-byte sector its content after any of the writes since; each size; each operation on a name. Sectors are not torn
(docs/design.md section 10). Source: Pillai et al., OSDI 2014 (ALICE).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

Operation = tuple[Any, ...]

SECTOR = 512
_ZEROS = bytes(SECTOR)


class Stored(NamedTuple):
    """One file of an image."""

    inode: int
    data: bytes


class Image(NamedTuple):
    """Directories (parents first) and files by path. Equal images are equal disks."""

    directories: frozenset[str]
    files: frozenset[tuple[str, Stored]]


class _File:
    """The durable content, and what came since: per sector and for the size all versions, each with its moment."""

    def __init__(self) -> None:
        self.durable = b""
        self.sectors: dict[int, list[tuple[int, bytes]]] = {}
        self.sizes: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        return self.sizes[-1][1] if self.sizes else len(self.durable)

    def sector(self, number: int) -> bytes:
        versions = self.sectors.get(number)
        if versions:
            return versions[-1][1]
        return self.durable[number * SECTOR : (number + 1) * SECTOR].ljust(SECTOR, b"\0")

    def write(self, moment: int, offset: int, data: bytes) -> None:
        end = offset + len(data)
        for number in range(offset // SECTOR, -(-end // SECTOR)):
            low, high = max(offset, number * SECTOR), min(end, (number + 1) * SECTOR)
            old, start = self.sector(number), number * SECTOR
            new = old[: low - start] + data[low - offset : high - offset] + old[high - start :]
            if new != old:
                self.sectors.setdefault(number, []).append((moment, new))
        self.resize(moment, max(end, self.size))

    def resize(self, moment: int, size: int) -> None:
        if size < self.size:
            for number in range(size // SECTOR, -(-self.size // SECTOR)):
                kept = self.sector(number)[: max(0, size - number * SECTOR)]
                self.sectors.setdefault(number, []).append((moment, kept.ljust(SECTOR, b"\0")))
        if size != self.size:
            self.sizes.append((moment, size))

    def sync(self) -> None:
        if self.sectors or self.sizes:
            self.durable = self.content(lambda versions: versions[-1])
            self.sectors, self.sizes = {}, []

    def content(self, choose: Callable[[list[tuple[int, Any]]], tuple[int, Any] | None]) -> bytes:
        """`choose` gets the versions of a sector, or of the size; None: it is still the durable one."""
        size = len(self.durable)
        if self.sizes and (chosen := choose(self.sizes)) is not None:
            size = chosen[1]
        sectors = {}
        for number, versions in self.sectors.items():
            if (chosen := choose(versions)) is not None:
                sectors[number * SECTOR] = chosen[1]
        if not sectors and size == len(self.durable):
            return self.durable
        data = bytearray(self.durable[:size].ljust(size, b"\0"))
        for place, sector in sectors.items():
            if place < size:
                data[place : place + SECTOR] = sector[: size - place]
        return bytes(data)


class Disk:
    """A disk in the course of a recording; begins as `image`, everything of it durable."""

    def __init__(self, image: Image | None = None) -> None:
        self._files: dict[int, _File] = {}
        self._names: dict[str, int] = {}
        self._directories: set[str] = set(image.directories) if image else set()
        self._pending: list[tuple[int, Operation, bool]] = []  # moment, operation, whether it is durable
        self._dirty: set[int] = set()
        self.moment = 0
        for path, stored in sorted(image.files) if image else ():
            self._names[path] = stored.inode
            self._files[stored.inode] = file = _File()
            file.durable = stored.data

    def apply(self, operation: Operation) -> None:
        """Go on by one operation."""
        self.moment += 1
        match operation:
            case ("write", inode, offset, data):
                self._changing(inode).write(self.moment, offset, data)
            case ("size", inode, size):
                self._changing(inode).resize(self.moment, size)
            case ("grow", inode, size):
                file = self._changing(inode)
                file.resize(self.moment, max(size, file.size))
            case ("fsync", inode):
                self._changing(inode).sync()
                self._dirty.discard(inode)
            case ("fsync_directory", path):
                self._pending = [
                    (moment, done, durable or path in _directories_of(done)) for moment, done, durable in self._pending
                ]
                self._settle()
            case ("syncfs",):
                for inode in self._dirty:
                    self._files[inode].sync()
                self._dirty.clear()
                self._pending = [(moment, done, True) for moment, done, _ in self._pending]
                self._settle()
            case _:
                self._pending.append((self.moment, operation, False))

    def _changing(self, inode: int) -> _File:
        self._dirty.add(inode)
        return self._files.setdefault(inode, _File())

    def _settle(self) -> None:
        while self._pending and self._pending[0][2]:
            _apply_name(self._pending.pop(0)[1], self._names, self._directories)

    def image(self, chance: random.Random) -> Image:
        """One disk that may be found if the power is cut now."""
        keep_data, keep_name = _choice(chance, self.moment, self._oldest())
        names, directories = dict(self._names), set(self._directories)
        for moment, operation, durable in self._pending:
            if durable or keep_name(moment):
                _apply_name(operation, names, directories)
        reachable = frozenset(path for path in directories if _is_reachable(path, directories))
        files = []
        for path, inode in names.items():
            if "/" not in path or path.rpartition("/")[0] in reachable:
                file = self._files.get(inode)
                data = b"" if file is None else file.content(keep_data) if inode in self._dirty else file.durable
                files.append((path, Stored(inode, data)))
        return Image(reachable, frozenset(files))

    def _oldest(self) -> int:
        moments = [moment for moment, _, _ in self._pending[:1]]
        for inode in self._dirty:
            file = self._files[inode]
            moments += [versions[0][0] for versions in file.sectors.values()]
            moments += [moment for moment, _ in file.sizes[:1]]
        return min(moments, default=self.moment)


Versions = list[tuple[int, Any]]
KeepData = Callable[[Versions], "tuple[int, Any] | None"]
KeepName = Callable[[int], bool]


def _choice(chance: random.Random, now: int, oldest: int) -> tuple[KeepData, KeepName]:
    """What of the unsynced reached the disk: mostly any part, sometimes one of ALICE's special ones."""
    kind = chance.randrange(12)
    if kind == 0:  # nothing did
        return (lambda versions: None), (lambda moment: False)
    if kind == 1:  # everything did
        return (lambda versions: versions[-1]), (lambda moment: True)
    if kind == 2:  # names without data
        return (lambda versions: None), (lambda moment: True)
    if kind == 3:  # data without names
        return (lambda versions: versions[-1]), (lambda moment: False)
    turn = chance.randint(oldest, now)
    if kind == 4:  # everything up to a moment
        return (lambda versions: _last_until(versions, turn)), (lambda moment: moment <= turn)
    if kind == 5:  # only what came behind a moment
        return (lambda versions: versions[-1] if versions[-1][0] > turn else None), (lambda moment: moment > turn)
    if kind == 6:  # all but what was done at one moment
        return (
            lambda versions: versions[-1] if versions[-1][0] != turn else versions[-2] if versions[1:] else None,
            lambda moment: moment != turn,
        )
    if kind == 7:  # the newest version of some sectors, the order kept for names, as a journal does
        share = chance.random()
        return (lambda versions: versions[-1] if chance.random() < share else None), (lambda moment: moment <= turn)
    share, names = chance.choice((0.05, 0.3, 0.5, 0.7, 0.95)), chance.choice((0.0, 0.5, 1.0))

    def any_version(versions: Versions) -> tuple[int, Any] | None:
        return chance.choice(versions) if chance.random() < share else None

    return any_version, lambda moment: chance.random() < names


def _last_until(versions: Versions, turn: int) -> tuple[int, Any] | None:
    found = None
    for version in versions:
        if version[0] > turn:
            break
        found = version
    return found


def _directories_of(operation: Operation) -> set[str]:
    paths = operation[1:3] if operation[0] == "rename" else operation[1:2]
    return {path.rpartition("/")[0] for path in paths}


def _apply_name(operation: Operation, names: dict[str, int], directories: set[str]) -> None:
    match operation:
        case ("name", path, inode):
            names[path] = inode
        case ("rename", old, new, inode):
            if names.get(old) == inode:
                del names[old]
            names[new] = inode
        case ("unlink", path, inode):
            if names.get(path) == inode:
                del names[path]
        case ("mkdir", path):
            directories.add(path)


def _is_reachable(path: str, directories: Mapping[str, Any] | set[str]) -> bool:
    parents = _parents(path)
    return all(parent in directories for parent in parents)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
