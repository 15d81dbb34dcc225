"""Bodies that their sysFlag calls compressed, and that nobody can inflate; and honest ones, which look strange."""

from __future__ import annotations

import gzip
import zlib
from functools import cache
from typing import Any, Final

from rmq_store import Message, Store
from rmq_store.format.frames.compression import PLAIN_BYTES_MAX, compress

_TEXT: Final = b"a text, a text, a text" * 9
_TYPES: Final = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}


@cache
def undecodable() -> dict[str, tuple[bytes, int]]:
    """(body, sysFlag) by kind."""
    found = {
        "no zlib": (b"not zlib", 0x001),
        "no bytes": (b"", 0x001),
        "gzip, not zlib": (gzip.compress(_TEXT, mtime=0), 0x301),
        "type 4": (zlib.compress(_TEXT), 0x401),
        "type 7": (zlib.compress(_TEXT), 0x701),
        "zlib, which says lz4": (zlib.compress(_TEXT), 0x101),
        "zlib with a bad checksum": (zlib.compress(_TEXT)[:-1] + b"\0", 0x001),
        "zlib with a dictionary": (b"\x78\xbb\x00\x00\x00\x01" + zlib.compress(_TEXT)[2:], 0x001),
    }
    for name, flags in _TYPES.items():
        packed, _ = compress(_TEXT, name)  # type: ignore[arg-type]
        found[f"{name} garbage"] = (b"\xffno such stream \x00\x01\x02", flags)
        found[f"{name} cut"] = (packed[:-5], flags)
        found[f"{name} bomb"] = (compress(bytes(PLAIN_BYTES_MAX + 1), name)[0], flags)  # type: ignore[arg-type]
    return found


@cache
def honest() -> dict[str, tuple[bytes, int, bytes]]:
    """(body, sysFlag, the body when it is inflated) by kind."""
    large = b"%d, " * 1_500_000
    found = {
        "bytes behind the stream": (zlib.compress(_TEXT) + b"more", 0x301, _TEXT),
        "nothing in it": (zlib.compress(b""), 0x001, b""),
        "no compression, but a type": (_TEXT, 0x300, _TEXT),
    }
    for name, flags in _TYPES.items():
        found[name] = (compress(_TEXT, name)[0], flags, _TEXT)  # type: ignore[arg-type]
        found[f"{name}, 6 MB"] = (compress(large, name)[0], flags, large)  # type: ignore[arg-type]
    return found


KINDS: Final = tuple(undecodable())


def fill(store: Store, topic: str, *kinds: str, queue_id: int = 0, **fields: Any) -> list[tuple[bytes, int]]:
    """Store b"good 0", a body of each kind, and a good one behind each; returns the (body, sysFlag) of all in order.
    As a broker stores them: a served store would refuse them.
    """
    rows: list[tuple[bytes, int]] = [(b"good 0", 0)]
    for number, kind in enumerate(kinds, 1):
        rows += [undecodable()[kind], (b"good %d" % number, 0)]
    for body, flags in rows:
        store.send(Message(topic, body, queue_id=queue_id, **fields), sys_flag=flags)
    return rows
