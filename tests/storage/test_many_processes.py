"""Many processes on one store, without a daemon: nothing is lost, doubled, out of order or half visible."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rmq_store
from rmq_store import Store, StoreConfig
from rmq_store.verify import verify_store

pytestmark = pytest.mark.long

WORKER = Path(__file__).parent / "workers" / "append_and_watch.py"
TOPIC, QUEUES = "Crowd", 4
WRITERS = 4


def start(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(rmq_store.__file__).parents[1])}
    command = [sys.executable, "-W", "error", str(WORKER), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("messages_each", [20_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_four_writers_and_two_readers_share_a_store_and_readers_see_whole_appends_only(
    scratch: Path, messages_each: int
) -> None:
    root, total = scratch / "store", WRITERS * messages_each
    config = StoreConfig(
        mapped_file_size_commit_log=4 << 20,
        mapped_file_size_consume_queue=200_000,
        max_hash_slot_num=50_000,
        max_index_num=100_000,
    )
    with Store.open(root, create=True, config=config) as store:
        store.create_topic(TOPIC, queue_count=QUEUES)
    workers = [start("watch", root, mode, total) for mode in ("read-only", "writable")]
    ready_s = time.monotonic() + 60
    while len(list(scratch.glob("ready-*"))) < len(workers) and time.monotonic() < ready_s:
        time.sleep(0.02)
    workers += [start("write", root, number, messages_each) for number in range(WRITERS)]
    try:
        answers = [worker.communicate(timeout=130) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * len(workers), [error for _, error in answers]
    looks = [int(output) for output, _ in answers[:2]]
    assert min(looks) > 10, "the readers looked after the writers had done: nothing was tested"

    bodies: set[bytes] = set()
    with Store.open(root, read_only=True) as store:
        ranges = store.queue_ranges(TOPIC)
        assert sum(last - first for first, last in ranges.values()) == total
        for queue_id, (first, last) in ranges.items():
            offsets = []
            for batch in store.read(TOPIC, queue_id, first, last, columns=["queueOffset", "body", "commitLogOffset"]):
                offsets += batch.column("queueOffset").to_pylist()
                bodies.update(batch.column("body").to_pylist())
                places = batch.column("commitLogOffset").to_pylist()
                assert places == sorted(places)
            assert offsets == list(range(last))
    assert len(bodies) == total
    appends: dict[str, int] = {}
    for body in bodies:
        name = body.decode().partition("/")[0]
        appends[name] = appends.get(name, 0) + 1
    assert all(count == int(name.rpartition("-")[2]) for name, count in appends.items())
    report = verify_store(root)
    assert (report.status, report.messages, report.unindexed_keys) == ("clean", total, 0), report.problems


@pytest.mark.parametrize("visits", [25, pytest.param(50, marks=pytest.mark.slow)])
def test_writers_that_come_and_go_leave_a_clean_store_and_readers_never_see_it_shrink(
    scratch: Path, tiny: StoreConfig, visits: int
) -> None:
    root, writers = scratch / "store", 3
    with Store.open(root, create=True, config=tiny) as store:
        store.create_topic(TOPIC, queue_count=QUEUES)
    workers = [start("come-and-go", root, number, visits) for number in range(writers)]
    workers.append(start("look-in", root, 4 * visits))
    try:
        answers = [worker.communicate(timeout=60) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * len(workers), [error for _, error in answers]
    with Store.open(root, read_only=True) as store:
        bodies = [
            body
            for queue_id, (first, last) in store.queue_ranges(TOPIC).items()
            for batch in store.read(TOPIC, queue_id, first, last, columns=["body"])
            for body in batch.column("body").to_pylist()
        ]
    assert sorted(bodies) == sorted(
        f"{writer}/{visit}/{number}".encode()
        for writer in range(writers)
        for visit in range(visits)
        for number in range(3)
    )
    report = verify_store(root)
    assert (report.status, report.unindexed_keys) == ("clean", 0), report.problems
