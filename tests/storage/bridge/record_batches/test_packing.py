"""The compressions of record batches, against the libraries that kafka-python uses."""

from __future__ import annotations

import gzip
import tracemalloc
from random import Random

import lz4.frame
import pytest
from kafka import codec as kafka_codec

from rmq_store.bridge.record_batches.packing import (
    CODEC_OF_NAME,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    PackingError,
    pack,
    unpack,
)

TEXT = b"".join(b"a record %d, much like the others; " % number for number in range(8000))
NOISE = Random(1).randbytes(150_000)
LIMIT = 1 << 20
THEIRS = {
    GZIP: (kafka_codec.gzip_encode, kafka_codec.gzip_decode),
    SNAPPY: (kafka_codec.snappy_encode, kafka_codec.snappy_decode),
    LZ4: (kafka_codec.lz4_encode, kafka_codec.lz4_decode),
    ZSTD: (kafka_codec.zstd_encode, kafka_codec.zstd_decode),
}
KINDS = pytest.mark.parametrize("kind", THEIRS, ids=["gzip", "snappy", "lz4", "zstd"])
DATA = pytest.mark.parametrize("data", [b"x", TEXT[:1000], TEXT, NOISE], ids=["a byte", "a little", "text", "noise"])


@KINDS
@DATA
def test_the_libraries_of_kafka_python_read_what_we_pack(kind: int, data: bytes) -> None:
    assert THEIRS[kind][1](bytes(pack(kind, data))) == data


@KINDS
@DATA
def test_we_read_what_the_libraries_of_kafka_python_pack(kind: int, data: bytes) -> None:
    assert bytes(unpack(kind, memoryview(THEIRS[kind][0](data)), LIMIT)) == data


@KINDS
def test_text_gets_smaller(kind: int) -> None:
    assert len(pack(kind, TEXT)) < len(TEXT) / 5


def test_nothing_is_done_without_a_compression() -> None:
    assert unpack(NONE, TEXT, LIMIT) is TEXT
    assert pack(NONE, TEXT) is TEXT
    assert CODEC_OF_NAME == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@KINDS
def test_no_more_is_unpacked_than_allowed(kind: int) -> None:
    packed = pack(kind, TEXT)
    assert bytes(unpack(kind, packed, len(TEXT))) == TEXT
    with pytest.raises(PackingError, match=f"more than {len(TEXT) - 1} bytes when decompressed"):
        unpack(kind, packed, len(TEXT) - 1)


def test_memory_stays_near_the_limit_whatever_a_stream_holds() -> None:
    bomb = gzip.compress(bytes(32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(PackingError, match="more than 100000 bytes"):
            unpack(GZIP, bomb, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


@KINDS
def test_what_is_cut_off_is_refused(kind: int) -> None:
    packed = bytes(pack(kind, TEXT[:5000]))
    for size in [*range(0, len(packed) - 1, 7), len(packed) - 1]:
        with pytest.raises(PackingError):
            unpack(kind, packed[:size], LIMIT)


@KINDS
def test_noise_is_refused(kind: int) -> None:
    random = Random(2)
    for size in (1, 5, 17, 100, 1000):
        with pytest.raises(PackingError):
            unpack(kind, random.randbytes(size), LIMIT)


@KINDS
def test_damage_is_refused_or_gives_other_bytes_and_never_more_than_allowed(kind: int) -> None:
    packed, random = bytes(pack(kind, TEXT[:3000])), Random(3)
    for _ in range(300):
        damaged = bytearray(packed)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        try:
            assert len(unpack(kind, bytes(damaged), 5000)) <= 5000
        except PackingError:
            continue


def test_snappy_comes_in_xerials_blocks_or_without() -> None:
    raw = kafka_codec.snappy_encode(TEXT, xerial_compatible=False)
    assert bytes(unpack(SNAPPY, raw, LIMIT)) == TEXT
    # A size that the block cannot have is not believed: nothing is allocated for it.
    with pytest.raises(PackingError, match="10 bytes cannot become 200000000"):
        unpack(SNAPPY, b"\x80\x84\xaf\x5f" + bytes(6), 1 << 30)


def test_members_of_a_gzip_stream_follow_each_other() -> None:
    assert unpack(GZIP, bytes(pack(GZIP, b"one ")) + bytes(pack(GZIP, b"two")), 7) == b"one two"
    with pytest.raises(PackingError, match="more than 6 bytes"):
        unpack(GZIP, bytes(pack(GZIP, b"one ")) + bytes(pack(GZIP, b"two")), 6)


def test_lz4_blocks_do_not_depend_on_each_other() -> None:
    """Kafka's Java refuses others, and the wrong checksum of a header."""
    found = lz4.frame.get_frame_info(bytes(pack(LZ4, TEXT)))
    assert (found["block_linked"], found["block_size"], found["content_checksum"]) == (False, 64 << 10, False)
