"""A clock that is set back or forward by a day, creeps back, or stands still, while messages are sent, wait, are
delivered, and the store is closed and opened.

Nothing is lost or comes twice, and messages of a level keep their order. While the clock is not set back, none comes
earlier than it should by more than the clock was moved. Once it was set back, and were it by a millisecond, what waits
may come at once: RocketMQ takes what seems to be due later than its level allows for due
(ScheduleMessageService#correctDeliverTimestamp), and so do we.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from crash.oracle import Ledger, compare, make_body, read_body, read_queues, verify
from crash.part import Counters, Part, Trial
from crash.protections import protection
from crash.traffic import QUEUES, TOPIC, tiny_config

_DAY_MS = 24 * 3_600_000
_STEPS = 40
# Producers: sent at once, at two delay levels, until a time.
_DIRECT, _LEVELS, _TIMER = 0, (1, 2), 3
_TIMERS = 100
_LEVEL_MS = {1: 1000, 2: 5000}


def run(trial: Trial) -> Counters:
    """One store and one life of its clock in each cycle."""
    counters = Counters()
    for cycle in range(trial.cycles):
        root = trial.directory / "store"
        found = Life(root, random.Random(f"{trial.seed}/{cycle}")).live()
        found.first = found.first and f"cycle {cycle}: {found.first}"
        counters.add(found)
        shutil.rmtree(root)
        trial.tick(1)
    return counters


class Life:
    """True time goes on, the clock does what it likes; `moved_ms` is how far it was moved altogether."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._root = root
        self._chance = chance
        self._true_ms = 0
        self._clock_ms = self._latest_ms = 1_700_000_000_000
        self._frozen = False
        self._moved_ms = 0
        self._sent = [0, 0, 0, 0]
        self._set_back = 0
        # By producer and sequence: when it is due in true time; how far, and how often back, the clock had been moved
        # when it was sent.
        self._due: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._arrived: set[tuple[int, int]] = set()
        self._found = Counters(cycles=1)

    def live(self) -> Counters:
        from rmq_store import StoreError

        store: Any = None
        try:
            store = self._open()
            store.create_topic(TOPIC, queue_count=QUEUES)
            for _ in range(_STEPS):
                step = self._chance.choices(
                    (self._send, self._deliver, self._move_clock, self._wait), (50, 25, 10, 15)
                )[0]  # fmt: skip
                step(store)
                if self._chance.random() < 0.05:
                    store.close()
                    store = self._open()
            self._frozen = False
            self._move_to(self._latest_ms + _DAY_MS)  # whatever waits is due then
            while store.schedule.deliver_due().delivered:
                pass
            queues, wrong = read_queues(store, TOPIC)
            store.close()
        except StoreError as error:
            self._found.broken += 1
            self._found.note(f"{type(error).__name__}: {error}")
            return self._found
        if wrong:
            self._found.broken += 1
            self._found.note(wrong[0])
        acknowledged = {producer: self._sent[producer] for producer in (_DIRECT, *_LEVELS)}
        acknowledged |= {_TIMERS + number: 1 for number in range(self._sent[_TIMER])}
        self._found.add(compare(queues, Ledger(acknowledged)))
        self._found.acknowledged = sum(self._sent)
        verify(self._root, self._found)
        return self._found

    def _open(self) -> Any:
        from rmq_store import Store

        config = tiny_config(flush_interval_commit_log=10**9)
        return Store.open(self._root, create=True, config=config, clock=lambda: self._clock_ms)

    def _send(self, store: Any) -> None:
        from rmq_store import Message

        producer = self._chance.randrange(4)
        sequence = self._sent[producer]
        wish: dict[str, int] = {}
        delay_ms = 0
        if producer in _LEVELS:
            wish, delay_ms = {"delay_level": producer}, _LEVEL_MS[producer]
        elif producer == _TIMER:
            delay_ms = 2000
            wish = {"deliver_timestamp_ms": self._clock_ms + delay_ms}
        # A timer is as early as the clock was ever set back: what was delivered before is not looked at again.
        set_back = self._set_back if producer != _TIMER else 0
        self._due[producer, sequence] = self._true_ms + delay_ms, self._moved_ms, set_back
        # Each timer is a producer of its own: after the clock was set back a later one may be due earlier.
        name = (producer, sequence) if producer != _TIMER else (_TIMERS + sequence, 0)
        store.send(Message(TOPIC, make_body(*name, name[1], 1, 0, b""), queue_id=producer, **wish))
        self._sent[producer] += 1

    def _wait(self, store: Any) -> None:
        passed_ms = self._chance.choice((1, 400, 1000, 3000))
        self._true_ms += passed_ms
        if self._frozen:
            self._moved_ms += passed_ms
        else:
            self._clock_ms += passed_ms
            self._latest_ms = max(self._latest_ms, self._clock_ms)

    def _move_clock(self, store: Any) -> None:
        kind = self._chance.choice(("back", "forward", "creeps back", "stands still"))
        self._found.seen[f"clock {kind}"] += 1
        jump_ms = {"back": -_DAY_MS, "forward": _DAY_MS, "creeps back": -1, "stands still": 0}[kind]
        self._move_to(self._clock_ms + jump_ms)
        self._set_back += jump_ms < 0
        self._frozen = kind == "stands still" or (self._frozen and kind == "creeps back")

    def _move_to(self, clock_ms: int) -> None:
        self._moved_ms += abs(clock_ms - self._clock_ms)
        self._clock_ms = clock_ms
        self._latest_ms = max(self._latest_ms, clock_ms)

    def _deliver(self, store: Any) -> None:
        self._found.seen["delivered"] += store.schedule.deliver_due().delivered
        queues, _ = read_queues(store, TOPIC)
        for body in (body for bodies in queues.values() for body in bodies):
            sent = read_body(body)
            assert sent is not None
            key = (sent.producer, sent.sequence) if sent.producer < _TIMERS else (_TIMER, sent.producer - _TIMERS)
            if key in self._arrived:
                continue
            self._arrived.add(key)
            due_ms, moved_ms, set_back = self._due[key]
            early_ms = due_ms - self._true_ms
            if set_back < self._set_back:
                self._found.seen["came after the clock was set back"] += 1
            elif early_ms > self._moved_ms - moved_ms:
                self._found.broken += 1
                self._found.note(f"{key} came {early_ms} ms early; the clock was moved {self._moved_ms - moved_ms} ms")


@protection("due_now", "takes every waiting message for due")
def due_now() -> Iterator[None]:
    from rmq_store.broker.delay.scheduler import Schedule

    end_now = Schedule._end_now

    def end_later(schedule: Schedule) -> tuple[int, int]:
        end, now_ms = end_now(schedule)
        return end, now_ms + 60_000

    with mock.patch.object(Schedule, "_end_now", end_later):
        yield


PARTS = (
    Part(
        "clock", "17", "a clock set back and forward by a day, creeping back, standing still", "lives of a clock",
        harness=15, crash=300, soak=600, chunk=300, run=run, protections=("due_now",), bites_within=5,
    ),
)  # fmt: skip
