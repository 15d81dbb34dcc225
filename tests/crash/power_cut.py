"""Power cuts of a real file system: ext4 on a loop device whose file is cloned at any time.

    memory or disk -> XFS with reflink -> disk.img -> loop device -> ext4 -> two stores that are written to
                                       -> FICLONE: cut.img -> loop device -> ext4 replays its journal -> opened

A clone is what had reached the "device" at one moment. It must hold what was acknowledged before that moment: of a
store under SYNC_FLUSH every message, under ASYNC_FLUSH what an explicit flush had covered; and behind that nothing but
the beginning of what was sent. It is always whole sectors in the order in which ext4 sent them: what a device does with
its own cache is the simulated disk's question.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from crash import loops
from crash.dying import BEFORE_BOOT, Child, quiet
from crash.oracle import ACK, Ledger, compare, read_queues, tell, verify
from crash.part import Counters, Part, Trial
from crash.traffic import TOPIC, Traffic, tiny_config

CUTS_PER_LIFE = 12
_FLUSH_TYPES = ("SYNC_FLUSH", "ASYNC_FLUSH")
_FICLONE = 0x40049409
_XFS_BYTES = 640 << 20  # mkfs.xfs makes none below 300 MiB
_EXT4_BYTES = 160 << 20
_FULL_BYTES = 40 << 20  # a store that has grown so far pauses until the next life
_FLUSH_EVERY = 40  # calls, under ASYNC_FLUSH
_LONGEST_WAIT_S = 0.1
_PATIENCE_S = 60
_SENT = 1 << 20  # added to a producer: how much it has sent, acknowledged or not


def run(trial: Trial) -> Counters:
    """Cut the power `cycles` times."""
    return loops.in_own_mounts(_run, trial)


def _run(trial: Trial) -> Counters:
    quiet()
    directory = trial.directory
    counters = Counters()
    image = loops.file_system(directory / "xfs.img", _XFS_BYTES, "mkfs.xfs", "-q", "-m", "reflink=1")
    with loops.mounted(image, directory / "xfs", "-o", "loop"):
        disk = loops.file_system(directory / "xfs" / "disk.img", _EXT4_BYTES, "mkfs.ext4", "-q", "-F")
        with loops.mounted(disk, directory / "live", "-o", "loop"):
            for life, first in enumerate(range(0, trial.cycles, CUTS_PER_LIFE)):
                cuts = min(CUTS_PER_LIFE, trial.cycles - first)
                _live_and_cut(directory, random.Random(f"{trial.seed}/{life}"), cuts, counters, trial.tick)
    return counters


def _live_and_cut(
    directory: Path, chance: random.Random, cuts: int, counters: Counters, tick: Callable[[int], None]
) -> None:
    """Two writers, and some cuts while they write."""
    writers = {}
    try:
        for flush_type in _FLUSH_TYPES:
            root = directory / "live" / flush_type
            shutil.rmtree(root, ignore_errors=True)
            work = partial(_write, root, flush_type, chance.random())
            writers[flush_type] = Child(work, directory / f"error-{flush_type}")
        for writer in writers.values():
            assert writer.told.wait(lambda told: bool(told.acknowledged), _PATIENCE_S), writer.error
        for _ in range(cuts):
            _wait(chance.uniform(0, _LONGEST_WAIT_S))
            _cut(directory, writers, counters)
            tick(1)
    finally:
        for writer in writers.values():
            writer.kill()
    for writer in writers.values():
        if writer.error:
            counters.broken += 1
            counters.note(f"a writer failed: {writer.error}")


def _wait(seconds: float) -> None:
    import time

    time.sleep(seconds)


def _write(root: Path, flush_type: str, seed: float, pipe: int) -> None:
    """Append for ever; tell what is on disk by promise, and how much was sent."""
    from rmq_store import Store
    from rmq_store.log.append.flush import save_progress

    loops.die_with_parent()
    chance = random.Random(seed)
    producer = _FLUSH_TYPES.index(flush_type)
    config = tiny_config(flush_disk_type=flush_type, flush_interval_commit_log=100)
    with Store.open(root, create=True, config=config) as store:
        traffic = Traffic(store, producer, chance)
        calls = 0
        while True:
            sent = traffic.call()
            calls += 1
            tell(pipe, ACK, producer + _SENT, sent)
            if flush_type == "ASYNC_FLUSH" and calls % _FLUSH_EVERY == 0:
                store.flush()
            if calls % 97 == 0:
                save_progress(store._log)
            if flush_type == "SYNC_FLUSH" or calls % _FLUSH_EVERY == 0:
                tell(pipe, ACK, producer, sent)
            while store.log_range()[1] > _FULL_BYTES:
                _wait(1)


def _cut(directory: Path, writers: dict[str, Child], counters: Counters) -> None:
    """Cut the power now, and look at what is left."""
    acknowledged = {}
    for flush_type, writer in writers.items():
        writer.told.wait(lambda told: False, 0)
        acknowledged[flush_type] = dict(writer.told.acknowledged)
    clone = directory / "xfs" / "cut.img"
    with (directory / "xfs" / "disk.img").open("rb") as source, clone.open("wb") as target:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    with loops.mounted(clone, directory / "cut", "-o", "loop") as found:
        for flush_type in _FLUSH_TYPES:
            _look(found / flush_type, _FLUSH_TYPES.index(flush_type), acknowledged[flush_type], counters)
    clone.unlink()
    counters.cycles += 1


def _look(root: Path, producer: int, acknowledged: dict[int, int], counters: Counters) -> None:
    from rmq_store import Store
    from rmq_store.errors import StoreError

    promised = acknowledged.get(producer, 0)
    counters.acknowledged += promised
    ledger = Ledger({producer: promised}, torn={producer})
    take_for_the_same_disk(root)
    try:
        with Store.open(root) as store:
            assert store.recovery is not None
            counters.seen[f"recovered from {store.recovery.trust}"] += 1
            queues, wrong = read_queues(store, TOPIC)
    except StoreError as error:
        counters.lost += promised
        counters.note(f"cannot be opened after a cut: {error!r}")
        return
    found = compare(queues, ledger)
    for what in wrong:
        found.broken += 1
        found.note(what)
    verify(root, found)
    counters.add(found)
    sent = acknowledged.get(producer + _SENT, 0)
    if producer == _FLUSH_TYPES.index("ASYNC_FLUSH"):
        counters.seen["sent under ASYNC_FLUSH"] += sent
        counters.seen["lost under ASYNC_FLUSH, never flushed"] += max(0, sent - sum(map(len, queues.values())))


def take_for_the_same_disk(root: Path) -> None:
    """The clone has another device number, and it is the same boot: put down what a real power cut leaves, the same
    device and another boot.
    """
    device = root.stat().st_dev
    state, progress = root / "pyrmq" / "state", root / "pyrmq" / "progress"
    if state.exists() and state.stat().st_size:
        with state.open("r+b") as file:
            file.seek(8)
            file.write(b"another boot id." + device.to_bytes(8, "little"))
        os.utime(state, BEFORE_BOOT)
    if progress.exists():
        data = bytearray(progress.read_bytes())
        if len(data) >= 124 and zlib.crc32(data[:120]) == int.from_bytes(data[120:124], "little"):
            data[8:16] = device.to_bytes(8, "little")
            data[120:124] = zlib.crc32(data[:120]).to_bytes(4, "little")
            progress.write_bytes(data)


PARTS = (
    Part(
        name="power_cut",
        number="5",
        title="power cuts of ext4 on a device that is cloned at any moment",
        unit="cuts",
        harness=3,
        crash=150,
        soak=2_000,
        chunk=100,
        run=run,
        protections=("no_flush",),
        bites_within=6,
        cannot_run=partial(loops.cannot_mount, "mkfs.xfs", "mkfs.ext4"),
    ),
)
