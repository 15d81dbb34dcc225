"""What a store must hold, as lists and dictionaries, and how an answer of the store differs from that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from crash.part import Counters

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
GROUP = "cg"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
TOPICS = {"Alpha": 2, "Beta": 1}
POPPED = "Popped"
LEVELS_MS = (1000, 5000, 10_000)
RETRIES_MAX = 2

Key = tuple[str, int]
KEYS: tuple[Key, ...] = (
    *((topic, queue_id) for topic, count in TOPICS.items() for queue_id in range(count)),
    (POPPED, 0), (RETRY, 0), (DEAD, 0), *((SCHEDULE, level) for level in range(len(LEVELS_MS))),
)  # fmt: skip
WRITABLE = KEYS[:3]


class Row(NamedTuple):
    """One message. `offset`: of its record in the log, -1 until it was seen. `due_ms` and `target`: what waits."""

    body: bytes
    tags: str | None
    reconsume_times: int = 0
    offset: int = -1
    due_ms: int = 0
    target: Key = ("", 0)

    @property
    def number(self) -> int:
        return int(self.body[:8])


class Found(NamedTuple):
    """One queue as the store shows it: its range, and of each message (body, tags, reconsumeTimes, offset)."""

    first: int
    last: int
    rows: list[tuple[bytes, str | None, int, int]]


@dataclass
class State:
    """The queues, and what has been delivered of the schedule's levels; offsets and units by key."""

    queues: dict[Key, list[Row]] = field(default_factory=lambda: {key: [] for key in KEYS})
    delivered: list[int] = field(default_factory=lambda: [0] * len(LEVELS_MS))
    committed: dict[Key, int] = field(default_factory=dict)
    units: dict[str, int] = field(default_factory=dict)

    def copy(self) -> State:
        queues = {key: list(rows) for key, rows in self.queues.items()}
        return State(queues, list(self.delivered), dict(self.committed), dict(self.units))

    def put(self, key: Key, row: Row, level: int, now_ms: int) -> None:
        """A message for `key`, at once or after a delay."""
        if level:
            parked = row._replace(due_ms=now_ms + LEVELS_MS[level - 1], target=key)
            self.queues[SCHEDULE, level - 1].append(parked)
        else:
            self.queues[key].append(row)

    def send_back(self, row: Row, level: int, now_ms: int) -> None:
        """CONSUMER_SEND_MSG_BACK; `level` below 0: to the dead letters."""
        copy = Row(row.body, row.tags, row.reconsume_times + 1)
        if row.reconsume_times >= RETRIES_MAX or level < 0:
            self.queues[DEAD, 0].append(copy)
        else:
            self.put((RETRY, 0), copy, level, now_ms)

    def deliver(self, now_ms: int) -> int:
        """What is due goes to its queue, level by level; returns how many did."""
        count = 0
        for level, done in enumerate(self.delivered):
            for row in self.queues[SCHEDULE, level][done:]:
                if row.due_ms > now_ms:
                    break
                self.queues[row.target].append(Row(row.body, row.tags, row.reconsume_times))
                self.delivered[level] += 1
                count += 1
        return count

    def learn(self, found: Mapping[Key, Found]) -> None:
        """Note where the records lie."""
        for key, queue in found.items():
            rows = self.queues[key]
            for place, (_, _, _, offset) in enumerate(queue.rows, queue.first):
                rows[place] = rows[place]._replace(offset=offset)

    def first(self, key: Key, log_start: int) -> int:
        """The queue's min offset in a log that begins at `log_start`."""
        return sum(0 <= row.offset < log_start for row in self.queues[key])

    def differs(self, found: Mapping[Key, Found], log_start: int) -> Counters:
        """How the store's answer differs from this state."""
        counters = Counters()
        for key, rows in self.queues.items():
            first = self.first(key, log_start)
            queue = found.get(key, Found(0, 0, []))
            right = [(row.body, row.tags, row.reconsume_times) for row in rows[first:]]
            seen = [row[:3] for row in queue.rows]
            if seen != right:
                self._classify(counters, key, right, seen)
            offsets = [row[3] for row in queue.rows]
            moved = any(row.offset not in (-1, offset) for row, offset in zip(rows[first:], offsets, strict=False))
            wrong_range = (queue.first, queue.last) != (first, len(rows))
            if not counters.violations and (wrong_range or moved or offsets != sorted(set(offsets))):
                counters.broken += 1
                counters.note(f"{key}: range {queue[:2]}, not {(first, len(rows))}, at {offsets}")
        return counters

    def _classify(
        self, counters: Counters, key: Key, right: Iterable[tuple[bytes, ...]], seen: Iterable[tuple[bytes, ...]]
    ) -> None:
        wanted, had = Counter(row[0][:8] for row in right), Counter(row[0][:8] for row in seen)
        lost, more = wanted - had, had - wanted
        counters.lost += lost.total()
        counters.duplicated += more.total()
        if not lost and not more:
            same_rows = Counter(right) == Counter(seen)
            counters.reordered += same_rows
            counters.altered += not same_rows
        counters.note(f"{key}: lost {sorted(lost)}, too many {sorted(more)}, of {wanted.total()}")
