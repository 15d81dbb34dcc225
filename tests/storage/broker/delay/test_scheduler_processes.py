"""Many processes that look for due messages at the same time: each message is delivered once, in order."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rmq_store
from rmq_store.broker.delay.scheduler import Delivery
from rmq_store.clock import ClockFile
from rmq_store.verify import verify_store

pytestmark = pytest.mark.long

WORKER = Path(__file__).parents[2] / "workers" / "deliver.py"
PROCESSES = 4
LEVELS = (1, 2, 3, 4)
ROUNDS = 40


def start(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(rmq_store.__file__).parents[1])}
    command = [sys.executable, "-W", "error", str(WORKER), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(params=[600, pytest.param(2000, marks=pytest.mark.slow)])
def messages_each(request: pytest.FixtureRequest) -> int:
    """Messages of each level."""
    return int(request.param)


@pytest.fixture
def crowd(parking: Any, scratch: Path, messages_each: int) -> Any:
    """Messages of four levels, parked one second after the other, and timers; with a clock for all processes."""
    config = replace(parking.config, mapped_file_size_commit_log=4 << 20, flush_interval_commit_log=20)
    made = replace(parking, root=scratch / "crowd", config=config)
    with made.open() as store:
        store.create_topic("T", queue_count=8)
        share = messages_each // ROUNDS
        for round_number in range(ROUNDS):
            for level in LEVELS:
                bodies = [b"%d/%05d" % (level, round_number * share + number) for number in range(share)]
                made.park(store, level, bodies, queue_id=level - 1)
            bodies = [b"0/%05d" % (round_number * share + number) for number in range(share)]
            made.park_until(store, made.now_ms + 15_000, bodies, queue_id=7)
            made.now_ms += 1000
    return made


def run(crowd: Any, mode: str, kill: random.Random | None = None) -> list[int]:
    """Let the time pass while the processes look; what each of them delivered."""
    clock = ClockFile.create(crowd.root / "pyrmq" / "clock", crowd.now_ms - ROUNDS * 1000)
    end_ms = crowd.now_ms + 31_000
    workers = [start(crowd.root, seed, mode, end_ms) for seed in range(PROCESSES)]
    ready_s = time.monotonic() + 60
    try:
        while len(list(crowd.root.parent.glob("ready-*"))) < PROCESSES and time.monotonic() < ready_s:
            time.sleep(0.02)  # so that no process is too late to deliver anything
        while clock() < end_ms:
            time.sleep(0.02)
            clock.set(min(end_ms, clock() + 1500))
            if kill is not None and kill.random() < 0.3:
                victim = kill.randrange(PROCESSES)
                workers[victim].kill()
                workers[victim].communicate()
                workers[victim] = start(crowd.root, 100 + victim, mode, end_ms)
        answers = [worker.communicate(timeout=90) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * PROCESSES, [error for _, error in answers]
    crowd.now_ms = end_ms
    (crowd.root / "pyrmq" / "clock").unlink()
    return [int(output) for output, _ in answers]


def check(crowd: Any, messages_each: int) -> None:
    with crowd.open() as store:
        assert store.schedule.deliver_due() == Delivery(0, None)
        for level, queue_id in ((1, 0), (2, 1), (3, 2), (4, 3), (0, 7)):
            expected = [b"%d/%05d" % (level, number) for number in range(messages_each)]
            assert crowd.bodies(store, "T", queue_id) == expected
    report = verify_store(crowd.root)
    assert (report.status, report.unindexed_keys) == ("clean", 0), report.problems


@pytest.mark.parametrize("mode", ["locked", "unlocked"])
@pytest.mark.timeout(150)
def test_four_processes_deliver_each_message_once_and_in_order(crowd: Any, messages_each: int, mode: str) -> None:
    """`unlocked`: the lock only saves work. What makes it exact is that a unit follows the one that was counted on."""
    delivered = run(crowd, mode)
    assert sum(delivered) == messages_each * (len(LEVELS) + 1)
    assert sum(count > 0 for count in delivered) > 1
    check(crowd, messages_each)


@pytest.mark.timeout(150)
@pytest.mark.slow
@pytest.mark.parametrize("messages_each", [2000])
def test_processes_killed_at_random_lose_and_double_nothing(crowd: Any, messages_each: int) -> None:
    run(crowd, "locked", random.Random(7))
    check(crowd, messages_each)
