"""Test 19: two processes on one store do whatever comes to mind, die at it, lose power; a model of dictionaries knows
what the store must hold.

A seeded random walk with the rules of a hypothesis state machine (tests/storage/test_store_model.py is one, for one
process). The walk forks, kills and reboots; a step takes two milliseconds, of which hypothesis would add as many, and
it could not shrink what depends on a moment. What fails is shown again by its seed.

A call that is killed may have happened or not, as a whole. Calls that may be repeated (a unit with its marker, a
delivery, offsets) are repeated by the other process, and have then happened once.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from crash.dying import quiet
from crash.kill import forget_boot
from crash.model_member import DiedError, Member, RefusedError, warm_up
from crash.model_state import DEAD, KEYS, POPPED, RETRY, SCHEDULE, WRITABLE, Key, Row, State
from crash.part import Counters, Part, Trial
from crash.protections import WITHOUT, protection

if TYPE_CHECKING:
    from rmq_store import StoreConfig

STEPS = 50
UNIT_KEYS = ("q1", "q2")
TAGS = (None, "TagA", "TagB")
# Segments expire by the time of their files: the store's clock is ahead of any.
START_MS = 4_000_000_000_000
SEGMENT_BYTES = 8192
# A call on a few rows makes so many operations, about.
OPERATIONS_MAX = 40

_WORDS = {"appended_end": 5, "flushed_end": 6}


def run(trial: Trial) -> Counters:
    """One walk per cycle, each in a store of its own."""
    quiet()
    counters = Counters()
    everything = replace(_config(random.Random(0)), enabled_append_prop_crc=True, message_index_enable=True)
    warm_up(trial.directory / "warm", everything)
    gc.collect()
    gc.freeze()  # a child that collects garbage would copy every page of this process
    try:
        for cycle in range(trial.cycles):
            seed = f"{trial.seed}/{cycle}"
            root = trial.directory / "store"
            shutil.rmtree(root, ignore_errors=True)
            counters.add(Walk(root, random.Random(seed)).run(seed))
            trial.tick(1)
            if counters.violations and os.environ.get(WITHOUT):
                break  # one is enough to show that it is noticed
    finally:
        gc.unfreeze()
    return counters


class _StopError(Exception):
    """A violation was found: what follows would only be its consequences."""


def _config(chance: random.Random) -> StoreConfig:
    from rmq_store import StoreConfig

    return StoreConfig(
        mapped_file_size_commit_log=SEGMENT_BYTES,
        mapped_file_size_consume_queue=200,
        max_hash_slot_num=16,
        max_index_num=40,
        flush_interval_commit_log=10**9,
        flush_disk_type=chance.choice(["ASYNC_FLUSH", "SYNC_FLUSH"]),
        enabled_append_prop_crc=chance.random() < 0.7,
        message_index_enable=chance.random() < 0.7,
        message_delay_level="1s 5s 10s",
        disk_space_warning_level_ratio=100,
    )


class Walk:
    """One store, two processes, and the state that they must have made."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._root = root
        self._chance = chance
        self._counters = Counters(cycles=1)
        self._config = _config(chance)
        self._now_ms = START_MS
        self._state = State()
        self._numbers = 0
        self._log_start = 0
        self._held: dict[int, tuple[int, str]] = {}
        self._popped = 0
        # Where the log ended after each call that appended, and the state then; since something else was changed.
        self._points: list[tuple[int, State]] = []
        self._unit_at_end = False
        self._members: list[Member | None] = [None, None]

    def run(self, seed: str) -> Counters:
        """Walk, close, verify."""
        step = -1
        try:
            self._open(0)
            self._call("create", by=0)
            self._floor()
            self._open(1)
            rules = self._rules()
            for number in range(STEPS):
                step = number
                self._now_ms += self._chance.choice([0, 1, 400, 3000])
                rule = self._chance.choices(list(rules), list(rules.values()))[0]
                self._counters.seen[rule.__name__.strip("_")] += 1
                rule()
            self._finish()
        except _StopError:
            self._counters.first = f"seed {seed}, step {step}: {self._counters.first}"
        except (RefusedError, DiedError) as error:
            self._counters.broken += 1
            self._counters.first = f"seed {seed}, step {step}: {type(error).__name__} {error}"
        finally:
            for member in self._members:
                if member is not None:
                    member.kill()
        return self._counters

    def _rules(self) -> dict[Callable[[], None], int]:
        rules: dict[Callable[[], None], int] = {
            self._send: 14, self._append: 8, self._send_together: 4, self._commit_unit: 8, self._repeat_unit: 4,
            self._read: 8, self._commit_offsets: 5, self._send_back: 10, self._deliver: 8, self._wait: 6,
            self._look: 5, self._restart: 3, self._kill: 4, self._kill_both: 2, self._reboot: 1, self._cut_power: 3,
            self._cut_unit: 2,
        }  # fmt: skip
        # Where retention took what was given out, the order of what is given out again is not worth a model.
        if self._chance.random() < 0.5:
            return rules | {self._retain: 4}
        return rules | {self._pop: 8, self._ack: 8}

    # -- processes --------------------------------------------------------------------------------------------------

    def _open(self, number: int) -> None:
        others = [member for member in self._members if member is not None]
        member = self._members[number] = Member(self._root, self._config, self._now_ms, others)
        try:
            trust = member.finish()
        except (RefusedError, DiedError):
            self._members[number] = None
            raise
        if trust is not None:
            self._counters.seen[f"recovered {trust}"] += 1

    def _someone(self) -> int:
        return self._chance.randrange(2)

    def _call(self, name: str, *arguments: Any, by: int | None = None, die_at: int = 0) -> Any:
        """What a process answers. If it dies it is replaced, after a look by the other one."""
        number = self._someone() if by is None else by
        member = self._members[number]
        assert member is not None
        try:
            return member.call(self._now_ms, name, *arguments, die_at=die_at)
        except DiedError:
            self._members[number] = None
            self._counters.seen["died in a call"] += 1
            raise

    def _mortal(self) -> int:
        """When the next call dies; 0: it does not."""
        return self._chance.randrange(1, OPERATIONS_MAX) if self._chance.random() < 0.25 else 0

    def _revive(self) -> None:
        for number, member in enumerate(self._members):
            if member is None:
                self._open(number)

    # -- what is written --------------------------------------------------------------------------------------------

    def _row(self) -> tuple[Key, bytes, str | None]:
        self._numbers += 1
        body = b"%08d" % self._numbers + b"." * self._chance.choice([0, 20, 20, 300, 1500])
        return self._chance.choice(WRITABLE), body, self._chance.choice(TAGS)

    def _appends(self, apply: Callable[[State], object], name: str, *arguments: Any, unit: bool = False) -> Any:
        """A call that appends: all of it or nothing, if it dies. Returns its answer, None if it died."""
        after = self._state.copy()
        rows = sum(map(len, after.queues.values()))
        apply(after)
        try:
            *answer, end = self._call(name, *arguments, die_at=self._mortal())
        except DiedError:
            self._settle(after)
            return None
        self._state = after
        self._counters.acknowledged += sum(map(len, after.queues.values())) - rows
        self._point(end, unit=unit)
        return answer[0]

    def _settle(self, after: State) -> None:
        """A call died: find out whether it has happened."""
        if self._chance.random() < 0.5:
            self._revive()
        number = 0 if self._members[0] is not None else 1
        # Under SYNC_FLUSH what was appended is not visible before a flush, whoever makes that.
        self._call("flush", by=number)
        found, start = self._call("look", by=number)
        wrong = self._state.differs(found, start)
        if wrong.violations:
            wrong = after.differs(found, start)
            self._state = after
            self._counters.seen["died, and it had happened"] += 1
        self._expect(wrong)
        self._state.learn(found)
        self._point(self._call("end", by=number))
        self._revive()

    def _repeats(self, name: str, *arguments: Any) -> tuple[Any, bool]:
        """A call that can be repeated: if it dies the other process makes it. Its answer, and whether it died."""
        try:
            return self._call(name, *arguments, die_at=self._mortal()), False
        except DiedError:
            if self._chance.random() < 0.5:
                self._revive()
            number = 0 if self._members[0] is not None else 1
            answer = self._call(name, *arguments, by=number)
            # What the dead one has done counts, but under SYNC_FLUSH it may not be on disk yet.
            self._call("flush", by=number)
            self._revive()
            return answer, True

    def _point(self, end: int, *, unit: bool = False) -> None:
        self._points.append((end, self._state.copy()))
        self._unit_at_end = unit

    def _floor(self) -> None:
        """Something was changed that a power cut does not take back: so it may not take the log back, either."""
        number = 0 if self._members[0] is not None else 1
        self._points = [(self._call("end", by=number), self._state.copy())]
        self._unit_at_end = False

    def _expect(self, wrong: Counters) -> None:
        if wrong.violations:
            self._counters.add(wrong)
            raise _StopError

    def _require(self, right: bool, what: str) -> None:
        if not right:
            self._counters.broken += 1
            self._counters.note(what)
            raise _StopError

    # -- rules ------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        key, body, tags = self._row()
        level = self._chance.choice([0, 0, 1, 2, 3])
        now_ms = self._now_ms
        queue_offset = self._appends(
            lambda state: state.put(key, Row(body, tags), level, now_ms), "send", key, body, tags, level
        )
        if queue_offset is not None:
            place = (SCHEDULE, level - 1) if level else key
            self._require(queue_offset == len(self._state.queues[place]) - 1, f"send: {place} gave {queue_offset}")

    def _append(self) -> None:
        rows = [self._row() for _ in range(self._chance.randrange(1, 9))]

        def apply(state: State) -> None:
            for key, body, tags in rows:
                state.queues[key].append(Row(body, tags))

        count = self._appends(apply, "append", rows)
        self._require(count in (None, len(rows)), f"append: {count} of {len(rows)} rows")

    def _send_together(self) -> None:
        """Both processes send to one queue at the same time; the offsets that they are told say in which order."""
        key = self._chance.choice(WRITABLE)
        rows = [self._row()[1:] for _ in range(2)]
        for member, (body, tags) in zip(self._members, rows, strict=True):
            assert member is not None
            member.start(self._now_ms, "send", key, body, tags, 0)
        answers = [member.finish() for member in self._members if member is not None]
        offsets = [queue_offset for queue_offset, _ in answers]
        first = len(self._state.queues[key])
        self._require(sorted(offsets) == [first, first + 1], f"sent together: {key} gave {offsets}, expected {first}")
        for _, (body, tags) in sorted(zip(offsets, rows, strict=True)):
            self._state.queues[key].append(Row(body, tags))
        self._counters.acknowledged += 2
        self._point(max(end for _, end in answers))

    def _commit_unit(self) -> None:
        key = self._chance.choice(UNIT_KEYS)
        value = self._state.units.get(key, 0) + 1
        rows = [self._row() for _ in range(self._chance.randrange(1, 7))]
        (answer, end), died = self._repeats("unit", key, value, rows)
        self._require(answer == "committed" or (died and answer == "repeated"), f"unit {key} {value}: {answer}")
        for to, body, tags in rows:
            self._state.queues[to].append(Row(body, tags))
        self._state.units[key] = value
        self._counters.acknowledged += len(rows)
        if died:
            # What the two processes did in between is not told apart: no power cut in the middle of this.
            self._floor()
        else:
            self._point(end, unit=True)

    def _repeat_unit(self) -> None:
        """The newest value again, or an older one."""
        if not self._state.units:
            return
        key = self._chance.choice(sorted(self._state.units))
        value = self._state.units[key] - self._chance.randrange(2)
        # An empty repetition would be another content.
        answer, _ = self._call("again", key, value)
        expected = "repeated" if value == self._state.units[key] else "refused"
        self._require(answer == expected, f"unit {key} {value} again: {answer}, expected {expected}")

    def _read(self) -> None:
        key = self._chance.choice(KEYS)
        rows = self._state.queues[key]
        first = self._state.first(key, self._log_start)
        if first == len(rows):
            return
        start = self._chance.randrange(first, len(rows))
        end = self._chance.randrange(start, len(rows)) + 1
        found = [row[:3] for row in self._call("read", key, start, end)]
        self._require(found == [tuple(row[:3]) for row in rows[start:end]], f"read {key} [{start}, {end})")

    def _commit_offsets(self) -> None:
        key = self._chance.choice(WRITABLE)
        offset = self._chance.randrange(len(self._state.queues[key]) + 1)
        self._repeats("commit", {key: offset})
        self._state.committed[key] = offset
        self._floor()

    def _send_back(self) -> None:
        """A message of a topic, or one that was sent back before."""
        places = [key for key in (*WRITABLE, (RETRY, 0)) if self._state.first(key, self._log_start) < len(
            self._state.queues[key])]  # fmt: skip
        if not places:
            return
        key = (RETRY, 0) if (RETRY, 0) in places and self._chance.random() < 0.5 else self._chance.choice(places)
        rows = self._state.queues[key]
        place = self._chance.randrange(self._state.first(key, self._log_start), len(rows))
        if rows[place].offset < 0:
            self._full_look("look")
        row = rows[place]
        level = self._chance.choice([1, 1, 2, -1])
        now_ms = self._now_ms
        topic = self._appends(lambda state: state.send_back(row, level, now_ms), "send_back", row.offset, level)
        dead = row.reconsume_times >= 2 or level < 0
        self._require(topic in (None, DEAD if dead else RETRY), f"send-back of {row.number}: {topic}")

    def _deliver(self) -> None:
        (count, end), died = self._repeats("deliver")
        delivered = self._state.deliver(self._now_ms)
        self._require(count == delivered or (died and count < delivered), f"delivered {count}, due were {delivered}")
        self._counters.acknowledged += delivered
        self._counters.seen["messages delivered"] += delivered
        if died:
            self._floor()
        else:
            self._point(end)

    def _wait(self) -> None:
        self._now_ms += self._chance.choice([1000, 6000, 20_000])

    def _look(self) -> None:
        self._full_look("look_beside" if self._chance.random() < 0.5 else "look")
        committed = self._call("committed")
        self._require(committed == self._state.committed, f"offsets {committed}, not {self._state.committed}")
        units = self._call("last_units", UNIT_KEYS)
        self._require(
            units == {key: self._state.units.get(key) for key in UNIT_KEYS}, f"units {units}, not {self._state.units}"
        )

    def _full_look(self, name: str, by: int | None = None) -> None:
        found, start = self._call(name, by=by)
        self._require(start == self._log_start, f"the log begins at {start}, not {self._log_start}")
        self._expect(self._state.differs(found, start))
        self._state.learn(found)

    def _pop(self) -> None:
        count, invisible_ms = self._chance.randrange(1, 6), self._chance.choice([500, 2000, 10_000])
        if self._chance.random() < 0.6:
            self._send_to_pop()
        over = sorted((until, place) for place, (until, _) in self._held.items() if until <= self._now_ms)
        queue = self._state.queues[POPPED, 0]
        expected = ([place for _, place in over] + list(range(self._popped, len(queue))))[:count]
        found = self._call("pop", count, invisible_ms)
        self._require(
            [(place, body) for place, body, _ in found] == [(place, queue[place].body) for place in expected],
            f"popped {[place for place, _, _ in found]}, expected {expected}",
        )
        for place, _, handle in found:
            self._held[place] = (self._now_ms + invisible_ms, handle)
            self._popped = max(self._popped, place + 1)
        self._floor()

    def _send_to_pop(self) -> None:
        _, body, tags = self._row()
        self._appends(
            lambda state: state.queues[POPPED, 0].append(Row(body, tags)), "send", (POPPED, 0), body, tags, 0
        )

    def _ack(self) -> None:
        if not self._held:
            return
        place = self._chance.choice(sorted(self._held))
        until, handle = self._held[place]
        expected = until > self._now_ms
        self._require(self._call("ack", handle) == expected, f"acknowledged {place}: not {expected}")
        if expected:
            del self._held[place]
        self._floor()

    def _retain(self) -> None:
        self._full_look("look")
        removed, _ = self._call("retain")
        _, start = self._call("look")
        self._require(start == self._log_start + removed * SEGMENT_BYTES or not self._log_start, "a hole")
        self._require(start >= self._log_start, f"the log began at {self._log_start}, and at {start} now")
        waiting = [
            row.offset for level, done in enumerate(self._state.delivered)
            for row in self._state.queues[SCHEDULE, level][done:]
        ]  # fmt: skip
        self._require(all(offset >= start for offset in waiting), "a message was deleted that waits")
        self._log_start = start
        self._counters.seen["segments removed"] += removed
        self._floor()
        self._full_look("look")

    # -- deaths -----------------------------------------------------------------------------------------------------

    def _restart(self) -> None:
        number = self._someone()
        member = self._members[number]
        assert member is not None
        member.close(self._now_ms)
        self._members[number] = None
        if self._chance.random() < 0.3:
            other = self._members[1 - number]
            assert other is not None
            other.close(self._now_ms)
            self._members[1 - number] = None
            self._open(number)
        self._floor()
        self._revive()

    def _kill(self) -> None:
        self._die(self._someone())
        self._revive()

    def _kill_both(self) -> None:
        self._die(0, 1)
        self._revive()
        self._full_look("look")

    def _reboot(self) -> None:
        """The kernel forgets the locks and the boot id, but nothing that was written: whole records of an append that
        nobody has taken back yet would count, so they are taken back first.
        """
        self._call("last_units", UNIT_KEYS)
        self._die(0, 1)
        forget_boot(self._root)
        self._revive()
        self._full_look("look")

    def _cut_unit(self) -> None:
        self._commit_unit()
        self._cut_power(in_unit=True)

    def _cut_power(self, *, in_unit: bool = False) -> None:
        """What was not flushed is gone from some call on, or from the middle of a unit; the views are still there."""
        self._die(0, 1)
        words = np.fromfile(self._root / "pyrmq" / "state", "<i8", 16)
        flushed = int(words[_WORDS["flushed_end"]])
        points = [(end, state) for end, state in self._points if end >= flushed]
        if points:
            cut, self._state = self._chance.choice(points)
            before = [end for end, _ in self._points]
            in_unit |= self._chance.random() < 0.5
            if in_unit and self._unit_at_end and len(before) > 1 and before[-2] >= flushed:
                cut = self._chance.randrange(before[-2], before[-1])
                self._state = self._points[-2][1]
                self._counters.seen["power cut in a unit"] += 1
            self._state = self._state.copy()
            self._zero(cut)
            self._counters.seen["power cut with loss"] += cut < before[-1]
        forget_boot(self._root)
        self._revive()
        self._floor()
        self._full_look("look")

    def _zero(self, start: int) -> None:
        for path in sorted((self._root / "commitlog").iterdir()):
            low = max(start - int(path.name), 0)
            if low < SEGMENT_BYTES:
                with path.open("r+b") as file:
                    file.seek(low)
                    file.write(bytes(SEGMENT_BYTES - low))

    def _die(self, *numbers: int) -> None:
        for number in numbers:
            member = self._members[number]
            assert member is not None
            member.kill()
            self._members[number] = None

    def _finish(self) -> None:
        """All that waits is delivered; then the store is closed, verified, and opened once more."""
        from rmq_store.verify import verify_store

        self._now_ms += 100_000
        self._call("deliver")
        self._state.deliver(self._now_ms)
        self._full_look("look")
        for number, member in enumerate(self._members):
            assert member is not None
            member.close(self._now_ms)
            self._members[number] = None
        report = verify_store(self._root)
        self._require(report.status == "clean", f"verify: {report.status}: {[*report.problems, *report.recovery][:3]}")
        self._open(0)
        self._full_look("look", by=0)


@protection("no_unit_drop", "recovery drops a unit whose end is not reached")
def _no_unit_drop() -> Iterator[None]:
    from rmq_store.log.core.units import UnitScan

    with mock.patch.object(UnitScan, "torn", lambda scan: None):
        yield


@protection("no_marker_check", "a unit is not appended again under a value that its key has already")
def _no_marker_check() -> Iterator[None]:
    from rmq_store.broker.write.writer import Writer

    with mock.patch.object(Writer, "_already_done", lambda *_: False):
        yield


PARTS = (
    Part(
        "model", "19", "two processes against a model: any calls, kills, reboots, power cuts, retention", "walks",
        harness=80, crash=300, soak=10_000, chunk=100, run=run,
        protections=("no_undo", "no_unit_drop", "no_marker_check"), bites_within=20,
    ),
)  # fmt: skip
