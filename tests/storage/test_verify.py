"""The verifier: it accepts what real brokers left behind, and finds what is wrong in a store.

The damaged stores are the golden ones with bytes changed, and small ones written here byte by byte from the format
specification, for the histories that the golden stores do not have (retention, a topic made again, a queue that began
above 0, a record torn in the middle).
"""

from __future__ import annotations

import ast
import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import rmq_store.kinds
import rmq_store.verify
from rmq_store.errors import NotAStoreError
from rmq_store.verify import Report, verify_store
from rmq_store.verify.records import Frame, java_hash, read_frame

SEGMENT_BYTES, QUEUE_FILE_BYTES, SLOTS, INDEX_CAPACITY = 2048, 200, 10, 50


class SmallStore:
    """A store in memory, one write per message; `save` puts it on disk."""

    def __init__(self, with_crc: bool = True) -> None:
        self.log = bytearray()
        self.with_crc = with_crc
        self.clock_ms = 1_700_000_000_000
        self.queues: dict[tuple[str, int], bytearray] = {}
        self.index: list[tuple[int, int, int]] = []
        self.topics: set[str] = set()

    def send(self, topic: str, keys: str = "", tags: str = "", *, queue_offset: int | None = None, index: bool = True,
             uniq: tuple[str, ...] = (), sys_flag: int = 0, body: bytes = b"body") -> int:  # fmt: skip
        """Append a message and its entries; returns its log offset."""
        pairs = [("UNIQ_KEY", key) for key in uniq] + [("KEYS", keys), ("TAGS", tags)]
        properties = "".join(f"{name}\x01{value}\x02" for name, value in pairs if value).encode()
        if self.with_crc:
            properties += b"__CRC32#\x010000000000\x02"
        name = topic.encode()
        size = 91 + len(body) + len(name) + len(properties)
        left = SEGMENT_BYTES - len(self.log) % SEGMENT_BYTES
        if size + 8 > left:
            self.log += struct.pack(">i4s", left, b"\xcb\xd4\x31\x94") + bytes(left - 8)
        offset = len(self.log)
        self.topics.add(topic)
        queue = self.queues.setdefault((topic, 0), bytearray())
        number = len(queue) // 20 if queue_offset is None else queue_offset
        self.clock_ms += 700
        host = bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
        head = struct.pack(">i4siiiqqiq", size, b"\xda\xa3\x20\xa7", zlib.crc32(body) & 0x7FFFFFFF, 0, 0, number,
                           offset, sys_flag, self.clock_ms)  # fmt: skip
        frame = head + host + struct.pack(">q", self.clock_ms) + host + struct.pack(">iqi", 0, 0, len(body)) + body
        frame += bytes([len(name)]) + name + struct.pack(">h", len(properties)) + properties
        if self.with_crc:
            frame = frame[:-11] + (b"%010d" % (zlib.crc32(frame[:-20]) & 0x7FFFFFFF))[::-1] + b"\x02"
        self.log += frame
        queue[number * 20 :] = struct.pack(">qiq", offset, size, java_hash(tags.encode()))
        for key in [*uniq[:1], *keys.split()] if index else []:
            self.index.append((abs(java_hash(f"{topic}#{key}".encode())), offset, self.clock_ms))
        return offset

    def save(self, root: Path, first_segment: int = 0) -> Path:
        """Write the files; segments before `first_segment` are left out, as after retention."""
        for base in range(first_segment * SEGMENT_BYTES, len(self.log), SEGMENT_BYTES):
            segment = self.log[base : base + SEGMENT_BYTES].ljust(SEGMENT_BYTES, b"\0")
            _write(root / "commitlog" / f"{base:020d}", segment)
        for (topic, queue_id), queue in self.queues.items():
            for base in range(0, len(queue), QUEUE_FILE_BYTES):
                entries = queue[base : base + QUEUE_FILE_BYTES].ljust(QUEUE_FILE_BYTES, b"\0")
                _write(root / "consumequeue" / topic / str(queue_id) / f"{base:020d}", entries)
        previous_end_ms = 0
        for number, start in enumerate(range(0, len(self.index), INDEX_CAPACITY - 1)):
            rows = self.index[start : start + INDEX_CAPACITY - 1]
            heads, entries, begin_ms = [0] * SLOTS, bytes(20), previous_end_ms
            for n, (key_hash, offset, store_ms) in enumerate(rows, start=1):
                seconds = (store_ms - begin_ms) // 1000 if begin_ms else 0
                entries += struct.pack(">iqii", key_hash, offset, seconds, heads[key_hash % SLOTS])
                heads[key_hash % SLOTS] = n
                begin_ms = rows[0][2]
            header = struct.pack(">qqqqii", rows[0][2], rows[-1][2], rows[0][1], rows[-1][1], SLOTS - heads.count(0),
                                 len(rows) + 1)  # fmt: skip
            slots = struct.pack(f">{SLOTS}i", *heads)
            _write(root / "index" / f"20261121{number:09d}", header + slots + entries.ljust(20 * INDEX_CAPACITY, b"\0"))
            previous_end_ms = rows[-1][2]
        table = {"topicConfigTable": {topic: {} for topic in self.topics}}
        _write(root / "config" / "topics.json", json.dumps(table).encode())
        return root


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _orders(count: int, store: SmallStore | None = None) -> SmallStore:
    store = store or SmallStore()
    for number in range(count):
        store.send("Orders", keys=f"K{number} shared", tags="TagA", uniq=(f"U{number}",))
    return store


def _flip(path: Path, position: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


def _texts(report: Report) -> str:
    return "\n".join(f"{problem.path} {problem.offset} {problem.text}" for problem in report.problems)


# ---- what must be accepted


def test_a_store_of_a_real_broker_is_clean_and_every_message_of_its_manifest_is_counted(golden: Path) -> None:
    report = verify_store(golden / "store")
    manifest = json.loads((golden / "manifest.json").read_text())
    assert (report.status, report.problems, report.recovery) == ("clean", [], [])
    assert report.notes == [
        f"messages of delay level {level} wait {seconds} s, not as in RocketMQ's own messageDelayLevel"
        for level, seconds in ((2, 1), (3, 2), (4, 2), (5, 3))
    ]
    assert report.messages == report.queue_entries == manifest["messageCount"]
    assert (report.index_files, report.unindexed_keys, report.log_end) == (7, 0, 5547741)


@pytest.mark.parametrize("name", ["store", "store-torn"])
def test_the_copy_of_a_running_broker_needs_recovery_but_is_not_damaged(golden_crash: Path, name: str) -> None:
    report = verify_store(golden_crash / name)
    recovered = json.loads((golden_crash / f"{name}-recovered.json").read_text())
    assert report.status == "unclean", _texts(report)
    assert report.log_end == recovered["maxCommitLogOffset"]
    assert any("abort" in line for line in report.recovery)


def test_a_record_without_its_queue_entry_is_named_in_the_copy_of_a_running_broker(golden_crash: Path) -> None:
    report = verify_store(golden_crash / "store")
    behind = [line for line in report.recovery if "SCHEDULE_TOPIC_XXXX/2" in line]
    assert len(behind) == 1
    assert "no entry for queue offset 885" in behind[0]


@pytest.mark.parametrize(("name", "status"), [("normal", "clean"), ("propcrc", "clean"), ("crash", "unclean")])
def test_small_stores_of_the_java_classes_are_accepted(golden_small: Path, name: str, status: str) -> None:
    report = verify_store(golden_small / name)
    assert (report.status, report.problems) == (status, [])
    assert (report.messages, report.queue_entries, report.index_entries) == (18, 16, 16)
    assert report.messages_with_crc == (18 if name == "propcrc" else 0)


def test_verifying_changes_no_file_and_no_time(golden_small: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden_small / "crash", root)
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in root.rglob("*") if p.is_file()}
    root.chmod(0o555)
    verify_store(root)
    root.chmod(0o755)
    assert before == {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in root.rglob("*") if p.is_file()}


def test_the_stores_that_this_file_writes_are_clean(tmp_path: Path) -> None:
    report = verify_store(_orders(60).save(tmp_path))
    assert (report.status, report.notes) == ("clean", []), _texts(report)
    assert (report.messages, report.index_entries, report.index_files) == (60, 180, 4)


def test_after_retention_older_entries_of_queue_and_index_are_no_news(tmp_path: Path) -> None:
    report = verify_store(_orders(60).save(tmp_path, first_segment=3))
    assert (report.status, report.log_start, report.unindexed_keys) == ("clean", 3 * SEGMENT_BYTES, 0), _texts(report)
    assert 0 < report.messages < 60


def test_a_queue_that_began_above_zero_has_pre_blank_units_in_front(tmp_path: Path) -> None:
    store = SmallStore()
    store.queues["Orders", 0] = bytearray(struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * 13)
    assert verify_store(_orders(3, store).save(tmp_path)).status == "clean"


def test_a_hole_in_front_of_the_first_message_is_found(tmp_path: Path) -> None:
    store = SmallStore()
    store.queues["Orders", 0] = bytearray(20 * 13)
    report = verify_store(_orders(3, store).save(tmp_path))
    assert "queue offset 13, expected 0" in _texts(report)


def test_messages_of_a_topic_that_was_deleted_and_made_again_are_a_note(tmp_path: Path) -> None:
    store = _orders(5)
    store.queues.clear()
    report = verify_store(_orders(2, store).save(tmp_path))
    assert report.status == "clean", _texts(report)
    assert report.notes == ["consumequeue/Orders/0: 5 messages of an earlier topic of this name"]


@pytest.mark.parametrize(("topics", "status"), [(["Other"], "clean"), (["Orders"], "damaged")])
def test_messages_without_queue_are_a_note_only_if_topics_json_lacks_the_topic(
    tmp_path: Path, topics: list[str], status: str
) -> None:
    root = _orders(5).save(tmp_path)
    shutil.rmtree(root / "consumequeue" / "Orders")
    _write(root / "config" / "topics.json", json.dumps({"topicConfigTable": {key: {} for key in topics}}).encode())
    assert verify_store(root).status == status


def test_the_last_message_may_be_indexed_twice(tmp_path: Path) -> None:
    store = _orders(4)
    store.index += store.index[-3:]
    assert verify_store(_orders(1, store).save(tmp_path)).status == "clean"


def test_a_lost_index_file_is_a_note_with_the_number_of_keys(tmp_path: Path) -> None:
    root = _orders(60).save(tmp_path)
    (root / "index" / "20261121000000001").unlink()
    report = verify_store(root)
    assert (report.status, report.unindexed_keys) == ("clean", INDEX_CAPACITY - 1), _texts(report)


def test_rolled_back_messages_have_neither_queue_entry_nor_keys(tmp_path: Path) -> None:
    store = _orders(2)
    store.send("Rolled", keys="gone", sys_flag=0xC, index=False)
    store.queues.pop(("Rolled", 0))
    assert verify_store(_orders(2, store).save(tmp_path)).status == "clean"


def test_of_two_unique_keys_the_first_or_the_last_may_be_indexed(tmp_path: Path) -> None:
    store = SmallStore()
    store.send("Orders", uniq=("FIRST", "LAST"))
    store.send("Orders", uniq=("FIRST", "LAST"))
    _, offset, store_ms = store.index[1]
    store.index[1] = (abs(java_hash(b"Orders#LAST")), offset, store_ms)
    assert verify_store(store.save(tmp_path)).status == "clean"


def test_old_bytes_behind_the_end_are_what_java_leaves_when_it_truncates(tmp_path: Path) -> None:
    """Java truncates by moving a position: records of before the crash stay behind the new end, at their old place."""
    store = _orders(4)
    offset = store.send("Orders", keys="cut", index=False)
    stale = bytes(store.log[offset:])
    del store.log[offset:]
    store.queues["Orders", 0][-20:] = b""
    new = store.send("Orders", body=b"other body", uniq=("U",))
    store.log += b"left over"[: offset + len(stale) - len(store.log)].ljust(9, b"x") + stale
    assert new == offset
    report = verify_store(store.save(tmp_path))
    assert report.status == "clean", _texts(report)
    assert "old bytes behind the log's end" in report.notes[0]


# ---- what must be found


def test_every_single_bit_of_a_record_with_the_crc_property_counts(golden_small: Path) -> None:
    """The name of the property is covered too: without that rule, a hit there would switch the protection off."""
    checked = 0
    for path in sorted((golden_small / "propcrc" / "commitlog").iterdir()):
        base, log, position = int(path.name), path.read_bytes(), 0
        while isinstance(frame := read_frame(log, position, base), Frame):
            record = bytearray(log[position : position + frame.size])
            step = 1 if frame.size < 400 else 37  # the five big records are 1,600 bytes of the same body
            for bit in range(0, frame.size * 8, step):
                record[bit // 8] ^= 1 << bit % 8
                damaged = log[:position] + bytes(record) + log[position + frame.size :]
                assert isinstance(read_frame(damaged, position, base), str), f"{path.name} {position} bit {bit}"
                record[bit // 8] ^= 1 << bit % 8
                checked += 1
            position += frame.size
    assert checked > 10_000


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_flipped_bit_in_a_record_damages_the_store_and_costs_no_neighbour(tmp_path: Path, which: str) -> None:
    pristine = _orders(20)
    root = pristine.save(tmp_path / "store")
    offsets = [struct.unpack_from(">qi", pristine.queues["Orders", 0], 20 * n) for n in range(20)]
    offset, size = offsets[{"first": 0, "middle": 7, "last": 19}[which]]
    segment = root / "commitlog" / f"{offset // SEGMENT_BYTES * SEGMENT_BYTES:020d}"
    for byte in range(offset % SEGMENT_BYTES, offset % SEGMENT_BYTES + size, 3):
        _flip(segment, byte, byte % 8)
        report = verify_store(root)
        assert report.status == "damaged", byte
        assert report.messages == 19, byte
        assert all(problem.path.startswith("commitlog") or which == "last" for problem in report.problems), _texts(
            report
        )
        _flip(segment, byte, byte % 8)
    assert verify_store(root).status == "clean"


def test_a_bad_record_is_reported_with_file_offset_and_length(tmp_path: Path) -> None:
    store = _orders(20)
    offset, size = struct.unpack_from(">qi", store.queues["Orders", 0], 20 * 3)
    root = store.save(tmp_path)
    _flip(root / "commitlog" / f"{0:020d}", offset)
    (problem,) = verify_store(root).problems
    assert (problem.path, problem.offset) == (f"commitlog/{0:020d}", offset)
    assert problem.text.endswith(f"{size} bytes are no record; lost with it: message 3 of Orders-0")


def test_a_torn_last_record_is_damage_in_a_closed_store_and_repairable_in_an_unclean_one(tmp_path: Path) -> None:
    store = _orders(9)
    offset, size = struct.unpack_from(">qi", store.queues["Orders", 0], 20 * 8)
    store.log[offset + 60 :] = bytes(size - 60)
    root = store.save(tmp_path)
    assert verify_store(root).status == "damaged"
    (root / "abort").touch()
    report = verify_store(root)
    assert (report.status, report.log_end) == ("unclean", offset)
    assert any("the last record is not whole" in line for line in report.recovery)


def test_bad_bytes_with_records_behind_them_are_damage_even_in_an_unclean_store(tmp_path: Path) -> None:
    store = _orders(9)
    offset, _ = struct.unpack_from(">qi", store.queues["Orders", 0], 20 * 4)
    store.log[offset : offset + 60] = bytes(60)
    root = store.save(tmp_path)
    (root / "abort").touch()
    report = verify_store(root)
    assert (report.status, report.messages) == ("damaged", 8)


@pytest.mark.parametrize("unclean", [False, True])
def test_a_missing_entry_at_the_end_of_a_queue_is_only_lag_after_an_unclean_stop(tmp_path: Path, unclean: bool) -> None:
    store = _orders(9)
    store.queues["Orders", 0][-20:] = bytes(20)
    root = store.save(tmp_path)
    if unclean:
        (root / "abort").touch()
    assert verify_store(root).status == ("unclean" if unclean else "damaged")


@pytest.mark.parametrize("unclean", [False, True])
def test_a_missing_entry_inside_a_queue_is_damage(tmp_path: Path, unclean: bool) -> None:
    store = _orders(9)
    store.queues["Orders", 0][100:120] = bytes(20)
    root = store.save(tmp_path)
    if unclean:
        (root / "abort").touch()
    report = verify_store(root)
    assert report.status == "damaged"
    assert "no entry for queue offset 5" in _texts(report)


def test_a_missing_queue_file_is_damage(golden_small: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden_small / "normal", root)
    (root / "consumequeue" / "Big" / "0" / f"{0:020d}").unlink()
    report = verify_store(root)
    assert report.status == "damaged"
    assert "(and 6 more of this queue)" in _texts(report)


def test_an_entry_that_no_message_claims_is_damage(tmp_path: Path) -> None:
    store = _orders(9)
    store.queues["Orders", 0] += store.queues["Orders", 0][:20]
    report = verify_store(store.save(tmp_path))
    assert "queue offset 9 points at 0, which is no message of this queue" in _texts(report)


def test_a_queue_offset_that_is_used_twice_or_left_out_is_damage(tmp_path: Path) -> None:
    twice = _orders(5)
    older = twice.queues["Orders", 0][-20:]
    twice.send("Orders", queue_offset=4)
    report = verify_store(twice.save(tmp_path / "fail-over"))  # of a broker's log the last one counts
    assert (report.status, report.notes) == (
        "clean", ["consumequeue/Orders/0: 1 messages of an earlier topic of this name"]
    )  # fmt: skip
    twice.queues["Orders", 0][-20:] = older
    assert "queue offset 4, expected 5" in _texts(verify_store(twice.save(tmp_path / "twice")))
    left_out = _orders(5)
    left_out.queues["Orders", 0] += bytes(20)
    left_out.send("Orders", queue_offset=6)
    assert "queue offset 6, expected 5" in _texts(verify_store(left_out.save(tmp_path / "left-out")))


# Each byte takes a whole check, so the default run changes every seventh one.
EVERY = [pytest.param(1, marks=pytest.mark.slow), 7]


def _every_byte(root: Path, path: Path, positions: range, is_covered: Callable[[int], bool]) -> None:
    for position in filter(is_covered, positions):
        _flip(path, position, position % 8)
        assert verify_store(root).status == "damaged", f"{path.name} byte {position}"
        _flip(path, position, position % 8)
    assert verify_store(root).status == "clean"


@pytest.mark.parametrize("every", EVERY)
def test_every_byte_of_every_queue_entry_counts(golden_small: Path, tmp_path: Path, every: int) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden_small / "normal", root)
    for path in sorted((root / "consumequeue").rglob("0*0")):
        if path.is_file():
            size = len(path.read_bytes().rstrip(b"\0")) // 20 * 20
            _every_byte(root, path, range(0, size, every), lambda position: True)


@pytest.mark.parametrize("every", EVERY)
def test_every_byte_of_an_index_file_counts(golden_small: Path, tmp_path: Path, every: int) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden_small / "normal", root)
    (path,) = (root / "index").iterdir()
    table, count = 40 + 4 * 100, struct.unpack_from(">i", path.read_bytes(), 36)[0]
    # Not covered: entry 0, which is never used, and the seconds of the first entry (bytes 12 to 15 of entry 1), which
    # may count from the end of a file that retention has deleted since.
    unused = {*range(table, table + 20), *range(table + 32, table + 36)}
    _every_byte(root, path, range(0, table + 20 * count, every), lambda position: position not in unused)


def test_an_index_slot_that_points_elsewhere_is_named(tmp_path: Path) -> None:
    root = _orders(10).save(tmp_path)
    path = root / "index" / "20261121000000000"
    slot = next(n for n in range(SLOTS) if path.read_bytes()[40 + 4 * n : 44 + 4 * n] != bytes(4))
    with path.open("r+b") as file:
        file.seek(40 + 4 * slot)
        file.write(struct.pack(">i", 1))
    (problem,) = verify_store(root).problems
    assert (problem.path, problem.offset) == ("index/20261121000000000", 40 + 4 * slot)
    assert problem.text.startswith(f"slot {slot} holds 1, not ")


def test_a_key_that_is_left_out_of_an_index_file_is_damage(tmp_path: Path) -> None:
    store = _orders(10)
    del store.index[13]
    report = verify_store(store.save(tmp_path))
    assert report.status == "damaged"
    assert "has a key that is not in front of entry 14" in _texts(report)


def test_index_and_queue_ahead_of_the_log_are_damage_only_after_a_clean_stop(tmp_path: Path) -> None:
    store = _orders(10)
    offset, _ = struct.unpack_from(">qi", store.queues["Orders", 0], 20 * 8)
    del store.log[offset:]
    root = store.save(tmp_path)
    report = verify_store(root)
    assert {problem.path.split("/")[0] for problem in report.problems} == {"consumequeue", "index"}
    (root / "abort").touch()
    assert verify_store(root).status == "unclean"


def test_a_foreign_name_in_the_log_directory_and_a_missing_segment_are_damage(tmp_path: Path) -> None:
    root = _orders(40).save(tmp_path)
    _write(root / "commitlog" / "notes.txt", b"x")
    (root / "commitlog" / f"{SEGMENT_BYTES:020d}").unlink()
    texts = _texts(verify_store(root))
    assert "commitlog/notes.txt 0 no segment" in texts
    assert f"commitlog/{SEGMENT_BYTES:020d} 0 the segment is missing" in texts


def test_hostile_bytes_give_a_report_and_no_exception(tmp_path: Path, golden_small: Path) -> None:
    """Whole files of 0xFF, of magic numbers, and of lengths that point anywhere."""
    for number, fill in enumerate((b"\xff", b"\xda\xa3\x20\xa7", b"\x7f\xff\xff\xff", b"\x80\0\0\0")):
        for part in ("commitlog", "consumequeue", "index"):
            root = tmp_path / f"{part}{number}"
            shutil.copytree(golden_small / "normal", root)
            for path in (root / part).rglob("*"):
                if path.is_file():
                    path.write_bytes((fill * path.stat().st_size)[: path.stat().st_size])
            assert verify_store(root).status == "damaged", (part, fill)


def test_a_queue_offset_from_the_log_cannot_leave_the_store(tmp_path: Path) -> None:
    store = SmallStore()
    store.send("../../etc", body=b"x")
    store.queues.clear()
    report = verify_store(store.save(tmp_path))
    assert "no entry for queue offset 0" in _texts(report)


def test_problems_are_counted_beyond_those_that_are_kept(tmp_path: Path) -> None:
    root = _orders(400).save(tmp_path)
    assert verify_store(root).status == "clean"
    for path in (root / "index").iterdir():
        content = path.read_bytes()
        path.write_bytes(content[:40] + bytes(4 * SLOTS) + content[40 + 4 * SLOTS :])
    report = verify_store(root)
    assert (len(report.problems), report.problem_count > 100) == (100, True)


def test_a_directory_without_a_commit_log_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="no commitlog directory"):
        verify_store(tmp_path)


def test_an_empty_store_is_clean(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    report = verify_store(tmp_path)
    assert (report.status, report.messages, report.log_end) == ("clean", 0, 0)


def test_progress_ends_with_all_bytes_of_the_segments_that_hold_records(golden: Path) -> None:
    calls: list[tuple[int, int, int]] = []
    verify_store(golden / "store", lambda *call: calls.append(call))
    assert [call[1] for call in calls] == sorted(call[1] for call in calls)
    assert calls[-1][2] == 6 * 1048576


@pytest.mark.parametrize("package", [rmq_store.verify, rmq_store.kinds], ids=["verify", "kinds"])
def test_the_verifier_imports_nothing_of_the_engine(package: ModuleType) -> None:
    """Of which kind a store is says `rmq_store.kinds`, by names of files alone."""
    assert package.__file__ is not None
    allowed = {"__future__", "array", "bisect", "collections", "dataclasses", "enum", "errno", "fcntl", "functools"}
    allowed |= {"json", "mmap", "itertools", "os", "pathlib", "re", "stat", "struct", "sys", "time", "typing", "zlib"}
    for path in Path(package.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path.name
            elif isinstance(node, ast.ImportFrom):
                own = ("rmq_store.errors", package.__name__, "rmq_store.kinds")
                ours = node.level == 1 or str(node.module).startswith(own)
                ours |= node.module == "rmq_store" and [alias.name for alias in node.names] == ["kinds"]
                ours |= node.module == "rmq_store" and [alias.name for alias in node.names] == ["real_time"]
                assert ours or str(node.module).split(".")[0] in allowed, path.name
