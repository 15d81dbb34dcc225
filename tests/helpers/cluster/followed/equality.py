"""Whether a replica has the files of its master: log, queues, and what the index finds."""

from __future__ import annotations

from pathlib import Path

from helpers.cluster.waiting import until


def same_files(own: Path, other: Path, start: int, end: int, segment_bytes: int) -> None:
    """The log in [start, end) of two stores, byte for byte. `start`: where a segment begins."""
    for base in range(start, end, segment_bytes):
        name = f"commitlog/{base:020d}"
        count = min(end - base, segment_bytes)
        with (own / name).open("rb") as first, (other / name).open("rb") as second:
            assert first.read(count) == second.read(count), name


def same_queues(own: Path, other: Path) -> int:
    """The files of all queues of two stores, byte for byte; returns how many entries they have. A broker makes its
    entries some time after its log has the records, so that `other` is looked at until it has those of `own`.
    """

    def files(store: Path) -> dict[Path, bytes]:
        found = {path.relative_to(store): path.read_bytes() for path in store.glob("consumequeue/*/*/*")}
        return {name: data for name, data in found.items() if any(data)}

    found = files(own)
    until(lambda: files(other) == found, f"{other} has other entries than {own}")
    return sum(data[at + 8 : at + 12] != bytes(4) for data in found.values() for at in range(0, len(data), 20))


def bytes_of(store: Path, start: int, end: int, segment_bytes: int) -> bytes:
    """The log in [start, end) of a store that another process may be writing to."""
    found = b""
    while start < end:
        base = start - start % segment_bytes
        with (store / f"commitlog/{base:020d}").open("rb") as file:
            file.seek(start - base)
            data = file.read(min(end, base + segment_bytes) - start)
        assert data, f"{store} has no byte {start}"
        found += data
        start += len(data)
    return found
