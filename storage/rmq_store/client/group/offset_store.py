"""The progress of a consumer in its queues. It is first in memory, and from time to time stored durably.

Clustering: the broker keeps the offsets of the group. Broadcasting: every consumer has its own, in a file:

    <directory>/<client id>/<group>/offsets.json
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5}}      as Java writes it; .bak = the one before

Messages whose offset was not persisted are delivered again, never lost. Sources: RemoteBrokerOffsetStore.java,
LocalFileOffsetStore.java, OffsetSerializeWrapper.java.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from rmq_store.broker.metadata.offsets import offset_number
from rmq_store.client.backend.backend import Backend, broker_of
from rmq_store.client.group.consumer_config import ConsumerConfig, MessageModel
from rmq_store.errors import CorruptConfigError, StoreFailedError, StoreFullError, UsageError
from rmq_store.files.durable import make_directory, read_limited, remove_leftovers, write_atomically
from rmq_store.files.locks.guard import Guard
from rmq_store.protocol.errors import ClientError, MessageIllegalError, MQClientError, ResponseCode
from rmq_store.protocol.messages import MessageQueue

_log = logging.getLogger(__name__)

_FILE_BYTES_MAX = 64 * 1024 * 1024
_ENTRY = re.compile(r'(\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\})\s*:\s*([0-9]{1,19})\s*(,|(?=\}))')
_FRAME = re.compile(r'\s*\{\s*"offsetTable"\s*:\s*\{\s*\}\s*\}\s*')


class OffsetStore(Protocol):
    """The progress of one consumer. Safe for threads."""

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Record in memory that everything before `offset` is done."""

    def read(self, queue: MessageQueue) -> int | None:
        """The progress: from memory, else the stored one; None if there is none."""

    def read_stored(self, queue: MessageQueue) -> int | None:
        """The stored progress, without regard to memory."""

    def persist(self, queues: Collection[MessageQueue]) -> None:
        """Store the offsets of these queues; durable on return, if the broker keeps what it is told. ClientError: the
        changes stay in memory.
        """

    def forget(self, queue: MessageQueue) -> None:
        """Drop a queue from memory that no longer belongs to this consumer."""


def open_offset_store(
    backend: Backend, group: str, client_id: str, config: ConsumerConfig, *, lock_owner: str | None = None
) -> OffsetStore:
    """The store for the message model. `lock_owner`: see RemoteBrokerOffsetStore."""
    if config.message_model is MessageModel.CLUSTERING:
        return RemoteBrokerOffsetStore(backend, group, lock_owner=lock_owner)
    return LocalFileOffsetStore(Path(config.offset_store_directory).expanduser(), client_id, group)


def checked_offset(queue: MessageQueue, offset: Any) -> int:
    """A caller's offset for a queue, as int. MessageIllegalError: no broker would accept it."""
    try:
        return offset_number(offset)
    except UsageError as error:
        raise MessageIllegalError(f"{queue}: {error}", ResponseCode.INVALID_PARAMETER) from error


class _Memory:
    """Offsets by queue, and the queues whose offset is not stored yet."""

    def __init__(self) -> None:
        self._lock = Guard()
        # Held by `persist`: of two at a time, the one that began first could store its older offsets last.
        self._persisting = Guard()
        self._offsets: dict[MessageQueue, int] = {}
        self._changed: set[MessageQueue] = set()

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """As OffsetStore.update."""
        with self._lock.entered():
            current = self._offsets.get(queue)
            if current == offset or (increase_only and current is not None and offset < current):
                return
            self._offsets[queue] = offset
            self._changed.add(queue)

    def forget(self, queue: MessageQueue) -> None:
        """As OffsetStore.forget."""
        with self._lock.entered():
            self._offsets.pop(queue, None)
            self._changed.discard(queue)

    def _get(self, queue: MessageQueue) -> int | None:
        with self._lock.entered():
            return self._offsets.get(queue)

    def _remember(self, queue: MessageQueue, offset: int) -> None:
        with self._lock.entered():
            self._offsets.setdefault(queue, offset)

    def _known(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        with self._lock.entered():
            return {queue: self._offsets[queue] for queue in queues if queue in self._offsets}

    def _take_changes(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        with self._lock.entered():
            changes = {queue: self._offsets[queue] for queue in queues if queue in self._changed}
            self._changed.difference_update(changes)
            return changes

    def _give_back(self, changes: Collection[MessageQueue]) -> None:
        with self._lock.entered():
            self._changed.update(queue for queue in changes if queue in self._offsets)


class RemoteBrokerOffsetStore(_Memory):
    """Progress of a group, kept by the brokers. With `lock_owner` only while that client holds the queue's lock."""

    def __init__(self, backend: Backend, group: str, *, lock_owner: str | None = None) -> None:
        super().__init__()
        self._backend = backend
        self._group = group
        self._lock_owner = lock_owner

    def read(self, queue: MessageQueue) -> int | None:
        """As OffsetStore.read. Raises ClientError."""
        known = self._get(queue)
        if known is not None:
            return known
        stored = self.read_stored(queue)
        if stored is not None:
            self._remember(queue, stored)
        return stored

    def read_stored(self, queue: MessageQueue) -> int | None:
        """The broker's answer, with its rule for new groups on young queues. Raises ClientError."""
        return broker_of(self._backend, queue).query_consumer_offset(self._group, queue)

    def persist(self, queues: Collection[MessageQueue]) -> None:
        """Commit the changed offsets at each broker, and all offsets where it may forget them.

        RocketMQ's clients commit all of them each time (RemoteBrokerOffsetStore.java, persistAll). A broker that was
        killed has those of some seconds before, and any broker may drop one of two first commits of a group.

        Raises:
            ClientError: a broker did not answer; its offsets are kept for the next call. The other brokers have theirs.
        """
        with self._persisting:
            self._persist(queues)

    def _persist(self, queues: Collection[MessageQueue]) -> None:
        changes = self._take_changes(queues)
        by_broker: dict[str, dict[MessageQueue, int]] = {}
        for queue, offset in self._known(queues).items():
            by_broker.setdefault(queue.broker_name, {})[queue] = offset
        failure: ClientError | None = None
        try:
            for _, known in sorted(by_broker.items()):
                changed = {queue: changes[queue] for queue in known if queue in changes}
                try:
                    broker = broker_of(self._backend, next(iter(known)))
                    offsets = known | changed if broker.may_forget_offsets else changed
                    if offsets:
                        broker.update_consumer_offsets(self._group, offsets, lock_owner=self._lock_owner)
                except ClientError as error:
                    if changed:
                        failure = failure or error
                    else:  # it has been told all of them before
                        _log.info("%s: offsets that have not changed are not committed again: %s", self._group, error)
                    continue
                for queue in changed:
                    del changes[queue]
        finally:
            self._give_back(changes)
        if failure is not None:
            raise failure


class LocalFileOffsetStore(_Memory):
    """Progress of one consumer, kept in a file under `directory`.

    Raises (when constructed):
        CorruptConfigError: neither the file nor its backup can be read.
    """

    def __init__(self, directory: str | Path, client_id: str, group: str) -> None:
        super().__init__()
        self.path = Path(directory) / client_id / group / "offsets.json"
        self._backup = self.path.with_name("offsets.json.bak")
        self._stored = self._load()

    def read(self, queue: MessageQueue) -> int | None:
        """As OffsetStore.read."""
        known = self._get(queue)
        return self._stored.get(queue) if known is None else known

    def read_stored(self, queue: MessageQueue) -> int | None:
        """The offsets of the file."""
        return self._stored.get(queue)

    def persist(self, queues: Collection[MessageQueue]) -> None:
        """Rewrite the file if an offset changed; durable on return. MQClientError: the changes stay in memory."""
        with self._persisting:
            self._persist(queues)

    def _persist(self, queues: Collection[MessageQueue]) -> None:
        changes = self._take_changes(queues)
        if not changes:
            return
        try:
            for directory in reversed([self.path.parent, *self.path.parent.parents[:2]]):
                make_directory(directory)
            remove_leftovers(self.path)
            table = {**self._stored, **changes}
            write_atomically(self.path, dump_offsets(table).encode(), backup=self._backup)
            self._stored = table
        except (OSError, StoreFullError, StoreFailedError) as error:
            self._give_back(changes)
            raise MQClientError(f"the offsets of a broadcasting consumer are not stored: {error}") from error

    def _load(self) -> dict[MessageQueue, int]:
        problem: CorruptConfigError | None = None
        for path in (self.path, self._backup):
            try:
                text = read_limited(path, _FILE_BYTES_MAX)
                if text:
                    return load_offsets(text, str(path))
            except FileNotFoundError:
                pass
            except CorruptConfigError as error:
                problem = problem or error
        if problem:
            raise problem
        return {}


def dump_offsets(offsets: Mapping[MessageQueue, int]) -> str:
    """The text of an offsets.json: fastjson's map whose keys are objects."""
    entries = []
    for queue in sorted(offsets):
        fields = {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
        key = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        entries.append(f"{key}:{offsets[queue]}")
    return '{\n\t"offsetTable":{' + ",".join(entries) + "\n\t}\n}"


def load_offsets(text: bytes, path: str) -> dict[MessageQueue, int]:
    """Read an offsets.json, written by this engine or by Java. CorruptConfigError names `path`."""

    def corrupt(reason: str) -> CorruptConfigError:
        return CorruptConfigError(path, 0, f"not an offset table: {reason}")

    offsets: dict[MessageQueue, int] = {}

    def take(match: re.Match[str]) -> str:
        try:
            key: Any = json.loads(match[1])
            queue = MessageQueue(key["topic"], key["brokerName"], key["queueId"])
        except (ValueError, KeyError, RecursionError) as error:
            raise corrupt(f"{match[1][:80]!r} is not a queue") from error
        if not (isinstance(queue.topic, str) and isinstance(queue.broker_name, str) and type(queue.queue_id) is int):
            raise corrupt(f"{match[1][:80]!r} is not a queue")
        offsets[queue] = int(match[2])
        return ""

    try:
        rest = _ENTRY.sub(take, text.decode())
    except UnicodeDecodeError as error:
        raise corrupt("not UTF-8") from error
    if not _FRAME.fullmatch(rest):
        raise corrupt(f"{rest[:80]!r} around its entries")
    return offsets
