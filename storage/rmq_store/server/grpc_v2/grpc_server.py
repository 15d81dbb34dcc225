"""The gRPC ports of a served store: an event loop in a thread of its own, bounded pools, a graceful stop."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any, Final

import grpc

from rmq_store import real_time
from rmq_store.errors import UsageError
from rmq_store.server.access.method_check import MethodCheck
from rmq_store.server.grpc_definitions.retry_policy import wait_ms
from rmq_store.server.grpc_ports import GrpcPorts
from rmq_store.server.grpc_v2.clients import Clients
from rmq_store.server.grpc_v2.held_receives import HeldReceives
from rmq_store.server.grpc_v2.messaging_service import MessagingService
from rmq_store.server.grpc_v2.receiving import Receiving
from rmq_store.server.grpc_v2.routes import Routes
from rmq_store.server.grpc_v2.sending import Sending
from rmq_store.server.grpc_v2.transactions import EndTransactions
from rmq_store.server.grpc_v2.workers import Workers
from rmq_store.server.housekeeping import Housekeeping, Step
from rmq_store.server.pop.renewals import Renewals
from rmq_store.server.processors.connected_clients import ConnectedClients
from rmq_store.server.processors.sending import Hold
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.processors.transactions import TransactionProcessor

# Requests that are in work when the server stops are answered within this time.
_GRACE_S: Final = 5.0
# Streams of telemetry and held receives count, too.
_CALLS_MAX: Final = 50_000
# Between two looks at messages that are visible soon.
_RENEWALS_S: Final = 1.0
_OPTIONS: Final = (
    # Two servers at one port would each get some of the clients.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 1024),
    # A client that is gone without a word is found, and one that asks whether the server lives is not sent away.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_connection_idle_ms", 120_000),
)


class GrpcServer:
    """Serves gRPC at the ports of `host` from the constructor on until `close`. Routes tell a client the port through
    which it asks, with `advertised_host`. `connected` are the clients of all ports of this broker, `transactions` ends
    what they have begun. `check` says what the sender of a call may do.

    Raises:
        UsageError: an address cannot be listened at, or the certificate and its key do not fit.
    """

    def __init__(
        self,
        served: ServedStore,
        connected: ConnectedClients,
        transactions: TransactionProcessor,
        check: MethodCheck,
        host: str,
        ports: GrpcPorts,
        *,
        advertised_host: str,
        hold: Hold | None = None,
    ) -> None:
        self._ports = ports
        self._served = served
        self._hold = hold
        self._connected = connected
        self._transactions = transactions
        self._check = check
        self._host = host
        self._advertised_host = advertised_host
        self._problem: Exception | None = None
        self._is_ready = threading.Event()
        self._loop = real_time.new_event_loop()
        self._closing = asyncio.Event()
        self._sends, self._calls = Workers("rmq-grpc-send", 1), Workers("rmq-grpc", 2)
        self._thread = threading.Thread(target=self._run, name="rmq-grpc-loop", daemon=True)
        self._thread.start()
        self._is_ready.wait()
        if self._problem is not None:
            self.close()
            raise self._problem

    def address(self, *, is_tls: bool) -> str | None:
        """`host:port` of a port, as clients dial it. None: it is not served."""
        port = self._ports.numbers().get(is_tls)
        return None if port is None else _joined(self._advertised_host, port)

    def close(self) -> None:
        """Take no more calls, answer those that were taken, end streams. Does nothing the second time."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            self._problem = error
        finally:
            self._sends.close()
            self._calls.close()
            self._loop.close()
            self._is_ready.set()

    async def _serve(self) -> None:
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_CALLS_MAX)
        try:
            self._ports = self._listen(server)
        except UsageError:
            await server.start()  # only a server that has started gives back a port that it has already
            await server.stop(None)
            raise
        routes = Routes(self._served, self._advertised_host, self._ports.numbers())
        clients = Clients(self._served, self._calls, self._connected, self._check)
        holds = HeldReceives(self._served.store, self._calls)
        sending = Sending(self._served, routes, clients, self._sends, self._calls, self._hold)
        renewals = Renewals(self._served, clients.lives, wait_ms)
        receiving = Receiving(self._served, routes, clients, holds, renewals, self._calls)
        transactions = EndTransactions(self._transactions, self._calls)
        service = MessagingService(self._check, routes, clients, sending, receiving, transactions)
        server.add_generic_rpc_handlers((service.handler(),))
        await server.start()
        renewing = Housekeeping(str(self._served.store.path), (Step("renewals", _RENEWALS_S, renewals.renew_due),))
        renewing.start()
        background = [asyncio.create_task(holds.watch()), asyncio.create_task(clients.expire())]
        self._is_ready.set()
        await self._closing.wait()
        clients.stop()
        holds.stop()
        await server.stop(_GRACE_S)
        await asyncio.gather(*background)
        renewing.close()
        renewals.close()

    def _listen(self, server: Any) -> GrpcPorts:
        """The ports with their numbers."""
        bound: dict[bool, int] = {}
        for is_tls, port in self._ports.numbers().items():
            address = _joined(self._host, port)
            try:
                if is_tls:
                    bound[is_tls] = server.add_secure_port(address, self._credentials())
                else:
                    bound[is_tls] = server.add_insecure_port(address)
            except RuntimeError as error:
                raise UsageError(f"cannot serve gRPC at {address}: {error}") from error
        return replace(self._ports, plain=bound.get(False), tls=bound.get(True))

    def _credentials(self) -> Any:
        certificate = self._ports.certificate
        assert certificate is not None
        return grpc.ssl_server_credentials(((certificate.key, certificate.chain),))


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
