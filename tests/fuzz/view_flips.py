"""Test 9: bits of everything that is not a record, flipped: queue entries, index, checkpoint, tables, our own files.

Bits of one entry of each kind, one after the other, and random bits of whole files. Allowed is: an error of ours, or
the right answer. A reader must never get another message than the one it asked for, and never lose one without being
told. `detected <state> <file>`: an error of ours or the verifier says so; `missed <state> <file>`: nobody notices and
every message is right (most of what RocketMQ's own tables say cannot be checked).
"""

from __future__ import annotations

import itertools
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from crash.part import Counters, Part, Trial
from crash.protections import protection
from fuzz import view_store
from fuzz.view_store import Rows

_HANG_S = 60
_REBUILD_EVERY = 200


class Region(NamedTuple):
    """Bytes [start, end) of a file in one state of the store, and who has to look at them."""

    state: str
    path: str
    start: int
    end: int
    look: Callable[[_Lab, str], bool]


class _Lab:
    """The states of the store; a look returns whether somebody noticed, and raises AssertionError for a violation."""

    def __init__(self, directory: Path) -> None:
        self.states, self.rows, _ = view_store.states(directory)
        self.expected: dict[str, Any] = {}

    def root(self, state: str) -> Path:
        return self.states[state].root

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What an undamaged file gives; made at the first call, before anything is flipped."""
        if name not in self.expected:
            self.expected[name] = make()
        return self.expected[name]

    def compare(self, state: str, rows: Rows, *, complete: bool) -> None:
        right = self.rows[state]
        wrong = [place for place, row in rows.items() if right.get(place) != row]
        if wrong:
            raise Altered(f"{wrong[:3]} read as {[rows[place] for place in wrong[:3]]}")
        if complete and len(rows) < len(right):
            raise Lost(f"{sorted(right.keys() - rows.keys())[:5]} are gone, and nobody says so, or need not be")


class Altered(AssertionError):
    """A reader got another message."""


class Lost(AssertionError):
    """A message is gone, and nobody notices."""


# -- looks ------------------------------------------------------------------------------------------------------------


def read_and_verify(lab: _Lab, state: str) -> bool:
    """A reader, then the verifier."""
    from rmq_store import StoreError
    from rmq_store.verify import verify_store

    noticed = verify_store(lab.root(state)).status == "damaged"
    try:
        rows = view_store.read_rows(lab.root(state))
    except StoreError:
        return True
    lab.compare(state, rows, complete=not noticed)
    return noticed


def open_for_writing(lab: _Lab, state: str, *, complete: bool = False) -> bool:
    """A writer recovers the store; what it then gives, now and to the next reader, must be right. `complete`: and all
    of it, since nothing is damaged but what we keep for ourselves; to say that it is gone is not enough.
    """
    from rmq_store import Store, StoreError
    from rmq_store.verify import verify_store

    try:
        with Store.open(lab.root(state), clock=view_store._Clock()) as store:
            rows = view_store.rows_of(store)
    except StoreError:
        return True
    noticed = verify_store(lab.root(state)).status == "damaged"
    complete |= not noticed
    lab.compare(state, rows, complete=complete)
    lab.compare(state, view_store.read_rows(lab.root(state)), complete=complete)
    return noticed


def _table(name: str, load: Callable[[Path], Any], lab: _Lab, state: str) -> bool:
    """One table; if it says something else now, the whole store as well."""
    from rmq_store import StoreError

    root = lab.root(state)
    try:
        content = load(root)
    except StoreError:
        return True
    if content == lab.expected[name]:
        return False
    return read_and_verify(lab, state)


def _load_table(kind: str, root: Path) -> Any:
    from rmq_store.broker.metadata.groups import GroupTable
    from rmq_store.broker.metadata.offsets import DelayOffsetTable, OffsetTable
    from rmq_store.broker.metadata.store_file import StoreFile
    from rmq_store.broker.metadata.topics import TopicTable

    if kind == "store.json":
        return StoreFile.load(root)
    kinds = {
        "topics.json": TopicTable, "consumerOffset.json": OffsetTable, "delayOffset.json": DelayOffsetTable,
        "subscriptionGroup.json": GroupTable,
    }  # fmt: skip
    return kinds[kind](root).all()


def _units(lab: _Lab, state: str) -> bool:
    """The cache of units: a wrong value would commit a batch twice, or never."""
    from rmq_store import StoreError

    try:
        found = _newest_unit(lab.root(state))
    except StoreError:
        return True
    if found != lab.expected["units"]:
        raise Altered(f"the newest unit is {found}, not {lab.expected['units']}")
    return False


def _newest_unit(root: Path) -> Any:
    from rmq_store import Store
    from rmq_store.broker.write.units import UnitTable

    with Store.open(root, read_only=True) as store:
        return UnitTable(store._log).newest(*view_store.UNIT, store.log_range()[1])


def _journal(lab: _Lab, state: str) -> bool:
    """The journal of pops: an error, or a state that once was."""
    from rmq_store import StoreError

    root = lab.root(state)
    before = (root / _JOURNAL).read_bytes()
    try:
        found = _pop_state(root)
    except StoreError:
        return True
    if found not in lab.expected["journal"]:
        raise Altered(f"a state of pops that never was: {found}")
    return len((root / _JOURNAL).read_bytes()) < len(before)


def _pop_state(root: Path) -> list[Any]:
    from rmq_store.broker.pop.pop_journal import PopJournal

    journal = PopJournal((root / _JOURNAL).parent, sync=False)
    try:
        with journal.exclusive() as state:
            return list(state.snapshot())
    finally:
        journal.close()


_JOURNAL = f"pyrmq/pop/{view_store.GROUP}/Orders/journal"


def _pop_states(root: Path) -> list[list[Any]]:
    """The states that the journal went through."""
    path, found = root / _JOURNAL, []
    whole = path.read_bytes()
    for end in range(64, len(whole) + 1, 64):
        path.write_bytes(whole[:end])
        found.append(_pop_state(root))
        path.write_bytes(whole)
    return found


# -- regions ----------------------------------------------------------------------------------------------------------


def _regions(lab: _Lab) -> list[Region]:
    clean = lab.states["clean"]
    index = min(path for path in clean.files if path.parent.name == "index").relative_to(clean.root).as_posix()
    queue = "consumequeue/Orders/0/00000000000000000000"
    tables = ("topics.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json")
    for name in (*tables, "store.json"):
        lab.once(name, partial(_load_table, name, clean.root))
    lab.once("units", lambda: _newest_unit(clean.root))
    lab.once("journal", lambda: _pop_states(clean.root))
    assert lab.expected["units"].value == view_store.UNIT_VALUE
    regions = [
        Region("clean", queue, 0, 20, read_and_verify),
        Region("clean", queue, 100, 120, read_and_verify),
        Region("clean", index, 0, 40, read_and_verify),
        Region("clean", index, 40, 40 + 4 * 16, read_and_verify),
        Region("clean", index, 40 + 4 * 16 + 40, 40 + 4 * 16 + 60, read_and_verify),
        Region("rebooted", queue, 100, 120, open_for_writing),
        Region("rebooted", index, 0, 40, open_for_writing),
        Region("rebooted", index, 40, 44, open_for_writing),
        Region("rebooted", "pyrmq/progress", 0, 124, partial(open_for_writing, complete=True)),
        Region("rebooted", "pyrmq/progress", 24, 26, partial(open_for_writing, complete=True)),  # where the scan starts
        Region("rebooted", "pyrmq/state", 0, 19 * 8, open_for_writing),
        Region("killed", "pyrmq/state", 0, 19 * 8, open_for_writing),
        Region("clean", "pyrmq/progress", 0, 124, partial(open_for_writing, complete=True)),
        Region("broker", "checkpoint", 0, 48, open_for_writing),
        Region("clean", "lock", 0, 4, open_for_writing),
        Region("clean", "pyrmq/units.json", 0, -1, _units),
        Region("clean", _JOURNAL, 0, -1, _journal),
        Region("clean", "pyrmq/store.json", 0, -1, partial(_table, "store.json", partial(_load_table, "store.json"))),
    ]
    for name in tables:
        look = partial(_table, name, partial(_load_table, name))
        regions.append(Region("clean", f"config/{name}", 0, -1, look))
    return regions


def _bits(lab: _Lab, region: Region, dice: random.Random) -> list[int]:
    """All bits of a region, shuffled."""
    pristine = lab.states[region.state]
    size = len(pristine.files[pristine.root / region.path])
    bits = list(range(8 * region.start, 8 * (size if region.end < 0 else region.end)))
    dice.shuffle(bits)
    return bits


# -- running ----------------------------------------------------------------------------------------------------------


def run(trial: Trial) -> Counters:
    """Three cycles of four go round the regions, each of which gets one bit after the other; the fourth is random."""
    counters = Counters()
    lab = _Lab(trial.directory)
    dice = random.Random(trial.seed)
    rounds = [(region, itertools.cycle(_bits(lab, region, dice))) for region in _regions(lab)]
    turns = itertools.cycle(rounds)
    for cycle in range(trial.cycles):
        where = f"seed {trial.seed}, cycle {cycle}"
        if cycle % 4 < 3:
            region, bits = next(turns)
            _cycle(counters, lab, region, [next(bits)], where)
        else:
            _cycle(counters, lab, *_anywhere(lab, random.Random(f"{trial.seed}/{cycle}")), where)
        if cycle % _REBUILD_EVERY == 0:
            _rebuild(counters, lab)
        trial.tick(1)
    counters.cycles = trial.cycles
    return counters


def _anywhere(lab: _Lab, dice: random.Random) -> tuple[Region, list[int]]:
    """One to three bits of any file that has bytes, but for records: test 8 is about those."""
    state = dice.choice(("clean", "rebooted", "killed", "broker"))
    pristine = lab.states[state]
    files = [path for path, data in pristine.files.items() if data and path.parent.name != "commitlog"]
    path = dice.choice(files)
    name = path.relative_to(pristine.root).as_posix()
    look = dice.choice((read_and_verify, open_for_writing))
    start = dice.randrange(8 * len(pristine.files[path]))
    bits = [min(start + dice.randrange(64), 8 * len(pristine.files[path]) - 1) for _ in range(dice.randrange(1, 4))]
    return Region(state, name, 0, -1, look), sorted(set(bits))


def _cycle(counters: Counters, lab: _Lab, region: Region, bits: list[int], where: str) -> None:
    pristine = lab.states[region.state]
    pristine.flip(pristine.root / region.path, bits)
    where = f"{where}: {region.state} {region.path} bits {bits}"
    try:
        with _no_hang():
            noticed = region.look(lab, region.state)
        counters.seen[f"{'detected' if noticed else 'missed'} {region.state} {_kind(region.path)}"] += 1
    except Altered as error:
        counters.altered += 1
        counters.note(f"{where}: {error}")
    except Lost as error:
        counters.lost += 1
        counters.note(f"{where}: {error}")
    except Exception as error:
        counters.broken += 1
        counters.note(f"{where}: {type(error).__name__}: {str(error)[:300]}")
    finally:
        pristine.restore()


def _kind(path: str) -> str:
    """A file's kind: its path without what differs from file to file."""
    first, _, rest = path.partition("/")
    return first if first in ("consumequeue", "index") else path if len(rest) < 30 else f"{first}/{rest.split('/')[0]}"


def _rebuild(counters: Counters, lab: _Lab) -> None:
    """Without its views the store makes the same bytes again."""
    from rmq_store import Store

    pristine = lab.states["clean"]
    shutil.rmtree(pristine.root / "index")
    shutil.rmtree(pristine.root / "consumequeue")
    with Store.open(pristine.root):
        pass
    for path, data in pristine.files.items():
        if path.relative_to(pristine.root).parts[0] in ("index", "consumequeue"):
            if not path.exists() or path.read_bytes() != data:
                counters.altered += 1
                counters.note(f"{path}: a rebuild gives other bytes")
    counters.seen["rebuilt views"] += 1
    pristine.restore()


@contextmanager
def _no_hang() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {_HANG_S} s")

    kept = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)


# -- teeth ------------------------------------------------------------------------------------------------------------


@protection("record_owner", "a record is asked for its own topic, queue and queue offset before an entry is believed")
def _without_record_owner() -> Iterator[None]:
    from rmq_store.broker.read import queue_reader
    from rmq_store.log.core.commit_log import CommitLog

    kept, decode_frames = CommitLog.is_record_of, queue_reader.decode_frames
    CommitLog.is_record_of = lambda *_, **__: True
    queue_reader.decode_frames = lambda *args, **options: decode_frames(*args, **options | {"owner": None})
    yield
    CommitLog.is_record_of, queue_reader.decode_frames = kept, decode_frames


class _Equal:
    """Equal to everything: a checksum that always fits."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__


@protection("progress_crc", "the progress record has a checksum")
def _without_progress_crc() -> Iterator[None]:
    from rmq_store.files import progress

    class Blind:
        size, pack = progress._CRC.size, progress._CRC.pack

        @staticmethod
        def unpack_from(data: bytes, position: int) -> tuple[_Equal]:
            return (_Equal(),)

    kept, progress._CRC = progress._CRC, Blind
    yield
    progress._CRC = kept


PART = Part(
    "view flips", "9", "bits of queues, index, checkpoint, tables and our own files flipped", "flips",
    harness=1200, crash=20_000, soak=1_000_000, chunk=2400, run=run, protections=("record_owner", "progress_crc"),
    bites_within=600, by_cycle=True,
)  # fmt: skip
