"""The values of the fixtures: a broker in this process, with helpers for tests, and its clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

from rmq_store import real_time
from rmq_store.broker.metadata.store_config import StoreConfig
from rmq_store.broker.store.store import Store
from rmq_store.clock import ClockFile
from rmq_store.errors import UnknownTopicError, UsageError
from rmq_store.format.frames.message import Message
from rmq_store.format.text.names import dlq_topic
from rmq_store.protocol.results import SendResult
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.grpc_v2.tls import Certificate
from rmq_store.server.scratch_store import SCRATCH_CONFIG, make_virtual_clock

PATIENCE_S: Final = 30.0
_LOOK_S: Final = 0.005


class VirtualClock:
    """The clock of a store, for every process that has it open: it stands still until it is moved, never back."""

    def __init__(self, file: ClockFile) -> None:
        self._file = file

    def __call__(self) -> int:
        """Return the time in ms since 1970."""
        return self._file()

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.fromtimestamp(self._file() / 1000, UTC)

    def advance(
        self, duration: timedelta = timedelta(0), *, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> datetime:
        """Move the clock by the sum of the arguments, and return the time. The server delivers what is due then within
        a tenth of a second.

        Raises:
            UsageError: a negative sum.
        """
        whole = duration + timedelta(hours=hours, minutes=minutes, seconds=seconds)
        self._file.advance(round(whole / timedelta(milliseconds=1)))
        return self.now()

    def set(self, when: datetime) -> datetime:
        """Move the clock to a time that has a zone, and return it. Raises UsageError for an earlier time."""
        self._file.set(round((when - datetime.fromtimestamp(0, UTC)) / timedelta(milliseconds=1)))
        return self.now()


def wait_until(
    condition: Callable[[], object],
    problem: Callable[[], str] = lambda: "the condition does not hold",
    *,
    timeout_s: float = PATIENCE_S,
) -> None:
    """Wait until `condition` holds.

    Raises:
        TimeoutError: it does not after `timeout_s` of real time; the text begins with that of `problem`.
    """
    end_s = real_time.monotonic() + timeout_s
    while not condition():
        if real_time.monotonic() > end_s:
            raise TimeoutError(f"{problem()} after {timeout_s} s")
        time.sleep(_LOOK_S)


class RmqTestBroker:
    """A broker and name server over an empty store at `path`, until `close`. It carries out what mqadmin changes, too.

    `address` is its `HOST:PORT`, for RocketMQ's own clients; `url` the same for those of this package, `rmq://HOST:PORT`.
    `store` has the whole interface of the same messages; `clock` is the time of store and server. With `grpc_port`
    (0: a free one) it has a port for clients of RocketMQ 5 as well, which needs the extra `[grpc]`. `grpc_tls_port` is
    one for those that speak TLS, with `grpc_certificate`, or with a throw-away one, which clients must not verify.
    """

    def __init__(
        self,
        path: Path,
        config: StoreConfig = SCRATCH_CONFIG,
        *,
        grpc_port: int | None = None,
        grpc_certificate: Certificate | None = None,
        grpc_tls_port: int | None = None,
    ) -> None:
        self.path = path
        self.clock = VirtualClock(make_virtual_clock(path))
        if grpc_tls_port is not None and grpc_certificate is None:
            grpc_certificate = Certificate.self_signed("127.0.0.1")
        self._server = BrokerServer(
            path, config=config, create=True, admin=True,
            grpc_port=grpc_port, grpc_certificate=grpc_certificate, grpc_tls_port=grpc_tls_port,
        )  # fmt: skip

    @property
    def address(self) -> str:
        """The `HOST:PORT` of broker and name server."""
        return self._server.address

    @property
    def grpc_address(self) -> str:
        """The `HOST:PORT` for clients that speak gRPC. Raises UsageError: made without `grpc_port`."""
        if self._server.grpc_address is None:
            raise UsageError("this broker has no port for gRPC: make it with RmqTestBroker(path, grpc_port=0)")
        return self._server.grpc_address

    @property
    def grpc_tls_address(self) -> str:
        """The `HOST:PORT` for clients that speak gRPC over TLS. Raises UsageError: made without `grpc_tls_port`."""
        if self._server.grpc_tls_address is None:
            raise UsageError("this broker has no port for TLS: make it with RmqTestBroker(path, grpc_tls_port=0)")
        return self._server.grpc_tls_address

    @property
    def url(self) -> str:
        """The address for clients of this package and for Spark's option `nameServer`: `rmq://HOST:PORT`."""
        return f"rmq://{self._server.address}"

    @property
    def store(self) -> Store:
        """The served store, open for writing."""
        return self._server.store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server, and close the store. Does nothing the second time."""
        self._server.close()

    def send(self, topic: str, bodies: Iterable[str | bytes], *, tags: str | None = None) -> list[SendResult]:
        """Store messages as a local producer does, and return the results in order. A missing topic is made.

        Raises what `Store.send` raises.
        """
        data = [body.encode() if isinstance(body, str) else body for body in bodies]
        return [self.store.send(Message(topic, body, tags=tags)) for body in data]

    def count(self, topic: str) -> int:
        """How many messages a topic has; 0 if there is no such topic."""
        try:
            return sum(limits.max_offset - limits.min_offset for limits in self.store.queue_ranges(topic).values())
        except UnknownTopicError:
            return 0

    def bodies(self, topic: str) -> list[bytes]:
        """The bodies of all messages of a topic, in the order in which they were stored; [] without such a topic."""
        if not self.count(topic):
            return []
        found: list[tuple[int, bytes]] = []
        for queue_id, limits in self.store.queue_ranges(topic).items():
            columns = ["commitLogOffset", "body"]
            for batch in self.store.read(topic, queue_id, limits.min_offset, limits.max_offset, columns=columns):
                found += zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        return [body for _, body in sorted(found)]

    def dead_letters(self, group: str) -> list[bytes]:
        """The bodies of a group's dead letters, the oldest first."""
        return self.bodies(dlq_topic(group))

    def wait_for_messages(self, topic: str, count: int, *, timeout_s: float = PATIENCE_S) -> list[bytes]:
        """Wait until a topic has `count` messages, and return the bodies of all.

        Raises:
            TimeoutError: it has fewer after `timeout_s` of real time.
        """
        wait_until(
            lambda: self.count(topic) >= count,
            lambda: f"topic {topic} has {self.count(topic)} messages, and not {count}",
            timeout_s=timeout_s,
        )
        return self.bodies(topic)

    def wait_until(self, condition: Callable[[], object], *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until `condition` holds. Raises TimeoutError: it does not after `timeout_s` of real time."""
        wait_until(condition, timeout_s=timeout_s)

    def advance_to_next_due(self) -> timedelta | None:
        """Move the clock to the due time of the next delayed message or retry, and deliver it. Returns the distance, or
        None if nothing is delayed.
        """
        before = self.clock.now()
        due_ms = self._deliver_due()
        if due_ms is None:
            return None
        self.clock.set(datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=due_ms))
        self._deliver_due()
        return self.clock.now() - before

    def _deliver_due(self) -> int | None:
        """Deliver all that is due, and return when the next message is. A call that meets the server's own delivery
        does nothing, and would take a message that the server delivers now for the next one.
        """
        due_ms: int | None = None

        def is_done() -> bool:
            nonlocal due_ms
            due_ms = self.store.schedule.deliver_due().next_due_ms
            return due_ms is None or due_ms > self.clock()

        wait_until(is_done, lambda: "a message that is due is not delivered")
        return due_ms
