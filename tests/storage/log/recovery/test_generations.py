"""Queue offsets that fall back in the log: a broker deleted a topic and it was made again, or another replica went on.
Whoever makes queues from the log takes the last message of each offset, and of older ones those below it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import Store, StoreConfig
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.broker.repair.repair_settings import Given
from rmq_store.verify import verify_store

from ..plain_log import PlainLog, in_rocksdb

# Ten entries in each file of a queue.
CONFIG = StoreConfig(8192, 200, 50, 200)

# The first offset and the number of messages of each generation; then the queue's first offset and its bodies.
CASES = {
    "shorter": ([(0, 25), (0, 3)], 0, ["1-0", "1-1", "1-2"]),
    "longer": ([(0, 3), (0, 5)], 0, [f"1-{n}" for n in range(5)]),
    "fail-over": ([(0, 15), (11, 2)], 0, [*(f"0-{n}" for n in range(11)), "1-11", "1-12"]),
    "three times": ([(0, 12), (4, 8), (2, 1)], 0, ["0-0", "0-1", "2-2"]),
    "behind retention": ([(35, 4), (0, 2)], 0, ["1-0", "1-1"]),
    "not at all": ([(35, 4), (39, 2)], 35, ["0-35", "0-36", "0-37", "0-38", "1-39", "1-40"]),
}


def _read_only(root: Path) -> Store:
    return Store.open(root, read_only=True, config=CONFIG)


def _rocksdb(root: Path) -> Store:
    return Store.open(in_rocksdb(root), read_only=True, config=CONFIG)


def _repaired(root: Path) -> Store:
    report = carry_out(examine(root, given=Given(config=CONFIG)))
    assert report.status == "clean", report.problems
    return Store.open(root)


def _opened(root: Path) -> Store:
    Store.open(root, config=CONFIG).close()
    assert verify_store(root).damaged.keys() <= {"config"}  # the topics are in no table
    return Store.open(root)


@pytest.mark.parametrize("opened", [_read_only, _rocksdb, _repaired, _opened])
@pytest.mark.parametrize("case", CASES)
def test_the_last_generation_of_a_queue_counts(tmp_path: Path, case: str, opened: Callable[[Path], Store]) -> None:
    generations, first, bodies = CASES[case]
    log = PlainLog()
    for number, (start, count) in enumerate(generations):
        for offset in range(start, start + count):
            log.add("T", offset, f"{number}-{offset}".encode())
            log.add("Other", (offset - start) + sum(n for _, n in generations[:number]), b"-")
    with opened(log.save(tmp_path / "store")) as store:
        assert store.queue_range("T", 0) == (first, first + len(bodies))
        rows = [row for batch in store.read("T", 0, first, first + len(bodies)) for row in batch.to_pylist()]
        assert [row["body"].decode() for row in rows] == bodies
        assert [row["queueOffset"] for row in rows] == list(range(first, first + len(bodies)))
        total = sum(count for _, count in generations)
        assert store.queue_range("Other", 0) == (0, total)
