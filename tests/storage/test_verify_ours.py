"""The verifier on what only we wrote: no queue offset is given twice, every key is in the index, no lost segment stays
lost that was found again. Of what a broker wrote the same is unusual, and allowed.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import Message, NotAStoreError, Store, StoreConfig
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.verify import Report, verify_store

SEGMENT_BYTES = 8192
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT_BYTES, mapped_file_size_consume_queue=200, max_hash_slot_num=50,
    max_index_num=41,
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """50 messages in two queues, three files each, three segments, three index files; stopped cleanly."""
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        store.create_topic("Orders", 2)
        _send(store, 50)
    root = tmp_path / "store"
    assert [len(list((root / name).iterdir())) for name in ("commitlog", "consumequeue/Orders/0", "index")] == [3, 3, 3]
    assert (verify_store(root).status, verify_store(root).notes) == ("clean", [])
    return root


def _send(store: Store, count: int) -> None:
    for number in range(count):
        store.send(Message("Orders", bytes(300), keys=f"k{number}", queue_id=number % 2))


def _send_without_knowing(root: Path) -> int:
    """The queue offset of a message, sent as by versions that did not write down how far queues went."""
    (root / "pyrmq" / "queue_ends.json").unlink()
    with Store.open(root) as store:
        return store.send(Message("Orders", b"again", queue_id=0)).queue_offset


def _texts(report: Report) -> str:
    return "\n".join(f"{problem.path}: {problem.text}" for problem in report.problems)


def _as_of_a_broker(root: Path) -> None:
    """A broker was here: from here on ours begins anew (`crc_from`)."""
    (root / "lock").write_bytes(b"lock")
    with Store.open(root) as store:
        _send(store, 1)


# ---- the table of queue ends


@pytest.mark.parametrize("kind", ["a directory", "a symbolic link"])
def test_a_table_of_queue_ends_that_is_no_file_is_damage(root: Path, kind: str) -> None:
    """Nobody could open the store for writing, and it was called clean."""
    table = root / "pyrmq" / "queue_ends.json"
    table.unlink()
    table.mkdir() if kind == "a directory" else table.symlink_to(root / "lock")
    with pytest.raises(NotAStoreError, match=r"queue_ends\.json: expected a regular file"):
        Store.open(root)
    report = verify_store(root)
    assert report.status == "damaged"
    assert _texts(report) == f"pyrmq/queue_ends.json: {kind} in the place of a regular file: put the file itself there"


def test_a_table_of_queue_ends_that_the_disk_does_not_give_back_is_damage(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as a table that is not there, and nothing was said."""
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], position: int) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().name == "queue_ends.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)
    report = verify_store(root)
    assert report.status == "damaged"
    assert "pyrmq/queue_ends.json" in {bad.path for bad in report.unreadable}
    assert "cannot be read: Input/output error" in _texts(report)


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"crc": 1, "format": 1, "queues": []}', b"\xff"])
def test_a_table_of_queue_ends_that_nobody_can_believe_is_named(root: Path, text: bytes) -> None:
    (root / "pyrmq" / "queue_ends.json").write_bytes(text)
    report = verify_store(root)
    assert report.status == "clean"  # whoever opens the store goes on without it
    (note,) = report.notes
    assert note.startswith("pyrmq/queue_ends.json: ")
    assert note.endswith(": files of queues that get lost are not missed; the next clean stop writes it again")
    with Store.open(root):
        pass
    assert verify_store(root).notes == []


# ---- queues


def _queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "Orders" / "0")


def _its_files(root: Path) -> None:
    for path in (root / "consumequeue" / "Orders" / "0").iterdir():
        path.unlink()


def _newest_file(root: Path) -> None:
    max((root / "consumequeue" / "Orders" / "0").iterdir()).unlink()


def _newest_zeroed(root: Path) -> None:
    max((root / "consumequeue" / "Orders" / "0").iterdir()).write_bytes(bytes(200))


def _topic(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "Orders")


@pytest.mark.parametrize("lose", [_queue, _its_files, _newest_file, _newest_zeroed, _topic])
def test_a_lost_queue_is_damage_before_and_after_the_next_message(root: Path, lose: Callable[[Path], None]) -> None:
    """The message gets a queue offset that another one has. After `rm -r` of the queue that was 0, and verify took it
    for a topic that a broker had deleted: clean.
    """
    lose(root)
    assert verify_store(root).status == "damaged"
    again = _send_without_knowing(root)
    assert again < 25
    report = verify_store(root)
    assert report.status == "damaged"
    assert f"queue offset {again}, expected 25" in _texts(report)
    assert report.notes == []


def test_a_queue_that_began_anew_is_said_to_have_lost_its_files(root: Path) -> None:
    _queue(root)
    _send_without_knowing(root)
    assert "queue offset 0, expected 25: the queue's files were lost, and it began anew" in _texts(verify_store(root))


def test_a_queue_that_a_broker_may_have_deleted_is_a_note_also_if_we_began_it_anew(root: Path) -> None:
    with Store.open(root) as store:
        for _ in range(40):  # a broker's store is recovered from its newest segment on: none of queue 0 is there
            store.send(Message("Orders", bytes(300), queue_id=1))
    _queue(root)
    _as_of_a_broker(root)
    report = verify_store(root)
    assert (report.status, report.problems) == ("clean", [])
    assert "consumequeue/Orders/0: 25 messages of an earlier topic of this name" in report.notes


def test_a_deleted_topic_keeps_its_queues_or_they_were_lost(root: Path) -> None:
    with Store.open(root) as store:
        store.admin.delete_topic("Orders")
    assert verify_store(root).status == "clean"
    _topic(root)
    assert "no entry for queue offset 0" in _texts(verify_store(root))


# ---- index


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_lost_index_file_is_damage_that_repair_mends(root: Path, number: int) -> None:
    """The oldest one was a note, and its messages were not found by key any more."""
    sorted((root / "index").iterdir())[number].unlink()
    report = verify_store(root)
    assert (report.status, [problem.path for problem in report.problems]) == ("damaged", ["index"])
    assert f"{report.unindexed_keys} keys of messages are in no index file: `rmq repair --index`" in _texts(report)
    assert report.notes == []
    after = carry_out(examine(root))
    assert (after.status, after.unindexed_keys, after.index_files) == ("clean", 0, 3)


def test_in_a_store_that_was_not_closed_keys_behind_the_index_are_lag(root: Path) -> None:
    (root / "abort").touch()
    max((root / "index").iterdir()).unlink()
    report = verify_store(root)
    assert (report.status, report.problems) == ("unclean", [])
    assert any("keys of messages are in no index file" in line for line in report.recovery)
    min((root / "index").iterdir()).unlink()
    assert verify_store(root).status == "damaged"


def test_of_what_a_broker_wrote_missing_keys_stay_a_note(root: Path) -> None:
    _as_of_a_broker(root)
    assert verify_store(root).notes == []
    min((root / "index").iterdir()).unlink()
    report = verify_store(root)
    assert (report.status, report.notes) == ("clean", ["40 keys of messages are in no index file"])


def test_a_store_that_keeps_no_index_is_clean_without(tmp_path: Path) -> None:
    config = StoreConfig(mapped_file_size_commit_log=SEGMENT_BYTES, message_index_enable=False)
    with Store.open(tmp_path / "store", create=True, config=config) as store:
        _send(store, 3)
    assert verify_store(tmp_path / "store").status == "clean"


# ---- damage that was kept


@pytest.mark.parametrize("number", [1, 2])
def test_a_lost_segment_that_was_kept_and_is_back_is_said_to_be_whole(root: Path, number: int) -> None:
    """It was passed over unseen: "kept: the segment is missing", with the file in its place."""
    name = f"commitlog/{number * SEGMENT_BYTES:020d}"
    shutil.move(root / name, root.parent / "lost")
    assert carry_out(examine(root)).status == "kept"
    assert [bad.path for bad in verify_store(root).kept] == [name]
    shutil.copy(root.parent / "lost", root / name)
    report = verify_store(root)
    assert (report.status, report.kept, report.messages) == ("damaged", [], 50)
    assert report.problems[0].path == "pyrmq/kept.json"
    assert report.problems[0].text.startswith(f"bytes {number * SEGMENT_BYTES} to ")
    assert report.problems[0].text.endswith(" of the log are whole again: `rmq repair` takes them back")


def test_a_segment_that_is_back_and_not_whole_is_new_damage(root: Path) -> None:
    """As for whoever walks over the log: the range is entered, for a record begins there."""
    name = f"commitlog/{SEGMENT_BYTES:020d}"
    shutil.move(root / name, root.parent / "lost")
    carry_out(examine(root))
    back = bytearray((root.parent / "lost").read_bytes())
    back[1000] ^= 1
    (root / name).write_bytes(back)
    report = verify_store(root)
    assert (report.status, report.messages) == ("damaged", 49)
    assert "are no record" in _texts(report)
    assert "whole again" not in _texts(report)


def test_damage_that_is_still_there_stays_kept(root: Path) -> None:
    """A segment's file that is back without its records, and bytes that were damaged in place."""
    (root / f"commitlog/{SEGMENT_BYTES:020d}").write_bytes(bytes(SEGMENT_BYTES))
    with (root / f"commitlog/{0:020d}").open("r+b") as file:
        file.seek(500)
        file.write(b"\xff")
    assert carry_out(examine(root)).status == "kept"
    report = verify_store(root)
    assert (report.status, len(report.kept)) == ("kept", 2), _texts(report)
