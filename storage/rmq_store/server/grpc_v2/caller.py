"""The client of a call: what its metadata and its connection say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from rmq_store.errors import UsageError
from rmq_store.format.text.host import Host
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.grpc_v2.statuses import Refusal
from rmq_store.server.processors.connected_clients import CLIENT_ID_CHARACTERS_MAX

# GRPC_SSL_TRANSPORT_SECURITY_TYPE, as the context of a call has it.
_TLS: Final = [b"ssl"]


@dataclass(frozen=True, slots=True)
class Caller:
    """`user` is the access key of the user who has signed the call, NOBODY where there are no users. `peer` is the
    client's address as text, `host` the same as a Host, if it is an IP address. `is_tls`: the call came over TLS.
    `remaining_s`: until the client's deadline; None: it has none.
    """

    user: str
    client_id: str
    peer: str
    host: Host | None
    is_tls: bool
    remaining_s: float | None

    @classmethod
    def of(cls, context: Any, signer: Callable[[Mapping[str, str]], str]) -> Caller:
        """The caller of a context of gRPC; `signer` finds the user in the metadata, and may raise."""
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        kind, _, address = unquote(context.peer()).partition(":")
        host = None
        if kind in ("ipv4", "ipv6"):
            with contextlib.suppress(UsageError):  # an address with a zone
                host = Host.parse(address)
        user, client_id = signer(metadata), metadata.get("x-mq-client-id", "")
        is_tls = context.auth_context().get("transport_security_type") == _TLS
        return cls(user, client_id, address, host, is_tls, context.time_remaining())

    def known_id(self) -> str:
        """The client's id. Refusal: it has sent none, or one that `ConnectedClients.claim` does not take."""
        if not (self.client_id.isprintable() and 0 < len(self.client_id) <= CLIENT_ID_CHARACTERS_MAX):
            text = f"the metadata x-mq-client-id must hold 1..{CLIENT_ID_CHARACTERS_MAX} printable characters"
            raise Refusal(Code.CLIENT_ID_REQUIRED, text)
        return self.client_id
