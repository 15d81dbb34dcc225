"""Test 8: every single bit of a record of each kind, flipped.

With the CRC of the whole record every flip must be seen, by recovery and by the verifier. Without it (byte-identical to
RocketMQ's default) at least 62 % of a record with a body of 100 bytes must be, by one of the two; nothing may crash or
cost a neighbour. Figures are by field: `detected <mode> <field>`, `missed <mode> <field>`.
"""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from crash.part import Counters, Part, Trial
from crash.protections import protection
from fuzz.records import BASE, Victim, victims
from fuzz.view_flips import PART as VIEW_FLIPS

PLAIN_DETECTED_MIN = 0.62
_MEASURED_KIND = "V1 IPv4 100 B"
_MEASURED_MIN = 500
# One flip of so many is also made in a whole store.
_SAMPLE_EVERY = 1000
_TICK = 2000


@functools.cache
def all_bits() -> tuple[tuple[int, int], ...]:
    """(victim, bit number) of every bit, in an order that does not favour any of them."""
    bits = [
        (number, bit) for number, victim in enumerate(victims()) for bit in range(8 * victim.start, 8 * victim.end)
    ]
    random.Random(8).shuffle(bits)
    return tuple(bits)


def run(trial: Trial) -> Counters:
    """Flip bits, all of them if there are cycles enough."""
    counters, bits = Counters(), all_bits()
    measured = [0, 0]
    sample = _Sample(trial.directory)
    first = random.Random(trial.seed).randrange(len(bits))
    for cycle in range(trial.cycles):
        victim = victims()[bits[(first + cycle) % len(bits)][0]]
        bit = bits[(first + cycle) % len(bits)][1]
        data = bytearray(victim.data)
        data[bit >> 3] ^= 1 << (bit & 7)
        field = victim.field(bit >> 3)
        try:
            recovered, verified = _recovery_sees(data, victim), _verifier_sees(data, victim)
        except Exception as error:
            counters.broken += 1
            counters.note(f"{victim.mode} {victim.kind} bit {bit}: {type(error).__name__}: {error}")
            continue
        detected = recovered and verified if victim.mode == "crc" else recovered or verified
        counters.seen[f"{'detected' if detected else 'missed'} {victim.mode} {field}"] += 1
        if victim.mode == "crc" and not detected:
            counters.altered += 1
            counters.note(f"{victim.kind} bit {bit} ({field}): recovery {recovered}, verifier {verified}")
        if victim.mode == "plain" and victim.kind == _MEASURED_KIND:
            measured[detected] += 1
        if cycle % _SAMPLE_EVERY == 0:
            sample.check(counters, victim.mode, random.Random(f"{trial.seed}/{cycle}"))
        if (cycle + 1) % _TICK == 0:
            trial.tick(_TICK)
    trial.tick(trial.cycles % _TICK)
    counters.cycles = trial.cycles
    if sum(measured) >= _MEASURED_MIN and measured[True] / sum(measured) < PLAIN_DETECTED_MIN:
        counters.broken += 1
        counters.note(f"only {measured[True]} of {sum(measured)} flips detected without a record CRC")
    return counters


def _recovery_sees(data: bytearray, victim: Victim) -> bool:
    """As the scan asks: the record must be whole, and so must its neighbour behind be."""
    from rmq_store.format.frames.frame_check import check_frame

    view = memoryview(data)
    after = check_frame(view, victim.end, len(view), expect_offset=BASE + victim.end, check_crc=True)
    assert after.kind == "message", "the neighbour is lost"
    check = check_frame(view, victim.start, len(view), expect_offset=BASE + victim.start, check_crc=True)
    return check.kind != "message"


@functools.cache
def _facts(victim: Victim) -> tuple[object, ...]:
    from rmq_store.verify.records import read_frame

    return _facts_of(read_frame(victim.data, victim.start, BASE))


def _facts_of(frame: object) -> tuple[object, ...]:
    """What the verifier compares with the entries of queue and index."""
    from rmq_store.verify.records import Frame, java_hash, key_hashes, tag_hash

    assert isinstance(frame, Frame)
    tags_code = java_hash(frame.properties.get(b"TAGS", b""))
    delivered = frame.properties.get(b"DELAY"), frame.store_ms // 1000
    return frame.queue, frame.queue_offset, frame.flags & 0xCC, key_hashes(frame), tag_hash(frame), tags_code, delivered


def _verifier_sees(data: bytearray, victim: Victim) -> bool:
    from rmq_store.verify.records import Frame, read_frame

    frame = read_frame(bytes(data), victim.start, BASE)
    return not isinstance(frame, Frame) or _facts_of(frame) != _facts(victim)


class _Sample:
    """The same in whole stores: `verify_store` and an opening for writing look at it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.made: dict[str, tuple[Path, list[tuple[int, int]], list[tuple[object, ...]]]] = {}

    def check(self, counters: Counters, mode: str, dice: random.Random) -> None:
        from rmq_store import CorruptRecordError, Store
        from rmq_store.verify import verify_store

        source, records, rows = self._store(mode)
        root = self.directory / "flipped"
        shutil.copytree(source, root)
        start, end = dice.choice(records)
        bit = dice.randrange(8 * start, 8 * end)
        path = root / "commitlog" / f"{0:020d}"
        raw = bytearray(path.read_bytes())
        raw[bit >> 3] ^= 1 << (bit & 7)
        path.write_bytes(raw)
        where = f"store, {mode}, bit {bit - 8 * start} of the record at {start}"
        seen = False
        try:
            report = verify_store(root)
            seen = report.status != "clean"
            if report.messages < len(records) - 1:
                counters.lost += 1
                counters.note(f"{where}: the verifier finds {report.messages} of {len(records) - 1} neighbours")
            (root / "abort").touch()  # a copy of a store that was in use: all of it is scanned
            with Store.open(root) as store:
                found = read_rows(store)
                seen |= len(found) < len(rows)
                _compare(counters, rows, found, where)
        except CorruptRecordError:
            seen = True
        except Exception as error:
            counters.broken += 1
            counters.note(f"{where}: {type(error).__name__}: {error}")
        counters.seen[f"{'detected' if seen else 'missed'} {mode}, in a whole store"] += 1
        if mode == "crc" and not seen:
            counters.altered += 1
            counters.note(f"{where}: seen by nobody")
        shutil.rmtree(root)

    def _store(self, mode: str) -> tuple[Path, list[tuple[int, int]], list[tuple[object, ...]]]:
        if mode not in self.made:
            root = self.directory / mode
            made = _make(root, crc=mode == "crc")
            self.made[mode] = root, *made
        return self.made[mode]


def _make(root: Path, *, crc: bool) -> tuple[list[tuple[int, int]], list[tuple[object, ...]]]:
    """A clean store with twelve records; where they lie, and what a reader gets."""
    from rmq_store import Message, Store, StoreConfig
    from rmq_store.format.frames.compression import compress
    from rmq_store.format.frames.frame_check import check_frame

    config = StoreConfig(
        mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=16, max_index_num=64,
        enabled_append_prop_crc=crc, flush_interval_commit_log=10**9,
    )  # fmt: skip
    long_topic = "%RETRY%" + "g" * 120 + "-" * 8
    body, compressed = compress(b"compressed " * 30, "zlib")
    with Store.open(root, create=True, config=config) as store:
        store.create_topic("Orders", queue_count=1)
        store.create_topic(long_topic, queue_count=1)
        for number in range(5):
            store.send(Message("Orders", b"body %d" % number * 5, tags="TagA", keys=f"k{number}"))
            store.send(Message(long_topic, b"" if number == 2 else b"x" * 100, properties={"region": "eu"}))
        store.send(Message("Orders", b"later", delay_level=18))
        store.send(Message("Orders", body), sys_flag=compressed)
        rows, end = read_rows(store), store.log_range()[1]
    view = memoryview((root / "commitlog" / f"{0:020d}").read_bytes())
    records, position = [], 0
    while position < end:
        size = check_frame(view, position, len(view), expect_offset=position, check_crc=True).size
        records.append((position, position + size))
        position += size
    return records, rows


def read_rows(store: object) -> list[tuple[object, ...]]:
    """(topic, queue, offset, body, properties) of every message of the topics of users that can be read."""
    from rmq_store import CorruptionError

    rows: list[tuple[object, ...]] = []
    columns = ["topic", "queueId", "queueOffset", "body", "properties"]
    for topic in ("Orders", "%RETRY%" + "g" * 120 + "-" * 8):
        for offset in range(*store.queue_range(topic, 0)):  # type: ignore[attr-defined]
            try:
                (batch,) = store.read(topic, 0, offset, offset + 1, columns=columns)  # type: ignore[attr-defined]
            except CorruptionError:
                continue
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return rows


def _compare(counters: Counters, before: list[tuple[object, ...]], after: list[tuple[object, ...]], where: str) -> None:
    """All but the flipped record are there, unchanged and in their place."""
    by_place = {row[:3]: row for row in after}
    changed = [row for row in before if by_place.get(row[:3]) != row]
    if len(changed) > 1 or len(after) < len(before) - 1:
        counters.lost += 1
        counters.note(f"{where}: a neighbour is lost or altered: {[row[:3] for row in changed]}")


@protection("record_crc", "the CRC over the whole record is compared")
def _without_record_crc() -> Iterator[None]:
    from rmq_store.format.frames import frame_check

    kept = frame_check._stored_crc
    frame_check._stored_crc = lambda view, end: None
    yield
    frame_check._stored_crc = kept


# Bits of all victims; a test compares.
BITS = 333_872

PART = Part(
    "flips", "8", "every bit of one record of each kind flipped", "bits", harness=BITS, crash=BITS, soak=BITS,
    chunk=BITS, run=run, protections=("record_crc",), bites_within=5000, by_cycle=True,
)  # fmt: skip
PARTS = (PART, VIEW_FLIPS)
