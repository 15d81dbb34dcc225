"""Files of a queue that get lost are missed, and no queue offset is given out twice."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig, StoreError
from rmq_store.errors import CorruptRecordError
from rmq_store.files import durable
from rmq_store.log import retention
from rmq_store.log.integrity.queue_ends import QueueEnds

pytestmark = pytest.mark.long

QUEUE = ("Alpha", 0)

Damage = Callable[[Path], object]


def directory(lab: Any) -> Path:
    return lab.root / "consumequeue" / QUEUE[0] / str(QUEUE[1])


def newest(queue: Path) -> Path:
    return max(queue.iterdir())


LOSSES: dict[str, Damage] = {
    "the queue": shutil.rmtree,
    "its topic": lambda queue: shutil.rmtree(queue.parent),
    "its files": lambda queue: [path.unlink() for path in queue.iterdir()],
    "its newest file": lambda queue: newest(queue).unlink(),
    "the content of its newest file": lambda queue: newest(queue).write_bytes(bytes(100)),
    "its oldest file": lambda queue: min(queue.iterdir()).unlink(),
    "a file in the middle": lambda queue: sorted(queue.iterdir())[1].unlink(),
}


@pytest.fixture
def filled(lab: Any) -> Any:
    """60 messages in 4 queues, whose files hold 5 entries; closed."""
    with lab.open() as store:
        store.append(lab.batch(60))
    return lab


def write_table(lab: Any, **content: Any) -> None:
    """With the checksum that belongs to it."""
    data = {"format": 1, "is_complete": True, "queues": [], "firsts": [], "log_end": 0, **content}
    crc = zlib.crc32(json.dumps(data, sort_keys=True).encode())
    (lab.root / "pyrmq" / "queue_ends.json").write_text(json.dumps({"crc": crc, **data}))


def trust(store: Store) -> str:
    assert store.recovery is not None
    return store.recovery.trust


def ends(lab: Any) -> dict[Any, int]:
    known = QueueEnds.load(lab.root / "pyrmq")
    assert known is not None
    return {key: end for key, end in known.ends.items() if key[0] in ("Alpha", "Beta")}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("state", ["closed", "killed"])
def test_a_lost_queue_is_made_again_and_its_offsets_stay_what_they_were(
    filled: Any, loss: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    if state == "killed":
        filled.crash()
    before = filled.views()
    LOSSES[loss](directory(filled))
    with filled.open(read_only=True) as store:
        assert filled.numbers(store) == list(range(60))
    with caplog.at_level(logging.WARNING), filled.open() as store:
        assert filled.numbers(store) == list(range(60))
        assert store.send(Message(QUEUE[0], b"next", queue_id=QUEUE[1])).queue_offset == 15
    assert "files of 1 queues are missing, of Alpha-0 first" in caplog.text or loss == "its topic"
    found = filled.views()
    assert {name: found[name] for name in before if "Alpha/0" not in name and "index" not in name} == {
        name: data for name, data in before.items() if "Alpha/0" not in name and "index" not in name
    }
    assert filled.is_sound()


@pytest.mark.parametrize("rot", [b"\0", b"\x7f", b"\xff"])
@pytest.mark.parametrize("place", range(0, 100, 4))
def test_a_sector_that_rots_in_a_queue_does_not_end_it(tmp_path: Path, rot: bytes, place: int) -> None:
    """Its end is found by bisection, which believes each entry that it meets; one below 0, of no size, or of a record
    that lies behind the log is no entry.
    """
    config = StoreConfig(mapped_file_size_consume_queue=20 * 200)
    with Store.open(tmp_path / "store", create=True, config=config) as store:
        store.create_topic("Alpha", 1)
        rows = {"topic": ["Alpha"] * 100, "body": pa.array([b"x"] * 100, pa.binary())}
        store.append(pa.RecordBatch.from_pydict(rows))
        assert store.queue_range(*QUEUE) == (0, 100)
    with newest(tmp_path / "store" / "consumequeue" / "Alpha" / "0").open("r+b") as file:
        file.seek(20 * place)
        file.write(20 * 4 * rot)
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert store.queue_range(*QUEUE) == (0, 100)
    with Store.open(tmp_path / "store") as store:
        assert store.send(Message("Alpha", b"next", queue_id=0)).queue_offset == 100


@pytest.mark.parametrize("place", [0, 24, 48, 72, 96])
@pytest.mark.parametrize("left", [10, 0])
def test_rot_among_entries_of_messages_that_retention_took_neither_ends_the_queue_nor_is_looked_for_again(
    tmp_path: Path, place: int, left: int
) -> None:
    config = StoreConfig(mapped_file_size_consume_queue=20 * 200, mapped_file_size_commit_log=8192)
    with Store.open(tmp_path / "store", create=True, config=config) as store:
        topics = ["Alpha"] * 100 + ["Beta"] * (0 if left else 100)
        for topic in ("Alpha", "Beta"):
            store.create_topic(topic, 1)
        rows = {"topic": topics, "body": pa.array([b"x" * 300] * len(topics), pa.binary())}
        store.append(pa.RecordBatch.from_pydict(rows))
        for segment in sorted((tmp_path / "store" / "commitlog").iterdir())[:-1]:
            os.utime(segment, (1, 1))
        store.retention.run(manual=True, file_reserved_time=0)
        before = store.queue_range(*QUEUE)
        assert before[0] > 48 and before[1] == 100 and (before[0] == 100) == (left == 0)
    with newest(tmp_path / "store" / "consumequeue" / "Alpha" / "0").open("r+b") as file:
        file.seek(20 * place)
        file.write(bytes(80))
    for trusts in (("CLEAN", "COPY"), ("CLEAN",)):
        with Store.open(tmp_path / "store") as store:
            assert trust(store) in trusts
            assert store.queue_range(*QUEUE) == before
    with Store.open(tmp_path / "store") as store:
        assert store.send(Message("Alpha", b"next", queue_id=0)).queue_offset == 100


def test_a_queue_of_which_retention_took_all_messages_goes_on_where_it_was(lab: Any) -> None:
    with lab.open() as store:
        store.create_topic("Alpha", queue_count=2, exist_ok=True)
        for _ in range(7):
            store.send(Message(QUEUE[0], b"early", queue_id=QUEUE[1]))
        while store.log_range()[1] < 5 * 8192:
            store.send(Message("Beta", b"late" * 100))
    for path in sorted((lab.root / "commitlog").iterdir())[:2]:
        path.unlink()
    LOSSES["the queue"](directory(lab))
    for _ in range(2):
        with lab.open() as store:
            assert tuple(store.queue_ranges(QUEUE[0])[QUEUE[1]]) == (7, 7)
        assert lab.is_sound()
    with lab.open() as store:
        assert store.send(Message(QUEUE[0], b"next", queue_id=QUEUE[1])).queue_offset == 7


def test_every_closer_writes_down_what_it_wrote(filled: Any) -> None:
    assert ends(filled) == {("Alpha", 0): 15, ("Alpha", 1): 15, ("Beta", 0): 15, ("Beta", 1): 15}
    with filled.open() as last:
        with filled.open() as first:
            first.send(Message(QUEUE[0], b"one more", queue_id=QUEUE[1]))
        assert ends(filled)[QUEUE] == 16
        last.send(Message("Beta", b"one more", queue_id=1))
        assert ends(filled)["Beta", 1] == 15
    assert ends(filled) == {("Alpha", 0): 16, ("Alpha", 1): 15, ("Beta", 0): 15, ("Beta", 1): 16}


def test_what_a_killed_writer_wrote_is_written_down_by_the_next_last_one(filled: Any) -> None:
    filled.crash(lambda store: store.append(filled.batch(0)) and store.send(Message("Gamma", b"x", queue_id=0)))
    filled.open().close()
    known = QueueEnds.load(filled.root / "pyrmq")
    assert known is not None
    assert known.is_complete
    assert known.ends["Gamma", 0] == 1


def test_behind_a_broker_the_ends_are_forgotten(filled: Any) -> None:
    """It may have deleted a topic and begun again: DefaultMessageStore#deleteTopics."""
    filled.broker_was_here()
    with filled.open() as store:
        assert store.recovery is not None
        assert store.recovery.trust == "BROKER_CLEAN"
        assert QueueEnds.load(filled.root / "pyrmq") == QueueEnds({}, is_complete=False)
    assert ends(filled)[QUEUE] == 15


def test_what_a_broker_has_deleted_is_not_taken_for_lost_messages(filled: Any) -> None:
    with filled.open(read_only=True) as reader:
        starts = filled.boundaries(0, reader.log_range()[1])
    filled.overwrite(starts[-20] + 100, b"\xff")
    shutil.rmtree(directory(filled).parent)
    filled.broker_was_here(abort=True)
    write_table(filled, queues=[[*QUEUE, 16], ["Beta", 0, 15]], firsts=[], log_end=1 << 40)
    with filled.open(on_corruption="keep") as store:
        assert store.recovery is not None
        assert len(store.recovery.bad_ranges) == 1
        assert store.queue_range(*QUEUE) == (0, 15)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"crc": 1, "format": 1, "is_complete": true, "queues": []}'])
def test_a_table_that_cannot_be_believed_is_none_and_is_made_again(filled: Any, content: str) -> None:
    whole = ends(filled)
    path = filled.root / "pyrmq" / "queue_ends.json"
    path.write_text(content)
    assert QueueEnds.load(path.parent) is None
    with filled.open() as store:
        assert store.recovery is not None
        assert store.recovery.trust == "CLEAN"
    assert ends(filled) == whole


def test_a_table_that_rotted_makes_no_queue(filled: Any) -> None:
    path = filled.root / "pyrmq" / "queue_ends.json"
    path.write_text(path.read_text().replace("Beta", "Bfta"))
    filled.open().close()
    assert not (filled.root / "consumequeue" / "Bfta").exists()


def test_a_queue_that_cannot_be_read_does_not_keep_the_store_from_being_closed(filled: Any) -> None:
    path = filled.root / "pyrmq" / "queue_ends.json"
    path.unlink()
    directory(filled).rename(filled.root.parent / "elsewhere")
    directory(filled).symlink_to(filled.root.parent / "elsewhere")
    filled.open().close()
    assert ends(filled)[QUEUE] == 0
    with filled.open() as store, pytest.raises(StoreError):
        store.send(Message(QUEUE[0], b"next", queue_id=QUEUE[1]))


def test_a_store_that_was_only_looked_at_is_not_written_to(filled: Any) -> None:
    path = filled.root / "pyrmq" / "queue_ends.json"
    before = path.stat()
    filled.open().close()
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert json.loads(path.read_text())["is_complete"]


# ---- the first files of a queue


def test_delayed_messages_wait_although_the_oldest_file_of_their_level_was_lost(lab: Any) -> None:
    with lab.open() as store:
        for number in range(12):
            store.send(Message("Alpha", b"%d" % number, queue_id=0, properties={"DELAY": "5"}))
    min((lab.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "4").iterdir()).unlink()
    with lab.open() as store:
        lab.now_ms += 120_000
        assert store.schedule.deliver_due().delivered == 12
        assert store.queue_range("Alpha", 0) == (0, 12)


@pytest.fixture
def shortened(lab: Any) -> Any:
    """A store of which retention took the first segments, and files of queues."""
    with lab.open() as store:
        while store.log_range()[1] < 9 * 8192:
            store.append(lab.batch(20))
    with lab.open() as store:
        bases = sorted(int(path.name) for path in (lab.root / "commitlog").iterdir())[:4]
        retention.make_removable(store._log, bases[-1] + 8192)
        for base in bases:
            assert retention.remove_segment(store._log, base, forced=True)
        assert retention.remove_queue_files(store._log) > 8
    return lab


def test_files_that_retention_took_are_not_missed_and_others_are(shortened: Any) -> None:
    with shortened.open() as store:
        assert trust(store) == "CLEAN"
        numbers = shortened.numbers(store)
    min(directory(shortened).iterdir()).unlink()
    with shortened.open(read_only=True) as store:
        assert shortened.numbers(store) == numbers
    for expected in ("COPY", "CLEAN"):
        with shortened.open() as store:
            assert trust(store) == expected
            assert shortened.numbers(store) == numbers
        assert shortened.is_sound()


def test_what_was_deleted_without_a_note_is_looked_for_once(shortened: Any) -> None:
    """As somebody deletes who is none of ours: the whole log is read, and tells where the queues begin."""
    write_table(shortened, queues=[[*key, end] for key, end in ends(shortened).items()], firsts=[])
    for expected in ("COPY", "CLEAN"):
        with shortened.open() as store:
            assert trust(store) == expected
        assert shortened.is_sound()


def test_a_gap_that_the_log_cannot_fill_is_looked_for_once(shortened: Any) -> None:
    """The files before it know only records that retention took."""
    files = sorted(directory(shortened).iterdir())
    first, size = int(files[0].name), len(files[0].read_bytes())
    (files[0].parent / f"{first - 2 * size:020d}").write_bytes(files[0].read_bytes())
    table = [[*key, end] for key, end in ends(shortened).items()]
    firsts = [[*key, 0 if key == QUEUE else first // 20] for key in ends(shortened)]
    write_table(shortened, queues=table, firsts=firsts)
    with shortened.open() as store:
        assert trust(store) == "COPY"
    with shortened.open() as store:
        assert trust(store) == "CLEAN"


# ---- the table, and a log that lost what it had


@pytest.mark.parametrize("how", ["its last records", "its last segment"])
def test_a_log_and_a_queue_that_lost_their_ends_go_on_behind_them(filled: Any, how: str) -> None:
    with filled.open() as store:
        end = store.log_range()[1]
    starts = filled.boundaries(0, end)
    if how == "its last records":
        filled.cut(starts[-9])
    else:
        max((filled.root / "commitlog").iterdir()).unlink()
    shutil.rmtree(filled.root / "consumequeue")
    with pytest.raises(CorruptRecordError, match="lost durable tail"):
        filled.open()
    with filled.open(on_corruption="keep") as store:
        for topic in ("Alpha", "Beta"):
            assert store.queue_ranges(topic) == {0: (0, 15), 1: (0, 15)}
        assert store.log_range()[1] == end
        sent = store.send(Message(QUEUE[0], b"next", queue_id=QUEUE[1]))
        assert (sent.queue_offset, sent.commit_log_offset) == (15, end)
    with filled.open() as store:
        assert trust(store) == "CLEAN"
        assert store.send(Message(QUEUE[0], b"next", queue_id=QUEUE[1])).queue_offset == 16
    assert filled.verify().status == "kept"


def _power_cut_behind_a_close(lab: Any) -> list[int]:
    """One writer closes, another is still at work when the power fails; where the records lie. Neither the state page
    nor the queues had reached the disk.
    """
    lab.sync_flush()
    lab.open().close()

    def work(first: Store) -> None:
        with lab.open() as second:
            second.append(lab.batch(40))

    lab.crash(work)
    lab.written = 40
    with lab.open(read_only=True) as reader:
        starts: list[int] = lab.boundaries(0, reader.log_range()[1])
    lab.reboot(lose_page=True)
    shutil.rmtree(lab.root / "consumequeue")
    return starts


@pytest.mark.parametrize("case", ["corruption", "lost durable tail"])
def test_what_a_closer_had_flushed_is_never_taken_for_a_torn_tail(lab: Any, case: str) -> None:
    starts = _power_cut_behind_a_close(lab)
    if case == "corruption":
        lab.overwrite(starts[20] + 100, b"\xff")
    else:
        lab.cut(starts[20])
    report = lab.verify()
    assert report.status == "damaged"
    assert report.bad_ranges
    with pytest.raises(CorruptRecordError, match=case):
        lab.open()
    with lab.open(on_corruption="keep") as store:
        assert store.recovery is not None
        assert store.recovery.removed_bytes == 0
        assert store.queue_range(*QUEUE) == (0, 10)
        assert store.send(Message(QUEUE[0], b"next", queue_id=QUEUE[1])).queue_offset == 10
    with lab.open() as store:
        assert trust(store) == "CLEAN"


def test_what_a_closer_had_flushed_is_found_again(lab: Any) -> None:
    _power_cut_behind_a_close(lab)
    with lab.open() as store:
        assert lab.numbers(store) == list(range(40))
    assert lab.is_sound()


def test_the_end_of_the_log_in_the_table_counts_only_if_it_is_newer_than_the_last_clean_stop(filled: Any) -> None:
    """The table is damaged in a way that its checksum does not show."""
    write_table(filled, queues=[[*key, end] for key, end in ends(filled).items()], firsts=[], log_end=1 << 40)
    assert filled.verify().status == "clean"
    shutil.rmtree(filled.root / "index")  # so that the whole log is looked at
    with filled.open() as store:
        assert trust(store) == "COPY"
        assert filled.numbers(store) == list(range(60))
        assert QueueEnds.load(filled.root / "pyrmq").log_end == store.log_range()[1]  # type: ignore[union-attr]


def test_an_end_that_is_not_in_the_log_is_looked_for_once(filled: Any) -> None:
    write_table(filled, queues=[[*QUEUE, 17], ["Gone", 3, 4]], firsts=[["Gone", 3, 2]])
    assert len(filled.verify().problems) == 2
    for expected in ("COPY", "CLEAN"):
        with filled.open() as store:
            assert trust(store) == expected
            assert store.queue_range(*QUEUE) == (0, 15)
    assert filled.is_sound()


def test_a_queue_without_messages_that_lost_its_newest_file_goes_on_where_it_was(lab: Any) -> None:
    with lab.open() as store:
        for _ in range(7):
            store.send(Message(QUEUE[0], b"early", queue_id=QUEUE[1]))
        while store.log_range()[1] < 5 * 8192:
            store.send(Message("Beta", b"late" * 100))
    for path in sorted((lab.root / "commitlog").iterdir())[:2]:
        path.unlink()
    newest(directory(lab)).unlink()
    for expected in ("COPY", "CLEAN"):
        with lab.open() as store:
            assert trust(store) == expected
            assert store.queue_range(*QUEUE) == (7, 7)
    with lab.open() as store:
        assert store.send(Message(QUEUE[0], b"next", queue_id=QUEUE[1])).queue_offset == 7
    assert lab.is_sound()


# ---- what the table holds


def test_a_directory_that_no_queue_can_have_does_not_cost_the_table(filled: Any) -> None:
    shutil.copytree(directory(filled).parent, filled.root / "consumequeue" / "Alpha.bak")
    (filled.root / "consumequeue" / "Alpha" / str(1 << 31)).mkdir()
    filled.crash()
    filled.open().close()
    table = json.loads((filled.root / "pyrmq" / "queue_ends.json").read_text())
    assert {(topic, queue_id) for topic, queue_id, _ in table["queues"]} >= ends(filled).keys()
    assert not [row for row in table["queues"] if row[0] == "Alpha.bak" or row[1] == 1 << 31]


def test_a_row_that_no_queue_can_have_does_not_cost_the_table(filled: Any) -> None:
    table = json.loads((filled.root / "pyrmq" / "queue_ends.json").read_text())
    write_table(filled, queues=[*table["queues"], ["Alpha.bak", 0, 15], ["../x", 0, 1]])
    assert ends(filled)[QUEUE] == 15
    LOSSES["the queue"](directory(filled))
    with filled.open() as store:
        assert store.send(Message(QUEUE[0], b"next", queue_id=QUEUE[1])).queue_offset == 15


@pytest.mark.parametrize(("queue", "entries"), [(("Gamma", 0), 0), (QUEUE, 15)], ids=["new", "known"])
def test_what_only_a_killed_writer_wrote_is_written_down_by_the_last_closer(
    filled: Any, queue: tuple[str, int], entries: int
) -> None:
    topic, queue_id = queue
    with filled.open() as last:
        filled.crash(lambda store: store.send(Message(topic, b"x", queue_id=queue_id)))
        last.send(Message("Beta", b"one more", queue_id=1))
    newest(filled.root / "consumequeue" / topic / str(queue_id)).unlink()  # of one entry
    with filled.open() as store:
        assert trust(store) == "COPY"
        assert store.send(Message(topic, b"y", queue_id=queue_id)).queue_offset == entries + 1


@pytest.mark.parametrize(
    "row",
    [["Alpha", 0, float("inf")], ["Alpha", 0, 1 << 70], ["Gone", 0, 1 << 62], ["Gone", -5, 3], ["Gone", 1 << 31, 3],
     ["Gone", 0.5, 3], ["Gone", 0, 3.7], ["Gone", True, 3], ["Gone", 0, -1], ["Gone", 0], [["Gone"], 0, 1], 5],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("where", ["queues", "firsts"])
def test_numbers_that_no_queue_can_have_make_it_no_table(lab: Any, row: Any, where: str) -> None:
    with lab.open() as store:
        while store.log_range()[1] < 2 * 8192:
            store.append(lab.batch(20))
    min((lab.root / "commitlog").iterdir()).unlink()
    write_table(lab, **{where: [row]})
    assert QueueEnds.load(lab.root / "pyrmq") is None
    for _ in range(2):
        with lab.open() as store:
            assert trust(store) == "CLEAN"
    assert not (lab.root / "consumequeue" / "Gone").exists()


@pytest.mark.parametrize("log_end", [-1, 1 << 63, 1.5, "1", None])
def test_an_end_of_the_log_that_cannot_be_makes_it_no_table(filled: Any, log_end: Any) -> None:
    write_table(filled, log_end=log_end)
    assert QueueEnds.load(filled.root / "pyrmq") is None
    filled.open().close()


def test_no_room_for_the_table_is_no_error_of_a_writer_that_leaves_others_behind(
    filled: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def full(operation: str, path: str) -> None:
        if "queue_ends.json" in path:
            raise OSError(errno.ENOSPC, "No space left on device")

    with filled.open() as last:
        first = filled.open()
        first.send(Message("Gamma", b"x", queue_id=0))
        durable.hook = full
        first.close()
        durable.hook = None
        assert "is not written down" in caplog.text
        last.send(Message("Beta", b"one more", queue_id=1))
    assert ends(filled)["Beta", 1] == 16
    assert QueueEnds.load(filled.root / "pyrmq").ends["Gamma", 0] == 1  # type: ignore[union-attr]
