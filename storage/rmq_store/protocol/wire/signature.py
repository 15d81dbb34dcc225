"""Signatures of requests (AclClientRPCHook.java, AclUtils.java, AclSigner.java).

    Signature = base64(HMAC-SHA1(secret key, all values of the fields in the order of their names | body))

`Signature` itself does not count; `AccessKey` and `SecurityToken` do. Nor does `_UNIQUE_KEY_QUERY` in a request whose
version is V4_9_3 or below: clients added it after the signature then, and brokers still go by that version.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from rmq_store.protocol.versions import V4_9_3
from rmq_store.protocol.wire.command import VERSION

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


def signature_of(ext_fields: Mapping[str, str], body: bytes, secret_key: str, version: int = VERSION) -> str:
    """Return the signature that a request with these fields and this body has to carry."""
    unsigned = (SIGNATURE, UNIQUE_KEY_QUERY) if version <= V4_9_3 else (SIGNATURE,)
    content = "".join(ext_fields[name] for name in sorted(ext_fields) if name not in unsigned)
    digest = hmac.new(secret_key.encode(), content.encode("utf-8", "replace") + body, hashlib.sha1).digest()
    return base64.b64encode(digest).decode("ascii")


def sign(
    ext_fields: Mapping[str, str],
    body: bytes,
    access_key: str,
    secret_key: str,
    security_token: str = "",
    version: int = VERSION,
) -> dict[str, str]:
    """Return the fields with those of the signature. An empty token is left out."""
    signed = {**ext_fields, ACCESS_KEY: access_key}
    if security_token:
        signed[SECURITY_TOKEN] = security_token
    signed[SIGNATURE] = signature_of(signed, body, secret_key, version)
    return signed


def is_signed_with(ext_fields: Mapping[str, str], body: bytes, secret_key: str, version: int = VERSION) -> bool:
    """Whether a request carries the right signature; the comparison takes the same time for any wrong one."""
    given = ext_fields.get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(given, signature_of(ext_fields, body, secret_key, version).encode())
