"""A reader of a replica that reads all the time, whatever happens to its feeder and to its master:

    python -m helpers.cluster.followed.watcher ROOT NOTES TOPIC GROUP

Each pass looks at what is new: it must be whole records without a hole, no half unit, with each queue entry in its
place; no offset of the group may be ahead of a queue. A line of NOTES for each pass says which bytes it saw and their
CRC, so that the test can compare them with the master's. The reader ends at the first thing that is wrong.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections import defaultdict
from pathlib import Path
from typing import TextIO

from rmq_store import Store
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.errors import NotAStoreError
from rmq_store.log.core import scan
from rmq_store.log.core.units import UNITS_TOPIC

REOPENS_EVERY = 100
"""Passes: so both a reader that stays and one that has just come look at each state."""

_PAUSE_S = 0.01


class Watcher:
    """What one reader has seen of a replica so far."""

    def __init__(self, root: Path, notes: TextIO, topic: str, group: str) -> None:
        self._root = root
        self._notes = notes
        self._topic = topic
        self._group = group
        self._end: int | None = None
        self._places: dict[int, list[int]] = defaultdict(list)
        """Of each queue the offsets in the log of its messages, in the order of the log."""
        self._read: dict[int, int] = {}

    def run(self) -> None:
        """Read for ever."""
        while True:
            try:
                store = Store.open(self._root, read_only=True)
            except (NotAStoreError, FileNotFoundError):  # the feeder has not made it yet
                time.sleep(_PAUSE_S)
                continue
            with store:
                for _ in range(REOPENS_EVERY):
                    self._pass(store)
                    time.sleep(_PAUSE_S)

    def _pass(self, store: Store) -> None:
        committed = OffsetTable(self._root).committed(self._group)
        store.refresh()
        start, end = store.log_range()
        if self._end is None:
            self._end = start
        assert end >= self._end, f"the log ends at {end}, and ended at {self._end}"
        if end > self._end:
            self._look(store, self._end, end)
            self._note(store, self._end, end)
            self._end = end
        for queue_id, places in self._places.items():
            self._read_queue(store, queue_id, places)
        for (topic, queue_id), offset in committed.items():
            there = store.queue_range(topic, queue_id).max_offset
            assert offset <= there, f"{topic}-{queue_id}: an offset of {offset}, and the queue ends at {there}"

    def _look(self, store: Store, low: int, high: int) -> None:
        is_inside, at = False, low
        for stretch in scan.walk(store._log, low, high, ahead=False):
            columns = scan.columns_of(store._log, stretch)
            rows = zip(
                (stretch.base + stretch.positions).tolist(), columns.topic.to_pylist(), columns.queue_id.tolist(),
                columns.queue_offset.tolist(), strict=True,
            )  # fmt: skip
            for place, topic, queue_id, queue_offset in rows:
                is_inside ^= topic == UNITS_TOPIC
                if topic == self._topic:
                    places = self._places[queue_id]
                    assert queue_offset == len(places), f"message {queue_offset} of queue {queue_id} at {place}: a hole"
                    places.append(place)
            at = stretch.end
            assert not stretch.stopped, f"no record at {at} of a log that ends at {high}: {stretch.stopped}"
        assert at == high, f"records up to {at} in a log that ends at {high}"
        assert not is_inside, f"half a unit is visible at {high}"

    def _read_queue(self, store: Store, queue_id: int, places: list[int]) -> None:
        """The messages of the queue must be those of the log."""
        low, high = self._read.get(queue_id, 0), len(places)
        if low == high:
            return
        there = store.queue_range(self._topic, queue_id)
        assert there.min_offset == 0, there
        assert there.max_offset >= high, f"queue {queue_id} ends at {there}, and the log has {high} messages of it"
        columns = ["queueOffset", "commitLogOffset"]
        rows = [
            row for batch in store.read(self._topic, queue_id, low, high, columns=columns) for row in batch.to_pylist()
        ]
        assert [(row["queueOffset"], row["commitLogOffset"]) for row in rows] == [
            (offset, places[offset]) for offset in range(low, high)
        ], f"queue {queue_id} from {low} to {high}"
        self._read[queue_id] = high

    def _note(self, store: Store, low: int, high: int) -> None:
        crc, at = 0, low
        while at < high:
            base = store._log.segments.base_of(at)
            stop = min(high, base + store._log.segments.size_bytes)
            crc = zlib.crc32(store._log.segments.open(base).map[at - base : stop - base], crc)
            at = stop
        messages = sum(map(len, self._places.values()))
        self._notes.write(json.dumps({"start": low, "end": high, "crc": crc, "messages": messages}) + "\n")
        self._notes.flush()


if __name__ == "__main__":
    with Path(sys.argv[2]).open("a", encoding="utf-8") as opened:
        Watcher(Path(sys.argv[1]), opened, *sys.argv[3:]).run()
