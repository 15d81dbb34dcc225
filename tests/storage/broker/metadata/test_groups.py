"""The group table and the filters: a broker's files, and entries no group can have."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store.broker.metadata.groups import ConsumerFilter, FilterTable, GroupTable, SubscriptionGroup
from rmq_store.broker.metadata.odd_entries import AGAIN
from rmq_store.errors import CorruptConfigError, UsageError
from rmq_store.format.tables.config_json import Verbatim, dumps, loads


def write(root: Path, entries: Any, name: str = "subscriptionGroup.json", key: str = "subscriptionGroupTable") -> Path:
    (root / "config").mkdir(exist_ok=True)
    path = root / "config" / name
    path.write_text(dumps({key: entries}))
    return path


@pytest.mark.statement("G05")
def test_a_brokers_groups_are_read_whole(golden: Path) -> None:
    root = golden / "store"
    groups = GroupTable(root).all()
    assert groups.keys() == loads((root / "config/subscriptionGroup.json").read_text())["subscriptionGroupTable"].keys()
    assert groups["cg_delay"] == SubscriptionGroup("cg_delay")


def test_a_new_group_is_written_as_the_broker_writes_it(golden: Path, tmp_path: Path) -> None:
    """The entry of a group that has Java's defaults differs from ours in its name only."""
    shutil.copytree(golden / "store" / "config", tmp_path / "config")
    path = tmp_path / "config" / "subscriptionGroup.json"
    old = loads(path.read_text())
    GroupTable(tmp_path).create(SubscriptionGroup("added"))
    new = loads(path.read_text())
    added = new["subscriptionGroupTable"].pop("added")
    expected = {**old["subscriptionGroupTable"]["cg_delay"], "groupName": "added"}
    assert (added, list(added)) == (expected, list(expected))
    assert new["subscriptionGroupTable"] == old["subscriptionGroupTable"]
    assert new["forbiddenTable"] == old["forbiddenTable"]


def test_a_group_comes_back_equal_and_its_update_keeps_unknown_fields(tmp_path: Path) -> None:
    write(tmp_path, {"g": {"groupName": "g", "retryMaxTimes": 3, "future": 1}})
    table = GroupTable(tmp_path)
    group = table.get("g")
    assert group == SubscriptionGroup("g", retry_max_times=3)
    changed = replace(group, retry_max_times=-1, attributes={"a": "b"}, group_retry_policy={"type": "EXPONENTIAL"})
    table.update(changed)
    assert GroupTable(tmp_path).get("g") == changed
    stored = loads((tmp_path / "config/subscriptionGroup.json").read_text())["subscriptionGroupTable"]["g"]
    assert stored["future"] == 1


def test_create_twice_update_and_delete_of_absent_groups(tmp_path: Path) -> None:
    table = GroupTable(tmp_path)
    first = table.create(SubscriptionGroup("g", retry_max_times=1))
    with pytest.raises(UsageError, match="exists"):
        table.create(SubscriptionGroup("g"))
    assert table.create(SubscriptionGroup("g"), exist_ok=True) == first
    with pytest.raises(UsageError, match="no group"):
        table.update(SubscriptionGroup("absent"))
    assert [table.delete("g"), table.delete("g")] == [True, False]
    assert table.get("g") is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "a@b", "a\n", "x" * 121])
def test_a_bad_name_is_refused_from_the_caller_and_costs_no_other_group_on_the_disk(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        GroupTable(tmp_path).create(SubscriptionGroup(name))
    write(tmp_path, {name: {}, "g": {"retryMaxTimes": 3}})
    table = GroupTable(tmp_path)
    assert table.all() == {"g": SubscriptionGroup("g", retry_max_times=3)}
    assert [entry.reason.startswith(f"group {name!r}") for entry in table.odd()] == [True]
    with pytest.raises(CorruptConfigError, match=r"subscriptionGroup\.json"):
        table.get(name)
    path = tmp_path / "config" / "subscriptionGroup.json"
    table.create(SubscriptionGroup("h"))
    table.update(SubscriptionGroup("g"))
    assert loads(path.read_bytes())["subscriptionGroupTable"][name] == {}
    assert table.all().keys() == {"g", "h"}


@pytest.mark.parametrize(
    "entry",
    [
        5, {"retryMaxTimes": "3"}, {"retryQueueNums": -1}, {"retryQueueNums": 1 << 30}, {"consumeEnable": 1},
        {"attributes": {"a": 1}}, {"attributes": 3}, {"groupRetryPolicy": "x"}, {"brokerId": True},
        None, "x", [1], Verbatim("99999999999999999999"), {"brokerId": Verbatim("99999999999999999999")},
    ],
)  # fmt: skip
def test_an_entry_that_no_group_can_have_is_kept_and_an_error_only_if_it_is_asked_for(
    tmp_path: Path, entry: Any
) -> None:
    path = write(tmp_path, {"g": entry, "other": {}})
    table = GroupTable(tmp_path)
    assert list(table.all()) == ["other"]
    assert [entry.reason[:9] for entry in table.odd()] == ["group 'g'"]
    for ask in (
        lambda: table.get("g"), lambda: table.all()["g"], lambda: "g" in table.all(),
        lambda: table.create(SubscriptionGroup("g")), lambda: table.create(SubscriptionGroup("g"), exist_ok=True),
        lambda: table.update(SubscriptionGroup("g")), lambda: table.change("g", lambda group: group),
    ):  # fmt: skip
        with pytest.raises(CorruptConfigError, match=r"'g'.*kept as it is"):
            ask()
    table.create(SubscriptionGroup("h"))
    assert loads(path.read_bytes())["subscriptionGroupTable"]["g"] == entry
    assert table.delete("g")
    assert not table.odd()


def test_null_members_have_the_defaults_of_java(tmp_path: Path) -> None:
    write(tmp_path, {"g": {"retryMaxTimes": None, "attributes": None, "retryQueueNums": 2}})
    assert GroupTable(tmp_path).all() == {"g": SubscriptionGroup("g", retry_queue_nums=2)}


def test_of_two_entries_of_one_name_the_last_counts_both_are_kept_and_both_go(tmp_path: Path) -> None:
    path = write(tmp_path, {})
    text = '{"subscriptionGroupTable":{"g":{"retryMaxTimes":1},"h":{},"g":{"retryMaxTimes":2}}}'
    path.write_text(text)
    table = GroupTable(tmp_path)
    assert table.all()["g"].retry_max_times == 2
    assert [entry.reason for entry in table.odd()] == [f"'g': {AGAIN}"]
    table.create(SubscriptionGroup("i"))
    assert dumps(loads(path.read_bytes()), "compact").startswith(text[:-2])
    table.delete("g")
    assert table.all().keys() == {"h", "i"}


@pytest.mark.statement("G05")
def test_filters_are_shown_and_never_written(tmp_path: Path) -> None:
    entry = {
        "bloomFilterData": {"bitNum": 32, "bitPos": [1, 2]}, "bornTime": 5, "clientVersion": 7, "consumerGroup": "g",
        "dead": True, "deadTime": 9, "expression": "a > 1", "expressionType": "SQL92", "topic": "t",
    }  # fmt: skip
    write(tmp_path, {"t": {"groupFilterData": {"g": entry}, "topic": "t"}}, "consumerFilter.json", "filterDataByTopic")
    before = sorted(tmp_path.rglob("*"))
    assert FilterTable(tmp_path).all() == [ConsumerFilter("t", "g", "a > 1", "SQL92", 7, 5, 9)]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "entries",
    [
        3, {"t": 3}, {"t": {"groupFilterData": 3}}, {"t": {"groupFilterData": {"g": 3}}},
        {"t": {"groupFilterData": {"g": {"expression": 3}}}}, {7: {"groupFilterData": {"g": {}}}},
    ],
)  # fmt: skip
def test_filters_of_another_shape_cost_no_other_and_are_named(tmp_path: Path, entries: Any) -> None:
    if isinstance(entries, dict):
        entries = {"u": {"groupFilterData": {"g": {"expression": "a"}}}, **entries}
    write(tmp_path, entries, "consumerFilter.json", "filterDataByTopic")
    table = FilterTable(tmp_path)
    if not isinstance(entries, dict):
        with pytest.raises(CorruptConfigError, match=r"consumerFilter\.json"):
            table.all()
        return
    assert table.all() == [ConsumerFilter("u", "g", "a", "", 0, 0, 0)]
    assert len(table.odd()) == 1
