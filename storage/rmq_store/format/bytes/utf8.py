"""Decodes bytes to the same text as Java."""

from __future__ import annotations

import re

# Java's decoder answers one U+FFFD for an encoded surrogate (ED A0..BF and the byte behind it), Python's `replace` one
# for each byte. Everything else malformed gives the same text in both.
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "�".encode()


def decode_utf8(raw: bytes) -> str:
    """The text that Java's `new String(raw, UTF_8)` gives: malformed bytes become U+FFFD, no bytes are refused."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(_REPLACEMENT, raw).decode(errors="replace")
