"""Damage below the durable point that is kept (`Store.open(on_corruption="keep")`, docs/design.md section 8.5).

NATS lost hundreds of thousands of acknowledged records to single flipped bits (nats-server#7549, #7556): a bad record
with valid ones behind it is never a reason to truncate. apache/rocketmq #467, #501.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_store import Message, Store
from rmq_store.errors import CorruptConfigError, CorruptRecordError, NotAStoreError, StoreLockedError, UsageError
from rmq_store.files.segments.open_files import OpenFile
from rmq_store.log.core.accepted_damage import AcceptedDamage, BadRange

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from .conftest import Lab


def kept(store: Store) -> list[tuple[int, int]]:
    assert store.recovery is not None
    return [(bad.start, bad.end) for bad in store.recovery.bad_ranges]


def damaged(lab: Lab, *, queues: int = 1) -> tuple[list[int], int]:
    """40 messages in one queue, on disk, and a power cut; where each begins, and where the log ends."""
    with lab.open() as store:
        store.create_topic("Alpha", queues)

    def work(store: Store) -> None:
        for number in range(40):
            store.send(Message("Alpha", b"%08d" % number + b"." * 300, tags=f"Tag{number % 2}", keys=f"K{number}"))
        store.flush()

    lab.crash(work)
    lab.written = 40
    lab.reboot()
    with lab.open(read_only=True) as reader:
        end = reader.log_range()[1]
    return [offset for offset in lab.boundaries(0, end) if offset % 8192 < 7700], end


def whole(lab: Lab, store: Store) -> list[int]:
    """The numbers of all messages that can be read, jumping over what the errors name."""
    found, (start, last) = [], store.queue_range("Alpha", 0)
    while start < last:
        try:
            for batch in store.read("Alpha", 0, start, last, columns=["body", "queueOffset"]):
                for row in batch.to_pylist():
                    found.append(int(row["body"][:8]))
                    start = row["queueOffset"] + 1
        except CorruptRecordError as error:
            assert error.reason.startswith(f"messages [{start}, ")
            start = int(error.reason.split(", ")[1].split(")")[0])
    return found


def test_a_flipped_bit_costs_one_message_named_by_bytes_and_queue_offsets(lab: Lab) -> None:
    starts, end = damaged(lab)
    lab.overwrite(starts[5] + 150, b"\xff")
    before = lab.files()
    with pytest.raises(CorruptRecordError, match=rf"bytes {starts[5]} to {starts[6]} .*, 34 whole records lie behind"):
        lab.open()
    assert lab.files() == before
    with lab.open(on_corruption="keep") as store:
        bad = store.recovery.bad_ranges  # type: ignore[union-attr]
        assert [(b.file, b.start, b.end, b.records_behind) for b in bad] == [
            (f"commitlog/{0:020d}", starts[5], starts[6], 34)
        ]
        with pytest.raises(CorruptRecordError, match=rf"messages \[5, 6\) of Alpha-0 are lost: bytes {starts[5]} to"):
            list(store.read("Alpha", 0, 4, 8))
        with pytest.raises(CorruptRecordError):  # also where its tag does not match
            list(store.read("Alpha", 0, 5, 6, tags="TagX"))
        assert sum(batch.num_rows for batch in store.read("Alpha", 0, 6, 40)) == 34
        assert whole(lab, store) == [number for number in range(40) if number != 5]
        sent = store.send(Message("Alpha", b"%08d" % 40))
        assert (sent.queue_offset, sent.commit_log_offset) == (40, end)
    assert {name: lab.files()[name][: len(data) // 2] for name, data in before.items() if "commitlog" in name}
    report = lab.verify()
    assert (report.status, [(bad.start, bad.end) for bad in report.kept]) == ("kept", [(starts[5], starts[6])])


def test_what_was_accepted_once_is_accepted_for_ever_and_new_damage_is_not(lab: Lab) -> None:
    starts, _ = damaged(lab)
    lab.overwrite(starts[5] + 150, b"\xff")
    lab.open(on_corruption="keep").close()
    with lab.open() as store:
        assert (store.recovery.trust, kept(store)) == ("CLEAN", [(starts[5], starts[6])])  # type: ignore[union-attr]
    lab.crash(lambda store: store.send(Message("Alpha", b"%08d" % 40)))
    lab.reboot()
    with lab.open(read_only=True) as reader:
        assert whole(lab, reader) == [number for number in range(41) if number != 5]
    with lab.open() as store:
        assert kept(store) == [(starts[5], starts[6])]
        store.flush()
    lab.overwrite(starts[20] + 5, b"\xff")
    assert lab.verify().status == "damaged"
    shutil.rmtree(lab.root / "index")  # so that the whole log is walked
    with pytest.raises(CorruptRecordError, match=f"bytes {starts[20]} to {starts[21]} "):
        lab.open()
    with lab.open(on_corruption="keep") as store:
        assert kept(store) == [(starts[5], starts[6]), (starts[20], starts[21])]
        assert whole(lab, store) == [number for number in range(41) if number not in (5, 20)]


@pytest.mark.parametrize("views", [(), ("consumequeue",), ("index",), ("consumequeue", "index")], ids="+".join)
@pytest.mark.parametrize("when", ["before", "after"])
def test_queues_keep_their_places_if_views_are_lost_before_or_after(
    lab: Lab, views: tuple[str, ...], when: str
) -> None:
    starts, _ = damaged(lab)
    lab.overwrite(starts[5] + 1, b"\xff" * (starts[9] - starts[5] - 5))
    if when == "before":
        for name in views:
            shutil.rmtree(lab.root / name)
    with lab.open(on_corruption="keep") as store:
        assert kept(store) == [(starts[5], starts[9])]
        answers = store.queue_range("Alpha", 0), whole(lab, store)
        assert answers == ((0, 40), [0, 1, 2, 3, 4, *range(9, 40)])
    if when == "after":
        for name in views:
            shutil.rmtree(lab.root / name)
    with lab.open(read_only=True) as reader:
        assert (reader.queue_range("Alpha", 0), whole(lab, reader)) == answers
    with lab.open() as store:
        assert (store.queue_range("Alpha", 0), whole(lab, store)) == answers
    assert lab.verify().status == "kept"


def test_a_missing_segment_is_a_gap_of_exactly_its_bytes(lab: Lab) -> None:
    starts, _ = damaged(lab)
    (lab.root / "commitlog" / f"{8192:020d}").unlink()
    lost = [number for number, start in enumerate(starts) if 8192 <= start < 16384]
    with pytest.raises(CorruptRecordError, match="missing segment"):
        lab.open()
    for _ in range(2):
        with lab.open(on_corruption="keep") as store:
            assert kept(store) == [(8192, 16384)]
            assert whole(lab, store) == [number for number in range(40) if number not in lost]
    assert not (lab.root / "commitlog" / f"{8192:020d}").exists()
    assert lab.verify().status == "kept"


@pytest.mark.timeout(60)
def test_a_lost_segment_that_comes_back_with_damage_in_it_stays_kept(lab: Lab) -> None:
    starts, end = damaged(lab)
    lost = lab.root / "commitlog" / f"{8192:020d}"
    content = bytearray(lost.read_bytes())
    lost.unlink()
    with lab.open(on_corruption="keep") as store:
        assert kept(store) == [(8192, 16384)]
    inside = [number for number, start in enumerate(starts) if 8192 <= start < 16384]
    content[starts[inside[3]] - 8192 + 150] ^= 1
    lost.write_bytes(content)
    with lab.open(rebuild_views=True) as store:
        assert kept(store) == [(8192, 16384)]
        assert whole(lab, store) == [number for number in range(40) if number not in inside]
        assert store.log_range()[1] == end


@pytest.mark.parametrize("entries", ["there", "lost", "lost, but consumed"])
def test_a_lost_durable_tail_ends_the_log_where_it_ended_and_no_offset_is_used_twice(lab: Lab, entries: str) -> None:
    starts, end = damaged(lab)
    with_offsets = entries == "lost, but consumed"
    if with_offsets:
        config = lab.root / "config" / "consumerOffset.json"
        config.write_text('{"offsetTable":{"Alpha@g":{0:39},"Alpha@mad":{0:4000000}}}')
    lab.cut(starts[30])
    if entries != "there":
        shutil.rmtree(lab.root / "consumequeue")
    with pytest.raises(CorruptRecordError, match="lost durable tail"):
        lab.open()
    with lab.open(on_corruption="keep") as store:
        assert kept(store)[-1][1] == end
        assert whole(lab, store) == list(range(30))
        next_offset = {"there": 40, "lost": 30, "lost, but consumed": 39}[entries]
        sent = store.send(Message("Alpha", b"%08d" % 99))
        assert (sent.queue_offset, sent.commit_log_offset) == (next_offset, end)
        assert whole(lab, store) == [*range(30), 99]
    shutil.rmtree(lab.root / "consumequeue")
    with lab.open() as store:
        assert whole(lab, store) == [*range(30), 99]
        assert store.queue_range("Alpha", 0).max_offset == next_offset + 1
    assert lab.verify().status == "kept"


def test_a_queue_of_which_only_the_end_is_lost_does_not_give_its_offsets_out_again_after_a_rebuild(lab: Lab) -> None:
    """Nothing behind the damage tells how long it was: kept.json does."""
    starts, end = damaged(lab)
    lab.overwrite(starts[38] + 1, b"\xff" * (end - starts[38] - 1))
    with lab.open(on_corruption="keep") as store:
        assert store.queue_range("Alpha", 0) == (0, 40)
    for name in ("consumequeue", "index"):
        shutil.rmtree(lab.root / name)
    with lab.open(read_only=True) as reader:
        assert reader.queue_range("Alpha", 0) == (0, 40)
    with lab.open() as store:
        assert store.send(Message("Alpha", b"%08d" % 40)).queue_offset == 40


def test_a_unit_that_lost_records_is_not_dropped(lab: Lab) -> None:
    """It was on disk, and acknowledged: what is left of it stays."""

    def work(store: Store) -> None:
        lab.append_unit(store, 12)
        store.flush()

    with lab.open() as store:
        store.append(lab.batch(4))
        start = store.log_range()[1]
    lab.crash(work)
    lab.written += 12
    lab.reboot()
    with lab.open(read_only=True) as reader:
        frames = lab.boundaries(start, reader.log_range()[1])
    for number in (0, 5, len(frames) - 1):  # its first record, one inside, its last one
        saved = lab.save()
        lab.overwrite(frames[number] + 30, b"\xff")
        with lab.open(on_corruption="keep") as store:
            assert store.recovery is not None
            assert (store.recovery.dropped_unit, store.recovery.removed_bytes) == (None, 0)
            assert store.log_range()[1] > frames[-1]
            # A repeated commit of a unit whose last record is lost is a new one; others are known.
            assert store.last_unit("sink", "query") == (None if number == len(frames) - 1 else 1)
            lab.append_unit(store, 1, 2)
            assert store.last_unit("sink", "query") == 2
        lab.restore(saved)


def test_times_are_searched_around_a_hole(lab: Lab) -> None:
    starts, _ = damaged(lab)
    with lab.open(read_only=True) as reader:
        times = [reader.store_timestamp("Alpha", 0, number) for number in range(40)]
    lab.overwrite(starts[10] + 1, b"\xff" * (starts[30] - starts[10] - 5))
    with lab.open(on_corruption="keep") as store:
        lost = {number for start, end in kept(store) for number in range(40) if start <= starts[number] < end}
        assert lost
        for number in range(40):
            found = store.offset_by_time("Alpha", 0, times[number])
            # The one right behind may have had equals in the hole.
            assert found == (min(lost) if number in lost or number - 1 in lost else number)


def test_damage_in_several_segments_is_one_range_each(lab: Lab) -> None:
    starts, _ = damaged(lab)
    lab.overwrite(starts[3] + 1, b"\xff" * 9000)
    with lab.open(on_corruption="keep") as store:
        (first, boundary), (base, end) = kept(store)
        assert (first, boundary, base) == (starts[3], 8192, 8192)
        assert end == min(start for start in starts if start > starts[3] + 9000)


@pytest.mark.parametrize("damage", ["missing record", "queue id", "queue offset", "topic"])
def test_a_damaged_newest_record_of_a_queue_does_not_make_its_place_free(lab: Lab, damage: str) -> None:
    """The queue looks one message shorter to readers; nothing is added to it before it was repaired."""
    with lab.open() as store:
        store.create_topic("Alpha", 1)
        store.create_topic("Beta", 1)
        for number in range(3):
            start = store.log_range()[1]
            store.send(Message("Alpha", b"%08d" % number))
        store.send(Message("Beta", b"%08d" % 9))
    lab.overwrite(start + {"missing record": 4, "queue id": 15, "queue offset": 27, "topic": 101}[damage], b"\x77")
    with lab.open() as store:
        assert store.send(Message("Beta", b"%08d" % 10)).queue_offset == 1
        before = lab.files()
        with pytest.raises(CorruptRecordError, match=r"message 2 of Alpha-0, its newest, is damaged.*repair"):
            store.send(Message("Alpha", b"%08d" % 3))
        with pytest.raises(CorruptRecordError):
            store.append(lab.batch(4))
        assert lab.files() == before
    with lab.open(on_corruption="keep", rebuild_views=True) as store:
        assert [bad[0] for bad in kept(store)] == [start]
        assert store.send(Message("Alpha", b"%08d" % 3)).queue_offset == 3
        assert whole(lab, store) == [0, 1, 3]


@pytest.mark.parametrize("abort", [False, True])
def test_a_brokers_store_with_damage_in_the_middle_can_be_kept_too(lab: Lab, abort: bool) -> None:
    """Without being told to, it is cut as a broker would cut it."""
    starts, _ = damaged(lab)
    lab.open().close()
    lab.overwrite(starts[5] + 150, b"\xff")
    saved = lab.save()
    for keep in (True, False):
        lab.restore(saved)
        lab.broker_was_here(abort=abort)
        shutil.rmtree(lab.root / "consumequeue")  # so that it is walked from its beginning
        shutil.rmtree(lab.root / "index")
        with lab.open(on_corruption="keep" if keep else "refuse") as store:
            expected = [number for number in range(40) if number != 5] if keep else list(range(5))
            assert whole(lab, store) == expected
            assert kept(store) == ([(starts[5], starts[6])] if keep else [])


def test_a_broker_that_cut_a_kept_store_is_believed(lab: Lab) -> None:
    """Its truncation takes away what lies behind the damage; what it appends there is not passed over."""
    starts, _ = damaged(lab)
    lab.overwrite(starts[5] + 150, b"\xff")
    lab.open(on_corruption="keep").close()
    lab.cut(starts[5])
    for name in ("consumequeue", "index"):
        shutil.rmtree(lab.root / name)
    lab.broker_was_here(abort=True)
    with lab.open() as store:
        assert (kept(store), store.log_range()[1]) == ([], starts[5])
        assert store.send(Message("Alpha", b"%08d" % 5)).queue_offset == 5
    assert lab.verify().status == "clean"


def test_a_damaged_word_of_the_page_does_not_move_the_end_of_the_log_away(lab: Lab) -> None:
    _, end = damaged(lab)
    path = lab.root / "pyrmq" / "state"
    page = bytearray(path.read_bytes())
    page[8 * 5 + 6] ^= 1  # both ends: + 2^48
    page[8 * 6 + 6] ^= 1
    path.write_bytes(page)
    with pytest.raises(CorruptRecordError):
        lab.open()
    with lab.open(on_corruption="keep") as store:
        assert end <= store.log_range()[1] <= end + 8192
        assert whole(lab, store) == list(range(40))


def test_kept_is_refused_where_it_makes_no_sense(lab: Lab) -> None:
    lab.open().close()
    with pytest.raises(UsageError, match="'refuse' or 'keep'"):
        lab.open(on_corruption="ignore")
    for options in ({"on_corruption": "keep"}, {"rebuild_views": True}):
        with pytest.raises(UsageError, match="read_only excludes"):
            lab.open(read_only=True, **options)
    with lab.open(), pytest.raises(StoreLockedError, match="needs the store alone"):
        lab.open(rebuild_views=True)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format": 1}', '{"format": 1, "ranges": [[1, 2]], "queues": []}', "NaN", '{"format": "1"}',
     '{"format": 1, "ranges": [{"file": "x", "start": 5, "end": 5, "records_behind": 0, "reason": ""}], "queues": []}',
     '{"format": 1, "ranges": [], "queues": [["Alpha", -1, 5]]}', "[" * 100_000,
     '{"format": 1, "ranges": [], "queues": [["Alpha", 0, 5]]}'],
)  # fmt: skip
def test_an_unreadable_list_of_kept_damage_is_named(lab: Lab, content: str) -> None:
    lab.open().close()
    (lab.root / "pyrmq" / "kept.json").write_text(content)
    with pytest.raises(CorruptConfigError, match=r"kept\.json.*rmq repair"):
        lab.open()


def _list_of(lab: Lab) -> tuple[Path, bytes]:
    """The list of a store whose last two messages are lost, and which was closed."""
    starts, end = damaged(lab)
    lab.overwrite(starts[38] + 1, b"\xff" * (end - starts[38] - 1))
    lab.open(on_corruption="keep").close()
    path = lab.root / "pyrmq" / "kept.json"
    return path, path.read_bytes()


def test_any_bit_of_the_list_of_kept_damage_that_rots_is_noticed(lab: Lab) -> None:
    path, content = _list_of(lab)
    whole = AcceptedDamage.load(path.parent)
    for position in range(len(content)):
        for bit in (1, 2, 4, 16):
            rotten = bytearray(content)
            rotten[position] ^= bit
            path.write_bytes(rotten)
            try:
                assert AcceptedDamage.load(path.parent) == whole  # a space, or the name of the checksum
            except CorruptConfigError:
                pass
            except NotAStoreError as error:
                pytest.fail(f"{position}: {error}")
    path.write_bytes(content.replace(b"40", b"41"))
    assert lab.verify().problems[0].path == "pyrmq/kept.json"
    with pytest.raises(CorruptConfigError, match="checksum"):
        lab.open()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("end", [900, 10**15])
def test_an_end_that_the_lost_bytes_cannot_explain_is_not_believed(lab: Lab, end: int) -> None:
    path, content = _list_of(lab)
    assert json.loads(content)["queues"] == [["Alpha", 0, 40]]
    replace(AcceptedDamage.load(path.parent), queues={("Alpha", 0): end}).save(path.parent)
    shutil.rmtree(lab.root / "index")  # so that the whole log is walked
    with lab.open(read_only=True) as reader:
        assert reader.queue_range("Alpha", 0) == (0, 40)
    with lab.open() as store:
        assert store.send(Message("Alpha", b"%08d" % 40)).queue_offset == 40


@pytest.mark.timeout(60)
def test_an_end_and_a_range_that_no_disk_can_hold_take_no_memory(lab: Lab) -> None:
    """A list with a right checksum: [n, 2^60) can have held any number of messages."""
    path, _ = _list_of(lab)
    known = AcceptedDamage.load(path.parent)
    endless = (*known.ranges[:-1], known.ranges[-1]._replace(end=1 << 60))
    replace(known, ranges=endless, queues={("Alpha", 0): 1 << 50}).save(path.parent)
    shutil.rmtree(lab.root / "index")  # so that the whole log is walked
    with lab.open(read_only=True) as reader:
        assert reader.queue_range("Alpha", 0).max_offset <= 40


@pytest.mark.timeout(60)
def test_a_queue_without_files_does_not_begin_behind_all_that_the_log_has_ever_held(lab: Lab) -> None:
    """In a log whose first messages retention removed, an empty queue goes on at the end that the list names."""
    path, _ = _list_of(lab)
    bases = sorted((lab.root / "commitlog").iterdir())
    bases[0].unlink()
    replace(AcceptedDamage.load(path.parent), queues={("Alpha", 0): 40, ("Beta", 0): 1 << 50}).save(path.parent)
    with lab.open(rebuild_views=True) as store:
        store.create_topic("Beta", 1)
        assert store.send(Message("Beta", b"first")).queue_offset == 0
        assert store.send(Message("Alpha", b"%08d" % 40)).queue_offset == 40


def test_lost_messages_before_a_file_of_the_queue_that_is_there_are_not_passed_over(lab: Lab) -> None:
    starts, _ = damaged(lab)
    lab.overwrite(starts[0] + 1, b"\xff" * (starts[6] - starts[0] - 5))
    for path in sorted((lab.root / "consumequeue" / "Alpha" / "0").iterdir())[:2]:
        path.unlink()
    with lab.open(on_corruption="keep") as store:
        assert store.queue_range("Alpha", 0) == (0, 40)
        assert whole(lab, store) == list(range(6, 40))


def test_a_list_of_a_newer_version_is_refused(lab: Lab) -> None:
    lab.open().close()
    (lab.root / "pyrmq" / "kept.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(NotAStoreError, match="newer version"):
        lab.open()


def test_ranges_are_joined_and_survive_the_disk(lab: Lab) -> None:
    lab.open().close()
    bad = [BadRange("a", 10, 20, 3, "x"), BadRange("a", 15, 30, 2, "y"), BadRange("b", 30, 40, 1, "z")]
    several = AcceptedDamage().plus(bad, {("Alpha", 0): 7}).plus([], {("Alpha", 0): 5})
    assert [(b.start, b.end, b.records_behind) for b in several.ranges] == [(10, 30, 2), (30, 40, 1)]
    assert (several.skip(10), several.skip(11), several.skip(40)) == (40, 11, 40)
    several.save(lab.root / "pyrmq")
    assert AcceptedDamage.load(lab.root / "pyrmq") == several
    assert dict(several.queues) == {("Alpha", 0): 7}


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.slow
def test_a_rebuild_that_was_killed_leaves_no_half_views_that_are_believed(
    lab: Lab, fail_at: Callable[..., object], rebuild: bool
) -> None:
    with lab.open() as store:
        store.append(lab.batch(60))
    before, saved = lab.files(), lab.save()

    def open_and_die(k: int) -> None:
        fail_at(k, lambda: __import__("os")._exit(9))
        lab.open(rebuild_views=rebuild)

    for k in range(1, 300):
        lab.restore(saved)
        if not rebuild:
            shutil.rmtree(lab.root / "consumequeue")
        code = lab.in_child(lambda k=k: open_and_die(k))  # type: ignore[misc]
        with lab.open() as store:
            assert lab.numbers(store) == list(range(60))
        assert lab.files() == before
        if code == 0:
            break
    assert 20 < k < 299




def test_queues_are_searched_without_a_map_of_them(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a queue file is a hole. On a full tmpfs to look at one through a map is SIGBUS."""
    starts, _ = damaged(lab)
    lab.overwrite(starts[5] + 150, b"\xff")

    def no_map(file: OpenFile) -> Any:
        assert "consumequeue" not in file.path
        return mapped.fget(file)  # type: ignore[misc]

    mapped = OpenFile.map
    monkeypatch.setattr(OpenFile, "map", property(no_map))
    with lab.open(on_corruption="keep") as store:
        assert len(kept(store)) == 1
