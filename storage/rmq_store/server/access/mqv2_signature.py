"""Signatures of calls over gRPC, in their metadata (Signature.java, DefaultAuthenticationContextBuilder.java).

    x-mq-date-time   20231227T194619Z
    authorization    MQv2-HMAC-SHA1 Credential=<access key>, SignedHeaders=x-mq-date-time, Signature=<hex>

The signature is hex(HMAC-SHA1(secret key, x-mq-date-time)): it covers the time, and nothing of the request. Clients in
Java, Go, C# and Python write their local time with a Z behind it, those in C++ and Node.js the time of UTC. Rust's
writes its offset, 2023-12-27T20:46:19+01:00. Go and C++ sign as `<access key>//<service>`.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, Self

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
APART_S_MAX: Final = 900
"""How far the time of a signature may be from that of the server, in seconds: so long can a call be sent again."""

_ALGORITHM: Final = "MQv2-HMAC-SHA1"
_DATE_TIME_CHARACTERS_MAX: Final = 64


class Mqv2Signature(NamedTuple):
    """A client's own words, of which nothing is checked yet. `digest`: the hex digits of the signature."""

    access_key: str
    date_time: str
    digest: str

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Self | None:
        """The signature of a call; None: it has none, or one of another algorithm."""
        algorithm, _, rest = metadata.get(AUTHORIZATION, "").partition(" ")
        parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
        access_key = parts.get("Credential", "").partition("/")[0]
        date_time, digest = metadata.get(DATE_TIME, ""), parts.get("Signature", "")
        if algorithm != _ALGORITHM or not (access_key and date_time and digest):
            return None
        return cls(access_key, date_time, digest)

    def is_signed_with(self, secret_key: str) -> bool:
        """Whether the signature is right; the comparison takes the same time for any wrong one."""
        right = hmac.new(secret_key.encode(), self.date_time.encode("utf-8", "replace"), hashlib.sha1).hexdigest()
        return hmac.compare_digest(self.digest.lower().encode("utf-8", "replace"), right.encode())

    def is_near(self, now_ms: int) -> bool:
        """Whether its time is at most APART_S_MAX from this one. A time that ends with Z may be that of UTC, or of the
        time zone of this process.
        """
        now_s = now_ms // 1000
        try:
            signed = datetime.fromisoformat(self.date_time[:_DATE_TIME_CHARACTERS_MAX])
            signed_s = signed.timestamp()
        except (ValueError, OverflowError, OSError):
            return False
        if signed.tzinfo is None:
            return False
        # A second more or less than 15 minutes is not worth a fraction.
        zones_s = (0, time.localtime(now_s).tm_gmtoff) if signed.tzinfo is UTC else (0,)
        return any(abs(signed_s - zone_s - now_s) <= APART_S_MAX for zone_s in zones_s)
