"""Copies of stores that were not closed, with damage: nobody ends the log early where whole records lie behind.

A copy has neither a progress record nor a state page of its own. A reader walked its log up to the first damaged
record, and took the rest for a tail that was never whole: 292 of 2,000 messages, no word of it, and a backup of the 292
verified clean. In place the same damage hides one message, and reading that one is an error.
"""

from __future__ import annotations

import logging
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_store import Message, Store
from rmq_store.broker.backup.backup import backup
from rmq_store.errors import CorruptionError, CorruptRecordError
from rmq_store.log.append.flush import save_progress
from rmq_store.verify import verify_store

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from .conftest import Lab

SEGMENT = 8192

Seen = dict[tuple[str, int], list[bytes | None]]


def seen(store: Store) -> Seen:
    """Every message of every queue, from its queue's first offset on; None for one that cannot be read."""
    found: Seen = {}
    for topic in sorted({"Alpha", "Beta"} & set(store.topics())):
        for queue_id, (first, last) in store.queue_ranges(topic).items():
            found[topic, queue_id] = [_body(store, topic, queue_id, number) for number in range(first, last)]
    return found


def _body(store: Store, topic: str, queue_id: int, number: int) -> bytes | None:
    try:
        [batch] = store.read(topic, queue_id, number, number + 1, columns=["body"])
    except CorruptRecordError:
        return None
    body: bytes = batch.column("body")[0].as_py()
    return body


def read_only(root: Path) -> tuple[Seen, int]:
    with Store.open(root, read_only=True) as reader:
        return seen(reader), reader.log_range()[1]


def killed(lab: Lab, *, unit: bool = False, vouched: bool = False, flushed: bool = True) -> None:
    """A store whose writer was killed behind 60 messages, in several segments. `vouched`: the progress record has them
    all, because somebody opened the store since, and was killed too.
    """

    def work(store: Store) -> None:
        for topic in ("Alpha", "Beta"):
            store.create_topic(topic, 2)
        if unit:
            lab.append_unit(store, 60)
        else:
            for number in range(0, 60, 3):
                store.append(lab.batch(3, body_bytes=300 + number))
        if flushed:
            store.flush()

    lab.crash(work)
    if vouched:
        lab.crash()


def copy_of(lab: Lab, *, without: tuple[str, ...] = ()) -> Path:
    copy = lab.root.parent / f"copy-{len(list(lab.root.parent.iterdir()))}"
    shutil.copytree(lab.root, copy)
    for name in without:
        (copy / "pyrmq" / name).unlink()
    return copy


def overwrite(root: Path, offset: int, data: bytes) -> None:
    with (root / "commitlog" / f"{offset // SEGMENT * SEGMENT:020d}").open("r+b") as file:
        file.seek(offset % SEGMENT)
        file.write(data)


LOST = {"nothing": (), "record": ("progress",), "page": ("state",), "both": ("progress", "state")}


@pytest.mark.parametrize("vouched", [False, True], ids=["not-vouched", "vouched"])
@pytest.mark.parametrize("unit", [False, True], ids=["messages", "one-unit"])
@pytest.mark.parametrize("damage", ["first", "one", "several", "a whole segment's middle", "zeros"])
def test_a_copy_is_read_as_the_store_in_place(
    lab: Lab, damage: str, unit: bool, vouched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Four copies: of all files, without the progress record, without the state page, and without both."""
    killed(lab, unit=unit, vouched=vouched)
    copies = [copy_of(lab, without=without) for without in LOST.values()]
    with lab.open(read_only=True) as reader:
        frames = lab.boundaries(0, reader.log_range()[1])
    places = {
        "first": frames[:1],
        "one": [frames[20]],
        "several": [frames[7], frames[8], frames[30], frames[45]],
        "a whole segment's middle": frames[18:26],
        "zeros": [frames[20]],
    }[damage]
    for root in (lab.root, *copies):
        for place in places:
            overwrite(root, place + 1, bytes(120) if damage == "zeros" else b"\xff" * 120)
    expected = read_only(lab.root)
    assert sum(bodies.count(None) for bodies in expected[0].values()) >= len(places) - 2 * unit
    for copy, lost in zip(copies, LOST, strict=True):
        caplog.clear()
        assert read_only(copy) == expected, lost
        told = [record for record in caplog.records if record.name == "rmq_store.log.recovery.read_only_end"]
        assert told, lost
        assert all(record.levelno == logging.WARNING for record in told), lost
        assert f"bytes {places[0]} to " in told[0].getMessage(), lost


@pytest.mark.parametrize("lost", LOST)
def test_a_writer_refuses_such_a_copy_and_changes_nothing(lab: Lab, lost: str) -> None:
    """Or it would cut off what the reader has just shown."""
    killed(lab)
    copy = copy_of(lab, without=LOST[lost])
    overwrite(copy, 5000, b"\xff" * 100)
    before = {path: path.read_bytes() for path in copy.rglob("0*") if path.is_file()}
    with pytest.raises(CorruptRecordError, match=r"corruption: .* whole records lie behind them"):
        Store.open(copy)
    assert {path: path.read_bytes() for path in copy.rglob("0*") if path.is_file()} == before
    as_read = read_only(copy)
    with Store.open(copy, on_corruption="keep") as store:
        assert (seen(store), store.log_range()[1]) == as_read


def test_a_missing_segment_of_a_copy_is_passed_over(lab: Lab) -> None:
    killed(lab)
    copy = copy_of(lab, without=("progress", "state"))
    for root in (lab.root, copy):
        (root / "commitlog" / f"{SEGMENT:020d}").unlink()
    expected = read_only(lab.root)
    assert sum(bodies.count(None) for bodies in expected[0].values()) > 10
    assert read_only(copy) == expected


def test_the_newest_record_of_a_copy_that_was_on_disk_is_missed(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """The copied state page says so: nothing lies behind it that would tell."""
    killed(lab)
    copy = copy_of(lab)
    with lab.open(read_only=True) as reader:
        newest = lab.boundaries(0, reader.log_range()[1])[-1]
    for root in (lab.root, copy):
        overwrite(root, newest + 30, b"\xff" * 40)
    expected = read_only(lab.root)
    assert sum(bodies.count(None) for bodies in expected[0].values()) == 1
    assert read_only(copy) == expected
    assert f"bytes {newest} to" in caplog.text


def test_a_copy_that_was_torn_in_its_last_record_still_opens(lab: Lab) -> None:
    """The log was copied, then a message was appended and the page copied: no damage, an older end."""
    killed(lab)
    copy = copy_of(lab)
    with lab.open(read_only=True) as reader:
        newest = lab.boundaries(0, reader.log_range()[1])[-1]
    overwrite(copy, newest + 100, bytes(SEGMENT - (newest + 100) % SEGMENT))
    with Store.open(copy, read_only=True) as reader:
        assert reader.log_range()[1] == newest
    with Store.open(copy) as store:
        assert store.log_range()[1] == newest


def test_of_a_unit_without_its_end_nothing_is_read_and_that_is_said(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """Copied while it was appended: the end of it is not there, whatever of it is."""
    with lab.open() as store:
        store.append(lab.batch(6))
        end = store.log_range()[1]
    lab.crash(lambda store: lab.append_unit(store, 30))
    copy = copy_of(lab, without=("progress", "state"))
    frames = [offset for offset in lab.boundaries(end, _page_end(lab)) if offset >= end]
    overwrite(copy, frames[-1], bytes(SEGMENT - frames[-1] % SEGMENT))
    overwrite(copy, frames[5] + 10, b"\xff" * 50)
    with Store.open(copy, read_only=True) as reader:
        assert lab.numbers(reader) == list(range(6))
        assert reader.log_range()[1] == end
    assert f"ends at byte {end}, where a unit begins whose end is not there" in caplog.text
    with Store.open(copy) as store:
        assert lab.numbers(store) == list(range(6))


def _page_end(lab: Lab) -> int:
    with lab.open(read_only=True) as reader:
        return reader.log_range()[1]


def test_stale_records_behind_a_brokers_truncation_are_no_part_of_a_log(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker truncates without erasing. Here it has appended two messages over what it gave up."""
    with lab.open() as store:
        store.create_topic("Alpha", 1)
        for number in range(3):
            store.send(Message("Alpha", b"old %d" % number))
    saved = lab.save()
    with lab.open() as store:
        for number in range(3, 8):
            store.send(Message("Alpha", b"old %d" % number))
        old = store._log.segments.open(0).map[:]
    lab.restore(saved)
    with lab.open() as store:
        for number in range(2):
            store.send(Message("Alpha", b"new %d" % number + b"." * (100 - 60 * number)))
        end = store.log_range()[1]
    lab.overwrite(end, old[end:])  # what a broker leaves there
    for abort in (False, True):
        lab.broker_was_here(abort=abort)
        caplog.clear()
        with lab.open(read_only=True) as reader:
            assert seen(reader)["Alpha", 0][:3] == [b"old 0", b"old 1", b"old 2"]
            assert [body[:5] for body in seen(reader)["Alpha", 0][3:] if body] == [b"new 0", b"new 1"]
            assert reader.log_range()[1] == end
        assert f"the log ends at byte {end}, but whole records lie behind it" in caplog.text


@pytest.mark.parametrize("abort", [False, True], ids=["stopped", "killed"])
def test_a_brokers_log_goes_on_behind_damage(lab: Lab, abort: bool, caplog: pytest.LogCaptureFixture) -> None:
    killed(lab)
    before = read_only(lab.root)
    with lab.open(read_only=True) as reader:
        frames = lab.boundaries(0, reader.log_range()[1])
    lab.broker_was_here(abort=abort)
    shutil.rmtree(lab.root / "consumequeue")  # so that it is walked from its beginning
    (lab.root / "checkpoint").unlink(missing_ok=True)
    overwrite(lab.root, frames[20] + 1, b"\xff" * 60)
    bodies, end = read_only(lab.root)
    assert end == before[1]
    assert {key: len(rows) for key, rows in bodies.items()} == {key: len(rows) for key, rows in before[0].items()}
    assert sum(rows.count(None) for rows in bodies.values()) == 1
    assert f"bytes {frames[20]} to " in caplog.text


@pytest.mark.parametrize("abort", [False, True], ids=["stopped", "killed"])
def test_a_brokers_store_whose_log_is_empty_although_its_queues_are_not_is_told(
    lab: Lab, abort: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory where the log's disk would be mounted is there, and empty."""
    killed(lab)
    lab.broker_was_here(abort=abort)
    for path in (lab.root / "commitlog").iterdir():
        path.unlink()
    with lab.open(read_only=True) as reader:
        assert reader.log_range() == (0, 0)
    assert "its log has no file, though its queues have entries" in caplog.text


@pytest.mark.parametrize("seed", range(12))
def test_random_damage_hides_in_a_copy_what_it_hides_in_place(lab: Lab, seed: int) -> None:
    rng = random.Random(seed)
    killed(lab, unit=rng.random() < 0.3, vouched=rng.random() < 0.5)
    copy = copy_of(lab, without=LOST[rng.choice(list(LOST))])
    with lab.open(read_only=True) as reader:
        frames = lab.boundaries(0, reader.log_range()[1])
    for place in rng.sample(frames[:-3], rng.randint(1, 6)):
        data = rng.choice([b"\xff", b"\x00"]) * rng.randint(20, 90)
        for root in (lab.root, copy):
            overwrite(root, place, data)  # its own size, magic or checksum go
    assert read_only(copy) == read_only(lab.root)
    assert verify_store(copy).status == "damaged"


def test_a_backup_of_a_damaged_copy_is_refused(lab: Lab) -> None:
    killed(lab)
    copy = copy_of(lab)
    overwrite(copy, 5000, b"\xff" * 100)
    with pytest.raises(CorruptionError):
        backup(copy, lab.root.parent / "backup")
    assert not (lab.root.parent / "backup").exists()


def test_errors_name_the_message_that_is_damaged(lab: Lab) -> None:
    """They named bytes only, and nobody reads bytes."""
    with lab.open() as store:
        store.create_topic("Alpha", 1)
        for number in range(20):
            store.send(Message("Alpha", b"%d" % number))
        damaged = store.query.by_queue_offset("Alpha", 0, 7).commit_log_offset
    overwrite(lab.root, damaged + 1, b"\xff" * 20)
    with Store.open(lab.root, read_only=True) as reader:
        for read in (
            lambda: list(reader.read("Alpha", 0, 0, 20)),
            lambda: list(reader.read("Alpha", 0, 7, 8, two_threads=True)),
            lambda: reader.store_timestamp("Alpha", 0, 7),
            lambda: reader.query.by_queue_offset("Alpha", 0, 7),
        ):
            with pytest.raises(CorruptionError, match=r"(message|entry) 7 of Alpha-0 .*`rmq (repair|verify)`"):
                read()
    [problem] = [problem for problem in verify_store(lab.root).problems if problem.path.startswith("commitlog")]
    assert problem.text.endswith("lost with it: message 7 of Alpha-0")
    with pytest.raises(CorruptRecordError, match=r"message 7 of Alpha-0.*`rmq repair` the store first"):
        backup(lab.root, lab.root.parent / "backup")
    lab.crash()
    (lab.root / "pyrmq" / "progress").unlink()
    lab.reboot()
    with pytest.raises(CorruptRecordError, match=r"message 7 of Alpha-0.*`rmq repair`"):
        Store.open(lab.root)


def test_a_damaged_record_in_an_unclean_copy_is_refused_and_not_cut(lab: Lab, tmp_path: Path) -> None:
    with lab.open() as store:
        for number in range(50):
            store.send(Message("Alpha", b"body %d" % number))
        store.flush()
        save_progress(store._log)
        shutil.copytree(lab.root, tmp_path / "copy")
    segment = min((tmp_path / "copy" / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    data[data.index(b"body 10")] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptRecordError):
        Store.open(tmp_path / "copy")
    assert segment.read_bytes() == bytes(data)
