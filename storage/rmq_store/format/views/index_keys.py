"""The hashes that the index gets for each message, a whole batch at once (data plane).

Key text = topic + "#" + key, for UNIQ_KEY first and then for each non-empty piece of KEYS between single spaces;
brokers from 5.4.0 on add topic + "#T#" + TAGS as the last one. The hash of the whole is put together:
hash(a + b) = hash(a) * 31^units(b) + hash(b), where units counts UTF-16 code units.
Source: IndexService.java (buildIndex), IndexFile.java (indexKeyHashMethod).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.format.bytes.gather import Positions, take_slices, value_bytes
from rmq_store.format.text.hashing import index_hashes, java_hash, java_hashes

Int32 = npt.NDArray[np.int32]

_SPACE = ord(" ")
_TAG_MARK = "T#"  # between topic + "#" and the tag: IndexService since 5.4.0
_TAG_MARK_HASH = java_hash(_TAG_MARK)


class IndexHashes(NamedTuple):
    """`counts` (n,): number of hashes of each message; `hashes` (sum of counts,): all of them one after another."""

    counts: Int32
    hashes: Int32


def topic_hashes(topics: pa.Array) -> Int32:
    """Java hash of `topic + "#"`, (n,); dictionary arrays are hashed once for each different topic."""
    hashes: Int32 = java_hashes(topics) * np.int32(31) + np.int32(ord("#"))
    return hashes


def index_key_hashes(
    topic_hash: Int32,
    unique_keys: pa.StringArray,
    keys: pa.StringArray,
    indexed: npt.NDArray[np.bool_],
    tags: pa.StringArray | None = None,
) -> IndexHashes:
    """Hashes of all messages where `indexed` (n,); `topic_hash` (n,) is from `topic_hashes`, null keys give none.

    `tags`: None leaves tags out of the index; null and empty ones give no entry.
    """
    count = len(topic_hash)
    unique_hashes = _append_hash(topic_hash, java_hashes(unique_keys), _utf16_units(unique_keys))
    has_unique = indexed & unique_keys.is_valid().to_numpy(zero_copy_only=False)
    pieces, rows = split_keys(keys, indexed)
    piece_hashes = _append_hash(topic_hash[rows], java_hashes(pieces), _utf16_units(pieces))

    key_counts = np.bincount(rows, minlength=count)
    has_tag = np.zeros(count, np.bool_)
    if tags is not None:
        has_tag = indexed & (np.diff(value_bytes(tags)[0]) > 0) & tags.is_valid().to_numpy(zero_copy_only=False)
    counts = has_unique + key_counts + has_tag
    ends = np.cumsum(counts)
    starts = ends - counts
    hashes = np.empty(int(counts.sum()), np.int32)
    hashes[starts[has_unique]] = unique_hashes[has_unique]
    # Place of a piece: after the unique key of its row, in the order of the pieces.
    places_in_row = np.arange(len(rows)) - np.repeat(np.cumsum(key_counts) - key_counts, key_counts)
    hashes[(starts + has_unique)[rows] + places_in_row] = piece_hashes
    if tags is not None:
        tag_prefixes = topic_hash * np.int32(31 * 31) + np.int32(_TAG_MARK_HASH)
        tag_hashes = _append_hash(tag_prefixes, java_hashes(tags.dictionary_encode()), _utf16_units(tags))
        hashes[ends[has_tag] - 1] = tag_hashes[has_tag]
    return IndexHashes(counts.astype(np.int32), index_hashes(hashes))


def _append_hash(prefix_hashes: Int32, hashes: Int32, units: npt.NDArray[np.int64]) -> Int32:
    """Hash of prefix + text, from the hashes of both and the UTF-16 units of the text."""
    powers = np.full(int(units.max(initial=0)) + 1, 31, np.int32)
    powers[0] = 1
    powers = np.multiply.accumulate(powers, dtype=np.int32)
    joined: Int32 = prefix_hashes * powers[units] + hashes
    return joined


def _utf16_units(texts: pa.StringArray) -> npt.NDArray[np.int64]:
    """Java's length() of every row, (n,); 0 for null."""
    offsets, data = value_bytes(texts)
    units = np.diff(offsets)
    seen = data[int(offsets[0]) : int(offsets[-1])]
    if seen.size and int(seen.max()) > 0x7F:
        # Each continuation byte (10xxxxxx) counts nothing, the first byte of four (11110xxx) counts two.
        surplus = np.zeros(len(seen) + 1, np.int64)
        np.cumsum(((seen & 0xC0) == 0x80).astype(np.int64) - (seen >= 0xF0), out=surplus[1:])
        units = units - np.diff(surplus[offsets - offsets[0]])
    if texts.null_count:
        units[texts.is_null().to_numpy(zero_copy_only=False)] = 0
    return units


def split_keys(keys: pa.StringArray, wanted: npt.NDArray[np.bool_]) -> tuple[pa.StringArray, Positions]:
    """All keys in the rows where `wanted` (n,), and the row of each, in order."""
    offsets, data = value_bytes(keys)
    wanted = wanted & (offsets[1:] > offsets[:-1])
    if keys.null_count:
        wanted &= keys.is_valid().to_numpy(zero_copy_only=False)
    seen = data[int(offsets[0]) : int(offsets[-1])]
    spaces = np.flatnonzero(seen == _SPACE) + offsets[0]
    if len(spaces) == 0:
        rows = np.flatnonzero(wanted)
        return (keys if len(rows) == len(keys) else keys.take(pa.array(rows))), rows
    # Every row start and every byte behind a space starts a piece; every space and every row end ends one.
    starts = np.sort(np.concatenate((offsets[:-1], spaces + 1)), kind="stable")
    ends = np.sort(np.concatenate((spaces, offsets[1:])), kind="stable")
    pieces = ends > starts
    starts, ends = starts[pieces], ends[pieces]
    rows = np.searchsorted(offsets, starts, side="right") - 1
    pieces = wanted[rows]
    texts = take_slices(pa.py_buffer(data), starts[pieces], ends[pieces]).view(pa.string())
    return texts, rows[pieces]
