"""Offsets of a broker with enableLmq=true: in a file of their own, which stays when the setting is switched off."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig, UsageError
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.cli import commands
from rmq_store.format.tables.config_json import dumps, loads

PLAIN, LMQ = "consumerOffset.json", "lmqConsumerOffset.json"
# As a 5.5.0 broker writes it.
LIGHT = {"T@%LMQ%light": 77}
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=2000, max_hash_slot_num=50, max_index_num=200
)


def write(root: Path, plain: object, lmq: object) -> None:
    (root / "config").mkdir(parents=True, exist_ok=True)
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    if plain is not None:
        table = {"dataVersion": version, "offsetTable": plain}
        (root / "config" / PLAIN).write_text(dumps(table))
    if lmq is not None:
        table = {"dataVersion": version, "groupTopicMap": {"g": ["T"]}, "lmqOffsetTable": LIGHT, "offsetTable": lmq,
                 "pullOffsetTable": {}, "unknown": [1]}  # fmt: skip
        (root / "config" / LMQ).write_text(dumps(table))


def stored(root: Path, name: str) -> object:
    return loads((root / "config" / name).read_bytes())["offsetTable"]


@pytest.mark.parametrize("enable_lmq", [None, True, False])
def test_a_group_that_one_file_has_is_that_of_this_file(tmp_path: Path, enable_lmq: bool | None) -> None:
    write(tmp_path, {"T@old": {0: 1}}, {"T@g": {0: 5, 1: 6}})
    table = OffsetTable(tmp_path, enable_lmq=enable_lmq)
    assert table.all() == {"old": {("T", 0): 1}, "g": {("T", 0): 5, ("T", 1): 6}}
    assert table.committed("g") == {("T", 0): 5, ("T", 1): 6}
    assert not table.odd()


def test_a_commit_goes_where_the_group_is_and_leaves_the_rest_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, None, {"T@g": {0: 5, 1: 6}})
    before = (tmp_path / "config" / LMQ).read_bytes()
    OffsetTable(tmp_path).commit("g", {("T", 0): 8})
    table = loads((tmp_path / "config" / LMQ).read_bytes())
    assert [*table][2:] == ["lmqOffsetTable", "offsetTable", "pullOffsetTable", "unknown"]
    assert table["offsetTable"] == {"T@g": {0: 8, 1: 6}}
    assert (table["lmqOffsetTable"], table["unknown"], table["dataVersion"]["counter"]) == (LIGHT, [1], 2)
    assert (tmp_path / "config" / f"{LMQ}.bak").read_bytes() == before
    assert not (tmp_path / "config" / PLAIN).exists()
    OffsetTable(tmp_path).commit("new", {("T", 0): 1})
    assert stored(tmp_path, LMQ) == {"T@g": {0: 8, 1: 6}, "T@new": {0: 1}}
    assert sorted(path.name for path in (tmp_path / "config").iterdir()) == [LMQ, f"{LMQ}.bak"]


def test_a_store_without_the_file_gets_none(tmp_path: Path) -> None:
    OffsetTable(tmp_path).commit("g", {("T", 0): 1})
    assert stored(tmp_path, PLAIN) == {"T@g": {0: 1}}
    assert not (tmp_path / "config" / LMQ).exists()


def test_a_group_of_which_both_say_the_same_goes_on_in_both_and_so_does_a_new_one(tmp_path: Path) -> None:
    write(tmp_path, {"T@g": {0: 5}}, {"T@g": {0: 5}})
    table = OffsetTable(tmp_path)
    table.commit("g", {("T", 1): 8})
    table.commit("new", {("T", 0): 1})
    assert stored(tmp_path, PLAIN) == stored(tmp_path, LMQ) == {"T@g": {0: 5, 1: 8}, "T@new": {0: 1}}
    assert not table.conflicts()


def test_a_group_of_which_the_two_say_different_things_is_refused_until_the_setting_is_given(tmp_path: Path) -> None:
    write(tmp_path, {"T@g": {0: 3}, "T@other": {0: 1}}, {"T@g": {0: 5, 1: 6}})
    table = OffsetTable(tmp_path)
    assert table.all() == {"other": {("T", 0): 1}}
    assert [conflict.group for conflict in table.conflicts()] == ["g"]
    for ask in (
        lambda: table.committed("g"), lambda: table.all()["g"], lambda: "g" in table.all(),
        lambda: table.commit("g", {("T", 0): 9}),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"'g'.*consumerOffset\.json.*lmqConsumerOffset\.json.*enableLmq"):
            ask()
    table.commit("other", {("T", 0): 2})
    assert sorted(offset for _, offset in table.given_out()) == [2, 3, 5, 6]
    assert OffsetTable(tmp_path, enable_lmq=False).committed("g") == {("T", 0): 3}
    on = OffsetTable(tmp_path, enable_lmq=True)
    assert on.committed("g") == {("T", 0): 5, ("T", 1): 6}
    on.commit("g", {("T", 0): 9})
    assert stored(tmp_path, LMQ) == {"T@g": {0: 9, 1: 6}}
    assert stored(tmp_path, PLAIN) == {"T@g": {0: 3}, "T@other": {0: 2}}


@pytest.mark.parametrize("enable_lmq", [True, False])
def test_a_commit_to_the_file_that_had_nothing_of_the_group_takes_all_of_it_there(
    tmp_path: Path, enable_lmq: bool
) -> None:
    """Or its other queues would begin anew: the broker looks into that file only."""
    rows = {"T@g": {0: 5, 1: 6}, "U@g": {0: 7}}
    write(tmp_path, {} if not enable_lmq else rows, rows if not enable_lmq else {})
    table = OffsetTable(tmp_path, enable_lmq=enable_lmq)
    table.commit("g", {("T", 0): 5})
    assert stored(tmp_path, LMQ if enable_lmq else PLAIN) == rows
    table.commit("g", {("T", 0): 9})
    assert table.committed("g") == {("T", 0): 9, ("T", 1): 6, ("U", 0): 7}


def test_light_groups_are_read_by_name_in_no_list_and_left_alone(tmp_path: Path) -> None:
    write(tmp_path, {"T@%LMQ%mine": {0: 1}}, {"T@g": {0: 5}})
    table = OffsetTable(tmp_path)
    with pytest.raises(UsageError, match="lmqOffsetTable"):
        table.commit("%LMQ%light", {("T", 0): 1})
    assert table.committed("%LMQ%light") == {("T", 0): 77}
    assert table.all().keys() == {"%LMQ%mine", "g"}
    assert table.committed("%LMQ%mine") == {("T", 0): 1}
    assert OffsetTable(tmp_path, enable_lmq=False).committed("%LMQ%light") == {}
    assert table.remove(group="g") == 1
    assert loads((tmp_path / "config" / LMQ).read_bytes())["lmqOffsetTable"] == LIGHT


def test_offsets_are_removed_from_both_files(tmp_path: Path) -> None:
    write(tmp_path, {"T@g": {0: 3}, "U@g": {0: 1}}, {"T@g": {0: 5}})
    assert OffsetTable(tmp_path).remove_pairs([("T", "g"), ("U", "g")]) == 2
    assert (stored(tmp_path, PLAIN), stored(tmp_path, LMQ)) == ({}, {})


def test_the_setting_belongs_to_the_store_once_it_was_given_to_a_writer(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.open(root, create=True, config=CONFIG) as store:
        for _ in range(3):
            store.send(Message("T", b"x", queue_id=0))
    write(root, {"T@g": {0: 1}}, {"T@g": {0: 2}})
    assert '"enableLmq"' not in (root / "pyrmq" / "store.json").read_text()
    with Store.open(root, read_only=True, config=StoreConfig(enable_lmq=True)) as store:
        assert store.committed_offsets("g") == {("T", 0): 2}
    with Store.open(root) as store:
        assert len(store.offset_conflicts()) == 1
        with pytest.raises(UsageError, match="enableLmq"):
            store.committed_offsets("g")
    with Store.open(root, config=StoreConfig(enable_lmq=True)) as store:
        assert not store.offset_conflicts()
    with Store.open(root) as store:
        assert store.config.enable_lmq is True
        store.commit_offsets("g", {("T", 0): 3})
    assert (stored(root, PLAIN), stored(root, LMQ)) == ({"T@g": {0: 1}}, {"T@g": {0: 3}})
    result = CliRunner().invoke(
        commands, ["updateBrokerConfig", "-k", "enableLmq", "-v", "false", "--store", str(root)]
    )
    assert result.exit_code == 0, result.output
    with Store.open(root, read_only=True) as store:
        assert store.committed_offsets("g") == {("T", 0): 1}


def test_the_commands_name_the_group_and_take_the_setting(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.open(root, create=True, config=CONFIG) as store:
        for _ in range(3):
            store.send(Message("T", b"x", queue_id=0))
    write(root, {"T@g": {0: 1}, "T@h": {0: 1}}, {"T@g": {0: 2}})
    run = CliRunner()
    for command in ("groups", "lag"):
        result = run.invoke(commands, [command, "--store", str(root)])
        assert result.exit_code == 0
        assert "rmq: group 'g' has other offsets in" in result.stderr
        assert "h " in result.stdout
    for words in (
        ["groups", "g"], ["lag", "g"], ["offsets", "show", "g"], ["consumerProgress", "-g", "g"],
        ["offsets", "reset", "g", "--to-latest", "--yes"], ["consume", "T", "-g", "g", "--peek"],
    ):  # fmt: skip
        result = run.invoke(commands, [*words, "--store", str(root)])
        assert result.exit_code == 2, (words, result.output)
        assert "enableLmq=true or false" in result.stderr
    shown = run.invoke(commands, ["offsets", "export", "g", "--enable-lmq", "true", "--store", str(root)])
    assert shown.stdout.split() == ["{", '"T":', "{", '"0":', "2", "}", "}"]
    shown = run.invoke(
        commands, ["offsets", "export", "g", "--store", str(root)], env={"RMQ_ENABLE_LMQ": "false"}
    )
    assert shown.stdout.split() == ["{", '"T":', "{", '"0":', "1", "}", "}"]
    result = run.invoke(
        commands, ["offsets", "reset", "g", "--to-latest", "--yes", "--enable-lmq", "true", "--store", str(root)]
    )
    assert result.exit_code == 0
    assert stored(root, LMQ) == {"T@g": {0: 3, 1: 0, 2: 0, 3: 0}}
    result = run.invoke(commands, ["topics", "--store", str(root)], env={"RMQ_ENABLE_LMQ": "perhaps"})
    assert (result.exit_code, "RMQ_ENABLE_LMQ" in result.stderr) == (2, True)
