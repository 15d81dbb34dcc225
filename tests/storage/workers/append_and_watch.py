"""Processes of test_many_processes: `write <store> <number> <messages>`, `watch <store> <mode> <messages>`,
`come-and-go <store> <number> <visits>`, `look-in <store> <visits>`.

Every append carries an id and how many messages it has: `b-<writer>-<n>-<size>` for batches, which put equally many
messages into each of the four queues, and `s-<writer>-<n>-1` for single messages. `watch` makes a file `ready-<mode>`
beside the store when it has looked once.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from pathlib import Path

import pyarrow as pa

from rmq_store import Message, Store

TOPIC = "Crowd"
QUEUES = 4
DEADLINE_S = 120


def write(path: str, writer: int, messages: int) -> None:
    chance = random.Random(writer)
    sent = number = 0
    with Store.open(path) as store:
        while sent < messages:
            number += 1
            if chance.random() < 0.7:
                name = f"s-{writer}-{number}-1"
                store.send(Message(TOPIC, f"{name}/0".encode(), keys=name))
                sent += 1
                continue
            size = min(QUEUES * chance.randrange(1, 200), (messages - sent) // QUEUES * QUEUES)
            if not size:
                continue
            name = f"b-{writer}-{number}-{size}"
            queue_ids = [row % QUEUES for row in range(size)]
            chance.shuffle(queue_ids)
            columns = {
                "body": pa.array([f"{name}/{row}".encode() for row in range(size)], pa.binary()),
                "keys": pa.array([name] * size),
                "queueId": pa.array(queue_ids, pa.int32()),
            }
            store.append(pa.RecordBatch.from_pydict(columns), topic=TOPIC)
            sent += size


class Watcher:
    """Follows all queues and checks at each look that only whole appends show."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.next = [0] * QUEUES
        self.rows: dict[str, list[int]] = {}  # by append: rows seen in each queue
        self.highest: dict[str, int] = {}  # by append that is not seen whole: log offset of its last row seen

    def look(self, order: list[int]) -> int:
        """Read what is new, queue by queue in this order; returns how many messages."""
        self.store.refresh()  # a read-only store opened before the first writer
        end = self.store.log_range()[1]
        ranges = {queue_id: self.store.queue_range(TOPIC, queue_id).max_offset for queue_id in order}
        new_in: list[set[str]] = []
        count = 0
        for queue_id in order:
            assert ranges[queue_id] >= self.next[queue_id], "a queue became shorter"
            new_in.append(self._read(queue_id, ranges[queue_id]))
            count += ranges[queue_id] - self.next[queue_id]
            self.next[queue_id] = ranges[queue_id]
        for earlier, later in itertools.pairwise(new_in):
            for name in earlier - later:
                # Seen in the queue looked at first: it must have been in the one looked at next, now or before.
                assert self.rows[name][order[new_in.index(later)]], f"{name} shows in one queue, not in another"
        for name, highest in list(self.highest.items()):
            if sum(self.rows[name]) == int(name.rpartition("-")[2]):
                del self.highest[name]
            else:
                assert highest >= end, f"{name} shows in part below the visible end"
        return count

    def _read(self, queue_id: int, stop: int) -> set[str]:
        names = set()
        columns = ["keys", "commitLogOffset"]
        batches = list(self.store.read(TOPIC, queue_id, self.next[queue_id], stop, columns=columns))
        if not batches:
            return names
        counted = pa.Table.from_batches(batches).group_by("keys").aggregate(
            [("commitLogOffset", "count"), ("commitLogOffset", "max")]
        )  # fmt: skip
        for row in counted.to_pylist():
            name, seen = row["keys"], row["commitLogOffset_count"]
            own = self.rows.setdefault(name, [0] * QUEUES)
            if name.startswith("b"):
                names.add(name)
                assert not own[queue_id], f"{name} came to one queue in two parts"
                assert seen * QUEUES == int(name.rpartition("-")[2]), f"{name} shows in part in queue {queue_id}"
            own[queue_id] += seen
            self.highest[name] = max(self.highest.get(name, 0), row["commitLogOffset_max"])
        return names


def watch(path: str, mode: str, messages: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    chance = random.Random(messages)
    looks = 0
    with Store.open(path, read_only=mode == "read-only") as store:
        watcher = Watcher(store)
        seen = watcher.look(list(range(QUEUES)))
        Path(path).with_name(f"ready-{mode}").touch()
        while seen < messages:
            assert time.monotonic() < deadline_s, f"{seen} of {messages} messages in time"
            new = watcher.look(chance.sample(range(QUEUES), QUEUES))
            seen += new
            looks += bool(new)
            if not new:
                time.sleep(0.005)
        assert not watcher.highest
    print(looks)  # noqa: T201 - the answer to the test


def come_and_go(path: str, writer: int, visits: int) -> None:
    """Open the store, send a little, close it: now the first to come, now the last to leave, now neither."""
    for visit in range(visits):
        with Store.open(path) as store:
            for number in range(3):
                store.send(Message(TOPIC, f"{writer}/{visit}/{number}".encode()))


def look_in(path: str, visits: int) -> None:
    """Open the store for reading again and again: it never gets shorter, and what it has can be read."""
    seen = 0
    for _ in range(visits):
        with Store.open(path, read_only=True) as store:
            ranges = store.queue_ranges(TOPIC)
            total = sum(last - first for first, last in ranges.values())
            assert total >= seen, f"{seen} messages, then {total}"
            seen = total
            for queue_id, (first, last) in ranges.items():
                batches = store.read(TOPIC, queue_id, first, last, columns=["queueOffset"])
                assert sum(batch.num_rows for batch in batches) == last - first


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1] == "come-and-go":
        come_and_go(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1] == "look-in":
        look_in(sys.argv[2], int(sys.argv[3]))
    else:
        watch(sys.argv[2], sys.argv[3], int(sys.argv[4]))
