"""A delivery that is killed, fails or loses power at any point: no message is lost, none comes twice.

What waits: messages of two delay levels and of a timer queue, due at the same time.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_store import StoreError, StoreFailedError
from rmq_store.broker.delay import scheduler
from rmq_store.broker.delay.scheduler import Delivery
from rmq_store.files import durable
from rmq_store.files.locks import state_page
from rmq_store.log.views.index_file import IndexFile
from rmq_store.verify import verify_store

# A guard against hanging only: hundreds of openings take long where the disk is busy.
pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

WAITING = [b"%s %d" % (kind, number) for kind in (b"1s", b"2s", b"tn") for number in range(5)]


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    durable.hook = None


@pytest.fixture
def memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores into mapped files count as operations: words of the state page, headers of the index."""
    set_word, write_header = state_page._Word.__set__, IndexFile.write_header

    def counted_word(word: Any, page: Any, value: int) -> None:
        durable.before("word", str(word._number))
        set_word(word, page, value)

    def counted_header(file: IndexFile, data: bytes) -> None:
        durable.before("header", file.path)
        write_header(file, data)

    monkeypatch.setattr(state_page._Word, "__set__", counted_word)
    monkeypatch.setattr(IndexFile, "write_header", counted_header)


@pytest.fixture
def waiting(parking: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Everything is due; small units, so that there are several of each kind."""
    monkeypatch.setattr(scheduler, "CHUNK_ROWS", 3)
    start_ms = parking.now_ms
    with parking.open() as store:
        for level in (1, 2):
            parking.park(store, level, [body for body in WAITING if body.startswith(b"%ds" % level)])
        parking.park_until(store, start_ms + 5000, [body for body in WAITING if body.startswith(b"tn")])
    parking.now_ms = start_ms + 5000
    return parking


def by_kind(bodies: list[bytes]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for body in bodies:
        found.setdefault(body[:2], []).append(body)
    return found


def check_all_delivered(parking: Any) -> int:
    """Whatever happened: after one more look everything is there once, each level and timer queue in its order. Returns
    how much was there before.
    """
    with parking.open() as store:
        before = len(parking.bodies(store))
        store.schedule.deliver_due()
        assert store.schedule.deliver_due() == Delivery(0, None)
        assert by_kind(parking.bodies(store)) == by_kind(WAITING)
        assert len(parking.bodies(store)) == len(WAITING)
    assert verify_store(parking.root).status == "clean"
    return before


def save(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def restore(root: Path, saved: dict[Path, bytes]) -> None:
    """Bring the files back in place: device and inode of each stay what they were."""
    for path in sorted(root.rglob("*"), reverse=True):
        if path.is_file() and path not in saved:
            path.unlink()
    for path, data in saved.items():
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(data)
            file.truncate()


def in_child(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def deliver_everything(parking: Any, operation: Callable[[str, str], None] | None = None) -> None:
    store = parking.open()
    durable.hook = operation
    store.schedule.deliver_due()
    store.schedule.save_progress()
    store.close()


class At:
    """Does `act` before the k-th operation on a file."""

    def __init__(self, k: int, act: Callable[[], None]) -> None:
        self.left = k
        self._act = act

    def __call__(self, operation: str, path: str) -> None:
        self.left -= 1
        if self.left == 0:
            self._act()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("memory_too")
@pytest.mark.parametrize("first", [1, *(pytest.param(k, marks=pytest.mark.slow) for k in (2, 3))])
@pytest.mark.slow
def test_a_delivery_killed_at_any_operation_loses_and_doubles_nothing(waiting: Any, first: int) -> None:
    saved = save(waiting.root)
    partly = 0
    for k in itertools.count(first, 3):
        status = in_child(lambda: deliver_everything(waiting, At(k, kill)))  # noqa: B023
        partly += 0 < check_all_delivered(waiting) < len(WAITING)
        restore(waiting.root, saved)
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert k > 100
    assert partly > k // 12


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_delivery_that_fails_at_any_operation_goes_on_later(waiting: Any, code: int) -> None:
    """In the same process while that is possible, else after the store was closed and opened."""
    saved = save(waiting.root)

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    failures = 0
    for k in itertools.count(1, 4):
        operation = At(k, fail)
        store = waiting.open()
        durable.hook = operation
        try:
            store.schedule.deliver_due()
            store.schedule.save_progress()
        except (StoreError, OSError):
            failures += 1
        durable.hook = None
        if store._log.writing_page.poison:
            with pytest.raises(StoreFailedError):
                store.schedule.deliver_due()
            with pytest.raises(StoreFailedError):
                store.close()
        else:
            store.schedule.deliver_due()
            assert by_kind(waiting.bodies(store)) == by_kind(WAITING), k
            store.close()
        check_all_delivered(waiting)
        restore(waiting.root, saved)
        if operation.left > 0:
            break
    assert failures > k // 8


def boundaries(root: Path, segment_bytes: int, start: int, end: int) -> list[int]:
    found, offset = [], start
    while offset < end:
        found.append(offset)
        base = offset // segment_bytes * segment_bytes
        with (root / "commitlog" / f"{base:020d}").open("rb") as file:
            file.seek(offset - base)
            offset += int.from_bytes(file.read(4), "big")
    return found


def cut_power(parking: Any, start: int) -> None:
    """Zeros from an offset of the log on, as what never reached the disk reads; and the machine was booted again."""
    size = parking.config.mapped_file_size_commit_log
    for path in sorted((parking.root / "commitlog").iterdir()):
        low = max(start - int(path.name), 0)
        if low < size:
            data = path.read_bytes()
            path.write_bytes(data[:low] + bytes(size - low))
    page = parking.root / "pyrmq" / "state"
    data = bytearray(page.read_bytes())
    data[8:24] = b"another boot id."
    page.write_bytes(bytes(data))


@pytest.mark.parametrize("saves", [True, False], ids=["progress saved", "progress not saved"])
@pytest.mark.slow
def test_a_power_cut_at_any_place_of_a_delivery_loses_and_doubles_nothing(waiting: Any, saves: bool) -> None:
    """The log is on disk up to its flushed end, and perhaps for some bytes behind it. What was told to a broker is not
    ahead of it.
    """

    def die() -> None:
        store = waiting.open()
        store.schedule.deliver_due(limit=7)
        if saves:
            store.schedule.save_progress()
        store.schedule.deliver_due()
        page = store._log.writing_page
        (waiting.root.parent / "ends").write_text(f"{page.flushed_end} {page.appended_end}")
        kill()

    assert in_child(die) == -signal.SIGKILL
    ends = [int(word) for word in (waiting.root.parent / "ends").read_text().split()]
    saved = save(waiting.root)
    places = boundaries(waiting.root, waiting.config.mapped_file_size_commit_log, *ends)
    assert len(places) > len(WAITING) - 7
    delivered = set()
    for place in places:
        for cut in (place, place + 50, place + 130):
            cut_power(waiting, cut)
            with waiting.open() as store:
                delivered.add(len(waiting.bodies(store)))
                progress = store.schedule._offsets.all()
                for level, offset in progress.items():
                    assert offset <= (store.last_unit("delay", str(level)) or 0)
            check_all_delivered(waiting)
            restore(waiting.root, saved)
    assert len(delivered) > 2  # cuts between units, not only in the first


def test_a_unit_of_which_half_reached_the_disk_is_delivered_again_as_a_whole(waiting: Any) -> None:
    """Not the first rows of it and then all of it."""
    with waiting.open() as store:
        flushed = store._log.writing_page.flushed_end

    note = waiting.root.parent / "end"

    def die() -> None:
        store = waiting.open()
        store.schedule.deliver_due(limit=3)
        note.write_text(str(store.log_range()[1]))
        kill()

    assert in_child(die) == -signal.SIGKILL
    end = int(note.read_text())
    size = waiting.config.mapped_file_size_commit_log
    places = boundaries(waiting.root, size, flushed, end)
    assert len(places) == 5
    cut_power(waiting, places[-1])  # begin record and three rows are there, the end record is not
    with waiting.open() as store:
        assert waiting.bodies(store) == []
    check_all_delivered(waiting)


@pytest.mark.parametrize("seed", range(3))
def test_deliveries_killed_at_random_again_and_again_end_well(waiting: Any, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(8):
        in_child(lambda: deliver_everything(waiting, At(chance.randrange(1, 90), kill)))
    check_all_delivered(waiting)
