"""Files of a queue that get lost are missed, and no queue offset is given out twice."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, StoreError
from rmq_store.log.queue_ends import QueueEnds

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
}


@pytest.fixture
def filled(lab: Any) -> Any:
    """40 messages in 4 queues, whose files hold 5 entries; closed."""
    with lab.open() as store:
        store.append(lab.batch(40))
    return lab


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
        assert filled.numbers(store) == list(range(40))
    with caplog.at_level(logging.WARNING), filled.open() as store:
        assert filled.numbers(store) == list(range(40))
        assert store.send(Message(QUEUE[0], b"next", queue_id=QUEUE[1])).queue_offset == 10
    assert "files of 1 queues are missing, of Alpha-0 first" in caplog.text or loss == "its topic"
    found = filled.views()
    assert {name: found[name] for name in before if "Alpha/0" not in name and "index" not in name} == {
        name: data for name, data in before.items() if "Alpha/0" not in name and "index" not in name
    }
    assert filled.is_sound()


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
    assert ends(filled) == {("Alpha", 0): 10, ("Alpha", 1): 10, ("Beta", 0): 10, ("Beta", 1): 10}
    with filled.open() as last:
        with filled.open() as first:
            first.send(Message(QUEUE[0], b"one more", queue_id=QUEUE[1]))
        assert ends(filled)[QUEUE] == 11
        last.send(Message("Beta", b"one more", queue_id=1))
        assert ends(filled)["Beta", 1] == 10
    assert ends(filled) == {("Alpha", 0): 11, ("Alpha", 1): 10, ("Beta", 0): 10, ("Beta", 1): 11}


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
    assert ends(filled)[QUEUE] == 10


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
