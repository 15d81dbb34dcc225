"""Findings about the files of the commit log by name and size, and the repair of each (`rmq repair`).

Their size belongs to the store. Without store.json the names determine it: a segment is named after the offset at which
it begins, a multiple of the size. A wrong size would cut every good segment, so the repair refuses ambiguous cases.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from rmq_store.broker.repair.repair_finding import Finding
from rmq_store.broker.repair.repair_trash import Trash, copy_readable, read_readable
from rmq_store.errors import CorruptionError, NotAStoreError, UsageError
from rmq_store.files import durable
from rmq_store.files.segments.segments import NAME_DIGITS
from rmq_store.verify import Problem

_STEP_BYTES = 1 << 20
_HEAD_BYTES = 36  # of a frame, up to its own offset
_MESSAGE_MAGIC = b"\xda\xa3\x20"  # of both versions
_BLANK_MAGIC = b"\xcb\xd4\x31\x94"
# A blank fills what the next message did not fit into.
_BLANK_BYTES_MAX = 16 << 20


def find_segments(root: Path, trash: Trash, known_bytes: int | None) -> Iterator[Finding]:
    """Findings about names and sizes in `commitlog/`. `known_bytes`: the size of a segment, if the settings or the
    caller supply it.

    Raises:
        NotAStoreError: a segment's name belongs to something that is no file: the segment is misplaced, not lost.
        UsageError: the size of the segments is ambiguous.
        CorruptionError: a file holds records beyond that size.
    """
    segments: dict[Path, int] = {}
    for path in sorted((root / "commitlog").iterdir()):
        if not is_file_name(path.name):
            # A broker passes over directories, as we do (MappedFileQueue#doLoad), and fails on all else.
            if not path.is_dir():
                yield Finding(
                    "names", f"commitlog/{path.name}", "no segment",
                    "it is moved away: a broker refuses to load a log with it",
                    lambda path=path: trash.move(path),  # type: ignore[misc]
                )  # fmt: skip
        elif path.is_symlink() or not path.is_file():
            what = "a symbolic link" if path.is_symlink() else "no regular file"
            raise NotAStoreError(str(path), f"{what} where a segment belongs: put the file itself back in its place")
        else:
            segments[path] = path.stat().st_size
    if segments and not segments[max(segments)]:
        del segments[max(segments)]  # what a dying broker leaves: an opener drops it
    expected = known_bytes or size_of_files({int(path.name): size for path, size in segments.items()}, segments)
    in_place = [path for path in segments if expected and int(path.name) % expected == 0]
    for path, size in segments.items():
        if in_place and path not in in_place:
            yield Finding(
                "log", f"commitlog/{path.name}", f"no segment begins there: they have {expected} bytes each",
                "it is moved away: the log cannot be read across it",
                lambda path=path: trash.move(path),  # type: ignore[misc]
            )  # fmt: skip
        elif size != expected:
            _refuse_records_behind(path, expected)
            yield Finding(
                "log", f"commitlog/{path.name}", f"it has {size} bytes, not {expected}",
                f"a copy of {expected} bytes takes its place, filled with zeros: whole records in it are kept",
                lambda path=path: _resize(path, expected, trash),  # type: ignore[misc]
            )  # fmt: skip


def find_unreadable_segments(root: Path, trash: Trash, unreadable: Mapping[str, str]) -> Iterator[Finding]:
    """The repair of segments that the disk cannot read as a whole. `unreadable`: {path: which bytes}."""
    for name, text in unreadable.items():
        yield Finding(
            "log", name, text, "a copy takes its place, with zeros there: whole records in it are kept",
            lambda path=root / name: _resize(path, path.stat().st_size, trash),  # type: ignore[misc]
        )  # fmt: skip


def is_file_name(name: str) -> bool:
    """Whether a segment, or a file of a queue, can have this name."""
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def size_of_files(sizes: Mapping[int, int], paths: Iterable[Path]) -> int:
    """The size of files that begin at the keys of `sizes`, derived from their names; 0 without files.

    UsageError: the size is ambiguous.
    """
    if not sizes:
        return 0
    fitting = {size for size in sizes.values() if size and all(base % size == 0 for base in sizes)}
    if len(fitting) > 1:
        pairs = zip(paths, sizes.values(), strict=True)
        proven = {size for path, size in pairs if size in fitting and _ends_with_blank(path, size)}
        fitting = proven or {max(fitting)}
    if not fitting:
        fitting = _by_neighbours(sizes)
    if len(fitting) == 1:
        return fitting.pop()
    found = ", ".join(f"{count} of {size}" for size, count in Counter(sizes.values()).most_common())
    raise UsageError(
        f"{next(iter(paths)).parent}: which size its files have cannot be told from their names: {found} bytes; give "
        "--set mappedFileSizeCommitLog=BYTES, or the broker's broker.conf with --config"
    )


def _by_neighbours(sizes: Mapping[int, int]) -> set[int]:
    """A size if none fits all names. It is the one that fits more than half of the names, because a file of another log
    may lie among them. If all files are short, it is the smallest distance between two names.
    """
    in_place = Counter({size: sum(base % size == 0 for base in sizes) for size in set(sizes.values()) if size})
    best = in_place.most_common(2)
    if best and best[0][1] * 2 > len(sizes) and (len(best) == 1 or best[1][1] < best[0][1]):
        return {best[0][0]}
    distance = min((high - low for low, high in pairwise(sorted(sizes))), default=0)
    fits = distance >= max(sizes.values()) and all(base % distance == 0 for base in sizes) if distance else False
    return {distance} if fits else set()


def _ends_with_blank(path: Path, size_bytes: int) -> bool:
    with path.open("rb") as file:
        first = max(size_bytes - _BLANK_BYTES_MAX, 0)
        tail = read_readable(file.fileno(), size_bytes - first, first)
    at = tail.rfind(_BLANK_MAGIC) - 4
    return at >= 0 and int.from_bytes(tail[at : at + 4]) == len(tail) - at


def _refuse_records_behind(path: Path, expected: int) -> None:
    """Raise CorruptionError if a record lies after `expected` bytes: a wrong size in a file must not cut off
    records.
    """
    base, size = int(path.name), path.stat().st_size
    with path.open("rb") as file:
        for position in range(expected, size, _STEP_BYTES):
            data = read_readable(file.fileno(), _STEP_BYTES + _HEAD_BYTES, position)
            at = data.find(_MESSAGE_MAGIC, 4)
            while at >= 0:
                if int.from_bytes(data[at + 24 : at + 32]) == base + position + at - 4:
                    reason = f"a record begins here, but segments have {expected} bytes: nothing is cut"
                    raise CorruptionError(str(path), position + at - 4, reason)
                at = data.find(_MESSAGE_MAGIC, at + 1)


def _resize(path: Path, size: int, trash: Trash) -> None:
    new = trash.root / "pyrmq" / f"new-{os.getpid()}-resized"
    new.unlink(missing_ok=True)
    copy_readable(path, new, size, allocate=True)
    try:
        trash.copy(path)  # not moved: a repair that is killed here must not leave a log without this segment
        with durable.typed(path):
            durable.before("rename", path)
            new.rename(path)
            durable.fsync_directory(path.parent)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def unreadable_places(unreadable: Iterable[Problem], places_named: int = 3) -> dict[str, str]:
    """{path: the unreadable bytes of it, as text}."""
    by_path: dict[str, list[Problem]] = {}
    for bad in unreadable:
        by_path.setdefault(bad.path, []).append(bad)
    texts = {}
    for name, places in by_path.items():
        text = "cannot be read: bytes " + ", ".join(f"{bad.offset} to {bad.end}" for bad in places[:places_named])
        texts[name] = text + (f" and {len(places) - places_named} more ranges" if len(places) > places_named else "")
    return texts
