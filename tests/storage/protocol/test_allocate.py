"""How queues are divided: RocketMQ's strategies, so that members of all languages come to the same result."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store import UsageError
from rmq_store.protocol.allocate import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
    ring_hash,
)
from rmq_store.protocol.messages import MessageQueue

AVG, CIRCLE, HASH = (
    AllocateMessageQueueAveragely(),
    AllocateMessageQueueAveragelyByCircle(),
    AllocateMessageQueueConsistentHash(),
)


def queues(count: int, broker: str = "broker-a", topic: str = "Orders") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for number in range(count)]


def members(count: int) -> list[str]:
    return [f"10.0.0.{number}@1" for number in range(1, count + 1)]


def shares(
    strategy: AllocateMessageQueueStrategy, all_queues: Sequence[MessageQueue], ids: Sequence[str]
) -> list[list[int]]:
    return [[queue.queue_id for queue in strategy.allocate("g", each, all_queues, ids)] for each in ids]


@pytest.mark.parametrize(
    ("queue_count", "member_count", "expected"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (8, 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (4, 3, [[0, 1], [2], [3]]),
        (3, 3, [[0], [1], [2]]),
        (2, 4, [[0], [1], [], []]),
    ],
)
def test_avg_gives_neighbours_and_the_rest_to_the_first(
    queue_count: int, member_count: int, expected: list[list[int]]
) -> None:
    """AllocateMessageQueueAveragely.java."""
    assert shares(AVG, queues(queue_count), members(member_count)) == expected


def test_avg_by_circle_deals_out_like_cards() -> None:
    """AllocateMessageQueueAveragelyByCircle.java."""
    assert shares(CIRCLE, queues(7), members(3)) == [[0, 3, 6], [1, 4], [2, 5]]


def test_the_ring_is_of_md5_hashes() -> None:
    """AllocateMessageQueueConsistentHash: first 4 bytes of MD5, big-endian. RFC 1321 A.5 has the digests."""
    assert ring_hash("") == 0xD41D8CD9
    assert ring_hash("a") == 0x0CC175B9
    assert ring_hash("message digest") == 0xF96B697D


def test_consistent_hash_takes_the_first_virtual_node_clockwise() -> None:
    """Ten virtual nodes `cid-k` each; a queue is hashed by its Java text; a queue behind all nodes wraps around."""
    ids, all_queues = members(3), queues(500)
    nodes = sorted((ring_hash(f"{member}-{number}"), member) for member in ids for number in range(10))
    wrapped = 0
    for queue in all_queues:
        place = ring_hash(f"MessageQueue [topic=Orders, brokerName=broker-a, queueId={queue.queue_id}]")
        behind = [member for node, member in nodes if node >= place]
        wrapped += not behind
        owner = behind[0] if behind else nodes[0][1]
        assert [member for member in ids if queue in HASH.allocate("g", member, all_queues, ids)] == [owner]
    assert wrapped, "no queue lies behind the last node: the wrap was not tested"


def test_a_member_that_leaves_a_ring_moves_only_its_own_queues() -> None:
    before = dict(zip(members(4), shares(HASH, queues(64), members(4)), strict=True))
    staying = members(4)[:3]
    after = dict(zip(staying, shares(HASH, queues(64), staying), strict=True))
    assert all(set(before[member]) <= set(after[member]) for member in staying)


@given(st.integers(1, 40), st.integers(1, 12), st.sampled_from([AVG, CIRCLE, HASH]))
def test_every_queue_has_exactly_one_owner(
    queue_count: int, member_count: int, strategy: AllocateMessageQueueStrategy
) -> None:
    owned = sorted(number for share in shares(strategy, queues(queue_count), members(member_count)) for number in share)
    assert owned == list(range(queue_count))


@pytest.mark.parametrize("strategy", [AVG, CIRCLE, HASH, AllocateMessageQueueByMachineRoom(["room1"])])
def test_a_member_that_is_not_in_the_list_gets_nothing(strategy: AllocateMessageQueueStrategy) -> None:
    """AbstractAllocateMessageQueueStrategy#check: a client absent from the id list gets nothing."""
    assert strategy.allocate("g", "stranger", queues(8, "room1@a"), members(2)) == []


def test_config_is_a_fixed_list() -> None:
    """AllocateMessageQueueByConfig.java. A list may name queues of several topics."""
    fixed = AllocateMessageQueueByConfig([queues(4)[2], MessageQueue("Other", "broker-a", 0)])
    assert fixed.name == "CONFIG"
    assert fixed.allocate("g", "anybody", queues(4), members(2)) == [queues(4)[2]]


def test_machine_room_takes_brokers_of_the_rooms_named() -> None:
    """AllocateMessageQueueByMachineRoom.java: `room@broker`; blocks of equal size, then one of the rest each."""
    all_queues = sorted([*queues(5, "room1@a"), *queues(2, "room2@b"), *queues(3, "plain"), *queues(1, "room1@a@c")])
    strategy = AllocateMessageQueueByMachineRoom(["room1"])
    assert shares(strategy, all_queues, members(2)) == [[0, 1, 4], [2, 3]]
    first = strategy.allocate("g", members(2)[0], all_queues, members(2))
    assert {queue.broker_name for queue in first} == {"room1@a"}


def test_machine_room_nearby_keeps_to_the_own_room_and_shares_deserted_ones() -> None:
    """AllocateMachineRoomNearby.java: room2 has no member, so its queues go to all."""
    all_queues = sorted([*queues(4, "room1@a"), *queues(2, "room2@b"), *queues(2, "room3@c")])
    ids = ["room1-x", "room1-y", "room3-z"]
    strategy = AllocateMachineRoomNearby(
        AVG, lambda queue: queue.broker_name.split("@")[0], lambda client_id: client_id.split("-")[0]
    )
    got = {
        member: [f"{each.broker_name}{each.queue_id}" for each in strategy.allocate("g", member, all_queues, ids)]
        for member in ids
    }
    assert got == {
        "room1-x": ["room1@a0", "room1@a1", "room2@b0"],
        "room1-y": ["room1@a2", "room1@a3", "room2@b1"],
        "room3-z": ["room3@c0", "room3@c1"],
    }
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"


def test_a_ring_needs_nodes() -> None:
    with pytest.raises(UsageError, match="virtual_node_count"):
        AllocateMessageQueueConsistentHash(0)
