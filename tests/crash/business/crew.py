"""The processes of a life: forked, armed, killed, replaced; and what happens to the servers meanwhile."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from crash.business import points
from crash.business.consumer import run_consumer
from crash.business.sender import run_relay, run_sender
from crash.business.setting import Group, Setting, Word

# A point that nobody comes to within this time is given up, and its process killed where it is.
REACHES_IN_S = 25.0
STOPPED_S = 0.6
_LOOK_S = 0.01
_ENDS_IN_S = 60.0
_DIES_WITH_ITS_PARENT = 1  # PR_SET_PDEATHSIG
SKEWS_MS = (0, 0, 0, 150, -150)


@dataclass(slots=True)
class Plan:
    """What a process is armed with: perhaps a stop, then a kill."""

    point: str
    arms: list[points.Arm]


@dataclass(slots=True)
class Slot:
    """A place in the crew, and who has it now."""

    role: str
    group: Group | None
    plans: list[Plan] = field(default_factory=list)
    pid: int = 0
    plan: Plan | None = None
    begun_s: float = 0.0
    stopped_s: float | None = None


class Crew:
    """Everybody who works in a life."""

    def __init__(self, setting: Setting, chance: random.Random, seen: Counter[str]) -> None:
        self._setting = setting
        self._chance = chance
        self._seen = seen
        self._numbers = 0
        self.failures: list[str] = []
        self.kills = 0
        roles: list[tuple[str, Group | None]] = [("sender", None)] * 2 + [("relay", None)] * 2
        roles += [("consumer", group) for group in setting.groups for _ in range(2)]
        self.slots = [Slot(role, group) for role, group in roles]

    def arm(self, planned: Sequence[str]) -> None:
        """Give points to slots, each role its own in turn."""
        turns: Counter[str] = Counter()
        for point in planned:
            role = point.partition(" ")[0]
            mine = [slot for slot in self.slots if slot.role == role]
            # From group to group, so that both members of one do not die at a time.
            mine = mine[::2] + mine[1::2]
            arms = []
            if self._chance.random() < 0.3:
                arms.append(points.Arm(self._chance.choice(points.STOPS[role]), 1, signal.SIGSTOP))
            arms.append(points.Arm(point, self._chance.choice((1, 1, 2, 3))))
            mine[turns[role] % len(mine)].plans.append(Plan(point, arms))
            turns[role] += 1

    def start(self) -> None:
        """All of them."""
        for slot in self.slots:
            self._fork(slot)

    @property
    def is_armed(self) -> bool:
        """Whether somebody has still to die."""
        return any(slot.plan is not None or slot.plans for slot in self.slots)

    def look(self) -> int:
        """Bury who died and replace them, wake who has stopped; returns how many kills there were."""
        before = self.kills
        for slot in self.slots:
            if slot.pid:
                self._look_at(slot)
        time.sleep(_LOOK_S)
        return self.kills - before

    def end(self) -> None:
        """Let everybody finish; who does not is killed, and said."""
        self._setting.words[Word.ALL_END] = 1
        deadline_s = time.monotonic() + _ENDS_IN_S
        while any(slot.pid for slot in self.slots) and time.monotonic() < deadline_s:
            for slot in self.slots:
                if slot.pid and self._wait(slot) is not None:
                    slot.pid = 0
            time.sleep(_LOOK_S)
        self.failures += [f"{_name(slot)} does not end" for slot in self.slots if slot.pid]
        self.bury()

    def bury(self) -> None:
        """Kill everybody."""
        for slot in self.slots:
            if slot.pid:
                os.kill(slot.pid, signal.SIGKILL)
                os.waitpid(slot.pid, 0)
                slot.pid = 0

    def _look_at(self, slot: Slot) -> None:
        now_s = time.monotonic()
        if slot.stopped_s is not None and now_s - slot.stopped_s > STOPPED_S:
            slot.stopped_s = None
            os.kill(slot.pid, signal.SIGCONT)
        status = self._wait(slot)
        if status is None:
            if slot.plan is not None and slot.stopped_s is None and now_s - slot.begun_s > REACHES_IN_S:
                self._seen[f"not reached: {slot.plan.point}"] += 1
                os.kill(slot.pid, signal.SIGKILL)
                slot.plan = None
                self.kills += 1
            return
        if status == -signal.SIGKILL:
            pid = str(slot.pid)
            if [pid] in self._setting.notes("kills by a message"):
                self._seen["killed by a message"] += 1
                # Its own kill is still due.
                if slot.plan is not None:
                    slot.plans.insert(0, slot.plan)
            elif slot.plan is not None:
                self._seen[f"at {slot.plan.point}"] += 1
                self.kills += 1
        elif status != 0 or not self._setting.words[Word.ALL_END]:
            ended_early = slot.role == "sender" and self._setting.words[Word.SENDERS_END] and status == 0
            if not ended_early:
                told = " ".join(" ".join(words) for words in self._setting.notes(f"failure-{slot.pid}"))
                self.failures.append(f"{_name(slot)} ended with {status}: {told}")
        slot.plan = None
        if slot.role == "sender" and self._setting.words[Word.SENDERS_END]:
            slot.pid = 0
            return
        self._fork(slot)

    def _wait(self, slot: Slot) -> int | None:
        """How the process ended; None if it has not."""
        pid, status = os.waitpid(slot.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            slot.stopped_s = time.monotonic()
            self._seen["stopped with a lease"] += 1
            return None
        return os.waitstatus_to_exitcode(status)

    def _fork(self, slot: Slot) -> None:
        self._numbers += 1
        slot.plan = slot.plans.pop(0) if slot.plans else None
        chance = random.Random(self._chance.random())
        trap = points.Trap(slot.plan.arms if slot.plan else [])
        skew_ms = chance.choice(SKEWS_MS)
        work: Callable[[], None]
        if slot.role == "sender":
            work = partial(run_sender, self._setting, chance, self._numbers, trap, skew_ms)
        elif slot.role == "relay":
            work = partial(run_relay, self._setting, chance, trap, skew_ms)
        else:
            assert slot.group is not None
            work = partial(run_consumer, self._setting, slot.group, trap, skew_ms)
        slot.begun_s, slot.stopped_s = time.monotonic(), None
        slot.pid = os.fork()
        if slot.pid == 0:
            code = 1
            gc.freeze()
            ctypes.CDLL(None).prctl(_DIES_WITH_ITS_PARENT, signal.SIGKILL)
            try:
                work()
                code = 0
            except BaseException:
                self._setting.note(f"failure-{os.getpid()}", traceback.format_exc()[-3000:])
            finally:
                os._exit(code)


def _name(slot: Slot) -> str:
    return slot.role if slot.group is None else f"{slot.role} of {slot.group.name}"
