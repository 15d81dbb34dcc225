"""The gRPC ports of a served store: one in plain text, one over TLS, or both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.server.grpc_v2.tls import Certificate
    from rmq_store.server.transport.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class GrpcPorts:
    """The port in plain text and the one over TLS, which has the certificate. 0: a free port. None: there is none."""

    plain: int | None
    tls: int | None
    certificate: Certificate | None

    @classmethod
    def of(cls, port: int | None, tls_port: int | None, certificate: Certificate | None) -> GrpcPorts | None:
        """The ports for these arguments of a server: `port` alone has TLS if there is a certificate. None: no port.

        Raises:
            UsageError: TLS has no certificate, or both are the same port.
        """
        if tls_port is not None and certificate is None:
            raise UsageError("a gRPC port for TLS needs a certificate: give one as grpc_certificate (--grpc-tls)")
        if port is None and tls_port is None:
            return None
        if tls_port is None and certificate is not None:
            port, tls_port = None, port
        if port and port == tls_port:
            raise UsageError(f"gRPC in plain text and over TLS needs two ports: {port} is given for both")
        return cls(port, tls_port, certificate)

    def check_beside(self, tls: TlsFiles) -> None:
        """UsageError: a gRPC port would take clients that the port beside it, with this TLS, refuses."""
        if tls.client_ca_file is not None:
            raise UsageError("gRPC does not ask clients for certificates yet: serve without it, or without a client CA")
        if self.plain is None:
            return
        if self.certificate is None:
            reaction = "give it a certificate (--grpc-tls)"
        else:
            reaction = "leave the plain one out (--grpc), clients use the one with TLS (--grpc-tls-listen)"
        raise UsageError(f"gRPC in plain text beside a port with TLS would be open to all: {reaction}")

    def numbers(self) -> dict[bool, int]:
        """The ports, by whether they speak TLS."""
        return {is_tls: port for is_tls, port in ((False, self.plain), (True, self.tls)) if port is not None}
