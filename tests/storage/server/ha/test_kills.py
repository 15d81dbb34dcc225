"""Kills of a SYNC_MASTER of ours and of its slave of ours: what was answered with 0 is at the slave, whatever dies.

    make ha-kills

The long form makes 500 kills (`helpers.sync_pair.plan`). Each leaves a line below build/ha-kills, and none of these is
repeated in the same state of the sources: a run goes on where it stopped. RMQ_HA_KILLS says how many in all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.conftest import fast_directory
from helpers.cluster.kills.done import DoneKills
from helpers.sync_pair import plan
from helpers.sync_pair.pair import Pair
from helpers.sync_pair.plan import COUNTS, SHORT, Event, Generation, generations
from helpers.take_over_points import PROMOTE_POINTS, REJOIN_POINTS

__all__ = ["fast_directory"]

KILLS = int(os.environ.get("RMQ_HA_KILLS", str(sum(COUNTS.values()))))
TESTED = (
    "storage/rmq_store/replica", "storage/rmq_store/log", "storage/rmq_store/server/ha",
    "storage/rmq_store/server/slave", "tests/helpers/sync_pair",
)  # fmt: skip
LOST = "acknowledged are lost"
CHAIN = 3
"""So many take-overs in the same two directories, one after another."""


def test_the_plan_has_five_hundred_kills_each_once() -> None:
    assert sum(COUNTS.values()) == 500
    names = [
        event.name for one in generations() for event in (*one.in_service, one.promotion, one.rejoining)
    ]
    assert len(names) == len(set(names)) == 500


@pytest.mark.harness
def test_what_was_answered_with_0_is_at_the_slave_whatever_is_killed(fast_directory: Path) -> None:
    """Each kind of kill once, and a take-over whose promotion and whose rejoining are killed, too."""
    killed: list[str] = []
    with Pair(fast_directory) as pair:
        for point in SHORT:
            pair.run(Event(point, 0))
        first = pair.master
        promotion, rejoining = Event(PROMOTE_POINTS[5], 0), Event(REJOIN_POINTS[6], 0)
        pair.take_over(promotion, rejoining, lambda event: killed.append(event.point))
        assert killed == [promotion.point, rejoining.point]
        assert pair.slave == first
        pair.run(Event(plan.MOMENT, 0))
    assert pair.ledger.answers["wire 0"] > 0
    assert pair.ledger.answers["unit 0"] > 0
    assert pair.tail_messages > 0


@pytest.mark.harness
@pytest.mark.teeth
def test_without_the_wait_for_a_slave_a_take_over_loses_what_was_acknowledged(fast_directory: Path) -> None:
    with Pair(fast_directory, without="slave-wait") as pair, pytest.raises(AssertionError, match=LOST):
        pair.take_over(None, None, lambda _: None)


@pytest.mark.harness
@pytest.mark.teeth
def test_a_slave_that_reports_before_it_stores_loses_what_was_acknowledged(fast_directory: Path) -> None:
    with Pair(fast_directory, without="store-before-report") as pair, pytest.raises(AssertionError, match=LOST):
        for number in range(5):
            pair.run(Event("follow: half of a write of segment", number))


@pytest.mark.harness
@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_five_hundred_kills_lose_nothing_that_was_answered_with_0(fast_directory: Path) -> None:
    done = DoneKills("ha-kills", "ours", TESTED)
    left = list(_left(done))
    for number in range(0, len(left), CHAIN):
        if len(done.names) >= KILLS:
            break
        with Pair(fast_directory / f"{len(done.names)}") as pair:
            for generation in left[number : number + CHAIN]:
                _kill(pair, generation, done)
                if len(done.names) >= KILLS:
                    break
        done.note(
            "figures", answers=pair.ledger.answers, lost_of_11_and_12=len(pair.ledger.lost),
            repeated=len(pair.ledger.repeats), tail_messages=pair.tail_messages, compared_bytes=pair.compared_bytes,
        )  # fmt: skip
    assert len(done.names) >= KILLS
    if sum(COUNTS.values()) == KILLS:
        assert done.by_point() == COUNTS


def _left(done: DoneKills) -> Iterator[Generation]:
    for one in generations():
        in_service = tuple(event for event in one.in_service if event.name not in done.names)
        if in_service or {one.promotion.name, one.rejoining.name} - done.names:
            yield one._replace(in_service=in_service)


def _kill(pair: Pair, generation: Generation, done: DoneKills) -> None:
    begun = time.monotonic()

    def is_done(event: Event) -> None:
        nonlocal begun
        if event.name not in done.names:
            done.add(event.name, time.monotonic() - begun)
        begun = time.monotonic()

    for event in generation.in_service:
        pair.run(event)
        is_done(event)
        if len(done.names) >= KILLS:
            return
    pair.take_over(generation.promotion, generation.rejoining, is_done)
