"""The HA port of a master: one thread for all slaves, and one that waits for the log to grow (DefaultHAService.java).

    slaves ──reports──> HAServer ──> words of the state page ──> senders of all processes, which wait (`Replication`)
           <─transfers─          ──> `on_replicated`, for answers of this process that wait

A slave that takes nothing costs the others nothing: sockets do not block, each slave has its turn, and nothing is kept
for any. Peers that are not allowed, and what a slave must not ask for, are refused and logged, once per peer and
reason.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from rmq_store import real_time
from rmq_store.errors import UsageError
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.replication import Replication
from rmq_store.server.ha.settings import HASettings
from rmq_store.server.ha.slave_connection import ConnectionLost, SlaveConnection
from rmq_store.server.ha.slave_link import PlainLink, SlaveLink, TlsLink
from rmq_store.server.transport.tls import server_context

_log: Final = logging.getLogger(__name__)

_BACKLOG: Final = 128
# Between two looks at time that is over, and at what other processes have appended without waiting for slaves.
_LOOK_S: Final = 0.1
_GROWTH_LOOK_S: Final = 0.01
# So many refusals are remembered, so that each is logged once.
_REFUSALS_MAX: Final = 1000


class HAServer:
    """Has its port from the beginning; serves slaves from `start` until `close`, and has then told all processes that
    none is connected. `on_replicated(now)` is called in its thread when slaves have more, and every 0.1 s.

    Raises:
        UsageError: the address cannot be listened at, or a file of TLS cannot be used.
    """

    def __init__(
        self, log: CommitLog, settings: HASettings, on_replicated: Callable[[float], None] = lambda now: None
    ) -> None:
        self._store_log = log
        self._settings = settings
        self._on_replicated = on_replicated
        self.replication = Replication(log)
        self._tls = server_context(settings.tls) if settings.tls is not None else None
        self._listener = _listening(settings.host, settings.port)
        host, port = self._listener.getsockname()[:2]
        self.address = settings.advertised or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        """host:port that slaves are told."""
        self._slaves: dict[int, SlaveConnection] = {}
        self._refusals: set[tuple[str, str]] = set()
        self._epoll = select.epoll()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="rmq-ha", daemon=True),
            threading.Thread(target=self._watch, name="rmq-ha-growth", daemon=True),
        ]

    def start(self) -> None:
        """Make the role that of the store, and take connections. Raises as `Replication.begin`."""
        settings = self._settings
        self.replication.begin(settings.role, settings.in_sync_replicas, settings.slave_timeout_ms)
        self._listener.listen(_BACKLOG)
        # Connections inherit it, so that the next server has the port while the kernel remembers them.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._epoll.register(self._listener, select.EPOLLIN)
        self._epoll.register(self._woken, select.EPOLLIN)
        for thread in self._threads:
            thread.start()

    def grown(self) -> None:
        """The log has grown: send it now. Safe for threads; does not wait."""
        with suppress(BlockingIOError):  # it is about to wake
            os.write(self._waker, b"\0")

    def slaves(self) -> list[tuple[str, int]]:
        """The address of each connected slave, and up to where it has the log; -1: it has not said."""
        return [(slave.address, slave.acknowledged) for slave in list(self._slaves.values())]

    def close(self) -> None:
        """End all connections and the threads. Does nothing the second time."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self.replication.grown()
        self.grown()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._listener.close()
        self._epoll.close()
        os.close(self._woken)
        os.close(self._waker)

    # -- threads ------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        end = self._store_log.visible_end()
        while not self._stopping.is_set():
            if self.replication.await_growth(end, _GROWTH_LOOK_S if self._slaves else _LOOK_S):
                end = self._store_log.visible_end()
                self.grown()

    def _run(self) -> None:
        try:
            behind: set[int] = set()
            look_at = real_time.monotonic()
            while not self._stopping.is_set():
                now = real_time.monotonic()
                wait_s = 0.0 if behind else max(0.0, look_at - now)
                behind = self._turn(self._epoll.poll(wait_s), behind)
                if (now := real_time.monotonic()) >= look_at:
                    look_at = now + _LOOK_S
                    for fd in list(self._slaves):
                        self._guarded(fd, lambda slave, now=now: slave.check(now))  # type: ignore[misc]
                    behind |= self._slaves.keys()  # heartbeats that are due
                    self._tell(now)
                    self._on_replicated(now)
        except Exception:
            _log.exception("%s: the HA port ends", self._store_log.root)
        finally:
            for fd in list(self._slaves):
                self._end(fd)
            self._tell(real_time.monotonic())

    def _turn(self, events: list[tuple[int, int]], behind: set[int]) -> set[int]:
        """Serve what is ready, and the slaves that are `behind`; returns those that are behind now."""
        now, has_more, sends = real_time.monotonic(), False, set(behind)
        for fd, _ in events:
            if fd == self._listener.fileno():
                self._accept(now)
            elif fd == self._woken:
                with suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                sends |= self._slaves.keys()
            else:
                has_more |= bool(self._guarded(fd, lambda slave: slave.receive(now)))
                sends.add(fd)
        if has_more:  # before bytes are sent: somebody waits
            self._tell(now)
            self._on_replicated(now)
        return {fd for fd in sends if self._send(fd, now)}

    def _send(self, fd: int, now: float) -> bool:
        lacks = bool(self._guarded(fd, lambda slave: slave.send(now)))
        slave = self._slaves.get(fd)
        if slave is not None:
            self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if slave.is_blocked else 0))
        return lacks

    def _guarded(self, fd: int, step: Callable[[SlaveConnection], bool | None]) -> bool | None:
        """A step of one connection, which may end it, and no other."""
        slave = self._slaves.get(fd)
        if slave is None:
            return False
        try:
            return step(slave)
        except ConnectionLost as lost:
            self._end(fd)
            self._report(slave.address, f"slave {slave.address} is not connected any more: {lost}", lost.is_fault)
        except Exception:  # of this connection alone
            _log.exception("%s: slave %s", self._store_log.root, slave.address)
            self._end(fd)
        return False

    def _accept(self, now: float) -> None:
        while True:
            try:
                link, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # no descriptor left: the others go on
                self._report("", f"no slave can connect: {error.strerror}", True)
                return
            host, address = peer[0], f"{peer[0]}:{peer[1]}"
            if not self._settings.allows(host):
                self._report(host, f"{address} is refused: --ha-allow does not name {host}", True)
                link.close()
            elif len(self._slaves) >= self._settings.connections_max:
                self._report(host, f"{address} is refused: {len(self._slaves)} slaves are connected", True)
                link.close()
            else:
                self._begin(link, address, now)

    def _begin(self, link: socket.socket, address: str, now: float) -> None:
        fd = link.fileno()  # TLS keeps it
        try:
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured: SlaveLink = PlainLink(link) if self._tls is None else TlsLink(link, self._tls)
        except OSError as error:  # it is gone already
            link.close()
            _log.info("%s: slave %s has gone: %s", self._store_log.root, address, error.strerror or error)
            return
        self._slaves[fd] = SlaveConnection(secured, address, self._store_log, self._settings, now)
        self._epoll.register(fd, select.EPOLLIN)
        _log.info("%s: slave %s has connected", self._store_log.root, address)

    def _end(self, fd: int) -> None:
        slave = self._slaves.pop(fd)
        self._epoll.unregister(fd)
        slave.close()

    def _report(self, peer: str, text: str, is_fault: bool) -> None:
        """Log what happened to a peer: a fault once per peer and reason, as a Java slave connects again every 5 s."""
        host, digits = peer.rpartition(":")[0] or peer, str.maketrans("", "", "0123456789")
        if not is_fault:
            _log.info("%s: %s", self._store_log.root, text)
            return
        key = host, text.translate(digits)
        if key not in self._refusals and len(self._refusals) < _REFUSALS_MAX:
            self._refusals.add(key)
            _log.warning("%s: %s", self._store_log.root, text)

    # -- what slaves have ---------------------------------------------------------------------------------------------

    def _tell(self, now: float) -> None:
        end, slaves = self._store_log.visible_end(), self._slaves.values()
        known = [slave.acknowledged for slave in slaves if slave.acknowledged >= 0]
        in_reach = sorted((slave.acknowledged for slave in slaves if slave.counts(end, now)), reverse=True)
        needed = max(self._settings.in_sync_replicas - 1, 1)
        replicated_end = in_reach[needed - 1] if len(in_reach) >= needed else 0
        self.replication.reported(replicated_end, len(in_reach), min(known, default=-1))


def _listening(host: str, port: int) -> socket.socket:
    """A socket with its address; it listens later."""
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen for slaves at {host}:{port}: {error.strerror or error}") from error
    return listener
