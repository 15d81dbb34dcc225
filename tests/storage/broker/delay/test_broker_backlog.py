"""Timers of a broker's wheel and half messages: what waits, until when, for whom."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.delay.broker_backlog import BROKER_BACKLOG_SCHEMA, HALF, TIMER
from rmq_store.cli import commands
from rmq_store.format.text.names import HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC

NOW = 1_700_000_000_000
CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=2000, max_hash_slot_num=500,
    max_index_num=2000, enabled_append_prop_crc=False, default_topic_queue_nums=1,
)  # fmt: skip
# Names of the same lengths, which a sender may use.
STAND_INS = {TIMER_TOPIC: "w" * 19, HALF_TOPIC: "h" * 24, OP_HALF_TOPIC: "o" * 27}


def timer(key: str, due_ms: object, **more: str) -> Message:
    properties = {"TIMER_OUX_MS": str(due_ms), "REAL_TOPXC": "Late", "REAL_QXD": "2", **more}
    return Message(STAND_INS[TIMER_TOPIC], b"x", keys=key, properties={"UNIQ_KEY": f"ID-{key}", **properties})


def half(key: str, **more: str) -> Message:
    properties = {"UNIQ_KEY": f"ID-{key}", "REAL_TOPXC": "Tx", "REAL_QXD": "0", "PGROXP": "pg", **more}
    return Message(STAND_INS[HALF_TOPIC], b"x", keys=key, properties=properties)


def decided(body: bytes, tags: str = "d") -> Message:
    return Message(STAND_INS[OP_HALF_TOPIC], body, tags=tags)


def store_of(root: Path, messages: list[Message], done_ms: int | None = None) -> Path:
    """As a broker has it: the names that no sender may use are put into the log, and the queues built from it."""
    with Store.open(root, create=True, config=CONFIG, clock=lambda: NOW) as store:
        for message in messages:
            store.send(message, as_given=True)
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    for real, stand_in in STAND_INS.items():
        data = data.replace(stand_in.encode(), real.encode())
    for real, stand_in in (("TIMER_OUT_MS", "TIMER_OUX_MS"), ("REAL_TOPIC", "REAL_TOPXC"), ("REAL_QID", "REAL_QXD"),
                           ("PGROUP", "PGROXP"), ("TIMER_DEL_UNIQKEY", "TIMER_DEX_UNIQKEY"),
                           ("TIMER_ROLL_TIMES", "TIMER_ROXL_TIMES"),
                           ("TRANSACTION_CHECK_TIMES", "TRANSACTION_CHEXK_TIMES")):  # fmt: skip
        data = data.replace(stand_in.encode(), real.encode())
    path.write_bytes(data)
    Store.open(root, rebuild_views=True, clock=lambda: NOW).close()
    if done_ms is not None:
        (root / "config" / "timercheck").write_bytes(struct.pack(">q", done_ms) + bytes(4088))
    return root


def waits(root: Path) -> list[dict[str, object]]:
    with Store.open(root, read_only=True) as store:
        batches = list(store.broker_backlog())
        assert all(batch.schema == BROKER_BACKLOG_SCHEMA for batch in batches)
        return [row for batch in batches for row in batch.to_pylist()]


def test_a_store_without_such_topics_has_none(tmp_path: Path) -> None:
    assert waits(store_of(tmp_path / "store", [Message("T", b"x")])) == []


def test_timers_wait_that_are_due_after_the_brokers_last_turn(tmp_path: Path) -> None:
    messages = [
        timer("before", NOW - 1), timer("at", NOW), timer("later", NOW + 60_000), timer("no number", "soon"),
        timer("far", "9" * 18),
    ]  # fmt: skip
    root = store_of(tmp_path / "store", messages, NOW)
    rows = waits(root)
    assert [(row["keys"], row["kind"], row["topic"], row["queueId"]) for row in rows] == [
        (key, TIMER, "Late", 2) for key in ("at", "later", "far")
    ]
    assert [row["dueTimestamp"].timestamp() * 1000 for row in rows[:2]] == [NOW, NOW + 60_000]  # type: ignore[attr-defined]
    assert rows[2]["dueTimestamp"].year == 9999  # type: ignore[attr-defined]
    assert (rows[0]["msgId"], rows[0]["producerGroup"], rows[0]["checkTimes"]) == ("ID-at", None, None)
    (root / "config" / "timercheck").unlink()
    assert [row["keys"] for row in waits(root)] == ["before", "at", "later", "far"]


@pytest.mark.parametrize("name", ["ID-a", "Late+ID-a"])
def test_a_cancelled_timer_does_not_wait_and_neither_does_what_cancels_it(tmp_path: Path, name: str) -> None:
    messages = [
        timer("a", NOW), timer("a", NOW + 5), timer("b", NOW), timer("cancel", NOW, TIMER_DEX_UNIQKEY=name),
    ]  # fmt: skip
    rows = waits(store_of(tmp_path / "store", messages, 0))
    assert [(row["keys"], row["dueTimestamp"].microsecond) for row in rows] == [("a", 5000), ("b", 0)]  # type: ignore[attr-defined]


def test_of_a_timer_that_was_put_in_again_the_last_record_waits(tmp_path: Path) -> None:
    messages = [timer("a", NOW), timer("b", NOW)]
    messages += [timer("a", NOW, TIMER_ROXL_TIMES=str(turn)) for turn in (1, 2)]
    root = store_of(tmp_path / "store", messages, 0)
    rows = waits(root)
    assert [row["keys"] for row in rows] == ["b", "a"]
    with Store.open(root, read_only=True) as store:
        assert rows[1]["commitLogOffset"] == store.query.by_queue_offset(TIMER_TOPIC, 0, 3).commit_log_offset


def test_half_messages_wait_that_nobody_has_decided(tmp_path: Path) -> None:
    messages = [half(key) for key in "abcdef"]
    messages[4] = half("e", TRANSACTION_CHEXK_TIMES="3")
    messages += [decided(b"2"), decided(b"3,5,"), decided(b"4", tags="x"), decided(b"none")]
    root = store_of(tmp_path / "store", messages)
    assert [row["keys"] for row in waits(root)] == ["a", "b", "e"]
    with Store.open(root, clock=lambda: NOW) as store:
        store.commit_offsets("CID_RMQ_SYS_TRANS", {(HALF_TOPIC, 0): 1})
    rows = waits(root)
    assert [(row["keys"], row["kind"], row["topic"], row["producerGroup"], row["checkTimes"]) for row in rows] == [
        ("b", HALF, "Tx", "pg", 0), ("e", HALF, "Tx", "pg", 3),
    ]  # fmt: skip
    assert rows[0]["dueTimestamp"] is None


def test_the_command_lists_both_with_due_time_or_age(tmp_path: Path) -> None:
    root = store_of(tmp_path / "store", [timer("a", NOW + 60_000), half("b")], NOW)
    run = CliRunner()
    lines = run.invoke(commands, ["delayed", "--store", str(root)]).output.splitlines()
    assert lines[0].split() == ["KIND", "TOPIC", "QUEUE", "DUE", "AGE", "MSG", "ID", "KEYS", "GROUP"]
    assert lines[1].startswith("timer")
    assert "2023-11-14T22:14:20.000Z" in lines[1]
    assert lines[2].startswith("half message")
    assert "pg" in lines[2]
    (row,) = json.loads(run.invoke(commands, ["delayed", "--json", "--max", "1", "--store", str(root)]).output)
    assert (row["kind"], row["dueTimestamp"], row["storeTimestamp"], row["msgId"]) == (TIMER, NOW + 60_000, NOW, "ID-a")
    assert row["ageMs"] > 0


def test_what_strangers_wrote_reaches_no_terminal_raw(tmp_path: Path) -> None:
    text = "\x1b[2J\u202e\u009b"
    root = store_of(tmp_path / "store", [half(text, PGROXP=text), timer(text, NOW)], 0)
    for as_json in ([], ["--json"]):
        result = CliRunner().invoke(commands, ["delayed", "--store", str(root), *as_json])
        assert result.exit_code == 0, result.output
        assert all(line.isprintable() for line in result.stdout.split("\n"))
    assert {row["keys"] for row in json.loads(result.stdout)} == {text}
