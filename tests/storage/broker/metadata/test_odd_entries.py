"""One entry of a table that cannot be used costs no other: in every table, for every odd name, type and number.

What the verifier calls odd is decided by rules of its own; both must name the same entries.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_store import CorruptConfigError, Message, Store, StoreConfig, SubscriptionGroup
from rmq_store.broker.metadata.groups import FilterTable, GroupTable
from rmq_store.broker.metadata.offsets import DelayOffsetTable, OffsetTable
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.cli import commands
from rmq_store.format.tables.config_json import dumps, loads
from rmq_store.verify.report import Ledger
from rmq_store.verify.tables import check_tables

NOW = 1_700_000_000_000
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=2000, max_hash_slot_num=50, max_index_num=200
)
NAMES = ['""', '"a b"', '"a/b"', '"."', '"' + "x" * 300 + '"', '"\\u0000"', '"\\ud800"']
VALUES = ["null", "5", '"x"', "[]", "[1,{}]", "true", "1e999", "9223372036854775808"]


def _members(names: list[str]) -> list[str]:
    numbers = ["-1", "99999999999999999999999", '"4"', "true", "[]", "{}", "1.5", "2147483649"]
    return ["{" + f'"{name}":{value}' + "}" for name in names for value in numbers]


TOPICS = _members(["readQueueNums", "perm", "topicSysFlag", "order", "attributes", "topicFilterType"])
GROUPS = _members(["retryQueueNums", "retryMaxTimes", "consumeEnable", "attributes", "groupRetryPolicy"])
OFFSETS = [f'{{{key}:{value}}}' for key in ("0", '"x"', "-1", "99999999999") for value in ("1", '"1"', "true", "1e999")]
FILTERS = [f'{{"groupFilterData":{{"g":{value}}}}}' for value in ("5", "[]", '{"expression":5}', '{"bornTime":"x"}')]

# (file, part, a sound entry, the odd ones)
TABLES = [
    ("topics.json", "topicConfigTable", '"sound":{"perm":4}',
     [f"{n}:{{}}" for n in NAMES] + [f'"odd":{v}' for v in VALUES + TOPICS]),
    ("subscriptionGroup.json", "subscriptionGroupTable", '"sound":{"retryMaxTimes":4}',
     [f"{n}:{{}}" for n in NAMES] + [f'"odd":{v}' for v in VALUES + GROUPS]),
    ("consumerOffset.json", "offsetTable", '"T@sound":{0:4}',
     [f"{n}:{{0:1}}" for n in (*NAMES, '"T@"', '"@g"', '"T@a@b"', '"no"')]
     + [f'"T@odd":{v}' for v in VALUES + OFFSETS]),
    ("lmqConsumerOffset.json", "offsetTable", '"T@sound":{0:4}', [f'"T@odd":{v}' for v in VALUES + OFFSETS]),
    ("delayOffset.json", "offsetTable", "3:4", [member[1:-1] for member in OFFSETS]),
    ("consumerFilter.json", "filterDataByTopic", '"sound":{"groupFilterData":{"g":{"expression":"a"}}}',
     [f'"odd":{v}' for v in VALUES[1:] + FILTERS]),
]  # fmt: skip
CASES = [(name, part, sound, odd) for name, part, sound, entries in TABLES for odd in entries]


def _texts(root: Path, name: str) -> list[str]:
    tables = {
        "topics.json": TopicTable, "subscriptionGroup.json": GroupTable, "consumerOffset.json": OffsetTable,
        "lmqConsumerOffset.json": OffsetTable, "delayOffset.json": DelayOffsetTable, "consumerFilter.json": FilterTable,
    }  # fmt: skip
    table = tables[name](root)
    assert "sound" in str(table.all()) or dict(table.all())[3] == 4  # type: ignore[attr-defined]
    return [entry.reason for entry in table.odd()]  # type: ignore[attr-defined]


def test_whatever_an_entry_is_the_others_are_read_and_the_verifier_agrees(tmp_path: Path) -> None:
    """Not a parametrized one: several hundred cases, of some ms each."""
    Store.open(tmp_path / "store", create=True, config=CONFIG).close()
    for name, part, sound, odd in CASES:
        path = tmp_path / "store" / "config" / name
        kept = path.read_bytes() if path.exists() else None
        text = "{" + f'"{part}":' + "{" + f"{sound},{odd}" + "}}"
        path.write_text(text)
        engine, ledger = _texts(tmp_path / "store", name), Ledger(tmp_path / "store")
        check_tables(ledger)
        notes = [note for note in ledger.report.notes if note.startswith(f"config/{name}: ")]
        assert len(engine) == len(notes), (text, engine, notes)
        assert ledger.report.status == "clean"
        assert dumps(loads(path.read_bytes()), "compact") == text
        path.unlink() if kept is None else path.write_bytes(kept)


def test_a_table_of_a_broker_with_an_empty_group_is_used_and_kept(tmp_path: Path) -> None:
    """Brokers up to 5.3.3 write one as soon as a C++ client has produced."""
    root = tmp_path / "store"
    Store.open(root, create=True, config=CONFIG).close()
    path = root / "config" / "subscriptionGroup.json"
    empty = {"brokerId": 0, "consumeEnable": True, "groupName": "", "retryMaxTimes": 16, "retryQueueNums": 1}
    groups = {"SELF_TEST_C_GROUP": {"groupName": "SELF_TEST_C_GROUP"}, "": empty, "g": {"retryMaxTimes": 3}}
    content = {"dataVersion": {"counter": 2**63 - 1, "timestamp": 5}, "subscriptionGroupTable": groups}
    path.write_text(dumps(content, "4.x"))
    with Store.open(root) as store:
        assert store.groups().keys() == {"SELF_TEST_C_GROUP", "g"}
        store.create_group(SubscriptionGroup("new"))
        store.commit_offsets("g", {("T", 0): 0})
    stored = loads(path.read_bytes())
    assert list(stored["subscriptionGroupTable"]) == ["SELF_TEST_C_GROUP", "", "g", "new"]
    assert stored["subscriptionGroupTable"][""] == empty
    assert stored["dataVersion"]["counter"] == -(2**63)  # as a Java long
    run = CliRunner()
    for command in (["groups", "--all"], ["lag", "g"], ["exportMetadata", "--json"], ["consumerProgress"]):
        result = run.invoke(commands, [*command, "--store", str(root)])
        assert result.exit_code == 0, result.output
    exported = json.loads(run.invoke(commands, ["exportMetadata", "--json", "--store", str(root)]).output)
    assert set(exported["subscriptionGroupTable"]) == {"g", "new"}


def test_the_export_has_no_number_that_json_readers_refuse(tmp_path: Path) -> None:
    root = tmp_path / "store"
    Store.open(root, create=True, config=CONFIG).close()
    path = root / "config" / "topics.json"
    path.write_text('{"topicConfigTable":{"T":{"perm":6,"new":9223372036854775808,"perm":4},"":{}}}')
    result = CliRunner().invoke(commands, ["exportMetadata", "--json", "-t", "--store", str(root)])
    assert json.loads(result.output)["topicConfigTable"] == {"T": {"perm": 4, "new": "9223372036854775808"}}


def test_messages_to_a_topic_that_cannot_be_used_are_refused_and_to_others_not(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Store.open(root, create=True, config=CONFIG) as store:
        store.send(Message("Orders", b"x"))
    path = root / "config" / "topics.json"
    path.write_text(path.read_text().replace('"Orders":{', '"Odd":[],"Orders":{'))
    with Store.open(root) as store:
        store.send(Message("Orders", b"x"))
        sends: list[Callable[[], object]] = [
            lambda: store.send(Message("Odd", b"y")), lambda: store.send_all([Message("Odd", b"y")]),
            lambda: store.create_topic("Odd", exist_ok=True), lambda: store.queue_ranges("Odd"),
        ]  # fmt: skip
        for send in sends:
            with pytest.raises(CorruptConfigError, match=r"topic 'Odd': not an object.*kept as it is"):
                send()
    assert loads(path.read_bytes())["topicConfigTable"]["Odd"] == []


def test_a_level_whose_progress_cannot_be_used_waits_and_the_others_are_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = NOW
    root = tmp_path / "store"
    with Store.open(root, create=True, config=CONFIG, clock=lambda: now) as store:
        for level in (1, 2, 3):
            store.send(Message("Alpha", b"level %d" % level, delay_level=level))
    path = root / "config" / "delayOffset.json"
    path.write_text('{"offsetTable":{2:"x",1:0}}')
    with caplog.at_level(logging.ERROR), Store.open(root, clock=lambda: now) as store:
        now += 60_000
        assert store.schedule.deliver_due().delivered == 2
        assert [(entry.level, entry.messages) for entry in store.delay_backlogs()] == [(2, 1)]
        store.schedule.save_progress()
    assert "level 2: 'x' is no 64-bit integer" in caplog.text
    assert loads(path.read_bytes())["offsetTable"] == {1: 1, 3: 1, 2: "x"}
    path.write_text('{"offsetTable":{2:0,1:1,3:1}}')
    with Store.open(root, clock=lambda: now) as store:
        assert store.schedule.deliver_due().delivered == 1


def test_a_level_whose_progress_is_mended_goes_on_while_the_store_is_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was left alone until the store was opened again."""
    now = NOW
    root = tmp_path / "store"
    with Store.open(root, create=True, config=CONFIG, clock=lambda: now) as store:
        for level in (1, 2):
            store.send(Message("Alpha", b"level %d" % level, delay_level=level))
    path = root / "config" / "delayOffset.json"
    path.write_text('{"offsetTable":{2:"x"}}')
    with caplog.at_level(logging.ERROR), Store.open(root, clock=lambda: now) as store:
        now += 60_000
        assert store.schedule.deliver_due().delivered == 1
        for _ in range(3):
            store.schedule.save_progress()
            now += 60_000
            assert store.schedule.deliver_due().delivered == 0
        assert loads(path.read_bytes())["offsetTable"] == {1: 1, 2: "x"}
        assert caplog.text.count("level 2: 'x' is no 64-bit integer") == 1
        # More than the queue has, as if a power cut had taken messages that a broker had delivered: it is cut back.
        path.write_text('{"offsetTable":{2:7,1:1}}')
        now += 60_000
        assert store.schedule.deliver_due().delivered == 0
        assert loads(path.read_bytes())["offsetTable"] == {1: 1, 2: 1}
        store.send(Message("Alpha", b"level 2 again", delay_level=2))
        now += 60_000
        assert store.schedule.deliver_due().delivered == 1
