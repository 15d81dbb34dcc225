"""What one query costs in a large store: pages that it brings into memory, counted by the kernel, and index files.

The size of a store must not show: 10 million messages with a key each, in a store with the default geometry.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Store
from rmq_store.format.text.hashing import index_hash, java_hash
from rmq_store.format.views.index import entry_position

pytestmark = pytest.mark.slow

MESSAGES = 10_000_000
SMALL = 100_000
BATCH = 200_000
QUERIES = 25

_LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Path]]:
    made = {}
    for count in (SMALL, MESSAGES):
        made[count] = tmp_path_factory.mktemp("large") / "store"
        with Store.open(made[count], create=True) as store:
            store.create_topic("T", 1)
            body = pa.array([b""] * BATCH, pa.binary())
            for first in range(0, count, BATCH):
                rows = min(BATCH, count - first)
                keys = [f"order-{number}" for number in range(first, first + rows)]
                store.append(pa.record_batch({"topic": ["T"] * rows, "body": body[:rows], "keys": keys}))
    yield made
    for root in made.values():
        for path in root.rglob("*"):
            if path.is_file():
                path.unlink()


def forget(root: Path) -> None:
    """Empty the page cache of what is on disk and mapped by nobody."""
    gc.collect()
    for kind in ("index", "commitlog"):
        for path in (root / kind).iterdir():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def resident(path: Path) -> int:
    """Pages of the file in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        data = np.frombuffer(view, np.uint8)
        flags = np.zeros(-(-len(data) // mmap.PAGESIZE), np.uint8)
        result = _LIBC.mincore(
            ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(len(data)), ctypes.c_void_p(flags.ctypes.data)
        )
        del data
        assert result == 0, os.strerror(ctypes.get_errno())
    return int((flags & 1).sum())


def chain_lengths(store: Store, key: str) -> list[int]:
    """Entries in the slot of a key, file by file, from the bytes on disk."""
    index = store._log.views.index
    slot = index_hash(java_hash(f"T#{key}")) % index.slot_count
    lengths = []
    for name in index.names():
        with index.path(name).open("rb") as file:

            def number(at: int, file=file) -> int:  # type: ignore[no-untyped-def]
                file.seek(at)
                return int.from_bytes(file.read(4), "big")

            lengths.append(0)
            entry = number(40 + 4 * slot)
            while entry:
                lengths[-1] += 1
                entry = number(entry_position(index.slot_count, entry) + 16)
    return lengths


@pytest.mark.parametrize("is_first", [False, True], ids=["later query", "first query"])
def test_one_query_reads_slot_and_chain_of_each_file_and_one_page_per_hit(
    roots: dict[int, Path], record_property: Callable[[str, object], None], is_first: bool
) -> None:
    """The first query of an open store also looks whether a file got lost between two others: header and first entry of
    each, and the record of its last one.
    """
    root = roots[MESSAGES]
    files = sorted((root / "index").iterdir())
    assert len(files) <= 6, "20 million entries, 4 million to a file"
    pages, entries, log_pages = [], [], []
    for number in np.linspace(1, MESSAGES - 1, QUERIES).astype(int).tolist():
        key = f"order-{number}"
        forget(root)
        with Store.open(root, read_only=True) as store:
            for base in store._log.segments.bases():
                # What the kernel reads ahead is not counted, be a record read or looked at through the map.
                file = store._log.segments.open(base)
                file.map.madvise(mmap.MADV_RANDOM)
                os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_RANDOM)
            store.log_range()
            if not is_first:
                assert store.query.by_key("T", "nobody's") == []
            before = {path: resident(path) for path in [*files, *(root / "commitlog").iterdir()]}
            (found,) = store.query.by_key("T", key)
            now = {path: resident(path) - count for path, count in before.items()}
            assert found.keys == key
            lengths = chain_lengths(store, key)
        by_file = [now[path] for path in files]
        # An entry may lie across two pages.
        most = [1 + 2 * length + 2 * is_first for length in lengths]
        assert all(got <= pages_max for got, pages_max in zip(by_file, most, strict=True)), (by_file, lengths)
        pages.append(sum(by_file) / len(files))
        entries.append(sum(lengths) / len(files))
        log_pages.append(sum(count for path, count in now.items() if path.parent.name == "commitlog"))
        del found
    record_property("pages per index file", float(np.mean(pages)))
    record_property("entries in the slot's chain", float(np.mean(entries)))
    assert np.mean(pages) - 2 * is_first <= 1.1 + np.mean(entries) <= 3
    assert max(log_pages) <= 2 * (1 + is_first * len(files)), "a record may lie across two pages"


def test_the_size_of_the_store_hardly_shows(
    roots: dict[int, Path], record_property: Callable[[str, object], None]
) -> None:
    """Page cache warm; 1000 keys one by one and together. Times are recorded (--junit-xml), not judged."""
    for count, root in roots.items():
        random = np.random.default_rng(7)
        keys = [f"order-{number}" for number in random.choice(count, 1000, replace=False).tolist()]
        with Store.open(root, read_only=True) as store:
            assert store.query.find("T", keys).num_rows == len(keys)
            times_us = []
            for key in keys:
                start = time.perf_counter_ns()
                (found,) = store.query.by_key("T", key)
                times_us.append((time.perf_counter_ns() - start) / 1000)
                assert found.keys == key
            start = time.perf_counter_ns()
            store.query.find("T", keys)
            together_ms = (time.perf_counter_ns() - start) / 1e6
        record_property(f"one key of {count}, p50 and p99 in us", np.percentile(times_us, [50, 99]).tolist())
        record_property(f"1000 keys of {count}, in ms", together_ms)
