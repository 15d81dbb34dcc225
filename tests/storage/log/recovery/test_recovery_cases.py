"""The recovery table, row by row, on real stores: every combination of where X lies, what follows it, whether it was on
disk, whether a unit is open there, who wrote last, and which views are ahead or behind.

Only torn tails and torn units are cut, and what is cut is found in pyrmq/removed byte for byte. apache/rocketmq #7355:
queues ahead of the log after a crash (`VIEWS`); #1434: the last messages before a new segment.
"""

from __future__ import annotations

import shutil
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_store import Store
from rmq_store.errors import CorruptRecordError
from rmq_store.log.recovery.recovery_table import Action, Follows, decide

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from .conftest import Lab

SEGMENT = 8192
POSITIONS = ("first byte of the log", "first byte of a segment", "in the middle", "in the last record", "at a blank")
VIEWS = ("right", "ahead", "behind", "missing")


def build(lab: Lab, *, durable: bool, in_unit: bool) -> int:
    """A log of four segments and more, on disk or not; the end. `in_unit`: all of it is one unit."""
    with lab.open():
        pass

    def work(store: Store) -> None:
        if in_unit:
            lab.append_unit(store, 70)
        else:
            for _ in range(7):
                store.append(lab.batch(10, body_bytes=300))
        if durable:
            store.flush()

    lab.crash(work)
    lab.reboot()
    with lab.open(read_only=True) as reader:
        return reader.log_range()[1]


def place(lab: Lab, position: str, end: int) -> int:
    """X."""
    frames = lab.boundaries(0, end)
    blanks = [start for start, behind in pairwise(frames) if behind % SEGMENT == 0]
    return {
        "first byte of the log": 0,
        "first byte of a segment": SEGMENT,
        "in the middle": frames[len(frames) // 2],
        "in the last record": frames[-1],
        "at a blank": blanks[0],
    }[position]


def damage(lab: Lab, x: int, follows: Follows, end: int) -> None:
    """Make X the first offset without a good frame, and put behind it what is asked for."""
    if follows is Follows.NO_SEGMENT:
        (lab.root / "commitlog" / f"{x // SEGMENT * SEGMENT:020d}").unlink()
    elif follows is Follows.RECORDS:
        lab.overwrite(x, b"\xff" * 8)
    else:
        lab.cut(x)
        if follows is Follows.GARBAGE:
            lab.overwrite(x + 1, b"no record" * 9)


def possible(position: str, follows: Follows) -> bool:
    """A record behind the last one, and a missing segment that does not begin at X, are no situations."""
    if follows is Follows.RECORDS:
        return position != "in the last record"
    if follows is Follows.NO_SEGMENT:
        return position == "first byte of a segment"  # the first one missing is what retention leaves
    return True


def change_views(lab: Lab, views: str) -> None:
    for path in sorted((lab.root / "consumequeue").rglob("0*")):
        if path.is_file() and views == "behind":
            path.write_bytes(bytes(path.stat().st_size))
        elif path.is_file() and views == "ahead":
            data = path.read_bytes().rstrip(b"\0")
            data += bytes(-len(data) % 20)
            more = (1 << 20).to_bytes(8, "big") + (388).to_bytes(4, "big") + bytes(8)
            path.write_bytes((data + more * 5)[:100])
    if views == "missing":
        shutil.rmtree(lab.root / "consumequeue")
        shutil.rmtree(lab.root / "index")


CASES = [
    (position, follows, durable, in_unit, foreign, views)
    for position, follows, durable, in_unit, foreign, views in product(
        POSITIONS, Follows, (False, True), (False, True), (False, True), VIEWS
    )
    if possible(position, follows) and not (durable and foreign)
]


# In the default run every position and every state of the views, but only half of their pairs.
PAIRS = [
    pytest.param(position, views, marks=() if (x + y) % 2 == 0 else pytest.mark.slow)
    for x, position in enumerate(POSITIONS)
    for y, views in enumerate(VIEWS)
]


@pytest.mark.parametrize(("position", "views"), PAIRS)
def test_every_combination_does_what_its_row_says(lab: Lab, position: str, views: str) -> None:
    done = 0
    for in_unit, durable in product((False, True), (False, True)):
        shutil.rmtree(lab.root, ignore_errors=True)
        lab.written = 0
        end = build(lab, durable=durable, in_unit=in_unit)
        x = place(lab, position, end)
        saved = lab.save()
        for case in CASES:
            if (case[0], case[2], case[3], case[5]) == (position, durable, in_unit, views):
                lab.restore(saved)
                check(lab, x, case[1], end, durable=durable, in_unit=in_unit, foreign=case[4], views=views)
                done += 1
    assert done == sum((case[0], case[5]) == (position, views) for case in CASES) > 0


def check(
    lab: Lab, x: int, follows: Follows, end: int, *, durable: bool, in_unit: bool, foreign: bool, views: str
) -> None:
    """One situation: build it, open it, compare with the table."""
    what = f"X={x} {follows.name} durable={durable} unit={in_unit} foreign={foreign} views={views}"
    damage(lab, x, follows, end)
    change_views(lab, views)
    if foreign:
        lab.broker_was_here(abort=True)
        (lab.root / "checkpoint").unlink(missing_ok=True)
    unit_is_open = in_unit and x > 0
    row = decide(follows, durable=durable, in_unit=unit_is_open, foreign=foreign)
    log = {path: path.read_bytes() for path in sorted((lab.root / "commitlog").iterdir())}
    if row.action is Action.REFUSE:
        with pytest.raises(CorruptRecordError, match=row.name):
            lab.open()
        assert {path: path.read_bytes() for path in sorted((lab.root / "commitlog").iterdir())} == log, what
        return
    cut_from = 0 if row.action is Action.DROP_UNIT else x
    with lab.open() as store:
        report = store.recovery
        assert report is not None
        assert (report.case, report.end) == (row.name, cut_from), what
        assert store.log_range()[1] == cut_from, what
        # Not one record before the cut is lost, and none behind it is left.
        lab.numbers(store)
        assert sum(last - first for topic in ("Alpha", "Beta") if topic in store.topics()
                   for first, last in store.queue_ranges(topic).values()) == len(lab.numbers(store)), what  # fmt: skip
    removed = {path.name: path.read_bytes() for path in (lab.root / "pyrmq" / "removed").glob("*")}
    expected = {}
    for path, data in log.items():
        base = int(path.name)
        low = max(cut_from - base, 0)
        if low < SEGMENT and (bytes_gone := data[low:].rstrip(b"\0")):
            expected[f"{base + low:020d}"] = bytes_gone
    assert removed == expected, what
    assert report.removed_bytes == sum(map(len, expected.values())), what
    for path, data in log.items():
        base = int(path.name)
        if base < cut_from and path.exists():
            assert path.read_bytes() == data[: max(cut_from - base, 0)].ljust(SEGMENT, b"\0")[:SEGMENT], what
    assert lab.verify().status == "clean", what
    assert Path(lab.root / "pyrmq" / "kept.json").exists() is False


@pytest.mark.parametrize("page", ["kept", "lost"])
@pytest.mark.parametrize("behind", [0, 1], ids=["nothing yet", "one record"])
def test_messages_before_a_new_segment_are_in_their_queues_after_a_crash(lab: Lab, behind: int, page: str) -> None:
    """apache/rocketmq #1434: a crash right after a segment was begun lost the last messages of the one before."""
    with lab.open():
        pass

    def work(store: Store) -> None:
        while len(store._log.segments.bases()) < 2:
            store.append(lab.batch(1, body_bytes=300))
        if behind:
            store.append(lab.batch(1, body_bytes=300))
        assert store.log_range()[1] - SEGMENT < 1000

    lab.crash(work)
    with lab.open(read_only=True) as reader:
        expected = lab.numbers(reader)
    assert expected == list(range(len(expected)))
    if page == "lost":
        lab.reboot(lose_page=True)
    shutil.rmtree(lab.root / "consumequeue")
    with lab.open() as store:
        assert lab.numbers(store) == expected
    assert lab.verify().status == "clean"
