"""A name server alone, without a store (NamesrvController.java): brokers register here, and clients find them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rmq_store.server.access.request_check import RequestCheck
from rmq_store.server.access.users import Users
from rmq_store.server.housekeeping import Housekeeping, Step
from rmq_store.server.name_server.kv_configs import KVConfigs
from rmq_store.server.name_server.route_processor import RouteProcessor
from rmq_store.server.name_server.route_table import RouteTable
from rmq_store.server.name_server.settings import NameServerSettings
from rmq_store.server.requests.bound_services import bound_services
from rmq_store.server.requests.dispatcher import Dispatcher, Service
from rmq_store.server.requests.request import Request
from rmq_store.server.requests.request_table import Pool
from rmq_store.server.requests.worker_pool import WorkerPool
from rmq_store.server.transport.connection import Connection
from rmq_store.server.transport.limits import ListenerLimits
from rmq_store.server.transport.listener import Listener
from rmq_store.server.transport.tls import TlsFiles, server_context

# NamesrvConfig.java: clientRequestThreadPoolNums and its queue; here brokers have a pool of their own as well.
_ROUTES: Final = (2, 50_000, 5_000)
_BROKERS: Final = (1, 10_000, 31_000)
# Between two looks at the file of users.
_USERS_S: Final = 1.0


class NameServer:
    """Keeps routes in memory, and answers at `host:port` (0: a free port) until `close`.

    A broker is forgotten when its connection ends, or 120 s after it has registered for the last time. After a restart
    the routes are complete when all brokers have registered again, within 30 s.

    `acl_file` has the users (`rmq_store.server.access.acl_file`): brokers register, and pairs are changed, as an
    administrator; every user may ask for routes. Without it everybody may do both. With `tls` nobody is taken without
    TLS.

    Raises (when constructed):
        UsageError: the address cannot be listened at, or a file of users or of TLS is wrong.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        limits: ListenerLimits | None = None,
        acl_file: str | Path | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self.routes, self.kv_configs = RouteTable(), KVConfigs()
        users = Users(Path(acl_file)) if acl_file is not None else None
        context = server_context(tls) if tls is not None else None
        with ExitStack() as parts:
            self._listener = Listener(host, port, self._receive, limits=limits, tls=context)
            parts.callback(self._listener.close)
            clients, brokers = WorkerPool("routes", *_ROUTES), WorkerPool("brokers", *_BROKERS)
            parts.callback(clients.close)
            parts.callback(brokers.close)
            check = RequestCheck(None, users, is_admin=True)
            self._dispatcher = Dispatcher(self._services(clients, brokers), check)
            if users is not None:
                look = Housekeeping("name server", (Step("users", _USERS_S, users.reload_if_changed),))
                look.start()
                parts.callback(look.close)
            self._listener.start()
            parts.callback(self._listener.stop_listening)
            self._closing, self._close_lock = parts.pop_all(), threading.RLock()
        self.address = f"[{host}]:{self._listener.port}" if ":" in host else f"{host}:{self._listener.port}"

    def close(self) -> None:
        """Answer the requests that were taken, and end. A second call, from whichever thread, waits until the first one
        has ended, and does nothing.
        """
        with self._close_lock:
            self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self, requests: Sequence[Request]) -> None:
        peer = requests[0].peer
        if isinstance(peer, Connection) and not peer.on_closed:
            peer.on_closed.append(self.routes.disconnected)
        self._dispatcher.receive(requests)

    def _services(self, clients: WorkerPool, brokers: WorkerPool) -> dict[int, Service]:
        routes = RouteProcessor(self.routes, self.kv_configs)
        return bound_services(
            {
                "routes": routes,
                "data_versions": routes,  # 322: only of a name server alone
                "pairs": self.kv_configs,
                "name_server_settings": NameServerSettings(self._listener.port),
            },
            {Pool.CLIENT: clients, Pool.ADMIN: clients, Pool.REGISTRATION: brokers},
        )
