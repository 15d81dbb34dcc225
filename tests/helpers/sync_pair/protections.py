"""What makes an answer of 0 true, taken out of one process: the proof must notice. See `crash.protections`."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

from crash.protections import protection
from rmq_store.log.replication import Replicated, Replication
from rmq_store.replica.feed import Feed
from rmq_store.replica.ha_connection import HAConnection
from rmq_store.replica.wire import encode_report


@protection("slave-wait", "A send to a SYNC_MASTER is answered when a slave has it.")
def no_wait() -> Iterator[None]:
    """Whoever waits is told that slaves have all."""
    with (
        mock.patch.object(Replication, "wait", lambda *_, **__: Replicated.YES),
        mock.patch.object(Replication, "replicated_end", 1 << 62),
        mock.patch.object(Replication, "is_sync", False),
    ):
        yield


@protection("store-before-report", "A slave reports what is on its disk.")
def early_report() -> Iterator[None]:
    """It reports what has come."""
    begin, publish = HAConnection.__init__, Feed.publish
    connections: list[HAConnection] = []

    def begun(connection: HAConnection, *given: object, **options: object) -> None:
        connections[:] = [connection]
        begin(connection, *given, **options)  # type: ignore[arg-type]

    def published(feed: Feed) -> None:
        if feed._low < feed._high:
            connections[0]._socket.sendall(encode_report(feed.position))
        publish(feed)

    with mock.patch.object(HAConnection, "__init__", begun), mock.patch.object(Feed, "publish", published):
        yield
