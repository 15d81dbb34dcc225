"""Pages of the index that a query looks at, with the geometry that a new store gets, and how many files it gets.

A small store with slots and entries in the proportion of the defaults: every look at an index file is counted. The
same for 10 million messages, counted by the kernel: test_query_pages.py. Older stores keep their geometry.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.format.bytes import native
from rmq_store.format.views import index as layout
from rmq_store.log.views import index_map

SCALE = 1000
MESSAGES = 10_000
DEFAULT = StoreConfig()
SMALL = StoreConfig(
    mapped_file_size_commit_log=1 << 22,
    max_hash_slot_num=DEFAULT.max_hash_slot_num // SCALE,
    max_index_num=DEFAULT.max_index_num // SCALE,
)


class Pages:
    """Counts what `index_map` reads of the maps: a page again and again, as often as it is looked at."""

    def __init__(self) -> None:
        self.looks = 0

    def add(self, position: int, size_bytes: int) -> None:
        self.looks += (position + size_bytes - 1) // mmap.PAGESIZE - position // mmap.PAGESIZE + 1

    def reader_of(self, what: struct.Struct) -> Any:
        """A `struct.Struct` that counts."""
        pages = self

        class Reader:
            def unpack_from(self, data: mmap.mmap, position: int) -> tuple[Any, ...]:
                pages.add(position, what.size)
                return what.unpack_from(data, position)

        return Reader()


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    counted = Pages()
    header = index_map.IndexMap.header

    def count_header(view: index_map.IndexMap) -> layout.IndexHeader:
        counted.add(0, layout.HEADER_BYTES)
        return header(view)

    for name in ("_SLOT", "_ENTRY"):
        monkeypatch.setattr(index_map, name, counted.reader_of(getattr(index_map, name)))
    monkeypatch.setattr(index_map.IndexMap, "header", count_header)
    monkeypatch.setattr(native, "LOADED", False)  # only Python can count; the extension looks at no less
    return counted


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Each message has a key and a unique key."""
    with Store.open(tmp_path_factory.mktemp("keyed") / "store", create=True, config=SMALL) as store:
        store.create_topic("T", 1)
        keys = [f"order-{number}" for number in range(MESSAGES)]
        body = pa.array([b""] * MESSAGES, pa.binary())
        store.append(pa.record_batch({"topic": ["T"] * MESSAGES, "body": body, "keys": keys}))
        yield store


def looks_of_queries(store: Store, pages: Pages, key: str, **window: int) -> np.ndarray:
    """Looks per index file of 300 queries, those at an entry of a message that was found not counted."""
    files = len(list((store._log.root / "index").iterdir()))
    counts = []
    for number in range(300):
        pages.looks = 0
        found = store.query.by_key("T", key.format(number * 31), **window)
        counts.append((pages.looks - len(found)) / files)
    return np.array(counts)


@pytest.mark.parametrize("key", ["order-{}", "absent-{}"])
def test_a_query_looks_at_two_pages_of_each_index_file_and_one_per_hit(keyed: Store, pages: Pages, key: str) -> None:
    """The slot, and in the mean 0.8 entries of other keys. With four entries to a slot, as RocketMQ has them, it would
    be five pages. Over all files no query in a hundred looks at more than three.
    """
    looks = looks_of_queries(keyed, pages, key)
    assert 1.4 < looks.mean() <= 2
    assert np.percentile(looks, 99) <= 3


def test_a_query_with_times_looks_at_the_header_too(keyed: Store, pages: Pages) -> None:
    looks = looks_of_queries(keyed, pages, "order-{}", begin_ms=1)
    assert 2.4 < looks.mean() <= 3


def test_ten_million_messages_with_two_keys_each_fill_few_files() -> None:
    """Entry 0 of a file is unused."""
    assert -(-20_000_000 // (DEFAULT.max_index_num - 1)) <= 6
    assert layout.file_size(DEFAULT.max_hash_slot_num, DEFAULT.max_index_num) <= 100_000_040


def test_a_store_with_the_geometry_of_earlier_versions_keeps_it(scratch: Path) -> None:
    """They made files with four entries to a slot. An index with a wrong number of slots finds nothing, silently."""
    earlier = StoreConfig(max_hash_slot_num=1_000_000, max_index_num=4_000_000)
    root = scratch / "store"
    with Store.open(root, create=True, config=earlier) as store:
        store.create_topic("T", 1)
        sent = [store.send(Message("T", b"", keys="k")).commit_log_offset]
    for open_again in (lambda: Store.open(root), lambda: Store.open(root, create=True, config=StoreConfig())):
        with open_again() as store:
            sent.append(store.send(Message("T", b"", keys="k")).commit_log_offset)
            index = store._log.views.index
            assert (index.slot_count, index.entry_max) == (1_000_000, 4_000_000)
            assert store.query.find("T", ["k"])["commit_log_offset"].to_pylist() == sent
    assert {path.stat().st_size for path in (root / "index").iterdir()} == {84_000_040}
