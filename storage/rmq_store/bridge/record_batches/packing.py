"""The four compressions of record batches, by Arrow and Python. This module needs no other
library.

Source: CompressionType.java and the classes beside it in Kafka's clients (gzip streams, xerial's blocks of Snappy, LZ4
frames with independent blocks, Zstandard frames).
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final

import pyarrow as pa

Data = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_OF_NAME: Final = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

_CHUNK_BYTES = 64 * 1024
_GZIP_WINDOW = 31  # zlib's sign for gzip's header and trailer
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = Struct(">i")
# A copy of 64 bytes takes 3: nothing that Snappy wrote grows more.
_SNAPPY_GROWTH_MAX = 22
# Version 1, blocks of 64 KiB that do not depend on each other (Kafka's Java reads no others), the header's checksum.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_LENGTH = Struct("<I")
_LZ4_NOT_PACKED = 1 << 31


class PackingError(ValueError):
    """Compressed data is broken, cut off, or larger than the caller allows."""


def unpack(codec: int, data: Data, limit_bytes: int) -> Data:
    """The records of a batch with these compression bits, at most `limit_bytes`; memory stays near that.

    Raises:
        PackingError: broken or cut data, an unknown compression, or more than `limit_bytes`.
    """
    if codec == NONE:
        plain: Data = data
    elif codec == GZIP:
        plain = _unpack_gzip(data, limit_bytes)
    elif codec == SNAPPY:
        plain = _unpack_snappy(data, limit_bytes)
    elif codec in (LZ4, ZSTD):
        plain = _unpack_stream(data, "lz4" if codec == LZ4 else "zstd", limit_bytes)
    else:
        raise PackingError(f"compression {codec} is not known")
    if len(plain) > limit_bytes:
        raise _too_large(limit_bytes)
    return plain


def pack(codec: int, data: Data) -> Data:
    """The bytes of records, compressed as Kafka's Java reads them."""
    if codec == GZIP:
        packer = zlib.compressobj(wbits=_GZIP_WINDOW)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return _pack_snappy(data)
    if codec == LZ4:
        return _pack_lz4(data)
    if codec == ZSTD:
        return memoryview(pa.Codec("zstd").compress(data)).cast("B")
    return data


def _too_large(limit_bytes: int) -> PackingError:
    return PackingError(f"it has more than {limit_bytes} bytes when decompressed")


def _unpack_gzip(data: Data, limit_bytes: int) -> bytes:
    rest, pieces, size = bytes(data), [], 0
    while rest:
        unpacker = zlib.decompressobj(_GZIP_WINDOW)
        try:
            pieces.append(unpacker.decompress(rest, limit_bytes + 1 - size))
        except zlib.error as error:
            raise PackingError(f"not a gzip stream: {error}") from error
        size += len(pieces[-1])
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        if not unpacker.eof:
            raise PackingError("the gzip stream is cut off")
        rest = unpacker.unused_data
    if not pieces:
        raise PackingError("not a gzip stream: no bytes")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _unpack_stream(data: Data, codec: str, limit_bytes: int) -> Data:
    if not len(data):
        raise PackingError(f"not a {codec} frame: no bytes")
    chunks: list[memoryview] = []
    size, wanted = 0, max(_CHUNK_BYTES, 4 * len(data))
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            while True:
                # A read allocates all that it is asked for: ask for much only if there has been much.
                chunk = stream.read_buffer(min(wanted, limit_bytes + 1 - size))
                size += len(chunk)
                chunks.append(memoryview(chunk).cast("B"))
                if size > limit_bytes:
                    raise _too_large(limit_bytes)
                if len(chunk) < wanted:
                    break
                wanted = 2 * size
    except (OSError, pa.ArrowInvalid) as error:
        raise PackingError(f"not a {codec} frame: {error}") from error
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _unpack_snappy(data: Data, limit_bytes: int) -> Data:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unpack_snappy_block(view, limit_bytes, 0)
    blocks, size, at = [], 0, len(_XERIAL_HEADER)
    while at < len(view):
        if at + _BLOCK_LENGTH.size > len(view):
            raise PackingError("a Snappy block is cut off")
        (length,) = _BLOCK_LENGTH.unpack_from(view, at)
        at += _BLOCK_LENGTH.size
        if not 0 < length <= len(view) - at:
            raise PackingError(f"a Snappy block says that it has {length} bytes, and there are {len(view) - at}")
        blocks.append(_unpack_snappy_block(view[at : at + length], limit_bytes, size))
        size += len(blocks[-1])
        at += length
    if not blocks:
        raise PackingError("there is no Snappy block")
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _unpack_snappy_block(data: memoryview, limit_bytes: int, unpacked_bytes: int) -> memoryview:
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    else:
        raise PackingError("not a Snappy block: it does not begin with its size")
    if unpacked_bytes + size > limit_bytes:
        raise _too_large(limit_bytes)
    if size > _SNAPPY_GROWTH_MAX * len(data):
        raise PackingError(f"not a Snappy block: {len(data)} bytes cannot become {size}")
    try:
        return memoryview(pa.Codec("snappy").decompress(data, size)).cast("B")
    except (OSError, pa.ArrowInvalid) as error:
        raise PackingError(f"not a Snappy block: {error}") from error


def _pack_snappy(data: Data) -> bytes:
    codec, view = pa.Codec("snappy"), memoryview(data)
    pieces: list[Data] = [_XERIAL_HEADER]
    for at in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = codec.compress(view[at : at + _XERIAL_BLOCK_BYTES])
        pieces += [_BLOCK_LENGTH.pack(len(block)), block]
    return b"".join(pieces)


def _pack_lz4(data: Data) -> bytes:
    codec, view = pa.Codec("lz4_raw"), memoryview(data)
    pieces: list[Data] = [_LZ4_HEADER]
    for at in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[at : at + _LZ4_BLOCK_BYTES]
        block = codec.compress(plain)
        if len(block) < len(plain):
            pieces += [_LZ4_LENGTH.pack(len(block)), block]
        else:
            pieces += [_LZ4_LENGTH.pack(len(plain) | _LZ4_NOT_PACKED), plain]
    pieces.append(_LZ4_LENGTH.pack(0))
    return b"".join(pieces)
