"""Every reader of a store, of a served store and of a broker hands out bodies that cannot be inflated as they lie, with
the compressed bit of sysFlag, and all that lies beside them; and nobody calls them damaged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from helpers.undecodable import KINDS, fill
from rmq_store import CorruptRecordError, Store, backup
from rmq_store.cli import commands
from rmq_store.client import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
)
from rmq_store.client.consume_service.listener import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    MessageListenerArrow,
    MessageListenerConcurrently,
    MessageListenerOrderly,
)
from rmq_store.format.bytes import native
from rmq_store.format.tables.schema import MESSAGE_SCHEMA
from rmq_store.server.broker_server import BrokerServer
from rmq_store.verify import verify_store

TOPIC, GROUP = "Poison", "cg"
DLQ = f"%DLQ%{GROUP}"
Rows = list[tuple[bytes, int]]


@pytest.fixture
def root(scratch: Path) -> Path:
    return scratch / "store"


@pytest.fixture
def rows(root: Path) -> Rows:
    """(body, sysFlag) of what the topic has; the group has each of them as a dead letter, too."""
    with Store.open(root, create=True) as store:
        store.create_topic(TOPIC, 1)
        rows = fill(store, TOPIC, *KINDS, keys="k", tags="T")
        for batch in list(store.read(TOPIC, 0, 0, len(rows), columns=["commitLogOffset"])):
            for offset in batch.column(0).to_pylist():
                store.retry.send_back(GROUP, offset, delay_level=-1)
        return rows


# -- the store itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [TOPIC, DLQ])
@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("options", [{}, {"two_threads": True}, {"tags": "T"}, {"raw_body": True}])
def test_reads_of_all_tiers_are_equal(
    root: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch, topic: str, loaded: bool, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(native, "LOADED", loaded and native.LOADED)
    with Store.open(root, read_only=True) as store:
        found = [row for batch in store.read(topic, 0, 0, len(rows), **options) for row in batch.to_pylist()]
        assert [(row["body"], row["sysFlag"]) for row in found] == rows
        for column, at in (("body", 0), ("sysFlag", 1)):
            batches = store.read(topic, 0, 0, len(rows), columns=[column], **options)
            assert [value for one in batches for value in one.column(0).to_pylist()] == [row[at] for row in rows]


def test_look_ups_find_them(root: Path, rows: Rows) -> None:
    with Store.open(root, read_only=True) as store:
        found = store.query.by_key(TOPIC, "k", max_num=64)
        assert sorted((one.body, one.sys_flag) for one in found) == sorted(rows)
        assert all(store.query.by_unique_key(TOPIC, one.msg_id) for one in found)


def test_nothing_is_damaged(root: Path, rows: Rows, scratch: Path) -> None:
    assert verify_store(root).problem_count == 0
    backup(root, scratch / "backup")
    with Store.open(scratch / "backup", read_only=True) as store:
        found = [row for batch in store.read(TOPIC, 0, 0, len(rows)) for row in batch.to_pylist()]
    assert [(row["body"], row["sysFlag"]) for row in found] == rows


def test_a_wrong_crc_is_damage_as_before(root: Path, rows: Rows) -> None:
    (path,) = (root / "commitlog").iterdir()
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"not zlib")] ^= 1
    path.write_bytes(raw)
    assert verify_store(root).problem_count > 0
    with Store.open(root, read_only=True) as store:
        with pytest.raises(CorruptRecordError, match=r"message 1 of Poison-0 is damaged: .*the CRC"):
            list(store.read(TOPIC, 0, 0, len(rows)))
        others = [row for batch in store.read(TOPIC, 0, 2, len(rows)) for row in batch.to_pylist()]
    assert [(row["body"], row["sysFlag"]) for row in others] == rows[2:]


# -- consumers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["store", "served"])
def place(request: pytest.FixtureRequest, root: Path, rows: Rows) -> Iterator[Any]:
    """What a consumer is given: a store that is open, or the address of a server."""
    if request.param == "served":
        with BrokerServer(root) as server:
            yield f"rmq://{server.address}"
    else:
        with Store.open(root) as store:
            yield store


def test_lite_pull_hands_them_out(place: Any, rows: Rows) -> None:
    config = LitePullConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    got: Rows = []
    with LitePullConsumer("cg_lite", place, config) as consumer:
        consumer.subscribe(TOPIC)
        consumer.start()
        until_s = time.monotonic() + 60
        while len(got) < len(rows) and time.monotonic() < until_s:
            polled = consumer.poll(500)
            assert all(one.is_compressed == bool(one.sys_flag & 1) for one in polled)
            got += [(one.body, one.sys_flag) for one in polled]
    assert got == rows


def test_simple_consumers_get_them(place: Any, rows: Rows) -> None:
    got: Rows = []
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    wait = timedelta(milliseconds=200)
    with SimpleConsumer("cg_simple", place, {TOPIC: "*"}, await_duration=wait, consume_from_where=first) as consumer:
        until_s = time.monotonic() + 60
        while len(got) < len(rows) and time.monotonic() < until_s:
            for one in consumer.receive(16, timedelta(minutes=1)):
                got.append((one.message.body, one.message.sys_flag))
                consumer.ack(one)
    assert sorted(got) == sorted(rows)


_LISTENERS: dict[str, Callable[[list[bytes]], Any]] = {
    "concurrent": lambda got: MessageListenerConcurrently(
        lambda messages, context: (
            got.extend(one.body for one in messages), ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        )[1]
    ),
    "arrow": lambda got: MessageListenerArrow(
        lambda batch, context: (
            got.extend(batch.column("body").to_pylist()), ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        )[1]
    ),
    "ordered": lambda got: MessageListenerOrderly(
        lambda messages, context: (got.extend(one.body for one in messages), ConsumeOrderlyStatus.SUCCESS)[1]
    ),
}  # fmt: skip


@pytest.mark.parametrize("listener", _LISTENERS)
def test_push_consumers_make_dead_letters_of_them(root: Path, rows: Rows, listener: str) -> None:
    """Over the network; `test_push_undecodable` has what is the same in a store."""
    got: list[bytes] = []
    good = sorted(body for body, flags in rows if not flags)
    bad = sorted(row for row in rows if row[1])
    with BrokerServer(root) as server:
        config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        with PushConsumer("cg_push", f"rmq://{server.address}", config) as consumer:
            consumer.subscribe(TOPIC)
            consumer.register_message_listener(_LISTENERS[listener](got))
            consumer.start()
            until_s = time.monotonic() + 60
            while time.monotonic() < until_s and (len(got) < len(good) or len(_letters(server, "cg_push")) < len(bad)):
                time.sleep(0.05)
        assert sorted(got) == good and sorted(_letters(server, "cg_push")) == bad


def _letters(server: BrokerServer, group: str) -> Rows:
    topic = f"%DLQ%{group}"
    if server.store.find_topic(topic) is None:
        return []
    first, end = server.store.queue_range(topic, 0)
    batches = server.store.read(topic, 0, first, end, columns=["body", "sysFlag"])
    return [(row["body"], row["sysFlag"]) for batch in batches for row in batch.to_pylist()]


# -- commands ----------------------------------------------------------------------------------------------------------


def run(root: Path, *arguments: str) -> str:
    done = CliRunner().invoke(commands, list(arguments), env={"RMQ_STORE": str(root)}, prog_name="rmq")
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    assert "damage" not in done.stderr and "repair" not in done.stderr
    return done.stdout


def shown(text: str) -> Rows:
    """(body, sysFlag) of lines of JSON."""
    lines = [json.loads(line) for line in text.splitlines()]
    return [
        (bytes.fromhex(line["bodyHex"]) if "bodyHex" in line else line["body"].encode(), line["sysFlag"])
        for line in lines
    ]


@pytest.mark.parametrize("topic", [TOPIC, DLQ])
def test_commands_show_them(root: Path, rows: Rows, topic: str) -> None:
    text = run(root, "read", topic, "--json", "--body", "hex", "--max", "100")
    found = [json.loads(line) for line in text.splitlines()]
    assert [(bytes.fromhex(line["body"]), line["sysFlag"]) for line in found] == rows
    assert run(root, "read", topic, "--max", "100").count("\n") >= len(rows)
    assert "zlib" in run(root, "tail", topic, "-n", "100")
    run(root, "verify")


def test_the_history_of_each_is_told(root: Path, rows: Rows) -> None:
    with Store.open(root, read_only=True) as store:
        ids = [one for batch in store.read(TOPIC, 0, 0, 6, columns=["msgId"]) for one in batch.column(0).to_pylist()]
    for unique_key in ids:
        assert DLQ in run(root, "trace", "--uniq-key", unique_key)
        run(root, "queryMsgByUniqueKey", "-t", TOPIC, "-i", unique_key)
    assert "not zlib" in run(root, "printMsg", "-t", TOPIC)


def test_dead_letters_are_exported_archived_restored_and_redriven(root: Path, rows: Rows, scratch: Path) -> None:
    run(root, "dlq", "export", GROUP, "--to", str(scratch / "letters.jsonl"))
    assert shown((scratch / "letters.jsonl").read_text()) == rows
    run(root, "dlq", "list", GROUP)
    run(root, "dlq", "archive", GROUP, "--to", str(scratch / "archive"))
    run(root, "dlq", "redrive", GROUP, "--yes")
    with Store.open(root) as store:
        first, end = store.queue_range(f"%RETRY%{GROUP}", 0)
        found = [row for batch in store.read(f"%RETRY%{GROUP}", 0, first, end) for row in batch.to_pylist()]
    assert [(row["body"], row["sysFlag"]) for row in found] == rows


def test_commands_show_those_of_a_broker(root: Path, rows: Rows) -> None:
    with BrokerServer(root) as server:
        server.store.create_topic("Again", 1)
        text = run(root, "-n", server.address, "read", TOPIC, "--json", "--body", "hex", "--max", "100")
        found = [json.loads(line) for line in text.splitlines()]
        assert [(bytes.fromhex(line["body"]), line["sysFlag"]) for line in found] == rows
        run(root, "-n", server.address, "dlq", "list", GROUP)
        run(root, "-n", server.address, "dlq", "redrive", GROUP, "--to-topic", "Again", "--yes")
    with Store.open(root) as store:
        ranges = store.queue_ranges("Again")
        found = [
            row
            for queue_id, span in ranges.items()
            for batch in store.read("Again", queue_id, *span)
            for row in batch.to_pylist()
        ]
    assert sorted((row["body"], row["sysFlag"]) for row in found) == sorted(rows)
    assert set(MESSAGE_SCHEMA.names) <= set(found[0])
