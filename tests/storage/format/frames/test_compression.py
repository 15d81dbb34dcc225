from __future__ import annotations

import base64
import hashlib
import json
import tracemalloc
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.undecodable import KINDS as UNDECODABLE
from helpers.undecodable import honest, undecodable
from rmq_store.format.frames.compression import (
    PLAIN_BYTES_MAX,
    DecompressionError,
    compress,
    decompress,
    inflate,
    plain_bytes_max,
)
from rmq_store.format.frames.frame_check import SysFlag
from rmq_store.format.frames.stored_message import decode_frame

KINDS = ("zlib", "lz4", "zstd")
MIB = 1 << 20


@pytest.mark.parametrize("kind", KINDS)
@given(body=st.binary(max_size=300), repeat=st.sampled_from([1, 2, 700]))
def test_body_comes_back_at_exactly_its_size_and_not_below(kind: str, body: bytes, repeat: int) -> None:
    plain = body * repeat
    packed, flag = compress(plain, kind)  # type: ignore[arg-type]
    assert decompress(packed, flag, len(plain)) == plain
    if plain:
        with pytest.raises(DecompressionError, match="more than"):
            decompress(packed, flag, len(plain) - 1)


@pytest.mark.parametrize(("kind", "bits"), [("lz4", 0x101), ("zstd", 0x201), ("zlib", 0x301)])
def test_flag_bits_name_the_type_as_the_java_client_does(kind: str, bits: int) -> None:
    assert compress(b"x", kind)[1] == bits  # type: ignore[arg-type]


def test_clients_before_5_0_set_no_type_and_mean_zlib() -> None:
    assert decompress(zlib.compress(b"hello"), SysFlag.COMPRESSED, 5) == b"hello"


def test_body_that_is_not_compressed_is_returned_whatever_the_limit() -> None:
    assert decompress(b"hello", SysFlag.COMPRESSION_ZSTD, 1) == b"hello"


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_of_a_body_is_noticed(kind: str) -> None:
    packed, flag = compress(bytes(range(256)), kind)  # type: ignore[arg-type]
    for length in range(len(packed)):
        with pytest.raises(DecompressionError):
            decompress(packed[:length], flag, MIB)


@pytest.mark.parametrize("flag", [0x001, 0x101, 0x201, 0x301, 0x401, 0x701])
def test_bytes_that_are_no_stream_and_unknown_types_are_typed_errors(flag: int) -> None:
    with pytest.raises(DecompressionError):
        decompress(b"\xffnot compressed at all", flag, MIB)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bomb_is_refused_without_unpacking_it(kind: str) -> None:
    """64 MiB of zeros pack into some KiB; the limit has to hold before the memory is taken, not after."""
    packed, flag = compress(bytes(64 * MIB), kind)  # type: ignore[arg-type]
    arrow = pa.default_memory_pool()
    arrow_before = max(arrow.max_memory(), arrow.bytes_allocated() + 8 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionError, match="more than"):
            decompress(packed, flag, MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB
    assert arrow.max_memory() <= arrow_before


@pytest.mark.parametrize("kind", UNDECODABLE)
def test_what_cannot_be_inflated_is_refused(kind: str) -> None:
    with pytest.raises(DecompressionError):
        inflate(*undecodable()[kind])


@pytest.mark.parametrize("kind", honest())
def test_what_is_honest_is_inflated(kind: str) -> None:
    body, flags, plain = honest()[kind]
    assert inflate(body, flags) == plain


def test_the_bound_grows_with_max_message_size_and_with_what_the_body_takes() -> None:
    """16 MiB, four times maxMessageSize, or sixteen times the compressed body: the most of them."""
    assert PLAIN_BYTES_MAX == plain_bytes_max(1) == plain_bytes_max(4 * MIB) == 16 * MIB
    assert plain_bytes_max(8 * MIB) == 32 * MIB
    packed, flag = compress(bytes(17 * MIB), "zlib")
    assert len(inflate(packed, flag, plain_bytes_max(8 * MIB))) == 17 * MIB
    dense, flag = compress(bytes(range(256)), "zstd")
    assert inflate(dense, flag, 0) == bytes(range(256))  # below 16 times its bytes
    bomb, flag = compress(bytes(16 * 100), "zlib")
    with pytest.raises(DecompressionError, match=f"more than {16 * len(bomb)} bytes"):
        inflate(bomb, flag, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_bodies_that_do_not_unpack_leave_nothing_in_memory(kind: str) -> None:
    packed, flag = compress(b"a text, a text, a text" * 9, kind)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        for _ in range(200):
            with pytest.raises(DecompressionError):
                decompress(packed[:-5], flag, MIB)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < MIB


def test_compressed_bodies_of_real_clients_unpack(golden: Path, walk_frames) -> None:  # type: ignore[no-untyped-def]
    topics = json.loads((golden / "manifest.json").read_text())["topics"]
    expected = {
        message["commitLogOffset"]: message
        for topic in topics.values()
        for queue in topic["queues"].values()
        for message in queue["messages"]
    }
    kinds = []
    for offset, frame in walk_frames(golden / "store"):
        message = decode_frame(frame, 0, len(frame))
        if message.sys_flag & SysFlag.COMPRESSED:
            plain = decompress(message.body, message.sys_flag, 4 * MIB)
            known = expected[offset]
            assert len(plain) == known["bodyLength"]
            digest = hashlib.sha256(plain)
            assert known["bodySha256"] in (digest.hexdigest(), base64.b64encode(digest.digest()).decode())
            kinds.append(message.sys_flag >> 8)
    assert sorted(kinds) == [1, 1, 2, 2, 3, 3, 3]
