"""store.pop against a table in memory that knows the states of a message (B04), in any order of calls."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rmq_store import InvalidReceiptHandleError, Message, Store, StoreConfig
from rmq_store.broker.pop.pop import Popped

QUEUES = 2
ATTEMPTS_MAX = 3
Place = tuple[int, int]


@dataclass
class Held:
    """Inflight while the clock is before `visible_at_ms`, then WaitingRetry, or DLQ when the attempts are used up."""

    attempt: int
    visible_at_ms: int
    handle: str


def place_of(popped: Popped) -> Place:
    return popped.row.column("queueId")[0].as_py(), popped.row.column("queueOffset")[0].as_py()


class PopMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
        self.now_ms = 1_700_000_000_000
        self.sent = [0] * QUEUES
        self.next = [0] * QUEUES
        self.held: dict[Place, Held] = {}
        self.dead: set[Place] = set()
        self.void: list[str] = []

    @initialize()
    def open(self) -> None:
        config = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=100, max_index_num=1000)
        self.store = Store.open(self.root / "store", create=True, config=config, clock=lambda: self.now_ms)
        self.store.create_topic("T", queue_count=QUEUES, exist_ok=True)

    @rule(queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 3))
    def send(self, queue_id: int, count: int) -> None:
        for _ in range(count):
            self.store.send(Message("T", b"%d %d" % (queue_id, self.sent[queue_id]), queue_id=queue_id))
            self.sent[queue_id] += 1

    @rule(count=st.integers(1, 6), invisible_ms=st.integers(1, 40))
    def receive(self, count: int, invisible_ms: int) -> None:
        over = {place: held for place, held in self.held.items() if held.visible_at_ms <= self.now_ms}
        exhausted = {place for place, held in over.items() if held.attempt == ATTEMPTS_MAX}
        waiting = sorted((held.visible_at_ms, place) for place, held in over.items() if place not in exhausted)
        new = sum(self.sent) - sum(self.next)
        popped = self.store.pop.receive("g", "T", count, invisible_ms, max_delivery_attempts=ATTEMPTS_MAX)
        for place in exhausted:
            self.void.append(self.held.pop(place).handle)
        self.dead |= exhausted
        places = [place_of(one) for one in popped]
        assert len(places) == len(set(places)) == min(count, len(waiting) + new)
        again = [place for _, place in waiting][: len(places)]
        assert places[: len(again)] == again, "first what waits, the longest first"
        for place, one in zip(places, popped, strict=True):
            queue_id, offset = place
            assert one.row.column("body")[0].as_py() == b"%d %d" % place
            if place in self.held:
                self.void.append(self.held[place].handle)
                attempt = self.held[place].attempt + 1
            else:
                assert offset == self.next[queue_id], "new messages come in order, none is left out"
                self.next[queue_id] += 1
                attempt = 1
            assert one.delivery_attempt == attempt
            self.held[place] = Held(attempt, self.now_ms + invisible_ms, one.receipt_handle)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        place = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[place]
        if self.now_ms >= held.visible_at_ms:
            with pytest.raises(InvalidReceiptHandleError):
                self.store.pop.ack("g", "T", held.handle)
        else:
            self.store.pop.ack("g", "T", held.handle)
            self.void.append(self.held.pop(place).handle)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), invisible_ms=st.integers(0, 40))
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        held = self.held[data.draw(st.sampled_from(sorted(self.held)))]
        if self.now_ms >= held.visible_at_ms:
            with pytest.raises(InvalidReceiptHandleError):
                self.store.pop.change_invisible_duration("g", "T", held.handle, invisible_ms)
        else:
            self.void.append(held.handle)
            held.handle = self.store.pop.change_invisible_duration("g", "T", held.handle, invisible_ms)
            held.visible_at_ms = self.now_ms + invisible_ms

    @precondition(lambda self: self.void)
    @rule(data=st.data())
    def use_a_void_handle(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.void))
        with pytest.raises(InvalidReceiptHandleError):
            self.store.pop.ack("g", "T", handle)
        with pytest.raises(InvalidReceiptHandleError):
            self.store.pop.change_invisible_duration("g", "T", handle, 10)

    @rule(milliseconds=st.sampled_from([1, 5, 10, 30, 6000]))
    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()
        committed = self.store.committed_offsets("g")
        for queue_id in range(QUEUES):
            if ("T", queue_id) in committed:
                unfinished = [offset for queue, offset in self.held if queue == queue_id]
                assert committed["T", queue_id] == min(unfinished, default=self.next[queue_id])

    @invariant()
    def dead_letters_are_those_that_failed_too_often(self) -> None:
        if not hasattr(self, "store") or "%DLQ%g" not in self.store.topics():
            assert not self.dead
            return
        last = self.store.queue_range("%DLQ%g", 0).max_offset
        batches = self.store.read("%DLQ%g", 0, 0, last, columns=["body"])
        bodies = [body for batch in batches for body in batch["body"].to_pylist()]
        assert sorted(bodies) == sorted(b"%d %d" % place for place in self.dead)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        shutil.rmtree(self.root)


class LongPopMachine(PopMachine):
    """The same with more lives."""


PopMachine.TestCase.settings = settings(max_examples=6, stateful_step_count=40)
LongPopMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
TestPop = pytest.mark.statement("B04", "B05", "E01", "E03", "E04", "E05", "E06")(PopMachine.TestCase)
TestPopInManyLives = pytest.mark.slow(LongPopMachine.TestCase)
