"""A disk that fails behind the page cache: real write-back errors, and real read errors.

    write_back   ext4 on a loop device whose file lies on a tmpfs that becomes full: writes succeed, the fsync fails.
                 Once: the kernel takes the pages for clean afterwards, and shows them until they are evicted.
    read_error   a loop device that is made smaller than its file system: what lies behind its end cannot be read.
                 Segments are read through maps, so the kernel answers with SIGBUS; the reader dies, and it alone.
                 The verifier then names every page that cannot be read, and no other.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import random
import signal
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

from crash import loops
from crash.dying import Child, quiet
from crash.oracle import ACK, Ledger, compare, read_queues, tell, verify
from crash.part import Counters, Part, Trial
from crash.protections import protection
from crash.traffic import TOPIC, Traffic, tiny_config

_TMPFS_BYTES = 48 << 20
_EXT4_BYTES = 96 << 20
_ROOM_BYTES = 1 << 20  # at most so much can be written before the disk is full
_CALLS_AFTER = 5
_CALLS_MAX = 20_000
_FIBMAP = 1
_PAGE_BYTES = 4096
_LOOP_SET_CAPACITY = 0x4C07
_PATIENCE_S = 120

# Told by writers: a call was acknowledged behind a failed flush; how it ended.
_WRONGLY = b"w"
_REFUSED, _TAKEN_BACK = b"r", b"t"


def run_write_back(trial: Trial) -> Counters:
    """Let a disk become full under a store `cycles` times."""
    return loops.in_own_mounts(_run_write_back, trial)


def _run_write_back(trial: Trial) -> Counters:
    quiet()
    counters = Counters()
    for cycle in range(trial.cycles):
        chance = random.Random(f"{trial.seed}/{cycle}")
        with loops.mounted("tmpfs", trial.directory / "memory", "-t", "tmpfs", "-o", f"size={_TMPFS_BYTES}") as memory:
            _fail_once(trial.directory, memory, chance, f"cycle {cycle}", counters)
        counters.cycles += 1
        trial.tick(1)
    return counters


def _fail_once(directory: Path, memory: Path, chance: random.Random, where: str, counters: Counters) -> None:
    # Without a journal, and with all its tables written: only data have no place left. An error changes nothing else.
    disk = loops.file_system(memory / "disk.img", _EXT4_BYTES, "mkfs.ext4", "-q", "-F", "-O", "^has_journal",
                             "-E", "lazy_itable_init=0")  # fmt: skip
    mount = loops.mounted(disk, directory / "live", "-o", "loop,errors=continue")
    filler = memory / "filler"
    found = Counters()
    with mount as live:
        root = live / "store"
        _fill(filler, chance.randrange(_ROOM_BYTES // 8, _ROOM_BYTES))
        writer = Child(partial(_write_until_refused, root, filler, chance.random()), directory / "error")
        done = writer.told.wait(lambda told: bool(told.words[_REFUSED] + told.words[_TAKEN_BACK]), _PATIENCE_S)
        ended = writer.wait() if done else writer.kill()
        acknowledged = writer.told.acknowledged.get(0, 0)
        counters.acknowledged += acknowledged
        counters.seen["writers that a failed flush stopped"] += writer.told.words[_REFUSED]
        counters.seen["writers without place for a new file"] += writer.told.words[_TAKEN_BACK]
        if ended == -signal.SIGBUS:
            found.broken += 1
            found.note("the writer was killed by SIGBUS")
        elif not done:
            found.broken += 1
            found.note(f"the writer ended with {ended}: {writer.error}")
        found.broken += writer.told.words[_WRONGLY]
        if writer.told.words[_WRONGLY]:
            found.note(f"{writer.told.words[_WRONGLY]} calls were acknowledged behind a failed flush")
        filler.unlink(missing_ok=True)
        shown = _read(root, acknowledged, found, "the next opener")
    # Nothing is left in the page cache: what is there now is what had reached the disk.
    with loops.mounted(disk, directory / "live", "-o", "loop") as live:
        if (live / "store").is_dir():
            _read(live / "store", max(shown, acknowledged), found, "after the cache was lost")
            verify(live / "store", found)
    if found.violations:
        found.first = f"{where}: {found.first}"
    counters.add(found)


def _fill(filler: Path, room_bytes: int) -> None:
    """Leave so much room on the file system of `filler`."""
    status = os.statvfs(filler.parent)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, status.f_bavail * status.f_frsize - room_bytes))


def _write_until_refused(root: Path, filler: Path, seed: float, pipe: int) -> None:
    """Append under SYNC_FLUSH until a call fails; make room; a few calls more; what was acknowledged can be read."""
    from rmq_store import Store
    from rmq_store.errors import StoreError, StoreFailedError

    loops.die_with_parent()
    store = Store.open(root, create=True, config=tiny_config(flush_disk_type="SYNC_FLUSH"))
    traffic = Traffic(store, 0, random.Random(seed))
    for _ in range(_CALLS_MAX):
        try:
            traffic.send_all()
        except StoreError:
            break
        tell(pipe, ACK, 0, traffic.sent)
    filler.unlink()
    page = store._log.writing_page
    # Otherwise a new file found no place, and the call was taken back: the store goes on.
    is_flush = page.appended_end > page.flushed_end
    for _ in range(_CALLS_AFTER if is_flush else 0):
        try:
            traffic.send_all()
            tell(pipe, _WRONGLY)
        except StoreFailedError:
            continue
    read_queues(store, TOPIC)
    tell(pipe, _REFUSED if is_flush else _TAKEN_BACK)
    os._exit(0)


def _read(root: Path, promised: int, counters: Counters, who: str) -> int:
    """Open the store for writing, compare, and stop it cleanly; returns how many messages of the producer it showed."""
    from rmq_store import Store
    from rmq_store.errors import StoreError, StoreFailedError

    try:
        try:
            store = Store.open(root)
        except StoreFailedError:
            # syncfs tells a new descriptor of an error that nobody has heard of; the second recovery writes all again.
            counters.seen["openers told of the earlier failure"] += 1
            store = Store.open(root)
        with store:
            queues, _ = read_queues(store, TOPIC)
    except StoreError as error:
        counters.lost += max(1, promised)
        counters.note(f"{who} cannot open the store: {error!r}")
        return 0
    found = compare(queues, Ledger({0: promised}, torn={0}))
    if found.violations:
        found.first = f"{who}: {found.first}"
    counters.add(found)
    return sum(map(len, queues.values()))


def run_read_error(trial: Trial) -> Counters:
    """Make a part of a store unreadable `cycles` times."""
    return loops.in_own_mounts(_run_read_error, trial)


def _run_read_error(trial: Trial) -> Counters:
    quiet()
    counters = Counters()
    for cycle in range(trial.cycles):
        chance = random.Random(f"{trial.seed}/{cycle}")
        found = Counters()
        _read_beyond_the_end(trial.directory, chance, found)
        if found.violations:
            found.first = f"cycle {cycle}: {found.first}"
        counters.add(found)
        counters.cycles += 1
        trial.tick(1)
    return counters


def _read_beyond_the_end(directory: Path, chance: random.Random, counters: Counters) -> None:
    disk = loops.file_system(directory / "disk.img", _EXT4_BYTES, "mkfs.ext4", "-q", "-F")
    with loops.mounted(disk, directory / "live", "-o", "loop") as live:
        counters.acknowledged += _write_segments(live / "store", chance)
    with loops.mounted(disk, directory / "live", "-o", "loop,ro") as live:
        # Nothing of the store is in the page cache now.
        root = live / "store"
        segments = sorted((root / "commitlog").iterdir())
        end = min(_first_byte(segment) for segment in segments[len(segments) // 2 :])
        os.truncate(disk, end)
        (device,) = loops.devices_of(directory)
        with Path(f"/dev/{device}").open("rb") as file:
            fcntl.ioctl(file.fileno(), _LOOP_SET_CAPACITY, 0)
        reader = Child(partial(_read_everything, root), directory / "error")
        ended = reader.wait()
        if ended == -signal.SIGBUS:
            counters.seen["readers killed by SIGBUS"] += 1
        elif ended == 0:
            counters.broken += 1
            counters.note("a reader has read what cannot be read")
        else:
            counters.seen["readers told"] += 1
        verdict = directory / "verdict.json"
        ended = Child(partial(_verify, root, verdict), directory / "error").wait()
        expected = {f"commitlog/{segment.name}": pages for segment in segments if (pages := _lost(segment, end))}
        counters.seen["unreadable pages"] += sum(map(len, expected.values()))
        named: dict[str, list[int]] = {}
        for path, first, last in json.loads(verdict.read_text()) if ended == 0 else ():
            if path.startswith("commitlog/"):
                named.setdefault(path, []).extend(range(first // _PAGE_BYTES, -(-last // _PAGE_BYTES)))
        if named != expected:
            counters.broken += 1
            counters.note(f"the verifier ended with {ended} and named {named}, which is not {expected}")


def _verify(root: Path, verdict: Path, pipe: int) -> None:
    from rmq_store.verify import verify_store

    loops.die_with_parent()
    report = verify_store(root)
    verdict.write_text(json.dumps([(bad.path, bad.offset, bad.end) for bad in report.unreadable]))


def _lost(path: Path, end: int) -> list[int]:
    """The pages of a file of which a block lies behind byte `end` of the device."""
    block_bytes = os.statvfs(path).f_bsize
    with path.open("rb") as file:
        blocks = [_block(file.fileno(), number) for number in range(path.stat().st_size // block_bytes)]
    gone = [number for number, block in enumerate(blocks) if (block + 1) * block_bytes > end]
    return sorted({number * block_bytes // _PAGE_BYTES for number in gone})


def _block(fd: int, number: int) -> int:
    """Where on the device a block of a file lies, in blocks; 0 in a hole."""
    return int(struct.unpack("i", fcntl.ioctl(fd, _FIBMAP, struct.pack("i", number)))[0])


def _write_segments(root: Path, chance: random.Random) -> int:
    from rmq_store import Store

    with Store.open(root, create=True, config=tiny_config()) as store:
        traffic = Traffic(store, 0, chance)
        while store.log_range()[1] < 8 * tiny_config().mapped_file_size_commit_log:
            traffic.append()
    return traffic.sent


def _read_everything(root: Path, pipe: int) -> None:
    from rmq_store import Store

    loops.die_with_parent()
    faulthandler.disable()  # it may be killed: that is no news
    with Store.open(root, read_only=True) as store:
        read_queues(store, TOPIC)


def _first_byte(path: Path) -> int:
    """Where on the device the first block of a file lies."""
    with path.open("rb") as file:
        return _block(file.fileno(), 0) * os.statvfs(path).f_bsize


@protection("no_renewal", "after a failed write-back, the next opener makes the files anew")
def _no_renewal() -> Iterator[None]:
    from rmq_store.log.recovery import recovery

    with patch.object(recovery, "renew", lambda log: None):
        yield


PARTS = (
    Part(
        name="write_back",
        number="13",
        title="a disk that fails behind the page cache: the fsync tells it, once",
        unit="failures",
        harness=2,
        crash=40,
        soak=80,
        chunk=40,
        run=run_write_back,
        protections=("no_renewal", "no_poison"),
        bites_within=2,
        cannot_run=partial(loops.cannot_mount, "mkfs.ext4"),
    ),
    Part(
        name="read_error",
        number="13",
        title="a disk of which a part cannot be read: a reader dies alone, or is told",
        unit="failures",
        harness=1,
        crash=20,
        soak=40,
        chunk=20,
        run=run_read_error,
        cannot_run=partial(loops.cannot_mount, "mkfs.ext4"),
    ),
)
