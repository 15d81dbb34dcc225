"""Committed offsets: a broker's files, merging, moving backwards, and processes that commit at the same time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata.offsets import DelayOffsetTable, OffsetTable
from rmq_store.broker.read.queues import Queues
from rmq_store.errors import CorruptConfigError, CorruptQueueError, StoreFailedError, UsageError
from rmq_store.files import durable
from rmq_store.format.tables.config_json import dumps, loads

OLD_STYLE = """{
	"offsetTable":{
		"topicTest@group":{0:33,1:32
		}
	}
}"""


@pytest.fixture
def table(tmp_path: Path) -> OffsetTable:
    return OffsetTable(tmp_path, clock=lambda: 1234)


def write(root: Path, content: Any, name: str = "consumerOffset.json") -> Path:
    (root / "config").mkdir(exist_ok=True)
    path = root / "config" / name
    path.write_text(content if isinstance(content, str) else dumps(content))
    return path


@pytest.mark.statement("G05", "G06")
def test_a_brokers_offsets_are_read(golden: Path) -> None:
    table = OffsetTable(golden / "store")
    assert table.committed("cg_partial") == {("OrderTopic", 0): 225, ("OrderTopic", 1): 175, ("OrderTopic", 2): 100}
    assert table.committed("cg_orders")[("%RETRY%cg_orders", 0)] == 1483
    assert table.committed("nobody") == {}
    stored = loads((golden / "store/config/consumerOffset.json").read_text())["offsetTable"]
    assert sum(map(len, table.all().values())) == sum(map(len, stored.values()))
    assert DelayOffsetTable(golden / "store").all() == {1: 10, 2: 10, 3: 603, 4: 603, 5: 297, 18: 0}


def test_a_commit_changes_its_own_keys_of_a_brokers_file_and_nothing_else(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden / "store" / "config", tmp_path / "config")
    path = tmp_path / "config" / "consumerOffset.json"
    old = loads(path.read_text())
    OffsetTable(tmp_path).commit("cg_partial", {("OrderTopic", 1): 180, ("New", 0): 5})
    new = loads(path.read_text())
    old["offsetTable"]["OrderTopic@cg_partial"][1] = 180
    old["offsetTable"]["New@cg_partial"] = {0: 5}
    assert new["offsetTable"] == old["offsetTable"]
    assert {g: set(t) for g, t in new["groupTopicMap"].items()} == {
        **{g: set(t) for g, t in old["groupTopicMap"].items()}, "cg_partial": {"OrderTopic", "New"}
    }  # fmt: skip


def test_a_file_of_the_old_style_stays_in_it(table: OffsetTable, tmp_path: Path) -> None:
    path = write(tmp_path, OLD_STYLE)
    table.commit("group", {("topicTest", 1): 40})
    assert path.read_text() == OLD_STYLE.replace("1:32", "1:40")


@pytest.mark.statement("G06")
def test_a_new_file_has_the_fields_of_java_in_its_order(table: OffsetTable, tmp_path: Path) -> None:
    table.commit("g", {("t", 1): 2, ("t", 0): 1})
    assert (tmp_path / "config" / "consumerOffset.json").read_text() == dumps(
        {
            "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1234},
            "groupTopicMap": {"g": ["t"]},
            "offsetTable": {"t@g": {0: 1, 1: 2}},
        },
        style="5.x",
    )


def test_a_commit_may_move_an_offset_backwards(table: OffsetTable) -> None:
    table.commit("g", {("t", 0): 10, ("t", 1): 10})
    table.commit("g", {("t", 0): 3})
    assert table.committed("g") == {("t", 0): 3, ("t", 1): 10}


def test_numbers_of_numpy_are_numbers(table: OffsetTable) -> None:
    table.commit("g", {("t", np.int32(1)): np.int64(7)})
    assert table.committed("g") == {("t", 1): 7}


def test_a_commit_of_what_is_there_already_writes_nothing(table: OffsetTable, tmp_path: Path) -> None:
    table.commit("g", {("t", 0): 10})
    before = (tmp_path / "config" / "consumerOffset.json").stat()
    table.commit("g", {("t", 0): 10})
    table.commit("g", {})
    assert (tmp_path / "config" / "consumerOffset.json").stat() == before


def test_what_the_caller_gets_is_its_own(table: OffsetTable) -> None:
    table.commit("g", {("t", 0): 10})
    table.committed("g").clear()
    assert table.committed("g") == {("t", 0): 10}
    with pytest.raises(TypeError):
        table.all()["g"][("t", 0)] = 5  # type: ignore[index]


@pytest.mark.parametrize(
    ("group", "offsets"),
    [
        ("a@b", {("t", 0): 1}), ("", {("t", 0): 1}), ("g", {("t@x", 0): 1}), ("g", {("../t", 0): 1}),
        ("g", {("t", -1): 1}), ("g", {("t", 0): -1}), ("g", {("t", 0): 1 << 63}), ("g", {("t", 0): 1.0}),
        ("g", {("t", True): 1}), ("g", {("t", "0"): 1}), ("g", {("t", 0): None}),
    ],
)  # fmt: skip
def test_bad_names_and_numbers_are_refused_and_nothing_is_written(
    table: OffsetTable, tmp_path: Path, group: str, offsets: Any
) -> None:
    with pytest.raises(UsageError):
        table.commit(group, offsets)
    assert list(tmp_path.iterdir()) == []


def test_quoted_queue_ids_are_read_and_merged_with_unquoted_ones(table: OffsetTable, tmp_path: Path) -> None:
    path = write(tmp_path, {"offsetTable": {"t@g": {"0": 5, "1": 6}}})
    assert table.committed("g") == {("t", 0): 5, ("t", 1): 6}
    table.commit("g", {("t", 0): 7})
    assert loads(path.read_text())["offsetTable"]["t@g"] == {0: 7, 1: 6}


def test_keys_that_are_no_pair_of_names_are_not_shown_and_survive(table: OffsetTable, tmp_path: Path) -> None:
    strange = {"noseparator": {0: 1}, "a@b@c": {0: 1}, "../t@g": {0: 1}, "@g": {0: 1}, "t@": "whatever"}
    path = write(tmp_path, {"offsetTable": strange})
    assert table.all() == {}
    table.commit("g", {("t", 0): 1})
    assert loads(path.read_text())["offsetTable"] == {**strange, "t@g": {0: 1}}


def test_a_table_of_another_shape_is_corrupt_and_stays(table: OffsetTable, tmp_path: Path) -> None:
    path = write(tmp_path, {"offsetTable": []})
    before = path.read_bytes()
    with pytest.raises(CorruptConfigError, match=r"consumerOffset\.json"):
        table.all()
    with pytest.raises(CorruptConfigError):
        table.commit("g", {("t", 0): 1})
    assert path.read_bytes() == before


@pytest.mark.parametrize("row", [[], None, "x", 5])
def test_a_row_that_is_no_object_is_kept_and_an_error_only_if_it_is_asked_for(
    table: OffsetTable, tmp_path: Path, row: Any
) -> None:
    path = write(tmp_path, {"offsetTable": {"t@g": row, "u@g": {0: 7}, "t@h": {0: 8}}})
    assert table.all() == {"g": {("u", 0): 7}, "h": {("t", 0): 8}}
    assert [entry.reason for entry in table.odd()] == ["offsets of group 'g', topic 't': not an object"]
    assert table.committed("g")["u", 0] == 7
    for ask in (
        lambda: table.committed("g").get(("t", 0)), lambda: table.committed("g")["t", 5],
        lambda: table.all()["g"].get(("t", 0)), lambda: table.commit("g", {("t", 0): 1}),
    ):  # fmt: skip
        with pytest.raises(CorruptConfigError, match=r"'g', topic 't'|'t@g'"):
            ask()
    table.commit("g", {("u", 0): 9})
    table.commit("h", {("t", 1): 1})
    stored = loads(path.read_text())["offsetTable"]
    assert stored == {"t@g": row, "u@g": {0: 9}, "t@h": {0: 8, 1: 1}}
    assert table.remove(group="g") == 2
    assert not table.odd()


ODD_MEMBERS = [
    '"x":1', '"1":"1"', "1:true", "1:null", "1:9223372036854775808", f'"{"9" * 50}":1', "-5:1", "2147483648:1",
]  # fmt: skip


@pytest.mark.parametrize("member", ODD_MEMBERS)
def test_a_member_that_is_no_offset_is_kept_byte_for_byte_and_costs_no_other(
    table: OffsetTable, tmp_path: Path, member: str
) -> None:
    path = write(tmp_path, '{"offsetTable":{"t@g":{' + member + ",0:7}}}")
    assert table.all() == {"g": {("t", 0): 7}}
    assert len(table.odd()) == 1
    assert ":1" in member or "group 'g', topic 't': queue 1" in table.odd()[0].reason
    if not member.startswith(('"x', '"9', "-", "2")):
        with pytest.raises(CorruptConfigError, match="queue 1"):
            table.committed("g").get(("t", 1))
    table.commit("g", {("t", 0): 8, ("t", 2): 9})
    assert "{0:8,2:9," + member + "}" in "".join(path.read_text().split())
    assert table.committed("g").get(("t", 0)) == 8


def test_a_commit_of_an_offset_replaces_what_was_none(table: OffsetTable, tmp_path: Path) -> None:
    path = write(tmp_path, '{"offsetTable":{"t@g":{0:"x",1:2}}}')
    table.commit("g", {("t", 0): 8})
    assert loads(path.read_text())["offsetTable"]["t@g"] == {0: 8, 1: 2}
    assert not table.odd()


def test_of_two_offsets_of_one_queue_the_last_counts_also_after_a_commit(table: OffsetTable, tmp_path: Path) -> None:
    path = write(tmp_path, '{"offsetTable":{"t@g":{0:1,1:5,0:2},"t@h":{0:1},"t@h":{0:3}}}')
    assert table.all() == {"g": {("t", 0): 2, ("t", 1): 5}, "h": {("t", 0): 3}}
    assert len(table.odd()) == 2
    table.commit("g", {("t", 1): 6})
    table.commit("h", {("t", 1): 6})
    assert table.all() == {"g": {("t", 0): 2, ("t", 1): 6}, "h": {("t", 0): 3, ("t", 1): 6}}
    assert '"t@g":{0:1,0:2,1:6},"t@h":{0:1},"t@h":{0:3,1:6}' in "".join(path.read_text().split())
    table.commit("g", {("t", 0): 7})
    assert '"t@g":{0:7,1:6}' in "".join(path.read_text().split())
    assert table.remove(group="h") == 1
    assert table.all().keys() == {"g"}


# ---- an offset is never ahead of the disk

# Nothing is flushed unless somebody asks for it.
LAZY = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000, max_hash_slot_num=500,
    max_index_num=2000, flush_interval_commit_log=10**9,
)  # fmt: skip


@pytest.fixture
def lazy(tmp_path: Path) -> Iterator[Store]:
    """Topic T: three messages of queue 0 are on disk, two of it and three of queue 1 behind them are not."""
    with Store.open(tmp_path / "store", create=True, config=LAZY) as store:
        store.create_topic("T", 2)
        for queue in (0, 0, 0, None, 0, 0, 1, 1, 1):
            if queue is None:
                store.flush()
            else:
                store.send(Message("T", b"x", queue_id=queue))
        yield store


def flushes(store: Store, offsets: dict[tuple[str, int], int], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is brought to the disk by a commit, in its order: log, table."""
    seen: list[str] = []

    def hook(operation: str, path: str) -> None:
        if operation == "fsync" and "commitlog" in path:
            seen.append("log")
        elif operation == "rename" and path.endswith("consumerOffset.json"):
            seen.append("table")

    monkeypatch.setattr(durable, "hook", hook)
    store.commit_offsets("g", offsets)
    monkeypatch.setattr(durable, "hook", None)
    return list(dict.fromkeys(seen))


def test_messages_are_on_disk_before_an_offset_behind_them_is(lazy: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut took them and left the offset: what was sent later got their offsets, and was never read."""
    assert flushes(lazy, {("T", 0): 4}, monkeypatch) == ["log", "table"]
    assert flushes(lazy, {("T", 0): 5, ("T", 1): 3}, monkeypatch) == ["table"]


@pytest.mark.parametrize("offsets", [{0: 3}, {0: 2, 1: 0}, {0: 1, 7: 9}])
def test_what_nobody_has_consumed_need_not_be_flushed(
    lazy: Store, monkeypatch: pytest.MonkeyPatch, offsets: dict[int, int]
) -> None:
    assert flushes(lazy, {("T", queue): offset for queue, offset in offsets.items()}, monkeypatch) == ["table"]


def test_any_queue_may_be_the_one_that_waits(lazy: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flushes(lazy, {("T", 0): 1, ("T", 1): 1}, monkeypatch) == ["log", "table"]


def test_a_commit_of_what_is_committed_asks_nothing(lazy: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy.commit_offsets("g", {("T", 0): 5})
    lazy.send(Message("T", b"x", queue_id=0))
    assert flushes(lazy, {("T", 0): 5}, monkeypatch) == []
    assert flushes(lazy, {("T", 0): 5, ("T", 1): 0}, monkeypatch) == ["table"]


def test_behind_a_queue_that_cannot_be_read_everything_is_flushed(lazy: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*place: object) -> int:
        raise CorruptQueueError("consumequeue/T/0", 0, "one of the queue's files is missing")

    monkeypatch.setattr(Queues, "commit_log_offset_before", damaged)
    assert flushes(lazy, {("T", 0): 3}, monkeypatch) == ["log", "table"]


def test_after_a_failed_fsync_only_what_was_on_disk_before_can_be_committed(
    lazy: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(operation: str, path: str) -> None:
        if operation == "fsync" and "commitlog" in path:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(durable, "hook", broken)
    with pytest.raises(StoreFailedError):
        lazy.commit_offsets("g", {("T", 0): 5})
    monkeypatch.setattr(durable, "hook", None)
    with pytest.raises(StoreFailedError):
        lazy.commit_offsets("g", {("T", 0): 4})
    assert lazy.committed_offsets("g") == {}
    lazy.commit_offsets("g", {("T", 0): 3})
    assert lazy.committed_offsets("g") == {("T", 0): 3}
    with pytest.raises(StoreFailedError):
        lazy.close()


def test_offsets_are_removed_by_group_by_topic_or_by_both(table: OffsetTable, tmp_path: Path) -> None:
    for group in ("g", "h"):
        table.commit(group, {("t", 0): 1, ("u", 0): 1})
    with pytest.raises(UsageError):
        table.remove()
    assert table.remove(group="g", topic="t") == 1
    assert table.remove(topic="u") == 2
    assert table.remove(group="absent") == 0
    assert table.all() == {"h": {("t", 0): 1}}
    stored = loads((tmp_path / "config" / "consumerOffset.json").read_text())
    assert stored["groupTopicMap"] == {"h": ["t"]}


@pytest.mark.statement("G05")
def test_delay_levels_merge_in_the_same_way(tmp_path: Path) -> None:
    table = DelayOffsetTable(tmp_path, clock=lambda: 1234)
    assert table.all() == {}
    table.advance({3: 10, 18: 0})
    DelayOffsetTable(tmp_path).cut_back({1: 4, 3: 5})
    assert table.all() == {1: 4, 3: 5, 18: 0}
    table.advance({1: 3, 3: 5})
    table.cut_back({1: 5, 18: 0})
    assert table.all() == {1: 4, 3: 5, 18: 0}
    with pytest.raises(UsageError):
        table.advance({1: -1})
    assert (tmp_path / "config" / "delayOffset.json").read_text() == dumps(
        {
            "dataVersion": {"counter": 2, "stateVersion": 0, "timestamp": loads(
                (tmp_path / "config" / "delayOffset.json").read_text())["dataVersion"]["timestamp"]},
            "offsetTable": {1: 4, 3: 5, 18: 0},
        },
    )  # fmt: skip


def test_a_delay_table_of_another_shape_is_corrupt(tmp_path: Path) -> None:
    write(tmp_path, {"offsetTable": [1]}, "delayOffset.json")
    with pytest.raises(CorruptConfigError):
        DelayOffsetTable(tmp_path).all()


@pytest.mark.parametrize("member", ODD_MEMBERS)
def test_a_level_without_an_offset_is_kept_byte_for_byte_and_costs_no_other(tmp_path: Path, member: str) -> None:
    path = write(tmp_path, '{"offsetTable":{' + member + ",3:7}}", "delayOffset.json")
    table = DelayOffsetTable(tmp_path)
    assert table.all() == {3: 7}
    assert len(table.odd()) == 1
    table.advance({3: 8, 4: 1})
    assert "{3:8,4:1," + member + "}" in "".join(path.read_text().split())
    if not member.startswith(('"x', '"9', "-", "2")):
        with pytest.raises(CorruptConfigError, match="level 1"):
            table.all().get(1)
        with pytest.raises(CorruptConfigError, match="level 1"):
            table.advance({1: 1})


COMMITTER = """
import sys
from rmq_store.broker.metadata.offsets import OffsetTable
table = OffsetTable(sys.argv[1])
for offset in range(1, int(sys.argv[3]) + 1):
    table.commit(sys.argv[2], {("t", offset % 4): offset})
    print(offset, flush=True)
"""


def start(root: Path, group: str, count: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", COMMITTER, str(root), group, str(count)],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_two_processes_that_commit_different_groups_200_times_each_lose_nothing(tmp_path: Path) -> None:
    processes = [start(tmp_path, group, 200) for group in ("g", "h")]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    expected = {("t", queue): 200 - (200 - queue) % 4 for queue in range(4)}
    table = OffsetTable(tmp_path)
    assert table.all() == {"g": expected, "h": expected}
    assert loads((tmp_path / "config" / "consumerOffset.json").read_text())["dataVersion"]["counter"] == 400


def test_a_committer_killed_at_random_loses_no_acknowledged_commit_and_blocks_nobody(tmp_path: Path) -> None:
    table = OffsetTable(tmp_path)
    table.commit("other", {("t", 0): 7})
    for round_number in range(6):
        group = f"g{round_number}"
        process = start(tmp_path, group, 1_000_000)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.013 * round_number)
        process.send_signal(signal.SIGKILL)
        acknowledged = max([1, *(int(line) for line in process.stdout.read().split())])
        process.wait()
        process.stdout.close()
        newest = max(table.committed(group).values())
        assert acknowledged <= newest <= acknowledged + 1
        table.commit("other", {("t", 1): round_number})
        assert table.committed("other") == {("t", 0): 7, ("t", 1): round_number}
    assert not list((tmp_path / "config").glob("*.tmp"))
