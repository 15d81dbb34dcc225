"""Compressed bodies: zlib, LZ4 frame or Zstandard, by bits 8-10 of sysFlag (control plane, one body a call).

Source: CompressionType.java, Compressor implementations of the client; the store itself never reads a body.
"""

from __future__ import annotations

import zlib
from typing import Final, Literal

import pyarrow as pa

from rmq_store.format.frames.frame_check import COMPRESSION_MASK, SysFlag

CompressionKind = Literal["zlib", "lz4", "zstd"]

_FLAG_OF_KIND: dict[CompressionKind, SysFlag] = {
    "lz4": SysFlag.COMPRESSION_LZ4,
    "zstd": SysFlag.COMPRESSION_ZSTD,
    "zlib": SysFlag.COMPRESSION_ZLIB,
}
_CODEC_OF_FLAG = {int(SysFlag.COMPRESSION_LZ4): "lz4", int(SysFlag.COMPRESSION_ZSTD): "zstd"}
_CHUNK_BYTES = 64 * 1024

PLAIN_BYTES_MAX: Final = 16 << 20
"""Readers and servers inflate a body to so many bytes, or more by `plain_bytes_max`; a larger one is a bomb."""
_TIMES_MAX_MESSAGE, _TIMES_STORED = 4, 16
_ZLIB_FLAGS = (0, int(SysFlag.COMPRESSION_ZLIB))  # 0: clients before 5.0


class DecompressionError(ValueError):
    """The body contradicts its sysFlag, or is larger than the caller allows."""


def plain_bytes_max(max_message_bytes: int) -> int:
    """The PLAIN_BYTES_MAX of a store with this maxMessageSize: four times that, if it is more."""
    return max(PLAIN_BYTES_MAX, _TIMES_MAX_MESSAGE * max_message_bytes)


def inflate(body: bytes, sys_flag: int, limit_bytes: int = PLAIN_BYTES_MAX) -> bytes:
    """The decompressed body, if it has at most `limit_bytes` or 16 times the bytes of `body`; `body` itself if sysFlag
    has no COMPRESSED bit.

    This decides which bodies can be inflated, for every reader and for a server at the send. A reader leaves a body for
    which it raises as it lies, with the COMPRESSED bit set. The second bound is for honest bodies of a broker with a
    large maxMessageSize, which a reader over the network does not know.

    Raises:
        DecompressionError: as `decompress`.
    """
    return decompress(body, sys_flag, max(limit_bytes, _TIMES_STORED * len(body)))


def decompress(body: bytes, sys_flag: int, limit_bytes: int) -> bytes:
    """The decompressed body; `body` itself if sysFlag has no COMPRESSED bit.

    Memory stays near `limit_bytes`, plus the window of a Zstandard frame (at most 128 MiB), whatever the body claims.
    Bytes after the end of a zlib stream are ignored.

    Raises:
        DecompressionError: broken or cut data, an unknown compression type, or more than `limit_bytes`.
    """
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_MASK
    if kind in _ZLIB_FLAGS:
        plain = _inflate(body, limit_bytes)
    elif kind in _CODEC_OF_FLAG:
        plain = _read_stream(body, _CODEC_OF_FLAG[kind], limit_bytes)
    else:
        raise DecompressionError(f"unknown compression type {kind >> 8}")
    if len(plain) > limit_bytes:
        raise DecompressionError(f"the body has more than {limit_bytes} bytes when decompressed")
    return plain


def _inflate(body: bytes, limit_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise DecompressionError(f"not a zlib stream: {error}") from error
    if not inflater.eof and len(plain) <= limit_bytes:
        raise DecompressionError("the zlib stream is cut off")
    return plain


def _read_stream(body: bytes, codec: str, limit_bytes: int) -> bytes:
    if not body:
        raise DecompressionError(f"not a {codec} frame: no bytes")
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            # Not `read`: if it fails, Arrow 26 never lets go of the bytes object that it was to fill.
            chunks = [stream.read_buffer(min(_CHUNK_BYTES, limit_bytes + 1))]
            # A read allocates all that it is asked for: ask for much only if there is much.
            if len(chunks[0]) == _CHUNK_BYTES:
                chunks.append(stream.read_buffer(limit_bytes + 1 - _CHUNK_BYTES))
    except (OSError, pa.ArrowInvalid) as error:
        raise DecompressionError(f"not a {codec} frame: {error}") from error
    return b"".join(chunks)


def compress(body: bytes, kind: CompressionKind, level: int = 5) -> tuple[bytes, int]:
    """The compressed body, and its sysFlag bits: COMPRESSED and the type, as 5.x clients set them."""
    if kind == "zlib":
        packed = zlib.compress(body, level)
    else:
        packed = pa.Codec(kind, compression_level=level).compress(body, asbytes=True)
    return packed, int(SysFlag.COMPRESSED | _FLAG_OF_KIND[kind])
