"""Crash images: a store is used for a while, and the power is cut at any operation.

From a recorded life of a store (`store_life`) many disks are drawn that a power cut could have left (`disk_image`): two
of three at any operation, the third where a file has just got its name or names have just been synced, as when files
roll.
Each different one is opened by the engine in another boot, and must be a prefix of what was written with everything
that was acknowledged (`found_store`). Then the store lives on, on one of these disks: so the power is also cut while
a recovery runs, and behind it.
"""

from __future__ import annotations

import random
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from crash.disk_image import Disk, Image, Operation
from crash.found_store import Written, compare
from crash.part import Counters, Part, Trial
from crash.protections import protection
from crash.recorded_disk import Recorder
from crash.store_life import GROUP, SLOTS, TOPICS, UNIT, Life, Promise, Workplace, engine, tiny_config
from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.broker.store.directory import is_ours
from rmq_store.errors import StoreError
from rmq_store.files import durable
from rmq_store.log.append import flush
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.core.geometry import infer
from rmq_store.log.core.units import END_TAG, UNITS_TOPIC, UnitRecord, UnitScan
from rmq_store.log.recovery import opening, recovery
from rmq_store.verify import verify_store

IMAGES_PER_LIFE = 100
LIVES = 4  # of one store, each on a disk that the one before left
NAMES_SHARE = 1 / 3  # of the images
DEEP_EVERY = 25  # of the different images, how many are also read, written to, closed and verified

_Tables = dict[frozenset[Any], tuple[int, frozenset[str]]]


@dataclass(slots=True)
class _Found:
    """What one image turned out to be: where its log ends, what its tables say, and what is wrong with it whatever was
    promised.
    """

    counters: Counters
    end: int = -1
    offset: int = 0
    topics: frozenset[str] = frozenset()


def run(trial: Trial) -> Counters:
    """Draw and check `cycles` images of stores under SYNC_FLUSH and ASYNC_FLUSH, in turn."""
    configs = [tiny_config(kind) for kind in ("SYNC_FLUSH", "ASYNC_FLUSH")]
    random.Random(trial.seed).shuffle(configs)
    return run_lives(trial, Life, configs)


def run_lives(trial: Trial, kind: type[Life], configs: Sequence[StoreConfig]) -> Counters:
    """The same of stores that live another kind of life, with these settings in turn."""
    counters = Counters()
    number = 0
    while counters.cycles < trial.cycles:
        directory = trial.directory / f"simulated-{number}"
        directory.mkdir()
        place = Workplace(directory)
        seed = f"{trial.seed}/{number}"
        with engine(place, seed):
            _live_and_draw(kind, configs[number % len(configs)], place, seed, trial, counters)
        shutil.rmtree(directory)
        number += 1
    return counters


def _live_and_draw(
    kind: type[Life], config: StoreConfig, place: Workplace, seed: str, trial: Trial, counters: Counters
) -> None:
    """The lives of one store."""
    chance = random.Random(seed)
    recorder = Recorder(place.root, place.keep)
    life = kind(place, chance, config, iter(range(1, 1 << 30)), recorder, 1_700_000_000_000)
    image, start = None, _Found(Counters())
    for generation in range(LIVES):
        if counters.cycles >= trial.cycles:
            return
        place.reboot()
        if image is not None:
            place.lay_out(image)
            files = {path: stored.inode for path, stored in image.files}
            recorder = Recorder(place.root, place.keep, files, life.recorder.next_inode)
            units = [unit for unit in life.units if unit[1] <= start.end]
            life = kind(place, chance, config, life.numbers, recorder, life.now_ms, units=units)
        life.promises = [Promise(0, start.end, start.offset, start.topics, start.end)]
        life.begun = [(0, start.offset)]
        with recorder.recording():
            life.live()
        counters.seen["lives"] += 1
        counters.seen["operations recorded"] += len(recorder.operations)
        count = min(IMAGES_PER_LIFE, trial.cycles - counters.cycles)
        image, start = _draw(life, Disk(image), count, f"{seed}, life {generation}", counters)
        trial.tick(count)
        if start.end < 0 or start.counters.violations:
            return  # what would follow would only be its consequences


def _draw(life: Life, disk: Disk, count: int, seed: str, counters: Counters) -> tuple[Image, _Found]:
    """Draw `count` images of a life and check them; returns one of them, and what it was."""
    operations, chance = life.recorder.operations, life.chance
    written = _what_was_written(life)
    known: dict[Image, _Found] = {}
    tables: _Tables = {}
    moments = _moments(operations, count, chance)
    done, chosen, next_life = 0, chance.randrange(count), None
    for number, moment in enumerate(moments):
        for operation in operations[done:moment]:
            disk.apply(operation)
        done = moment
        where = f"{seed}, operation {moment} of {len(operations)}, image {number}"
        image = disk.image(chance)
        found = known.get(image)
        if found is None:
            found = known[image] = _check(life, image, written, tables, deep=len(known) % DEEP_EVERY == 0)
            if found.counters.violations:
                found.counters.first = f"{where}: {found.counters.first}"
            counters.add(found.counters)
        _compare_with_promises(life, moment, found, written, where, counters)
        counters.cycles += 1
        if number == chosen:
            next_life = image, found
    counters.seen["images drawn"] += count
    counters.seen["different images opened"] += len(known)
    assert next_life is not None
    return next_life


def _moments(operations: list[Operation], count: int, chance: random.Random) -> list[int]:
    """How many operations come before each cut, ascending."""
    names = [
        number for number, operation in enumerate(operations)
        if operation[0] in ("name", "rename", "fsync_directory", "syncfs")
    ]  # fmt: skip
    return sorted(
        chance.choice(names) + chance.randint(0, 1) if chance.random() < NAMES_SHARE else
        chance.randint(0, len(operations))
        for _ in range(count)
    )  # fmt: skip


def _what_was_written(life: Life) -> Written:
    """The whole life, read off the live files."""
    with Store.open(life.place.root, read_only=True) as store:
        end = store.log_range()[1]
    return Written.read(life.place.root, end, SLOTS, life.units)


def _check(life: Life, image: Image, written: Written, tables: _Tables, *, deep: bool) -> _Found:
    """Open an image in another boot, and look at what it is."""
    place = life.place
    place.lay_out(image)
    place.reboot()
    found = _Found(Counters())
    try:
        seen_end = _end_for_readers(place.root) if deep else None
        found.end = _recover(place.root, life.config)
        found.counters = compare(place.root, written, SLOTS, found.end)
        if seen_end is not None and seen_end != found.end:
            found.counters.broken += 1
            found.counters.note(f"a reader saw the log end at {seen_end}, recovery put its end at {found.end}")
        # Recovery does not touch the tables: each content of them is looked at once.
        content = frozenset(file for file in image.files if file[0].startswith("config/"))
        if content not in tables:
            tables[content] = _read_tables(place.root)
        found.offset, found.topics = tables[content]
        if deep and not found.counters.violations:
            _use(life, found, written)
    except (StoreError, OSError) as error:
        found.counters.broken += 1
        found.counters.note(f"cannot be opened: {error!r}")
    return found


def _recover(root: Path, config: StoreConfig) -> int:
    """Do what `Store.open` does until the log can be written to, and die; returns where the log ends."""
    known = StoreFile.load(root)
    settings = known.config if known else config
    infer(root, settings.geometry(), ours=is_ours(root))
    log = CommitLog(
        root, settings.geometry(), writable=True, index_enabled=True, index_tags=settings.message_index_tags,
        clock=lambda: 0, sync_flush=settings.flush_disk_type == "SYNC_FLUSH",
        crc_property=settings.enabled_append_prop_crc, delay_levels_ms=(1000,),
    )  # fmt: skip
    try:
        opening.open_for_writing(log)
        return log.writing_page.appended_end
    finally:
        log.close()


def _end_for_readers(root: Path) -> int | None:
    if not (root / "pyrmq" / "store.json").exists():
        return None
    with Store.open(root, read_only=True) as store:
        return store.log_range()[1]


def _read_tables(root: Path) -> tuple[int, frozenset[str]]:
    """The group's offset in the first queue (that in the second is always twice as large), and all topics."""
    offsets = OffsetTable(root).committed(GROUP)
    offset = offsets.get((TOPICS[0], 0), 0)
    if offsets.get((TOPICS[0], 1), 0) != 2 * offset:
        raise StoreError(f"half a commit of offsets: {offsets}")
    return offset, frozenset(TopicTable(root).all())


def _use(life: Life, found: _Found, written: Written) -> None:
    """Read everything, ask for the newest unit, append, stop cleanly, verify, and read again."""
    counters = found.counters

    def must(holds: bool, what: str) -> None:
        if not holds:
            counters.broken += 1
            counters.note(what)

    store = life.open()
    must(store.log_range()[1] == found.end, "the next opener of the same boot sees another end")
    before = _count_messages(store)
    entries = written.entries_below(found.end, TOPICS)
    must(before == entries, f"{before} messages can be read, the queues have {entries}")
    must(store.last_unit(*UNIT) == _newest_value(store), "another unit is the newest than the log says")
    sent = [store.send(Message(TOPICS[0], b"behind")) for _ in range(3)]
    must(len({result.commit_log_offset for result in sent}) == 3, "two messages at one place")
    must(sent[0].commit_log_offset >= found.end, "a message was put into the log")
    store.close()
    report = verify_store(life.place.root)
    must(report.status == "clean", f"after a clean stop: {report.status}, {report.problems[:1]} {report.recovery[:1]}")
    with Store.open(life.place.root, read_only=True) as reader:
        must(_count_messages(reader) == before + 3, "messages came or went with a clean stop")


def _count_messages(store: Store) -> int:
    return sum(
        part.num_rows
        for topic in TOPICS
        if topic in store.topics()
        for queue_id, (first, last) in store.queue_ranges(topic).items()
        for part in store.read(topic, queue_id, first, last, columns=["body"])
    )


def _newest_value(store: Store) -> int | None:
    """What the unit records themselves say, read from the first on."""
    first, last = store.queue_range(UNITS_TOPIC, 0)
    newest = None
    for part in store.read(UNITS_TOPIC, 0, first, last, columns=["tags", "body"]):
        for tag, body in zip(part.column("tags").to_pylist(), part.column("body").to_pylist(), strict=True):
            unit = UnitRecord.parse(body) if tag == END_TAG else None
            if unit is not None and (unit.purpose, unit.key) == UNIT:
                newest = unit.value
    return newest


def _compare_with_promises(
    life: Life, moment: int, found: _Found, written: Written, where: str, counters: Counters
) -> None:
    """Compare what an image is with what had been acknowledged by then."""
    promise = life.promises[bisect_right(life.promises, moment, key=lambda promise: promise.at) - 1]
    counters.acknowledged += written.messages_between(0, promise.end)
    if found.end < 0:
        return  # it could not be opened: counted
    if found.end < promise.end:
        counters.lost += max(1, written.messages_between(found.end, promise.end))
        counters.note(f"{where}: the log ends at {found.end}, it was acknowledged up to {promise.end}")
    if life.config.flush_disk_type == "ASYNC_FLUSH":
        # An image may also have more: what was just being appended.
        end = max(found.end, promise.written)
        counters.seen["lost of what waited for a flush"] += written.messages_between(found.end, end)
    asked = life.begun[bisect_right(life.begun, moment, key=lambda begun: begun[0]) - 1][1]
    if not promise.offset <= found.offset <= max(asked, promise.offset):
        counters.lost += 1
        counters.note(f"{where}: the group is at {found.offset}, committed was {promise.offset}")
    if not promise.topics <= found.topics:
        counters.lost += 1
        counters.note(f"{where}: topics {sorted(promise.topics - found.topics)} are gone")


@protection("segment_names", "syncs the directory when a segment was made, before another one is")
def _without_segment_names() -> Iterator[None]:
    sync = durable.fsync_directory
    with patch.object(durable, "fsync_directory", lambda path: None if Path(path).name == "commitlog" else sync(path)):
        yield


@protection("whole_new_files", "syncs a new segment or queue file before it gets its name")
def _without_whole_new_files() -> Iterator[None]:
    with patch.object(durable, "fsync_file", _unless(lambda name: len(name) == 20 and name.isdigit())):
        yield


@protection("whole_tables", "syncs the new content of a table before it replaces the old one")
def _without_whole_tables() -> Iterator[None]:
    with patch.object(durable, "fsync_file", _unless(lambda name: name.endswith(".tmp"))):
        yield


def _unless(is_passed_over: Any) -> Any:
    sync = durable.fsync_file

    def call(fd: int, path: str | Path = "") -> None:
        if not is_passed_over(Path(path).name):
            sync(fd, path)

    return call


@protection("views_before_progress", "makes queues and index durable before a progress record vouches for them")
def _without_views_before_progress() -> Iterator[None]:
    with (
        patch.object(flush, "sync_filesystem", lambda log: None),
        patch.object(opening, "sync_filesystem", lambda log: None),
        patch.object(recovery, "sync_filesystem", lambda log: None),
    ):
        yield


@protection("whole_units", "drops a unit whose end a power cut took away")
def _without_whole_units() -> Iterator[None]:
    with patch.object(UnitScan, "torn", lambda self: None):
        yield


@protection("zeroed_tails", "overwrites what it cuts off the log with zeros")
def _without_zeroed_tails() -> Iterator[None]:
    with patch.object(recovery, "_remove", lambda log, end: 0):
        yield


PARTS = (
    Part(
        "simulated_disk", "6", "power cuts on a simulated disk", "images", 3_000, 40_000, 1_000_000, 10_000, run,
        ("no_flush", "segment_names", "whole_new_files", "whole_tables", "views_before_progress", "whole_units",
         "zeroed_tails"), bites_within=500, by_cycle=True,
    ),
)  # fmt: skip
