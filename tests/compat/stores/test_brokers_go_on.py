"""Each kind of store, made anew by its broker, read by us, written where that is allowed, taken on by the broker.

Needs root (each broker gets a network of its own), Maven and Java; some 40 s to two minutes for each kind.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat.stores import expectations, making, reading, traffic
from compat.stores.recipes import RECIPES, Recipe
from rmq_store.verify import verify_store

# Queues whose messages go on to others by themselves.
IN_MOTION = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_", "rmq_sys_", "Late")


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Recipe, Path, Any]]:
    recipe: Recipe = RECIPES[request.param]
    root = tmp_path_factory.mktemp("made") / recipe.kind
    yield recipe, root, making.make(recipe, root)
    shutil.rmtree(root)


@pytest.mark.parametrize("made", RECIPES, indirect=True)
def test_a_reader_sees_what_the_broker_said(made: tuple[Recipe, Path, Any]) -> None:
    recipe, root, manifest = made
    expectations.check_reading(root, recipe.kind, manifest)


@pytest.mark.parametrize(
    "made", [kind for kind in RECIPES if not expectations.expectation(kind).unwritable], indirect=True
)
def test_the_broker_goes_on_where_we_stopped_and_nothing_has_changed_but_what_we_sent(
    made: tuple[Recipe, Path, Any],
) -> None:
    recipe, root, manifest = made
    expectations.write(root, recipe.kind)
    with making.started(recipe, root) as broker:
        seen = traffic.view(broker, recipe.queues)
        _only_ours_was_added(manifest, seen)
        traffic.await_route(broker, "Orders")
        answer = broker.ask("send", topic="Orders", queueId=0, messages=[{"body": "after", "keys": "AFTER"}])
        assert answer[0]["queueOffset"] == seen["queues"]["Orders"]["0"]["maxOffset"]
        deliveries = broker.ask("consume", group="cg_orders", topic="Orders", count=2, fail="never")
        broker.stop()
    assert len(deliveries) == 2, "what the group had consumed before came again"
    with expectations.open_store(root, recipe.kind, read_only=True) as store:
        last = reading.rows_of(store, "Orders", 0)[-2:]
        assert [row["body"] for row in last] == [b"ours", b"after"]
        assert store.committed_offsets("cg_orders")["Orders", 0] == store.queue_range("Orders", 0).max_offset
    assert verify_store(root / "store").problems == []


def _only_ours_was_added(before: dict[str, Any], after: dict[str, Any]) -> None:
    for topic, queue_id, queue in reading.queues_of(before):
        now = after["queues"][topic][str(queue_id)]
        count = len(queue["messages"])
        assert now["minOffset"] == queue["minOffset"], (topic, queue_id)
        assert now["messages"][:count] == queue["messages"], (topic, queue_id)
        if not topic.startswith(IN_MOTION):
            grown = expectations.OURS.get((topic, queue_id), 0)
            assert now["maxOffset"] == queue["maxOffset"] + grown, (topic, queue_id)
    (ours,) = (m for m in after["queues"]["Orders"]["0"]["messages"] if m["keys"] == "OURS")
    assert (ours["tags"], ours["queueOffset"]) == ("TagA", before["queues"]["Orders"]["0"]["maxOffset"])
    # Nothing that waits for hours was delivered, neither the broker's nor ours.
    late = {m["keys"] for m in after["queues"]["Late"]["0"]["messages"]}
    assert late == {m["keys"] for m in before["queues"]["Late"]["0"]["messages"]}
    assert _groups(after) == {**_groups(before), ("Orders@cg_partial", "0"): 4}
    asked = {(query["topic"], query["key"]): query["commitLogOffsets"] for query in after["queries"]}
    for query in before["queries"]:
        assert set(asked[query["topic"], query["key"]]) == set(query["commitLogOffsets"]), query
    names = before["tables"]["topics"]["topicConfigTable"]
    assert after["tables"]["topics"]["topicConfigTable"].items() >= names.items()
    groups = before["tables"]["groups"]["subscriptionGroupTable"]
    assert after["tables"]["groups"]["subscriptionGroupTable"].items() >= groups.items()


def _groups(seen: dict[str, Any]) -> dict[tuple[str, str], int]:
    table = seen["tables"]["offsets"]["offsetTable"]
    return {
        (topic_at_group, queue): offset
        for topic_at_group, offsets in table.items()
        if "@cg_" in topic_at_group
        for queue, offset in offsets.items()
    }
