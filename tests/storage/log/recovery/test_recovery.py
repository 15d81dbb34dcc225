"""What a first opener makes of a store that was not stopped: by a kill, a power cut, a broker, or a hand.

A power cut is made of three things: the state page is of another boot, `abort` exists, and bytes above the flushed end
are missing or damaged.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from rmq_store import Message, Store
from rmq_store.errors import CorruptRecordError, StoreFailedError
from rmq_store.files import durable
from rmq_store.files.locks.background import Background
from rmq_store.files.locks.state_page import WORDS
from rmq_store.files.progress import Progress
from rmq_store.format.frames import frame_walk
from rmq_store.format.tables.checkpoint import Checkpoint
from rmq_store.format.views.index import ENTRY
from rmq_store.log.append.append import append, append_lock
from rmq_store.log.core import scan
from rmq_store.log.core.units import UnitRecord
from rmq_store.log.recovery.recovery import RecoveryReport

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from .conftest import CountDown, Lab


def recovered(store: Store) -> RecoveryReport:
    assert store.recovery is not None
    return store.recovery


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_after_a_clean_stop_no_record_is_walked(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with lab.open() as store:
        store.append(lab.batch(100))
        end = store.log_range()[1]
    before = lab.files()

    def refuse(*arguments: object) -> None:
        raise AssertionError("the log was walked")

    monkeypatch.setattr(scan, "walk", refuse)
    for _ in range(2):
        with lab.open() as store:
            assert recovered(store) == RecoveryReport("CLEAN", "clean", end, 0, 0, 0, None)
            assert lab.numbers(store) == list(range(100))
        assert lab.files() == before
    assert lab.verify().status == "clean"


def test_a_clean_record_is_not_believed_if_bytes_came_or_went_since(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
        end = store.log_range()[1]
    saved = lab.save()
    last = lab.boundaries(0, end)[-1]
    lab.overwrite(end, b"\xff")
    with lab.open() as store:
        assert (recovered(store).trust, recovered(store).removed_bytes) == ("OWN", 1)
        assert lab.numbers(store) == list(range(5))
    for damage in (lambda: lab.overwrite(end - 30, b"\xff"), lambda: lab.cut(last)):
        lab.restore(saved)
        damage()
        with pytest.raises(CorruptRecordError):
            lab.open()


def test_a_clean_record_is_not_believed_if_a_segment_came_since(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
    (lab.root / "commitlog" / f"{8192:020d}").write_bytes(bytes(8192))
    with lab.open() as store:
        assert recovered(store).trust == "OWN"
        assert lab.numbers(store) == list(range(5))


@pytest.mark.parametrize("how", ["stopped", "killed", "power cut"])
def test_an_index_that_was_switched_off_for_a_time_is_completed(lab: Lab, how: str) -> None:
    """What a process without an index writes down must not be taken for an empty index."""
    with_index, without = lab.config, replace(lab.config, message_index_enable=False)
    with lab.open() as store:
        store.append(lab.batch(30))
    lab.config = without
    with lab.open() as store:
        store.append(lab.batch(10))
    if how != "stopped":
        lab.crash(lambda store: store.append(lab.batch(10)))
        lab.written += 10
    if how == "power cut":
        lab.reboot()
    lab.config = with_index
    with lab.open() as store:
        assert lab.numbers(store) == list(range(lab.written))
    completed = lab.views()
    assert lab.verify().status == "clean"
    assert lab.verify().unindexed_keys == 0
    shutil.rmtree(lab.root / "index")
    with lab.open():
        pass
    assert lab.views() == completed


def test_abort_says_unclean_whatever_our_record_says(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
    (lab.root / "abort").write_text("1")
    with lab.open() as store:
        assert recovered(store).trust == "OWN"
        assert lab.numbers(store) == list(range(5))


def test_records_on_disk_without_checksums_are_kept_when_the_setting_has_changed_since(lab: Lab) -> None:
    with_crc, lab.config = lab.config, replace(lab.config, enabled_append_prop_crc=False)
    with lab.open() as store:
        store.append(lab.batch(5))

    def work(store: Store) -> None:
        store.append(lab.batch(5))
        store.flush()

    lab.crash(work)
    lab.reboot()
    lab.config = with_crc
    with lab.open() as store:
        assert recovered(store).trust == "OWN"
        assert lab.numbers(store) == list(range(10))


def test_a_clean_record_that_names_an_older_record_is_not_believed(lab: Lab) -> None:
    """A writer died between its commit point and the word behind it: nobody vouches for the newest record."""
    with lab.open() as store:
        store.append(lab.batch(5))
        end, progress = store.log_range()[1], store._log.progress
    known = progress.load()
    assert known is not None
    progress.write(replace(known[0], last_record=lab.boundaries(0, end)[2]))
    with lab.open() as store:
        assert (recovered(store).trust, recovered(store).end) == ("OWN", end)
        assert lab.numbers(store) == list(range(5))


@pytest.mark.statement("G12")
def test_a_killed_writers_store_is_trusted_in_the_same_boot_and_only_the_unflushed_part_is_walked(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(20))

    def work(store: Store) -> None:
        store.append(lab.batch(20))
        store.flush()
        store.append(lab.batch(20))

    lab.crash(work)
    lab.written += 40
    operations: list[str] = []
    durable.hook = lambda operation, path: operations.append(f"{operation} {Path(path).parent.name}")
    with lab.open() as store:
        durable.hook = None
        # An fsync may have failed unheard: what was never flushed is made dirty again, and then synced.
        assert operations.index("write commitlog") < operations.index(f"syncfs {lab.root.parent.name}")
        report = recovered(store)
        assert (report.trust, report.case, report.record_count, report.removed_bytes) == ("SAME_BOOT", "clean", 20, 0)
        assert 0 < report.scanned_bytes < report.end / 2
        assert lab.numbers(store) == list(range(60))
    assert lab.verify().status == "clean"


@pytest.mark.parametrize("lose_page", [False, True], ids=["page kept", "page lost"])
@pytest.mark.statement("G12")
@pytest.mark.slow
def test_a_tail_torn_at_any_byte_leaves_the_whole_records_before_it(lab: Lab, lose_page: bool) -> None:
    """What follows the tear is zeros, ones, or old bytes of the log; the records' properties are torn, too."""
    with lab.open() as store:
        store.create_topic("Alpha", 1)
        store.send(Message("Alpha", b"%08d" % 0))
    first = log_end(lab)

    def work(store: Store) -> None:
        for number in (1, 2):
            store.send(Message("Alpha", b"%08d" % number, tags="T"))

    lab.crash(work)
    saved, end = lab.save(), log_end(lab)
    ends = [*lab.boundaries(first, end), end]
    assert len(ends) == 3
    fills = [b"\0", b"\xff", (lab.root / "commitlog" / ("0" * 20)).read_bytes()[:end]]
    whole: dict[int, dict[str, bytes]] = {}
    for cut in [*ends, *range(first, end)]:
        lab.restore(saved)
        fill = fills[cut % len(fills)]
        lab.overwrite(cut, (fill * (end - cut + 1))[: end - cut])
        lab.reboot(lose_page=lose_page)
        expected = max(offset for offset in ends if offset <= cut)
        assert log_end(lab) == expected
        with lab.open() as store:
            assert (recovered(store).trust, recovered(store).end) == ("OWN", expected)
            assert lab.numbers(store) == list(range(1 + ends.index(expected)))
        assert lab.files() == whole.setdefault(expected, lab.files())
        if cut in ends:
            assert lab.verify().status == "clean"


def log_end(lab: Lab) -> int:
    with lab.open(read_only=True) as reader:
        return reader.log_range()[1]


def test_what_lay_behind_a_damaged_record_is_taken_out_kept_aside_and_named(lab: Lab) -> None:
    """Later pages reached the disk, an earlier one did not: nothing behind the hole was acknowledged."""
    with lab.open() as store:
        store.append(lab.batch(10))
    before = lab.files()
    lab.crash(lambda store: store.append(lab.batch(40, body_bytes=300)))
    start = len(before["commitlog/" + "0" * 20].rstrip(b"\0"))
    lab.overwrite(start + 40, b"\xff" * 4)
    log = {name: data for name, data in lab.files().items() if name.startswith("commitlog")}
    lab.reboot()
    with lab.open() as store:
        assert (recovered(store).case, recovered(store).end) == ("hole", start)
        assert lab.numbers(store) == list(range(10))
    assert lab.files() == before
    assert lab.verify().status == "clean"
    kept = {int(path.name): path.read_bytes() for path in (lab.root / "pyrmq" / "removed").iterdir()}
    assert sum(map(len, kept.values())) == recovered(store).removed_bytes
    for name, data in log.items():
        base = int(Path(name).name)
        at = max(base, start)
        assert kept[at] == data[at - base :].rstrip(b"\0")


def test_records_that_were_on_disk_are_never_cut_and_a_refusal_changes_nothing(
    lab: Lab,
) -> None:
    """One flipped bit must not take away everything behind it; and trying again must not, either."""

    def work(store: Store) -> None:
        store.append(lab.batch(40, body_bytes=300))
        store.flush()
        store.append(lab.batch(5))

    with lab.open() as store:
        store.append(lab.batch(10))
        start = store.log_range()[1]
    lab.crash(work)
    with lab.open(read_only=True) as reader:
        frames = lab.boundaries(0, reader.log_range()[1])
    lost = {sum(frame <= start + 1000 for frame in frames) - 1}
    lab.overwrite(start + 1000, b"\xff\xff")
    lab.reboot()
    before = lab.save()
    for _ in range(3):
        with pytest.raises(CorruptRecordError, match="corruption") as caught:
            lab.open()
        assert start <= caught.value.offset <= start + 1000
        with lab.open(read_only=True) as reader:
            assert _readable(reader) == {*range(55)} - lost
        assert {**lab.save(), lab.root / "lock": before[lab.root / "lock"]} == before  # our pid stands in `lock`


def _readable(reader: Store) -> set[int]:
    """The numbers of all messages that can be read, whatever is lost among them."""
    found = set()
    for topic in reader.topics():
        for queue_id, (first, last) in reader.queue_ranges(topic).items():
            lost = set(reader.lost_offsets(topic, queue_id, first, last).tolist())
            for number in set(range(first, last)) - lost:
                [batch] = reader.read(topic, queue_id, number, number + 1, columns=["body"])
                found.add(int(batch.column("body")[0].as_py()[:8]))
    return found


def test_a_missing_segment_below_the_durable_point_is_refused(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(60, body_bytes=300))
    lab.crash()
    saved = lab.save()
    segments = sorted((lab.root / "commitlog").iterdir())
    assert len(segments) > 3
    for segment in segments[1:]:
        lab.restore(saved)
        lab.reboot()
        segment.unlink()
        if segment != segments[-1]:
            shutil.rmtree(lab.root / "consumequeue")  # so that the log is walked from its beginning
        leftover = lab.root / "pyrmq" / "new-1-1"  # of a killed process: a refusal changes nothing
        leftover.write_bytes(bytes(8192))
        with pytest.raises(CorruptRecordError):
            lab.open()
        assert leftover.exists()


def test_a_progress_record_that_retention_has_overtaken_starts_the_walk_at_the_oldest_segment(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(5))
    lab.crash(lambda store: store.append(lab.batch(60, body_bytes=300)))
    (lab.root / "commitlog" / ("0" * 20)).unlink()
    end = log_end(lab)
    lab.reboot()
    with lab.open() as store:
        assert recovered(store).end == end > 16384
        assert lab.numbers(store)[-1] == 64
        assert recovered(store).removed_bytes == 0


def unit_store(lab: Lab) -> tuple[dict[str, bytes], dict[Path, bytes], int, int]:
    """Files before a unit, all files after a kill behind it, and [start, end) of the unit."""
    with lab.open() as store:
        store.append(lab.batch(10))
        lab.append_unit(store, 1, 0)
        before = lab.files()
        start = store.log_range()[1]
    lab.crash(lambda store: lab.append_unit(store, 25))
    return before, lab.save(), start, log_end(lab)


@pytest.mark.parametrize("frames_max", [frame_walk.FRAMES_MAX, 3])
def test_a_unit_whose_end_is_missing_is_dropped_as_a_whole_wherever_it_was_torn(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, frames_max: int
) -> None:
    for module in (frame_walk, scan):  # the unit lies in many stretches
        monkeypatch.setattr(module, "FRAMES_MAX", frames_max)
    before, saved, start, end = unit_store(lab)
    boundaries = lab.boundaries(start, end)
    assert len(boundaries) > 27
    for cut in [*boundaries[1:], boundaries[-1] + 50]:
        lab.restore(saved)
        lab.cut(cut)
        lab.reboot()
        with lab.open(read_only=True) as reader:
            assert (reader.log_range()[1], lab.numbers(reader)) == (start, list(range(11)))
        with lab.open() as store:
            report = recovered(store)
            assert (report.case, report.dropped_unit, report.end) == ("torn unit", start, start)
            assert lab.numbers(store) == list(range(11))
            assert store.last_unit("sink", "query") == 0
        assert lab.files() == before
        assert lab.verify().status == "clean"


def test_a_whole_unit_survives_a_power_cut(lab: Lab) -> None:
    _, saved, _, end = unit_store(lab)
    after = lab.files()
    lab.restore(saved)
    lab.reboot()
    with lab.open() as store:
        assert (recovered(store).dropped_unit, recovered(store).end) == (None, end)
        assert lab.numbers(store) == list(range(36))
        assert store.last_unit("sink", "query") == 1
    assert lab.files() == after


def test_a_half_unit_that_a_broker_kept_does_not_take_away_what_came_behind_it(lab: Lab) -> None:
    _, saved, start, end = unit_store(lab)
    lab.restore(saved)
    lab.cut(lab.boundaries(start, end)[12])
    lab.broker_was_here(abort=True)
    with lab.open() as store:  # A broker keeps every whole record; so do we after one.
        assert (recovered(store).trust, recovered(store).dropped_unit) == ("BROKER_UNCLEAN", None)
        kept = lab.numbers(store)
        assert 11 < len(kept) < 36
        lab.written = 1000
        store.append(lab.batch(30))
        assert store.last_unit("sink", "query") == 0
    views = lab.views()
    for view in ("consumequeue", "index"):
        shutil.rmtree(lab.root / view)
    with lab.open() as store:
        assert (recovered(store).trust, recovered(store).dropped_unit) == ("COPY", None)
        assert lab.numbers(store) == [*kept, *range(1000, 1030)]
    assert lab.views() == views


def test_a_record_that_only_says_it_begins_a_unit_elsewhere_drops_nothing(lab: Lab) -> None:
    class Liar(UnitRecord):
        def bodies(self, start: int, end: int) -> tuple[bytes, bytes]:
            return b'{"start": "%020d", "end": "%020d"}' % (0, end), b"{}"

    def work(store: Store) -> None:
        assert store._writer is not None
        with append_lock(store._log):
            append(store._log, [], store._writer._bracket(Liar("sink", "query", 1)))

    with lab.open() as store:
        store.append(lab.batch(10))
    lab.crash(work)
    lab.reboot()
    with lab.open() as store:
        assert recovered(store).dropped_unit is None
        assert lab.numbers(store) == list(range(10))


@pytest.mark.parametrize("views", [("consumequeue",), ("index",), ("consumequeue", "index")], ids="+".join)
@pytest.mark.parametrize("crashed", [False, True], ids=["clean", "crashed"])
def test_views_deleted_by_hand_are_rebuilt_byte_for_byte(lab: Lab, views: tuple[str, ...], crashed: bool) -> None:
    with lab.open() as store:
        for count in (1, 40, 1, 13):
            store.append(lab.batch(count, body_bytes=200))
        store.send(Message("Alpha", b"%08d" % lab.written, tags="T", keys="A B"))
    if crashed:
        lab.crash(lambda store: store.append(lab.batch(40)))
        lab.written += 40
    files = lab.files()
    kinds = {kind: len([name for name in files if name.startswith(kind)]) for kind in ("commitlog", "consume", "index")}
    assert min(kinds.values()) > 2
    for view in views:
        shutil.rmtree(lab.root / view)
    with lab.open() as store:
        assert recovered(store).trust == "COPY"
        assert lab.numbers(store)[-1] >= 53
    assert lab.files() == files
    assert lab.verify().status == "clean"


@pytest.mark.parametrize("with_index", [True, False])
def test_a_store_copied_while_it_is_written_opens_with_all_it_has(lab: Lab, with_index: bool) -> None:
    lab.config = replace(lab.config, message_index_enable=with_index)
    with lab.open() as store:
        store.append(lab.batch(50, body_bytes=200))
        copy = lab.root.parent / "copy"
        shutil.copytree(lab.root, copy)
        expected, lab.root = lab.files(), copy
        with lab.open(read_only=True) as reader:
            assert lab.numbers(reader) == list(range(50))
        with lab.open() as copied:
            assert recovered(copied).trust == "COPY"
            assert lab.numbers(copied) == list(range(50))
        assert lab.files() == expected
        assert lab.verify().status == "clean"


def test_a_clean_copy_is_as_good_as_the_original(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(50))
    shutil.copytree(lab.root, lab.root.parent / "copy")
    lab.root = lab.root.parent / "copy"
    with lab.open() as store:
        assert recovered(store).trust == "CLEAN"
        assert lab.numbers(store) == list(range(50))


@pytest.mark.parametrize("damage", ["missing", "flipped", "short"])
def test_without_its_progress_record_the_log_is_walked_from_the_beginning(lab: Lab, damage: str) -> None:
    with lab.open() as store:
        store.append(lab.batch(60, body_bytes=200))
    lab.crash(lambda store: store.append(lab.batch(20)))
    before = lab.files()
    lab.reboot()
    path = lab.root / "pyrmq" / "progress"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.unlink() if damage == "missing" else path.write_bytes(data[:50] if damage == "short" else data)
    saved = lab.save()
    with lab.open() as store:
        assert recovered(store).trust == "COPY"
        assert recovered(store).scanned_bytes == recovered(store).end
        assert lab.numbers(store) == list(range(80))
    assert lab.files() == before
    # The page of the last boot still knows what was on disk.
    lab.restore(saved)
    lab.overwrite(1000, b"\xff")
    with pytest.raises(CorruptRecordError):
        lab.open()


@pytest.mark.parametrize("abort", [False, True], ids=["stopped", "killed"])
def test_once_a_broker_was_here_nothing_that_we_wrote_down_is_believed(lab: Lab, abort: bool) -> None:
    with lab.open() as store:
        store.append(lab.batch(30))
    lab.crash(lambda store: store.append(lab.batch(30)))
    before = lab.files()
    lab.broker_was_here(abort=abort)
    with lab.open(read_only=True) as reader:
        assert lab.numbers(reader) == list(range(60))
    with lab.open() as store:
        assert recovered(store).trust == ("BROKER_UNCLEAN" if abort else "BROKER_CLEAN")
        assert lab.numbers(store) == list(range(60))
    assert lab.files() == before
    assert (lab.root / "lock").read_bytes()[:4] == b"rmq\n"
    with lab.open() as store:
        assert recovered(store).trust == "CLEAN"


def test_records_without_index_entries_at_a_brokers_end_are_kept(lab: Lab) -> None:
    """The index then ends segments before the log: walking from the middle of a record would cut all the rest."""
    with lab.open() as store:
        store.append(lab.batch(10))
    with_index, lab.config = lab.config, replace(lab.config, message_index_enable=False)
    with lab.open() as store:
        store.append(lab.batch(60, body_bytes=300))
    lab.config = with_index
    for abort in (False, True):
        saved = lab.save()
        lab.broker_was_here(abort=abort)
        with lab.open() as store:
            assert lab.numbers(store) == list(range(70))
            assert recovered(store).removed_bytes == 0
        assert lab.verify().status == "clean"
        lab.restore(saved)


@pytest.mark.parametrize("behind", [0, 1], ids=["newest", "the one before"])
@pytest.mark.parametrize("torn", [lambda offsets: offsets - 7, lambda offsets: 0 * offsets], ids=["near", "zero"])
def test_a_torn_index_entry_of_a_broker_does_not_move_the_start_of_the_walk_into_a_record(
    lab: Lab, torn: Callable[[np.ndarray], np.ndarray], behind: int
) -> None:
    with lab.open() as store:
        store.append(lab.batch(60, body_bytes=300))
        end = store.log_range()[1]
        newest = store._log.views.index.newest()  # type: ignore[union-attr]
        assert newest is not None
        count = newest.header.index_count
        entries = newest.read_entries(1, count).copy()
        before = lab.files()
        # All entries of one of the last messages point somewhere else.
        last = entries["phy_offset"] == np.unique(entries["phy_offset"])[-1 - behind]
        assert 0 < int(last.sum()) < count - 1
        entries["phy_offset"][last] = torn(entries["phy_offset"][last])
        newest.write_entries(1, np.ascontiguousarray(entries, ENTRY))
    moment = lab.now_ms + 3600_000
    (lab.root / "checkpoint").write_bytes(
        Checkpoint(physic_msg_timestamp=moment, logics_msg_timestamp=moment, index_msg_timestamp=moment).pack()
    )
    lab.broker_was_here(abort=True)
    with lab.open() as store:
        assert recovered(store).end == end
        assert lab.numbers(store) == list(range(60))
    assert lab.files() == before
    assert lab.verify().status == "clean"


def test_an_unfinished_append_is_undone_even_if_views_were_deleted_meanwhile(lab: Lab, memory_too: None) -> None:
    with lab.open() as store:
        store.append(lab.batch(10))
    before = lab.files()
    batch = lab.batch(10)

    def append_and_die() -> None:
        store = lab.open()
        durable.hook = lambda operation, path: die() if (operation, path) == ("word", "5") else None
        store.append(batch)

    assert lab.in_child(append_and_die) == -signal.SIGKILL
    shutil.rmtree(lab.root / "consumequeue")
    with lab.open(read_only=True) as reader:
        assert lab.numbers(reader) == list(range(10))
    with lab.open() as store:
        assert recovered(store).trust == "COPY"
        assert lab.numbers(store) == list(range(10))
    assert lab.files() == before


def test_after_a_failed_flush_the_views_are_written_again_too(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(10))

    def work(store: Store) -> None:
        store.append(lab.batch(30))
        store._log.writing_page.poison = 1

    lab.crash(work)
    lab.written += 30
    before = lab.files()
    written: list[str] = []
    durable.hook = lambda operation, path: written.append(path) if operation == "write" else None
    with lab.open() as store:
        durable.hook = None
        assert recovered(store).trust == "OWN"
        assert lab.numbers(store) == list(range(40))
        assert store._log.writing_page.poison == 0
    assert lab.files() == before
    for kind in ("commitlog", "consumequeue", "index"):
        assert any(kind in path for path in written)


@pytest.mark.parametrize(
    ("word", "value", "is_written"),
    [
        (None, 0, False),
        ("poison", 1, True),
        ("flushing", 1, True),
        ("magic", 0, True),  # a first opener of this boot was killed
        ("inode", 1, True),  # a copy: nobody knows how it came here
        ("age", 0, True),  # a container that was started again, on a machine that was not
    ],
)
def test_what_was_read_back_from_the_disk_is_not_written_again(
    lab: Lab, word: str | None, value: int, is_written: bool
) -> None:
    with lab.open() as store:
        store.append(lab.batch(10))
    lab.crash(lambda store: store.append(lab.batch(30)))
    path = lab.root / "pyrmq" / "state"
    lab.reboot()
    words = np.frombuffer(bytearray(path.read_bytes()), "<i8")
    if word in WORDS:
        words[WORDS.index(word)] = value
    path.write_bytes(words.tobytes())
    if word != "age":
        os.utime(path, (1, 1))
    written: list[str] = []
    durable.hook = lambda operation, path: written.append(path) if operation == "write" else None
    with lab.open() as store:
        durable.hook = None
        assert recovered(store).trust == "OWN"
        assert lab.numbers(store) == list(range(40))
    assert any("commitlog" in path for path in written) == is_written


def test_a_page_that_the_files_contradict_is_not_believed(lab: Lab) -> None:
    """Somebody changed the log by hand, in the same boot: it is looked at again from the progress record on."""
    with lab.open() as store:
        store.append(lab.batch(10))
    lab.crash(lambda store: store.append(lab.batch(10)))
    end = log_end(lab)
    lab.overwrite(end - 5, b"\xff")
    with lab.open() as store:
        assert (recovered(store).trust, recovered(store).case) == ("OWN", "torn tail")
        assert lab.numbers(store) == list(range(19))
    assert lab.verify().status == "clean"


def test_after_a_failed_flush_damage_below_the_flushed_end_is_refused_as_ever(lab: Lab) -> None:
    def work(store: Store) -> None:
        store.append(lab.batch(40, body_bytes=300))
        store.flush()
        store._log.writing_page.poison = 1

    with lab.open() as store:
        store.append(lab.batch(10))
        start = store.log_range()[1]
    lab.crash(work)
    lab.overwrite(start + 1000, b"\xff\xff")
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="corruption"):
            lab.open()


@pytest.mark.parametrize("scenario", ["torn unit", "same boot"])
@pytest.mark.slow
def test_a_recovery_killed_at_its_kth_operation_is_repeated_with_the_same_result(
    lab: Lab, fail_at: Callable[..., CountDown], memory_too: None, scenario: str
) -> None:
    before, _, start, end = unit_store(lab)
    if scenario == "torn unit":
        lab.cut(lab.boundaries(start, end)[15])
        lab.reboot()
    else:
        before = lab.files()
    saved = lab.save()

    def open_and_die(k: int) -> None:
        fail_at(k, die)
        lab.open()

    for k in range(1, 400):
        lab.restore(saved)
        code = lab.in_child(lambda k=k: open_and_die(k))  # type: ignore[misc]
        with lab.open() as store:
            assert lab.numbers(store) == list(range(11 if scenario == "torn unit" else 36))
        assert lab.files() == before
        assert lab.verify().status == "clean"
        if code == 0:
            break
    assert 15 < k < 399


def test_a_close_killed_at_its_kth_operation_loses_nothing(
    lab: Lab, fail_at: Callable[..., CountDown], memory_too: None
) -> None:
    with lab.open() as store:
        store.append(lab.batch(10))
    saved = lab.save()
    batch = lab.batch(10)

    def close_and_die(k: int) -> None:
        store = lab.open()
        store.append(batch)
        fail_at(k, die)
        store.close()

    trusts = set()
    for k in range(1, 100):
        lab.restore(saved)
        code = lab.in_child(lambda k=k: close_and_die(k))  # type: ignore[misc]
        with lab.open() as store:
            trusts.add(recovered(store).trust)
            assert lab.numbers(store) == list(range(20))
        assert lab.verify().status == "clean"
        if code == 0:
            break
    assert 10 < k < 99
    assert trusts == {"SAME_BOOT", "CLEAN"}


@pytest.mark.parametrize("damage", [b"", b"\xff"])
def test_without_a_progress_record_of_its_own_the_next_opener_writes_one(lab: Lab, damage: bytes) -> None:
    """It is where a recovery begins after the next power cut."""
    lab.crash(lambda store: store.append(lab.batch(10)))
    path = lab.root / "pyrmq" / "progress"
    path.write_bytes(damage * path.stat().st_size)
    with lab.open() as store:
        known = store._log.progress.load()
        assert known is not None and known[1] and known[0].end == recovered(store).end == store.log_range()[1]


def test_a_record_that_says_that_nothing_comes_behind_it_does_not_stay(lab: Lab) -> None:
    """Of a last closer that was killed before it had removed `abort`."""

    def work(store: Store) -> None:
        store.append(lab.batch(10))
        durable.hook = lambda operation, path: os._exit(9) if operation == "unlink" and path.endswith("abort") else None
        store.close()

    assert lab.in_child(lambda: work(lab.open())) == 9
    path = lab.root / "pyrmq" / "progress"
    assert Progress(path).load()[0].clean  # type: ignore[index]
    with lab.open() as store:
        known = store._log.progress.load()
        assert known is not None and not known[0].clean


@pytest.mark.parametrize("reboot", [False, True])
def test_where_no_thread_is_to_be_had_a_recovery_does_all_itself(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, reboot: bool
) -> None:
    """While the interpreter ends, for example: `atexit`, and threads that outlive the main one, may open a store."""
    lab.crash(lambda store: store.append(lab.batch(100, body_bytes=300)))
    lab.written += 100
    if reboot:
        lab.reboot()

    start = Background.start

    def refuse(thread: Background) -> None:
        if thread._name != "rmq-flush":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(Background, "start", refuse)
    with lab.open() as store:
        assert recovered(store).record_count == 100
        assert lab.numbers(store) == list(range(100))


@pytest.mark.parametrize("reboot", [False, True])
def test_a_recovery_that_cannot_sync_says_so_and_the_next_one_succeeds(lab: Lab, reboot: bool) -> None:
    with lab.open() as store:
        store.append(lab.batch(10))
    lab.crash(lambda store: store.append(lab.batch(10)))
    lab.written += 10
    if reboot:
        lab.reboot()
    for operation in ("syncfs", "fsync", "write"):

        def fail(name: str, path: str, operation: str = operation) -> None:
            if name == operation:
                raise OSError(5, "no")

        durable.hook = fail
        with pytest.raises(StoreFailedError):
            lab.open()
        durable.hook = None
    with lab.open() as store:
        assert lab.numbers(store) == list(range(20))


def test_what_a_process_killed_while_creating_a_segment_left_is_removed(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(10))
    leftover = lab.root / "pyrmq" / "new-1-1"
    leftover.write_bytes(bytes(8192))
    with lab.open():
        assert not leftover.exists()


def test_an_older_checkpoint_makes_the_walk_of_a_brokers_store_start_earlier(lab: Lab) -> None:
    """CommitLog#recoverAbnormally starts at the newest segment stored before the checkpoint."""
    lab.config = replace(lab.config, message_index_enable=False)
    with lab.open() as store:
        for _ in range(6):
            store.append(lab.batch(20, body_bytes=200))
        end = store.log_range()[1]
    scanned = []
    now_ms = lab.now_ms
    for age_ms in (0, 3000, 4500, 10**9):
        saved = lab.save()
        moment = max(now_ms - age_ms, 1)
        checkpoint = Checkpoint(physic_msg_timestamp=moment, logics_msg_timestamp=moment)
        (lab.root / "checkpoint").write_bytes(checkpoint.pack())
        lab.broker_was_here(abort=True)
        with lab.open() as store:
            scanned.append(recovered(store).scanned_bytes)
            assert recovered(store).end == end
            assert lab.numbers(store) == list(range(120))
        lab.restore(saved)
    assert scanned == sorted(scanned)
    assert scanned[0] < scanned[-1] == end


def test_segment_missing_in_the_middle_of_what_was_on_disk_is_refused(lab: Lab) -> None:
    with lab.open() as store:
        store.append(lab.batch(200, body_bytes=100))
        assert len(store._log.segments.bases()) > 3
    lab.crash()
    lab.reboot()
    (lab.root / "pyrmq" / "progress").unlink()  # so that the whole log is walked
    segments = sorted((lab.root / "commitlog").iterdir())
    segments[1].unlink()
    with pytest.raises(CorruptRecordError, match="missing segment"):
        lab.open()
    assert segments[2].exists()


def test_views_rebuilt_after_retention_give_the_same_answers(lab: Lab) -> None:
    """Queues then begin at an offset > 0, inside a file whose first slots never held a message (pre-blank)."""
    topics = ("Alpha", "Beta")
    with lab.open() as store:
        for _ in range(8):
            store.append(lab.batch(40, body_bytes=100))
    for segment in sorted((lab.root / "commitlog").iterdir())[:3]:
        segment.unlink()
    with lab.open(read_only=True) as store:
        ranges = {topic: store.queue_ranges(topic) for topic in topics}
        numbers = lab.numbers(store)
        first = {topic: store.store_timestamp(topic, 0, ranges[topic][0].min_offset) for topic in topics}
    assert all(found.min_offset > 0 for queues in ranges.values() for found in queues.values())
    for name in ("consumequeue", "index"):
        shutil.rmtree(lab.root / name)
    with lab.open() as store:
        assert {topic: store.queue_ranges(topic) for topic in topics} == ranges
        assert lab.numbers(store) == numbers
        for topic in topics:
            assert store.offset_by_time(topic, 0, first[topic]) == ranges[topic][0].min_offset
        store.append(lab.batch(4))
        assert store.queue_range(topics[0], 0).max_offset > ranges[topics[0]][0].max_offset
    assert lab.verify().status == "clean"
