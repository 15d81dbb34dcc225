"""Bytes at the end of the log that are not those that were written, and bytes in the
middle of it.

`torn_tail`: the last three records were never flushed. The log is cut at every byte of them, and what follows is what a
disk may leave there. Records before the cut survive, and nothing else does; nor does it after the next append.
`mid_log`: records that were flushed are damaged, others lie behind. Without being told to the store does not open, and
does not change; with "keep" every record that is whole is read, the damage is named byte by byte, and no queue offset
that was given out is given out again.

Reports of such damage: apache/rocketmq #467, #501, #7437, #10017, #10018, #10666, #10816.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any

import rmq_store
from crash.part import Counters, Part, Trial
from crash.protections import protection

_SEGMENT = 4096
_QUEUES = 2
_FILLS = ("zeros", "ones", "random", "old bytes", "old records", "hole")
_NOW = 1_700_000_000_000


def _config() -> rmq_store.StoreConfig:
    return rmq_store.StoreConfig(
        mapped_file_size_commit_log=_SEGMENT,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=4,
        max_index_num=50,
        flush_interval_commit_log=2**31 - 1,
    )


@dataclass
class _Record:
    """A record as it was written: bytes [start, end) of the log, and what its queue says of it."""

    start: int
    end: int
    queue_id: int
    queue_offset: int
    body: bytes


class _Image:
    """A store as a power cut leaves it, in memory; `restore` puts it back in place (inodes stay what they were)."""

    def __init__(self, root: Path, rng: random.Random, durable: int, torn: int, body_bytes_max: int) -> None:
        self.root = root
        self.records: list[_Record] = []
        ticks = count(_NOW, 1000)
        shutil.rmtree(root, ignore_errors=True)
        store = rmq_store.Store.open(root, create=True, config=_config(), clock=lambda: next(ticks))
        store.create_topic("Torn", _QUEUES)
        self._send(store, rng, durable, body_bytes_max)
        store.flush()
        self.durable_point = store.log_range()[1]
        self._send(store, rng, torn, body_bytes_max)
        self.end = store.log_range()[1]
        self.files = {path: path.read_bytes() for path in self._paths()}
        store.close()
        state = bytearray(self.files[root / "pyrmq" / "state"])
        state[8:24] = b"another boot id."
        self.files[root / "pyrmq" / "state"] = bytes(state)
        size = max(len(range(0, self.end, _SEGMENT)), 1) * _SEGMENT
        self.log = b"".join(self.files[self.segment(base)] for base in range(0, size, _SEGMENT))

    def _send(self, store: Any, rng: random.Random, messages: int, body_bytes_max: int) -> None:
        for _ in range(messages):
            number = len(self.records)
            body = b"%06d" % number + rng.randbytes(rng.randrange(body_bytes_max))
            tags = rng.choice((None, "T", "TagB"))
            sent = store.send(rmq_store.Message("Torn", body, tags=tags, keys=rng.choice((None, f"K{number}"))))
            self.records.append(
                _Record(sent.commit_log_offset, store.log_range()[1], sent.queue_id, sent.queue_offset, body)
            )

    def segment(self, base: int) -> Path:
        return self.root / "commitlog" / f"{base:020d}"

    def _paths(self) -> Iterator[Path]:
        for name in ("commitlog", "consumequeue", "index", "pyrmq"):
            for path in (self.root / name).rglob("*"):
                if path.is_file() and not path.name.endswith(".lock"):
                    yield path
        if (self.root / "abort").exists():
            yield self.root / "abort"

    def restore(self, log: bytes, leave_out: tuple[str, ...] = ()) -> None:
        """The image with another log; segments of nothing stay away, and so do files below `leave_out`."""
        for path in list(self._paths()):
            if path not in self.files:
                path.unlink()
        for path, data in self.files.items():
            if path.relative_to(self.root).parts[0] in leave_out:
                path.unlink(missing_ok=True)
                continue
            if path.parent.name == "commitlog":
                base = int(path.name)
                data = log[base : base + _SEGMENT]
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if path.exists() else "wb") as file:
                file.write(data)
        for name in leave_out:
            shutil.rmtree(self.root / name, ignore_errors=True)

    def state(self) -> dict[Path, bytes]:
        """Every file, to see that a refusal changed nothing."""
        return {path: path.read_bytes() for path in self._paths()}


# -- torn_tail -------------------------------------------------------------------------------------------------------


def _fill(image: _Image, kind: str, cut: int, rng: random.Random) -> bytes:
    """The log cut at `cut`, and what the disk has behind it up to the old end, or beyond."""
    log, end = image.log, image.end
    room = end - cut
    if kind == "hole":  # 8 bytes are lost, later ones reached the disk
        return log[:cut] + bytes(b ^ 0xFF for b in log[cut : cut + 8]) + log[cut + 8 :]
    if kind == "old records":  # a file that was used before: whole records, but of another place
        old = b"".join(log[record.start : record.end] for record in image.records)
        fill = old[: len(log) - cut]
        return log[:cut] + fill + bytes(len(log) - cut - len(fill))
    fills = {
        "zeros": bytes(room), "ones": b"\xff" * room, "random": rng.randbytes(room),
        "old bytes": (log[3:cut] * (room // max(cut - 3, 1) + 1))[:room],
    }  # fmt: skip
    return log[:cut] + fills[kind] + log[end:]


def _open_log(root: Path) -> Any:
    """The log alone: twice as fast as a whole store."""
    from rmq_store.log.core.commit_log import CommitLog
    from rmq_store.log.recovery.opening import open_for_writing

    ticks = count(_NOW + 10**9, 1000)
    log = CommitLog(
        root, _config().geometry(), writable=True, index_enabled=True, index_tags=True, clock=lambda: next(ticks),
        sync_flush=False, crc_property=True, delay_levels_ms=(1000,),
    )  # fmt: skip
    try:
        report = open_for_writing(log)
    except BaseException:
        log.close()
        raise
    assert report is not None
    return log


def _messages(log: Any) -> list[tuple[int, int, bytes]]:
    """(queue id, queue offset, body) of all visible messages, asked of the queues."""
    found = []
    for queue_id in range(_QUEUES):
        last = log.queue_max("Torn", queue_id, log.visible_end())
        for number in range(last):
            message = log.message_at(log.views.queue("Torn", queue_id).entry(number)[0])
            body = message.body if message is not None else b""
            place = (message.queue_id, message.queue_offset) if message is not None else (-1, -1)
            found.append((*place, body))
    return found


def _compare(found: list[tuple[int, int, bytes]], expected: list[tuple[int, int, bytes]], counters: Counters) -> str:
    """Count differences; a word about the first one."""
    if found == expected:
        return ""
    places = {row[:2]: row[2] for row in found}
    lost = [row for row in expected if row[:2] not in places]
    altered = [row for row in expected if row[:2] in places and places[row[:2]] != row[2]]
    invented = [row for row in found if row[:2] not in {row[:2] for row in expected}]
    counters.lost += len(lost)
    counters.altered += len(altered)
    counters.broken += len(invented) + (not (lost or altered or invented))
    return f"lost {lost[:1]}, altered {altered[:1]}, invented {invented[:1]}"


def _torn_case(image: _Image, kind: str, cut: int, rng: random.Random, *, thorough: bool) -> Counters:
    counters = Counters(cycles=1)
    torn = _fill(image, kind, cut, rng)
    image.restore(torn)
    rows = []
    for record in image.records:
        if torn[record.start : record.end] != image.log[record.start : record.end]:
            break  # nothing behind it may survive, whole or not
        rows.append((record.queue_id, record.queue_offset, record.body))
    expected = sorted(rows)
    counters.acknowledged = len(expected)
    counters.seen[kind] += 1
    what = ""
    try:
        log = _open_log(image.root)
        try:
            what = _compare(_messages(log), expected, counters)
        finally:
            log.close()
        if thorough and not what:
            what = _append_and_cut_again(image, expected, counters)
    except rmq_store.StoreError as error:
        counters.broken += 1
        what = f"{type(error).__name__}: {error}"
    if what:
        counters.note(f"{kind} from byte {cut} on: {what}")
    return counters


def _append_and_cut_again(image: _Image, expected: list[tuple[int, int, bytes]], counters: Counters) -> str:
    """#10666: what was cut must not come back behind the next record, if the power is cut before that is flushed."""
    first_lost = image.records[len(expected)] if len(expected) < len(image.records) else None
    body = b"again!" if first_lost is None else b"again!" + bytes(len(first_lost.body) - 6)
    store = rmq_store.Store.open(image.root, clock=lambda: _NOW + 10**9)
    # As large as the first record that was cut, so that the next one would fit behind it.
    same = first_lost is not None
    tags, keys = _tags_keys(image, first_lost) if same else (None, None)
    sent = store.send(rmq_store.Message("Torn", body, tags=tags, keys=keys))
    files = {path: path.read_bytes() for path in image._paths()}
    store.close()
    for path in list(image._paths()):
        if path not in files:
            path.unlink()
    for path, data in files.items():
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(data)
    with (image.root / "pyrmq" / "state").open("r+b") as file:
        file.seek(8)
        file.write(b"a third boot id.")
    (image.root / "pyrmq" / "state").write_bytes(bytes(4096))
    log = _open_log(image.root)
    try:
        wanted = sorted([*expected, (sent.queue_id, sent.queue_offset, body)])
        return _compare(_messages(log), wanted, counters)
    finally:
        log.close()


def _tags_keys(image: _Image, record: _Record) -> tuple[str | None, str | None]:
    raw = image.log[record.start : record.end]
    tags = next((tag for tag in ("TagB", "T") if f"TAGS\x01{tag}\x02".encode() in raw), None)
    return tags, f"K{int(record.body[:6])}" if b"KEYS\x01" in raw else None


def _run_torn(trial: Trial) -> Counters:
    counters = Counters()
    done = lap = 0
    while done < trial.cycles:
        rng = random.Random(f"{trial.seed}/{lap}")
        image = _Image(trial.directory / "store", rng, durable=3, torn=3, body_bytes_max=24)
        ends = {record.end for record in image.records} | {image.durable_point}
        cases = list(product(_FILLS, range(image.durable_point, image.end)))
        rng.shuffle(cases)
        cases.sort(key=lambda case: case[1] not in ends)  # the boundaries first: rare, and worth most
        for kind, cut in cases[: trial.cycles - done]:
            thorough = cut in ends or rng.random() < 0.02
            counters.add(_torn_case(image, kind, cut, rng, thorough=thorough))
            done += 1
            trial.tick(1)
        counters.seen["laps"] += done >= len(cases)
        lap += 1
    shutil.rmtree(trial.directory / "store", ignore_errors=True)
    return counters


# -- mid_log ---------------------------------------------------------------------------------------------------------


def _damage(image: _Image, rng: random.Random) -> tuple[bytes, list[int]]:
    """The log with one to three things wrong below the durable point, and the bases of segments that are missing."""
    log, missing = bytearray(image.log), list[int]()
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(image.durable_point)
        kind = rng.choice(("bit", "bytes", "properties", "zeros", "segment", "end"))
        if kind == "bit":
            log[at] ^= 1 << rng.randrange(8)
        elif kind == "bytes":
            size = min(rng.randrange(1, 400), image.durable_point - at)
            log[at : at + size] = rng.randbytes(size)
        elif kind == "properties":  # and the name of the checksum behind them: body and lengths are whole
            record = rng.choice([r for r in image.records if r.end <= image.durable_point])
            at = record.start + image.log[record.start : record.end].index(b"\x04Torn", 88) + 5 + 2
            log[at : record.end] = rng.randbytes(record.end - at)
        elif kind == "zeros":
            size = min(rng.randrange(1, 3000), image.durable_point - at)
            log[at : at + size] = bytes(size)
        elif kind == "segment":
            missing.append(at // _SEGMENT * _SEGMENT)
        else:
            log[at:] = bytes(len(log) - at)
    return bytes(log), sorted(set(missing))


def _log_start(image: _Image, missing: list[int]) -> int:
    """Segments missing in front of all others are what retention leaves."""
    there = [base for base in range(0, image.end, _SEGMENT) if base not in missing]
    return there[0] if there else 0


def _expected_ranges(image: _Image, log: bytes, missing: list[int]) -> list[tuple[int, int]]:
    """What is no record any more, from what was written: runs of damaged frames, cut at the ends of files."""
    frames: list[tuple[int, int, bool]] = []
    for record, following in zip(image.records, [*image.records[1:], None], strict=True):
        whole = log[record.start : record.end] == image.log[record.start : record.end]
        frames.append((record.start, record.end, whole and record.start // _SEGMENT * _SEGMENT not in missing))
        if following is not None and following.start != record.end:  # a blank: its first 8 bytes are all it has
            whole = log[record.end : record.end + 8] == image.log[record.end : record.end + 8]
            frames.append((record.end, following.start, whole and record.end // _SEGMENT * _SEGMENT not in missing))
    found: list[tuple[int, int]] = []
    begin = _log_start(image, missing)
    there = [base for base in range(0, image.end, _SEGMENT) if base not in missing]
    files_end = there[-1] + _SEGMENT if there else -1
    for start, end, whole in frames:
        if whole or not begin <= start < image.durable_point:
            continue
        if found and found[-1][1] == start and (start % _SEGMENT or start > files_end):
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def _read_all(store: Any, queue_id: int, counters: Counters) -> list[tuple[int, int, bytes]]:
    """Every message of a queue that can be read, jumping over what the errors name."""
    found, (start, last) = [], store.queue_range("Torn", queue_id)
    while start < last:
        try:
            for batch in store.read("Torn", queue_id, start, last, columns=["queueOffset", "body"]):
                for row in batch.to_pylist():
                    found.append((queue_id, row["queueOffset"], row["body"]))
                    start = row["queueOffset"] + 1
            break
        except rmq_store.CorruptRecordError as error:
            named = re.match(r"messages \[(\d+), (\d+)\) of ", error.reason)
            if named is None or not int(named[1]) <= start < int(named[2]):
                raise
            behind = int(named[2])
            counters.seen["lost messages named"] += behind - start
            start = behind
    return found


def _mid_case(image: _Image, rng: random.Random) -> Counters:
    counters = Counters(cycles=1)
    log, missing = _damage(image, rng)
    without_views = rng.random() < 0.4
    image.restore(log, ("consumequeue", "index") if without_views else ())
    for base in missing:
        image.segment(base).unlink()
    ranges = _expected_ranges(image, log, missing)
    begin = _log_start(image, missing)
    lost = [r for r in image.records if r.start < begin or any(start <= r.start < end for start, end in ranges)]
    expected = sorted((r.queue_id, r.queue_offset, r.body) for r in image.records if r not in lost)
    counters.acknowledged = len(expected)
    before = image.state()
    try:
        if ranges:
            counters.seen["damaged"] += 1
            try:
                rmq_store.Store.open(image.root, clock=lambda: _NOW + 10**9).close()
                counters.broken += 1
                counters.note("damage was not refused")
            except rmq_store.CorruptRecordError:
                if image.state() != before:
                    counters.broken += 1
                    counters.note("a refusal changed something")
        what = _keep_and_look(image, ranges, expected, counters, without_views=without_views)
    except (rmq_store.StoreError, OSError) as error:
        counters.broken += 1
        what = f"{type(error).__name__}: {error}"
    if what:
        counters.note(f"{ranges}, views {'deleted' if without_views else 'there'}: {what}")
    return counters


def _keep_and_look(
    image: _Image, ranges: list[tuple[int, int]], expected: list[tuple[int, int, bytes]], counters: Counters,
    *, without_views: bool,
) -> str:  # fmt: skip
    from rmq_store.verify import verify_store

    ends = {q: 1 + max(r.queue_offset for r in image.records if r.queue_id == q) for q in range(_QUEUES)}
    known = {q: 1 + max((row[1] for row in expected if row[0] == q), default=-1) for q in range(_QUEUES)}
    added = []
    with rmq_store.Store.open(image.root, clock=lambda: _NOW + 10**9, on_corruption="keep") as store:
        named = [(bad.start, bad.end) for bad in store.recovery.bad_ranges]
        if named != ranges:
            counters.broken += 1
            return f"named {named}"
        found = [row for queue_id in range(_QUEUES) for row in _read_all(store, queue_id, counters)]
        if what := _compare(found, expected, counters):
            return what
        for number in range(2 * _QUEUES):
            sent = store.send(rmq_store.Message("Torn", b"new%03d" % number))
            added.append((sent.queue_id, sent.queue_offset, b"new%03d" % number))
            end = (known if without_views else ends)[sent.queue_id]
            if sent.queue_offset < end or sent.commit_log_offset < image.durable_point:
                counters.duplicated += 1
                return f"queue offset {sent.queue_offset}, byte {sent.commit_log_offset} were given out again"
    report = verify_store(image.root)
    counters.seen[f"verified {report.status}"] += 1
    if report.status != ("kept" if ranges else "clean"):
        counters.broken += 1
        return f"verified {report.status}: {report.problems[:2]}{report.recovery[:2]}"
    with rmq_store.Store.open(image.root, clock=lambda: _NOW + 2 * 10**9) as store:  # accepted once
        found = [row for queue_id in range(_QUEUES) for row in _read_all(store, queue_id, counters)]
        return _compare(found, sorted([*expected, *added]), counters)


def _run_mid(trial: Trial) -> Counters:
    counters = Counters()
    for cycle in range(trial.cycles):
        rng = random.Random(f"{trial.seed}/{cycle}")
        if cycle % 50 == 0:
            image = _Image(trial.directory / "store", rng, durable=45, torn=0, body_bytes_max=400)
        counters.add(_mid_case(image, rng))
        trial.tick(1)
    shutil.rmtree(trial.directory / "store", ignore_errors=True)
    return counters


# -- protections -----------------------------------------------------------------------------------------------------


def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@protection("no_record_crc", "a record that we wrote must have its CRC property, which covers its properties")
def _no_record_crc() -> Iterator[None]:
    from rmq_store.log.recovery.starting_point import StartingPoint

    yield from _patched(StartingPoint, "crc_from", lambda start, log: None)


@protection("no_zeroed_tail", "what is cut off the log is overwritten with zeros")
def _no_zeroed_tail() -> Iterator[None]:
    from rmq_store.log.recovery import recovery

    yield from _patched(recovery, "_remove", lambda log, end: 0)


@protection("no_own_offset", "a record counts only at the offset that it names itself")
def _no_own_offset() -> Iterator[None]:
    from rmq_store.log.core import scan

    check = scan.check_frame
    yield from _patched(scan, "check_frame", lambda *args, **how: check(*args, **{**how, "expect_offset": None}))


@protection("no_durable_point", "records that were on disk are never cut, whatever lies before them")
def _no_durable_point() -> Iterator[None]:
    from rmq_store.log.recovery import recovery

    yield from _patched(recovery, "find_damage", lambda log, start: [])


@protection("no_holes", "a queue that lost entries has holes in their place, and stays as long as it was")
def _no_holes() -> Iterator[None]:
    from rmq_store.log.recovery import dispatch

    yield from _patched(dispatch, "close_gap", lambda log, key, first: None)


PARTS: tuple[Part, ...] = (
    Part(
        name="torn_tail", number="7", title="the last three records cut at every byte, with six kinds of bytes behind",
        unit="cuts", harness=3700, crash=37_000, soak=74_000, chunk=7400, run=_run_torn,
        protections=("no_record_crc", "no_zeroed_tail", "no_own_offset"), bites_within=300, by_cycle=True,
    ),
    Part(
        name="mid_log", number="10", title="damage below the durable point, with valid records behind it",
        unit="damaged logs", harness=250, crash=5000, soak=10_000, chunk=1000, run=_run_mid,
        protections=("no_durable_point", "no_holes", "no_record_crc"), bites_within=60, by_cycle=True,
    ),
)  # fmt: skip
