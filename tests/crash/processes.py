"""Many processes on one store, killed in random combination: producers, a deliverer of delayed messages, a committer of
group offsets, a cleaner, readers.

Afterwards nothing acknowledged is missing, groups are where they had got to, and the views are byte for byte those that
are made anew from the log. (Where old messages were deleted the checker has to do: what is made anew then begins
elsewhere.)
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from crash.dying import PATIENCE_S, Child, quiet
from crash.kill import dawdle
from crash.oracle import ACK, FAILED, OPENED, Ledger, compare, make_body, read_body, read_queues, tell, verify
from crash.part import Counters, Part, Trial
from crash.traffic import QUEUES, TOPIC, Traffic, tiny_config

LIFE = 6
READERS = 4
GROUP = "readers"
# Told like a producer: how far the group has got.
COMMITTED = 1 << 31
# Told by the cleaner: something was deleted.
_DELETED = b"d"
# Delayed messages wait a second of the store's clock.
_CLOCK_SPEED = 40
_KILLS_S = 0.04
# Of the cleaner with readers, in milliseconds of the store's clock: a twentieth of a second.
_PATIENCE_MS = 2000
_ROLES = ("producer", "delayer", "deliverer", "committer", "cleaner")


def run(trial: Trial) -> Counters:
    """Kill processes in every cycle; compare after every one."""
    quiet()
    counters = Counters()
    life: Life | None = None
    for cycle in range(trial.cycles):
        chance = random.Random(f"{trial.seed}/{cycle}")
        if life is None or life.cycles == LIFE:
            shutil.rmtree(trial.directory / "store", ignore_errors=True)
            life = Life(trial.directory, cleans=bool(cycle // LIFE % 2))
        found = life.cycle(chance, cycle)
        if found.violations:
            found.first = f"cycle {cycle}: {found.first}"
            life = None
        counters.add(found)
        trial.tick(1)
    return counters


class Life:
    """One store; with `cleans`, old messages are deleted all the time."""

    def __init__(self, directory: Path, *, cleans: bool) -> None:
        from rmq_store import Message, Store

        self.root = directory / "store"
        self.cycles = 0
        self._directory = directory
        self._cleans = cleans
        self._ledger = Ledger()
        self._start_s = time.time()
        config = tiny_config(
            mapped_file_size_commit_log=8 << 10, flush_interval_commit_log=3, delete_commit_log_files_interval=0,
            destroy_maped_file_interval_forcibly=_PATIENCE_MS,
        )  # fmt: skip
        with Store.open(self.root, create=True, config=config, clock=self.clock) as store:
            store.create_topic(TOPIC, queue_count=QUEUES)
            # What these import is imported here, not in every child.
            first = Traffic(store, (1 << 31) - 1, random.Random(0), large=False)
            for call in (first.send, first.send_all, first.append, first.commit_unit):
                call()
            self._ledger.acknowledged[(1 << 31) - 1] = first.sent
            store.send(Message(TOPIC, make_body((1 << 31) - 2, 0, 0, 1, 0, b""), delay_level=1))

    def clock(self) -> int:
        return int((self._start_s + _CLOCK_SPEED * (time.time() - self._start_s)) * 1000)

    def cycle(self, chance: random.Random, number: int) -> Counters:
        self.cycles += 1
        found = Counters(cycles=1)
        acknowledged = sum(self._ledger.acknowledged.values())
        roles: list[tuple[str, Callable[[int], None]]] = []
        for role in _ROLES:
            if role != "cleaner" or self._cleans:
                seed = random.Random(chance.random())
                roles.append((role, partial(getattr(self, f"_{role}"), seed, 2 * number)))
        roles += [("reader", self._reader)] * READERS
        chance.shuffle(roles)
        children = [
            (role, Child(work, self._directory / f"error-{place}")) for place, (role, work) in enumerate(roles)
        ]
        # All are at work before the first one dies, however busy the machine is.
        calls = chance.randrange(1, 12)
        for _, child in children:
            child.told.wait(lambda told: told.words[ACK] >= calls or told.words[OPENED] > 0, PATIENCE_S)
        if self._cleans and (self.cycles == 1 or chance.random() < 0.5):
            self._wait_for_deletion(dict(children)["cleaner"], found)
        moments = sorted(chance.uniform(0, _KILLS_S) for _ in children)
        begun_s = time.monotonic()
        for moment_s, (role, child) in zip(moments, children, strict=True):
            time.sleep(max(0.0, moment_s - (time.monotonic() - begun_s)))
            ended = child.kill()
            found.seen[f"{role} killed" if ended < 0 else f"{role} ended"] += 1
            if child.error:
                found.broken += 1
                found.note(f"{role}: {child.error}")
            self._ledger.note(child.told)
        try:
            self._look(found)
        except Exception as error:
            found.broken += 1
            found.note(f"{type(error).__name__}: {error}")
        found.acknowledged = sum(self._ledger.acknowledged.values()) - acknowledged
        return found

    def _wait_for_deletion(self, cleaner: Child, found: Counters) -> None:
        """The others go on: sooner or later there is something old enough."""
        deleted = cleaner.told.wait(lambda told: told.words[_DELETED] > 0, PATIENCE_S)
        found.seen["kills behind a deletion"] += deleted
        if not deleted and not cleaner.told.words[FAILED]:
            found.broken += 1
            found.note(f"the cleaner has deleted nothing in {PATIENCE_S} s")

    # -- what the processes do, until they are killed ----------------------------------------------------------------

    def _producer(self, chance: random.Random, number: int, pipe: int) -> None:
        from rmq_store import Store

        with Store.open(self.root, clock=self.clock) as store:
            traffic = Traffic(store, number, chance, large=False)
            dawdle(chance)  # others look, and the kill comes, in the middle of an append
            while True:
                tell(pipe, ACK, number, traffic.call())

    def _delayer(self, chance: random.Random, number: int, pipe: int) -> None:
        from rmq_store import Message, Store

        with Store.open(self.root, clock=self.clock) as store:
            for sequence in range(1 << 20):
                body = make_body(number + 1, sequence, sequence, 1, 0, b"%d" % sequence)
                store.send(Message(TOPIC, body, queue_id=0, delay_level=1))
                tell(pipe, ACK, number + 1, sequence + 1)
                time.sleep(chance.uniform(0, 0.004))

    def _deliverer(self, chance: random.Random, number: int, pipe: int) -> None:
        from rmq_store import Store

        with Store.open(self.root, clock=self.clock) as store:
            while True:
                tell(pipe, OPENED)
                store.schedule.deliver_due(chance.choice((None, 3)))
                time.sleep(0.002)

    def _committer(self, chance: random.Random, number: int, pipe: int) -> None:
        from rmq_store import Store

        with Store.open(self.root, clock=self.clock) as store:
            done = store.committed_offsets(GROUP).get((TOPIC, 0), 0)
            while True:
                done += 1
                store.commit_offsets(GROUP, {(TOPIC, 0): done})
                tell(pipe, ACK, COMMITTED, done)
                time.sleep(chance.uniform(0, 0.004))

    def _cleaner(self, chance: random.Random, number: int, pipe: int) -> None:
        from rmq_store import Store

        with Store.open(self.root, clock=self.clock) as store:
            while True:
                report = store.retention.run(manual=True, file_reserved_time=0)
                tell(pipe, OPENED)
                if report.removed:
                    tell(pipe, _DELETED)
                time.sleep(chance.uniform(0, 0.01))

    def _reader(self, pipe: int) -> None:
        """What it sees are whole messages with the bytes that were sent, at the offsets it asked for."""
        from rmq_store import OffsetOutOfRangeError, Store

        with Store.open(self.root, read_only=True) as store:
            while True:
                store.refresh()
                for queue_id, (first, last) in store.queue_ranges(TOPIC).items():
                    try:
                        rows = [
                            row
                            for batch in store.read(TOPIC, queue_id, first, last, columns=["queueOffset", "body"])
                            for row in batch.to_pylist()
                        ]
                    except OffsetOutOfRangeError:
                        continue  # deleted between the two looks
                    assert [row["queueOffset"] for row in rows] == list(range(first, last))
                    assert all(read_body(row["body"]) for row in rows)
                tell(pipe, OPENED)
                time.sleep(0.003)

    # -- what is left of it ------------------------------------------------------------------------------------------

    def _look(self, found: Counters) -> None:
        from rmq_store import Store

        later_ms = self.clock() + 60_000
        with Store.open(self.root, clock=lambda: max(later_ms, self.clock())) as store:
            store.schedule.deliver_due()
            start = store.log_range()[0]
            queues, wrong = read_queues(store, TOPIC)
            offset = store.committed_offsets(GROUP).get((TOPIC, 0), 0)
        acknowledged = self._ledger.acknowledged
        committed = acknowledged.get(COMMITTED, 0)
        if not committed <= offset <= committed + 1:
            wrong.append(f"a group had committed {committed} and finds {offset}")
        acknowledged[COMMITTED] = offset
        if start:
            found.seen["looks after deletions"] += 1
            self._forget_deleted(queues)
        messages = Ledger({name: count for name, count in acknowledged.items() if name != COMMITTED})
        messages.begun = self._ledger.begun
        found.add(compare(queues, messages))
        verify(self.root, found)
        if not start:
            wrong += self._unlike_rebuilt(found)
        if wrong:
            found.broken += 1
            found.note(wrong[0])

    def _forget_deleted(self, queues: dict[object, list[bytes]]) -> None:
        """Deletion takes the oldest of each producer; which, the log knows. What is left must have no gap."""
        present: dict[int, int] = {}
        for body in (body for bodies in queues.values() for body in bodies):
            sent = read_body(body)
            if sent is not None:
                present[sent.producer] = min(present.get(sent.producer, sent.sequence), sent.sequence)
        for producer, count in self._ledger.acknowledged.items():
            self._ledger.begun[producer] = present.get(producer, count)

    def _unlike_rebuilt(self, found: Counters) -> list[str]:
        """Make the views of a copy anew from its log, and compare them byte for byte."""
        from rmq_store import Store

        copy = self._directory / "copy"
        shutil.copytree(self.root, copy)
        for views in ("consumequeue", "index"):
            shutil.rmtree(copy / views)
        with Store.open(copy):
            pass
        found.seen["views compared byte for byte"] += 1
        different = [
            f"{views} differs from one made anew from the log"
            for views in ("consumequeue", "index")
            if _content(self.root / views) != _content(copy / views)
        ]
        shutil.rmtree(copy)
        return different


def _content(directory: Path) -> dict[str, bytes]:
    """Files with anything in them, by name: a dead process may leave an empty queue behind."""
    files = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    return {name: data for name, path in files.items() if (data := path.read_bytes()).strip(b"\0")}


PARTS = (
    Part(
        "processes", "3", "producers, deliverer, committer, cleaner and readers killed in random combination", "cycles",
        harness=14, crash=120, soak=2000, chunk=150, run=run, protections=("early_end",), bites_within=6,
    ),
)  # fmt: skip
