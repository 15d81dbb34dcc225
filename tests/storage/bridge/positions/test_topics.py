"""Which topics a mirror takes, and their names on the other side."""

from __future__ import annotations

import re

import pytest

from rmq_store import UsageError
from rmq_store.bridge.positions.topics import Rename, TopicChoice, check_mirror_name, check_rmq_target


def choice(*topics: str, pattern: str | None = None, renames: tuple[str, ...] = (), dots_as: str = "") -> TopicChoice:
    return TopicChoice(topics, re.compile(pattern) if pattern else None, tuple(map(Rename.parse, renames)), dots_as)


def test_names_and_whole_names_of_a_pattern_are_taken() -> None:
    chosen = choice("other", pattern="shop-.*").chosen(["other", "shop-1", "old-shop-1", "shop-2"])
    assert chosen == {"other": "other", "shop-1": "shop-1", "shop-2": "shop-2"}


@pytest.mark.parametrize(
    "topic",
    [
        "%RETRY%g", "%DLQ%g", "%LMQ%g", "rmq_sys_pyrmq_units", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC",
        "TBW102", "__consumer_offsets", "__transaction_state", "__share_group_state", "__pyrmq.m.eu.positions",
        "_schemas", "_confluent-metrics", "m-dead-letters",
    ],
)  # fmt: skip
def test_topics_of_the_systems_are_taken_by_name_only(topic: str) -> None:
    assert not choice(pattern=".*").takes(topic)
    if not topic.startswith("__pyrmq"):
        assert choice(topic).takes(topic)


def test_positions_of_mirrors_are_not_even_taken_by_name() -> None:
    with pytest.raises(UsageError, match="never copied"):
        choice("__pyrmq.m.eu.positions")


def test_neither_names_nor_a_pattern_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="their names, or a pattern"):
        choice()


def test_the_first_rule_that_matches_a_whole_name_counts() -> None:
    made = choice("x", renames=(r"orders\.(.*)=k_\1", "orders.*=other", r"(.)-(.)=\2-\1"))
    assert made.target("orders.eu") == "k_eu"
    assert made.target("orders") == "other"
    assert made.target("a-b") == "b-a"
    assert made.target("old-orders") == "old-orders"


def test_dots_are_replaced_only_if_that_is_asked_and_no_rule_matches() -> None:
    assert choice("x").target("a.b.c") == "a.b.c"
    assert choice("x", dots_as="_").target("a.b.c") == "a_b_c"
    assert choice("x", renames=("a.b.c=abc",), dots_as="_").target("a.b.c") == "abc"


@pytest.mark.parametrize("text", ["", "a", "=b", "a=", "(=b", r"a=\1", r"(a)=\2", "a=\\g<x>"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--rename"):
        Rename.parse(text)


def test_two_topics_that_would_become_one_are_refused() -> None:
    with pytest.raises(UsageError, match="'a' and 'b' would both become 'c'"):
        choice("a", "b", renames=("[ab]=c",)).chosen(["a", "b"])


@pytest.mark.parametrize(
    ("target", "told"),
    [("a.b", "--dots-as _ or --rename"), ("a/b", "--rename"), ("", "--rename"), ("x" * 128, "--rename"),
     ("%DLQ%g", "RocketMQ's own"), ("%RETRY%g", "RocketMQ's own"), ("TBW102", "RocketMQ's own")],
)  # fmt: skip
def test_what_rocketmq_cannot_call_a_topic_is_refused_and_the_option_is_named(target: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_rmq_target("source", target)


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "a b", "ä", "x" * 65])
def test_what_cannot_be_a_mirrors_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="name of a mirror"):
        check_mirror_name(name)
    assert check_mirror_name("in-1_A") == "in-1_A"
