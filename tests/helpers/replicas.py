"""A replica for tests, fed by this process without a master: what it sends is what a master would have sent."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.store.directory import make_root
from rmq_store.broker.store.open_store import OpenRequest, open_store
from rmq_store.log.replica_role import Feeder, ReplicaRole

ROLE = ReplicaRole(
    cluster="DefaultCluster",
    broker="broker-a",
    name_server="ns:9876",
    address="10.0.0.7:10911",
    ha_address="10.0.0.7:10912",
    start="earliest",
    first_offset=0,
)


class FedReplica:
    """The replica at `root`, which it makes. A context manager; nobody feeds the replica afterwards."""

    message_id = ""
    """For a test that asks for one of its messages."""

    def __init__(self, root: Path, config: StoreConfig | None = None, role: ReplicaRole = ROLE) -> None:
        self.root = root
        self._feeder = Feeder(root)
        make_root(root)
        self._feeder.take()
        request = OpenRequest(root, False, True, config, None, None, "refuse", False, "", self._feeder, role)
        self.store = open_store(request, Store)

    def add(
        self, topic: str, count: int = 1, *, queue_id: int = 0, queue_count: int = 2, body: bytes = b"body"
    ) -> None:
        """Add messages to a queue, as if they had come from the master."""
        self.store.create_topic(topic, queue_count, exist_ok=True)
        for _ in range(count):
            self.store.send(Message(topic, body, queue_id=queue_id))
        self.store.flush()

    def close(self) -> None:
        """Feed it no more."""
        self.store.close()
        self._feeder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
