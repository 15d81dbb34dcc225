"""Rotten entries of a queue where a recovery writes it: before what it writes, in what retention took, and up to what
it scans. And queues that are not its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.errors import CorruptionError, StoreFailedError
from rmq_store.format.views.consume_queue import ENTRY
from rmq_store.log.append.flush import save_progress
from rmq_store.log.integrity.placeholder_entries import has_gap_before
from rmq_store.log.recovery import recovery

pytestmark = pytest.mark.long

QUEUE = ("Alpha", 0)


def add(store: Store, start: int, stop: int, topic: str = "Alpha") -> None:
    count = stop - start
    rows = {"topic": [topic] * count, "queueId": pa.array([0] * count, pa.int32()),
            "body": pa.array([b"%08d" % number for number in range(start, stop)], pa.binary())}  # fmt: skip
    store.append(pa.RecordBatch.from_pydict(rows))


def queue_file(lab: Any, topic: str = "Alpha") -> Path:
    return max((lab.root / "consumequeue" / topic / "0").iterdir())


def rot(lab: Any, start: int, stop: int) -> None:
    with queue_file(lab).open("r+b") as file:
        file.seek(20 * start)
        file.write(bytes(20 * (stop - start)))


def numbers(store: Store, start: int) -> list[int]:
    _, stop = store.queue_range(*QUEUE)
    parts = store.read(*QUEUE, start, stop, columns=["body"])
    return [int(body) for part in parts for body in part.column("body").to_pylist()]


def retire(lab: Any, queue_offset: int) -> int:
    """Take the segments away that retention would have taken if all before `queue_offset` is old; the first that is
    left of the queue.
    """
    entries = np.frombuffer(queue_file(lab).read_bytes(), ENTRY)
    places = entries["commit_log_offset"][entries["frame_size"] > 0]
    segments = sorted((lab.root / "commitlog").iterdir())
    first = min(int(path.name) for path in segments if int(path.name) >= places[queue_offset])
    for path in segments:
        if int(path.name) < first:
            path.unlink()
    return int(np.searchsorted(places, first))


@pytest.mark.parametrize("state", ["killed", "rebooted", "page lost"])
@pytest.mark.parametrize("closed", [0, 1600])
@pytest.mark.parametrize(("start", "stop"), [(700, 1500), (1050, 1450), (0, 1568), (1400, 1990)])
def test_rot_in_what_retention_took_ends_no_queue(lab: Any, state: str, closed: int, start: int, stop: int) -> None:
    lab.config = StoreConfig(
        mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=20 * 2200, flush_interval_commit_log=10**9
    )
    if closed:
        with lab.open() as store:
            add(store, 0, closed)
    lab.crash(lambda store: (add(store, closed, 2000), save_progress(store._log)))
    first = retire(lab, 1550)
    assert 1550 <= first < 1700
    rot(lab, start, stop)
    if state != "killed":
        lab.reboot(lose_page=state == "page lost")
    with lab.open(read_only=True) as store:
        assert store.queue_range(*QUEUE)[1] == 2000
    for count in range(3):
        with lab.open() as store:
            assert store.queue_range(*QUEUE)[1] == 2000 + count
            assert store.send(Message("Alpha", b"%08d" % (2000 + count), queue_id=0)).queue_offset == 2000 + count
            save_progress(store._log)
            assert numbers(store, max(first, stop)) == list(range(max(first, stop), 2001 + count))
        lab.crash()


@pytest.mark.parametrize("state", ["killed", "rebooted"])
@pytest.mark.parametrize(("start", "stop"), [(30, 330), (0, 300), (100, 399)])
def test_rot_in_a_queue_of_which_retention_took_all_does_not_end_it(
    lab: Any, state: str, start: int, stop: int
) -> None:
    lab.config = StoreConfig(
        mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=20 * 2200, flush_interval_commit_log=10**9
    )
    lab.crash(lambda store: (add(store, 0, 400), add(store, 0, 2000, "Beta"), save_progress(store._log)))
    places = np.frombuffer(queue_file(lab, "Beta").read_bytes(), ENTRY)["commit_log_offset"]
    for path in (lab.root / "commitlog").iterdir():
        if int(path.name) < places[100]:
            path.unlink()
    rot(lab, start, stop)
    if state == "rebooted":
        lab.reboot()
    with lab.open() as store:
        assert store.queue_range(*QUEUE) == (400, 400)
        assert store.send(Message("Alpha", b"x", queue_id=0)).queue_offset == 400
    with lab.open() as store:
        assert store.queue_range(*QUEUE) == (400, 401)


@pytest.mark.parametrize("state", ["killed", "rebooted"])
@pytest.mark.parametrize("closed", [0, 100])
@pytest.mark.parametrize(("start", "stop"), [(400, 700), (699, 700), (699, 750), (0, 700), (650, 899)])
def test_rot_up_to_where_the_scan_begins_takes_nothing_from_what_lies_behind(
    lab: Any, state: str, closed: int, start: int, stop: int
) -> None:
    """SYNC_FLUSH: all 900 are on disk and acknowledged, 700 of them are below the progress record."""
    lab.config = StoreConfig(
        mapped_file_size_consume_queue=20 * 1000, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=10**9
    )
    if closed:
        with lab.open() as store:
            add(store, 0, closed)
    lab.crash(lambda store: (add(store, closed, 700), save_progress(store._log), add(store, 700, 900)))
    if state == "rebooted":
        lab.reboot()
    rot(lab, start, stop)
    with lab.open(read_only=True) as store:
        assert store.queue_range(*QUEUE) == (0, 900)
    with lab.open() as store:
        assert store.queue_range(*QUEUE) == (0, 900)
        assert store.send(Message("Alpha", b"%08d" % 900, queue_id=0)).queue_offset == 900
        assert store.recovery is not None
        assert state == "killed" or store.recovery.trust == "COPY"
        if store.recovery.trust == "COPY":
            assert numbers(store, 0) == list(range(901))
        else:  # entries that tell no end are not looked at
            with pytest.raises(CorruptionError):
                numbers(store, 0)


def test_a_file_that_retention_may_have_taken_is_no_gap(lab: Any) -> None:
    lab.config = StoreConfig(mapped_file_size_consume_queue=20 * 100, flush_interval_commit_log=10**9)
    with lab.open() as store:
        add(store, 0, 250)
    for queue_file in sorted((lab.root / "consumequeue" / "Alpha" / "0").iterdir())[:2]:
        queue_file.unlink()
    with lab.open(read_only=True) as store:
        assert [has_gap_before(store._log, QUEUE, first) for first in (0, 99, 100, 199, 200, 201)] == [
            False, True, False, True, False, False
        ]  # fmt: skip


def test_a_recovery_that_is_killed_after_it_met_rot_leaves_nothing_to_believe(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.config = StoreConfig(mapped_file_size_consume_queue=20 * 1000, flush_interval_commit_log=10**9)
    lab.crash(lambda store: (add(store, 0, 70), save_progress(store._log), add(store, 70, 90)))
    lab.reboot()
    rot(lab, 69, 70)

    def die(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "fill_taken", die)
        with pytest.raises(StoreFailedError):
            lab.open()
    with lab.open() as store:
        assert store.recovery is not None
        assert (store.recovery.trust, store.recovery.scanned_bytes) == ("OWN", store.log_range()[1])
        assert numbers(store, 0) == list(range(90))


@pytest.fixture
def light(lab: Any) -> Any:
    """A store with large queue files."""
    lab.config = StoreConfig(
        mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=20 * 200, flush_interval_commit_log=10**9
    )
    return lab


def light_queue(lab: Any) -> Path:
    """What a broker has for a light message queue: second entries of messages of another topic."""
    path: Path = lab.root / "consumequeue" / "%LMQ%x" / "0" / ("0" * 20)
    path.parent.mkdir(parents=True)
    entries = queue_file(lab).read_bytes()
    path.write_bytes(entries[20 * 30 : 20 * 60].ljust(len(entries), b"\0"))
    return path


@pytest.mark.parametrize("abort", [False, True])
def test_light_queues_of_a_broker_are_left_alone(light: Any, abort: bool) -> None:
    with light.open() as store:
        add(store, 0, 100)
    path = light_queue(light)
    before = path.read_bytes()
    light.broker_was_here(abort=abort)
    with light.open():
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize("state", ["killed", "rebooted"])
def test_light_queues_are_no_reason_to_distrust_a_store(light: Any, state: str) -> None:
    light.crash(lambda store: (add(store, 0, 100), save_progress(store._log)))
    path = light_queue(light)
    before = path.read_bytes()
    if state == "rebooted":
        light.reboot()
    with light.open() as store:
        assert store.recovery is not None
        assert store.recovery.trust == ("OWN" if state == "rebooted" else "SAME_BOOT")
    assert path.read_bytes() == before


def test_light_queues_end_where_the_log_does(light: Any) -> None:
    light.crash(lambda store: (add(store, 0, 10), save_progress(store._log), add(store, 10, 100)))
    path = light_queue(light)
    places = np.frombuffer(path.read_bytes(), ENTRY)["commit_log_offset"]
    light.cut(int(places[20]))
    light.reboot()
    with light.open() as store:
        assert store.queue_range(*QUEUE) == (0, 50)
    after = np.frombuffer(path.read_bytes(), ENTRY)
    assert after["commit_log_offset"][:20].tolist() == places[:20].tolist()
    assert not after["frame_size"][20:].any()


def test_light_queues_are_left_alone_when_others_are_taken_from_the_log(light: Any) -> None:
    light.crash(lambda store: (add(store, 0, 190), save_progress(store._log)))
    path = light_queue(light)
    with path.open("r+b") as file:
        file.seek(20 * 5)
        file.write(bytes(20 * 3))
    before = path.read_bytes()
    retire(light, 80)
    (light.root / "pyrmq" / "progress").unlink()
    light.reboot()
    with light.open() as store:
        assert store.recovery is not None
        assert store.recovery.trust == "COPY"
    assert path.read_bytes() == before
