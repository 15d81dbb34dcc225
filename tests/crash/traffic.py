"""What a writer does: messages of all sizes, by every call that appends, so that all kinds of files roll."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from crash.oracle import UNIT, make_body
from crash.pieces import write_in_small_pieces

if TYPE_CHECKING:
    from rmq_store import Store, StoreConfig

TOPIC = "Orders"
QUEUES = 4
_RANDOM = random.Random(0).randbytes(1 << 17)


def tiny_config(**settings: object) -> StoreConfig:
    """Files that roll after some dozens of messages; a segment holds the largest one."""
    from rmq_store import StoreConfig

    sizes = {
        "mapped_file_size_commit_log": 128 << 10,
        "mapped_file_size_consume_queue": 400,
        "max_hash_slot_num": 32,
        "max_index_num": 60,
        "disk_space_warning_level_ratio": 100,  # whose disk is full is not the question here
    }
    return StoreConfig(**{**sizes, **settings})  # type: ignore[arg-type]


class Traffic:
    """One producer's messages. Its calls return after the store has acknowledged them."""

    def __init__(self, store: Store, producer: int, chance: random.Random, *, large: bool = True) -> None:
        write_in_small_pieces()
        self._store = store
        self._producer = producer
        self._chance = chance
        self._large = large
        self._units = 0
        self.sent = 0

    def call(self) -> int:
        """Make some call; returns how many messages this producer has sent now."""
        kinds = (self.send, self.send_all, self.append, self.commit_unit)
        kind: Callable[[], None] = self._chance.choices(kinds, (60, 15, 20, 5))[0]
        kind()
        return self.sent

    def send(self) -> None:
        from rmq_store import Message

        [(body, keys, queue_id)] = self._messages(0, 1)
        self._store.send(Message(TOPIC, body, keys=keys, queue_id=queue_id))

    def send_all(self) -> None:
        from rmq_store import Message

        messages = self._messages(1, self._chance.randrange(2, 6))
        self._store.send_all([Message(TOPIC, body, keys=keys, queue_id=queue_id) for body, keys, queue_id in messages])

    def append(self) -> None:
        self._store.append(self._batch(2, self._chance.randrange(1, 20)), topic=TOPIC)

    def commit_unit(self) -> None:
        """A sink's commit: two tasks stage, the driver commits."""
        from rmq_store import StagingArea

        batch = self._batch(UNIT, self._chance.randrange(2, 20))
        half = batch.num_rows // 2
        files = []
        for partition, rows in enumerate((batch.slice(0, half), batch.slice(half))):
            name = f"{self._producer}-{self._units}"
            with StagingArea.for_task(self._store.path, name, partition, 0, topic=TOPIC, use_queue_id=True) as area:
                area.write(rows)
                file = area.finish()
                assert file is not None
                files.append(file)
        self._units += 1
        result = self._store.commit_staged(files, key=f"query-{self._producer}", value=self._units)
        assert result.committed

    def _messages(self, kind: int, count: int) -> list[tuple[bytes, str, int]]:
        call, self.sent = self.sent, self.sent + count
        messages = []
        for sequence in range(call, call + count):
            body = make_body(self._producer, sequence, call, count, kind, self._payload(count))
            messages.append((body, f"{self._producer}-{sequence}", sequence % QUEUES))
        return messages

    def _batch(self, kind: int, count: int) -> pa.RecordBatch:
        bodies, keys, queue_ids = zip(*self._messages(kind, count), strict=True)
        columns = {
            "body": pa.array(bodies, pa.binary()), "keys": pa.array(keys), "queueId": pa.array(queue_ids, pa.int32())
        }  # fmt: skip
        return pa.RecordBatch.from_pydict(columns)

    def _payload(self, count: int) -> bytes:
        """Mostly small; now and then 1 to 64 KiB, less if there are many."""
        size = self._chance.randrange(0, 200)
        if self._large and self._chance.random() < 0.1:
            size = self._chance.randrange(1 << 10, max(64 << 10, 1 << 11) // (1 if count == 1 else 8))
        start = self._chance.randrange(0, len(_RANDOM) - size)
        return _RANDOM[start : start + size]
