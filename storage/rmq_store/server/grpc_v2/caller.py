"""The client of a call: what its metadata and its connection say."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from rmq_store.broker.metadata.leases import OWNER_LENGTH_MAX
from rmq_store.errors import UsageError
from rmq_store.format.text.host import Host
from rmq_store.server.grpc_definitions.enums import Code
from rmq_store.server.grpc_v2.statuses import Refusal


@dataclass(frozen=True, slots=True)
class Caller:
    """`peer` is the client's address as text, `host` the same as a Host, if it is an IP address. `remaining_s`: until
    the client's deadline; None: it has none.
    """

    client_id: str
    peer: str
    host: Host | None
    remaining_s: float | None

    @classmethod
    def of(cls, context: Any) -> Caller:
        """The caller of a context of gRPC."""
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        kind, _, address = unquote(context.peer()).partition(":")
        host = None
        if kind in ("ipv4", "ipv6"):
            with contextlib.suppress(UsageError):  # an address with a zone
                host = Host.parse(address)
        return cls(metadata.get("x-mq-client-id", ""), address, host, context.time_remaining())

    def known_id(self) -> str:
        """The client's id. Refusal: it has sent none, or one that is too long."""
        if not 0 < len(self.client_id) <= OWNER_LENGTH_MAX:
            text = f"the metadata x-mq-client-id must hold 1..{OWNER_LENGTH_MAX} characters"
            raise Refusal(Code.CLIENT_ID_REQUIRED, text)
        return self.client_id
