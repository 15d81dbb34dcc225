"""What becomes of a group's queues, and what is refused, on a model of two sides."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from helpers.mirrored_queues import ModelSide, Pair
from rmq_store.bridge.offsets.pair import Link
from rmq_store.bridge.offsets.plan import Move, Rules, Status, apply_move, plan_group, plan_move
from rmq_store.bridge.offsets.side import Extent, MirroredQueue, MirroredTopic
from rmq_store.bridge.offsets.side import Queue as Place
from rmq_store.bridge.offsets.translate import Stop
from rmq_store.errors import GroupInUseError, MirrorSourceError, UsageError

RULES = Rules()


def mirrored(count: int = 10, copied: int = 10, consumed: int = 4) -> Pair:
    """One way, from side 0."""
    pair = Pair()
    pair.produce(0, count)
    pair.start(0, 0)
    pair.copy(0, copied)
    pair.move(0, consumed)
    return pair


def moved(link: Link, rules: Rules = RULES) -> Move:
    (move,) = plan_group(link, "g", "g", rules)
    return move


def test_a_group_moves_to_the_record_that_it_has_not_consumed() -> None:
    pair = mirrored()
    link = pair.link(0, 3)
    plan = plan_move(link, "g", "g", RULES)
    assert (plan.moves[0].status, plan.moves[0].new, plan.is_clean, plan.change_count) == (Status.MOVE, 4, True, 1)
    assert apply_move(link, plan) == 1
    assert pair.positions[1] == 4
    assert moved(link).status is Status.STAYS


def race(seed: int) -> None:
    """Translate while producers, both mirrors and the group go on between any two looks."""
    chance = random.Random(seed)
    pair = Pair((chance.random() < 0.3, chance.random() < 0.2))
    pair.start(0, 0)
    pair.start(1, 0)
    pair.move(0, 0)

    def step() -> None:
        side = chance.randrange(2)
        does = chance.choice((pair.produce, pair.copy, pair.copy, pair.gap))
        does(side, chance.randrange(1, 4))

    def steps() -> None:
        for _ in range(chance.randrange(3)):
            step()
        if chance.random() < 0.3:
            pair.consume(0, chance.randrange(1, 4))

    for _ in range(chance.randrange(5, 40)):
        step()
    pair.retain(0, chance.choice((0, 5, 20)))
    pair.consume(0, chance.randrange(40))
    move = moved(pair.link(0, chance.randrange(1, 5), steps), Rules(accept_missing=True))
    if move.new is None:
        assert move.status is Status.BEHIND
        return
    assert move.position is not None
    for at, entry in pair.queues[1].visible(0, move.new):
        assert pair.places[0].get(entry.message, 1 << 60) < move.position, f"{at} was skipped"


def test_no_step_between_two_looks_makes_a_group_skip_a_message() -> None:
    for seed in range(600):
        race(seed)


def test_the_end_of_the_target_that_the_mirrors_position_names_is_waited_for() -> None:
    pair = mirrored()
    link = pair.link(0, 3)
    moved(link)
    assert isinstance(link.target, ModelSide)
    assert link.target.waited_for == [10]


def test_the_source_is_not_searched_for_copies_when_the_target_has_no_records_of_others() -> None:
    pair = mirrored()
    pair.start(1, 0)
    pair.copy(1, 20)
    link = pair.link(0, 20)
    assert moved(link).new == 4
    assert isinstance(link.source, ModelSide)
    assert all(first >= 4 for first, _ in link.source.reads)
    pair.produce(1, 1)
    pair.copy(1, 1)
    assert moved(link).new == 4
    assert any(first < 4 for first, _ in link.source.reads)


def test_nothing_moves_while_the_mirror_is_behind_the_group_or_has_not_begun_a_queue() -> None:
    pair = mirrored(copied=3)
    link = pair.link(0, 3)
    assert moved(link).status is Status.BEHIND
    not_begun = replace(link, mirror=lambda: {"T0": MirroredTopic("T1", {})})
    assert moved(not_begun).status is Status.BEHIND
    assert apply_move(link, plan_move(link, "g", "g", RULES)) == 0
    assert pair.positions[1] is None


def test_a_queue_without_a_position_is_said_and_can_begin_at_its_start() -> None:
    pair = mirrored()
    link = pair.link(0, 3)

    class TwoQueues(ModelSide):
        def queue_count(self, topic: str) -> int:
            return 2

        def extents(self, queues: object) -> dict[Place, Extent]:
            return {Place("T0", 0): Extent(0, 10), Place("T0", 1): Extent(0, 10),
                    Place("T1", 0): Extent(0, 10), Place("T1", 1): Extent(0, 10)}  # fmt: skip

    queues = {number: MirroredQueue(10, 0) for number in range(2)}
    grown = Link(TwoQueues(pair, 0, 3), TwoQueues(pair, 1, 3), lambda: {"T0": MirroredTopic("T1", queues)})
    assert [move.status for move in plan_group(grown, "g", "g", RULES)] == [Status.MOVE, Status.UNCOMMITTED]
    both = plan_group(grown, "g", "g", Rules(from_start=True))
    assert [(move.status, move.new) for move in both] == [(Status.MOVE, 4), (Status.MOVE, 0)]
    fewer = Link(grown.source, link.target, grown.mirror)
    with pytest.raises(UsageError, match="1 queues"):
        plan_group(fewer, "g", "g", RULES)


def test_a_group_that_is_ahead_in_the_target_stays_unless_it_is_forced_back() -> None:
    pair = mirrored()
    pair.move(1, 9)
    link = pair.link(0, 3)
    assert (moved(link).status, moved(link).ahead, moved(link).is_change) == (Status.AHEAD, 5, False)
    assert not plan_move(link, "g", "g", RULES).is_clean
    back = moved(link, Rules(force_back=True))
    assert (back.status, back.new, back.ahead) == (Status.BACK, 4, 5)


def test_a_position_beyond_the_end_of_the_target_counts_as_ahead() -> None:
    pair = mirrored(consumed=10)
    pair.positions[1] = 12
    assert (moved(pair.link(0, 3)).status, moved(pair.link(0, 3)).ahead) == (Status.AHEAD, 2)
    assert moved(pair.link(0, 3), Rules(force_back=True)).new == 10


def test_what_the_target_does_not_have_is_counted_and_refused_unless_it_is_accepted() -> None:
    pair = mirrored(copied=0)
    pair.mirrors[0] = None
    pair.start(0, 6)
    pair.copy(0, 10)
    refused = moved(pair.link(0, 3))
    assert (refused.status, refused.missing, refused.new) == (Status.MISSING, 2, None)
    accepted = moved(pair.link(0, 3), Rules(accept_missing=True))
    assert (accepted.status, accepted.missing, accepted.new) == (Status.MOVE, 2, 0)


def test_the_way_back_alone_is_enough_to_return_but_not_for_what_was_written_meanwhile() -> None:
    pair = mirrored()
    pair.move(1, 7)
    link = pair.link(1, 3)
    assert (moved(link).status, moved(link).new, moved(link).stop) == (Status.MOVE, 7, Stop.OTHER)
    pair.produce(1, 2)
    assert (moved(link).status, moved(link).missing) == (Status.MISSING, 2)


def test_a_topic_that_was_made_again_is_refused_until_its_mirror_knows() -> None:
    link = mirrored().link(0, 3)
    again = replace(link, mirror=lambda: {"T0": MirroredTopic("T1", {0: MirroredQueue(10, 0)}, is_replaced=True)})
    with pytest.raises(MirrorSourceError, match="made again"):
        plan_group(again, "g", "g", RULES)


def test_a_group_without_positions_on_mirrored_topics_has_no_moves_and_is_not_clean() -> None:
    pair = mirrored()
    pair.positions[0] = None
    plan = plan_move(pair.link(0, 3), "g", "g", RULES)
    assert (list(plan.moves), plan.is_clean) == ([], False)


def test_a_group_with_members_in_the_target_is_not_moved_unless_forced() -> None:
    pair = mirrored()
    link = pair.link(0, 3)
    assert isinstance(link.target, ModelSide)
    link.target.member_names = "consumer-1"
    with pytest.raises(GroupInUseError, match="consumer-1"):
        plan_move(link, "g", "g", RULES)
    assert plan_move(link, "g", "g", RULES, force=True).change_count == 1


def test_messages_that_wait_to_come_again_are_not_left_behind_unless_that_is_asked_for() -> None:
    link = mirrored().link(0, 3)
    assert isinstance(link.source, ModelSide)
    link.source.waiting = 3
    with pytest.raises(UsageError, match="has 3 retries pending"):
        plan_move(link, "g", "g", RULES)
    assert plan_move(link, "g", "g", RULES, ignore_waiting=True).waiting_count == 3
