"""A disk that is full: filled by the store, or by a neighbour, at any step.

The victim is a child, because a store through a map over a hole kills (SIGBUS) and does not raise. While there is no
room it appends, rolls, writes tables, stages and commits; each call is acknowledged or says StoreFullError. Nothing
half-done may be seen. Then there is room again, and the same open store must go on.

`full_disk` mounts a tmpfs of 1 to 64 MiB, which takes root. `file_size_limit` needs no rights: RLIMIT_FSIZE.
"""

from __future__ import annotations

import functools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from crash.part import Counters, Part, Trial
from crash.protections import protection

if TYPE_CHECKING:
    from crash.failing_life import Life

_MIB = 1 << 20
_SIZES_MIB = (1, 1, 2, 2, 3, 4, 6, 8, 16, 32, 64)
_SEGMENT_BYTES = (16 << 10, 64 << 10, 128 << 10)
_BODY_BYTES_MAX = 4000
_ROUNDS = 3
_CALLS_WHEN_FULL = 12
_CALLS_TO_FILL_MAX = 3000


@protection("no_fallocate", "blocks of what is written through a map are allocated first, and a full disk is seen then")
def no_fallocate() -> Iterator[None]:
    def leave_holes(fd: int, offset: int, size_bytes: int) -> None:
        os.ftruncate(fd, max(os.fstat(fd).st_size, offset + size_bytes))

    with patch.object(os, "posix_fallocate", leave_holes):
        yield


# -- where there is no room -----------------------------------------------------------------------------------------


class Tmpfs:
    """A file system of its own; a neighbour's file takes what is free, a reserve gives some back."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory = directory
        self.size_bytes = chance.choice(_SIZES_MIB) * _MIB
        self._reserve = directory / "reserve"
        self._neighbour = directory / "neighbour"
        self._chance = chance
        # Each round gives 1/12 of the disk back: that must be room for what is tried once more, its staged file and a
        # segment that is begun included.
        self._reserve_bytes = self.size_bytes // 3
        self.segment_bytes = [size for size in _SEGMENT_BYTES if size * 32 <= self.size_bytes]
        self.body_bytes_max = min(_BODY_BYTES_MAX, self.size_bytes >> 10)

    def prepare(self) -> None:
        _allocate(self._reserve, self._reserve_bytes)

    def fill(self, life: Life) -> None:
        if self.size_bytes > 8 * _MIB or self._chance.random() < 0.7:
            free = _free_bytes(self.directory)
            _allocate(self._neighbour, max(free - self._chance.choice((0, 4096, 20_000, 100_000)), 0))
            return
        for _ in range(_CALLS_TO_FILL_MAX):
            if not life.append(self.size_bytes // (400 * _MIB // 1000) + 20):
                return
        life.broken("the disk did not get full")

    def free(self, left: int) -> None:
        """Give back; `left` rounds are still to come."""
        self._neighbour.unlink(missing_ok=True)
        os.truncate(self._reserve, self._reserve_bytes * left // (_ROUNDS + 1))


class SizeLimit:
    """No file may grow, or be written, beyond some size."""

    segment_bytes = _SEGMENT_BYTES
    body_bytes_max = _BODY_BYTES_MAX

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def prepare(self) -> None:
        pass

    def fill(self, life: Life) -> None:
        limit = self._chance.choice((0, 100, 600, 2000, 5000, 20_000, 40_000, life.config.mapped_file_size_commit_log))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def free(self, left: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


# Bound before any protection takes it away from the engine.
_real_fallocate = os.posix_fallocate


def _allocate(path: Path, size_bytes: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if size_bytes:
        _real_fallocate(fd, 0, size_bytes)
    os.close(fd)


# -- the victim -----------------------------------------------------------------------------------------------------


def _some_call(life: Life, chance: random.Random) -> bool:
    """One of all steps that need room; whether it was acknowledged."""
    known = life.counters.acknowledged
    errors = life.errors.total()
    kinds: list[Callable[[], object]] = [
        lambda: life.append(chance.randrange(1, 30)), life.send, lambda: life.send_all(3), life.commit_staged,
        life.commit_offsets, lambda: life.send(delay_level=1), life.deliver,
        lambda: life.attempt(lambda: life.opened.create_topic(f"T{life.clock()}", 1)),
        lambda: life.attempt(lambda: life.opened.flush()),
    ]  # fmt: skip
    chance.choices(kinds, (4, 4, 2, 2, 2, 1, 1, 2, 1))[0]()
    return life.counters.acknowledged > known or life.errors.total() == errors


def _suffer(life: Life, chance: random.Random, room: Tmpfs | SizeLimit) -> None:
    from rmq_store.errors import StoreError

    room.prepare()
    life.begin(3)
    for _ in range(chance.randrange(0, 12)):
        _some_call(life, chance)
    if life.errors:
        life.broken(f"no room from the start: {dict(life.errors)}")
        return
    for left in range(_ROUNDS, 0, -1):
        room.fill(life)
        for _ in range(_CALLS_WHEN_FULL):
            _some_call(life, chance)
        try:
            life.compare(deliver=False)
        except StoreError as error:
            life.broken(f"cannot be read while there is no room: {error}")
        if chance.random() < 0.3:
            closed = life.close()
            life.counters.seen["closed without room"] += 1
            if life.attempt(life.open):
                life.counters.seen["opened without room"] += 1
            elif not closed:
                life.counters.seen["neither closed nor opened without room"] += 1
        life.counters.seen["refused"] += life.errors.total()
        if unexpected := life.errors.keys() - {"StoreFullError"}:
            life.broken(f"{sorted(unexpected)} instead of StoreFullError")
        life.errors.clear()
        room.free(left - 1)
        if life.store is None:
            life.open()
        life.counters.seen["went on"] += 1
        # Once more what failed: the same store, still open.
        for again in (life.send, life.commit_staged, life.commit_offsets, lambda: life.append(5)):
            again()
        if life.errors:
            life.broken(f"does not go on where there is room again: {dict(life.errors)}")
            life.errors.clear()
    life.finish()


def _victim(root: Path, case: str, room: Tmpfs | SizeLimit, chance: random.Random) -> Counters:
    """In the child."""
    from crash.failing_life import TINY, Life

    segment_bytes = chance.choice(room.segment_bytes)
    config = replace(
        TINY, mapped_file_size_commit_log=segment_bytes, mapped_file_size_consume_queue=chance.choice((400, 20_000)),
        max_hash_slot_num=chance.choice((16, 2000)), max_index_num=60, disk_space_warning_level_ratio=100,
    )  # fmt: skip
    life = Life(root, chance, Counters(), lambda: None, config, min(segment_bytes // 2, room.body_bytes_max), name=case)
    life.sync = chance.random() < 0.3
    _suffer(life, chance, room)
    return life.counters


def _in_child(work: Callable[[], Counters], case: str) -> Counters:
    """Run it in a forked process; one that is killed is a violation."""
    sys.stdout.flush()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            _be_quiet()
            counters = work()
            figures = {name: getattr(counters, name) for name in Counters.__slots__}
            with os.fdopen(write, "w") as pipe:
                json.dump(figures, pipe)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code or not told:
        counters = Counters(broken=1)
        counters.seen["killed by a signal"] += code < 0
        counters.note(f"{case}: the process ended with {code}")
        return counters
    figures = json.loads(told)
    return Counters(**{**figures, "seen": Counter(figures["seen"])})


def _be_quiet() -> None:
    import faulthandler
    import logging

    faulthandler.disable()  # without its protection the victim is meant to be killed
    logging.disable(logging.CRITICAL)


# -- the parts ------------------------------------------------------------------------------------------------------


@functools.cache
def _cannot_mount() -> str:
    if os.geteuid() != 0:
        return "needs root, to mount a tmpfs"
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], capture_output=True, check=False)
        if done.returncode:
            return "may not mount a tmpfs"
        subprocess.run(["umount", directory], check=True)
    return ""


def _run_full_disk(trial: Trial) -> Counters:
    total = Counters()
    mountpoint = trial.directory / "disk"
    mountpoint.mkdir()
    for cycle in range(trial.cycles):
        chance = random.Random(f"{trial.seed}/{cycle}")
        room = Tmpfs(mountpoint, chance)
        case = f"{room.size_bytes // _MIB} MiB, seed {trial.seed}/{cycle}"
        options = f"size={room.size_bytes},mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mountpoint)], check=True)
        try:
            work = functools.partial(_victim, mountpoint / "store", case, room, chance)
            total.add(_in_child(work, case))
        finally:
            subprocess.run(["umount", str(mountpoint)], check=True)
        total.cycles += 1
        trial.tick(1)
    return total


def _run_size_limit(trial: Trial) -> Counters:
    total = Counters()
    for cycle in range(trial.cycles):
        chance = random.Random(f"{trial.seed}/{cycle}")
        case = f"RLIMIT_FSIZE, seed {trial.seed}/{cycle}"
        with tempfile.TemporaryDirectory(dir=trial.directory) as directory:
            work = functools.partial(_victim, Path(directory) / "store", case, SizeLimit(chance), chance)
            total.add(_in_child(work, case))
        total.cycles += 1
        trial.tick(1)
    return total


PARTS = (
    Part(
        name="full_disk",
        number="11",
        title="a full disk of 1 to 64 MiB, filled by the store or by a neighbour, at every step",
        unit="disks",
        harness=12,
        crash=200,
        soak=800,
        chunk=100,
        run=_run_full_disk,
        protections=("no_fallocate",),
        bites_within=10,
        cannot_run=_cannot_mount,
    ),
    Part(
        name="file_size_limit",
        number="11",
        title="files that may not grow (RLIMIT_FSIZE), at every step",
        unit="stores",
        harness=12,
        crash=400,
        soak=800,
        chunk=100,
        run=_run_size_limit,
    ),
)
