"""306, 316 and 329: old and unused parts of a store are deleted now (AdminBrokerProcessor.java)."""

from __future__ import annotations

from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.processors.committed_offsets import CommittedOffsets
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request


class Cleaning:
    """Deletes what one store no longer needs; it is durable when it is answered."""

    def __init__(self, served: ServedStore, offsets: CommittedOffsets) -> None:
        self._served = served
        self._offsets = offsets

    def queue_files(self, request: Request) -> RemotingCommand:
        """306: files of queues whose messages retention has deleted."""
        self._served.store.admin.clean_queue_files()
        return request.answer()

    def unused_topics(self, request: Request) -> RemotingCommand:
        """316: offsets and POP state of groups in topics that no longer exist."""
        self._offsets.write()
        self._served.store.admin.clean_unused_topics()
        return request.answer()

    def expired_segments(self, request: Request) -> RemotingCommand:
        """329: files of the log that are older than `fileReservedTime`, at whatever hour."""
        self._served.store.retention.run(manual=True)
        return request.answer()
