"""`rmq trace` over a network says of a served store what it says of its directory, and asks each broker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from helpers.cluster.simulated import SimulatedCluster
from rmq_store import Message
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.cli import commands
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.text.host import Host
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster import queries
from rmq_store.server.broker_server import BrokerServer

Run = Callable[..., Result]
DEAD = "C0000202371F5FFD2B2767134429005D"
WAYS = [
    ["--uniq-key", DEAD, "-t", "OrderTopic"],
    ["--uniq-key", "C0000202371F5FFD2B276713415C001F", "-t", "TxTopic"],
    ["-t", "OrderTopic", "-k", "DUP-AaBB"],
    ["-t", "OrderTopic", "-k", "ORD-000007"],
]

TRACE_RECORD = "\x01".join([
    "Pub", "1700000000000", "DefaultRegion", "pg", "Orders", "C0" * 16, "TagA", "K-1", "10.0.0.1", "4", "3", "0",
    "C0" * 16, "true",
]) + "\x02"  # fmt: skip


@pytest.fixture
def server(golden: Path, scratch: Path) -> Iterator[BrokerServer]:
    shutil.copytree(golden / "store", scratch / "store")
    with BrokerServer(scratch / "store", admin=True) as server:
        yield server


@pytest.fixture
def ask(server: BrokerServer) -> Run:
    def invoke(*arguments: str) -> Result:
        line = ["-n", server.address, "trace", *arguments]
        return CliRunner().invoke(commands, line, env={"RMQ_STORE": None}, prog_name="rmq", catch_exceptions=False)

    return invoke


@pytest.mark.parametrize("arguments", WAYS)
def test_it_says_what_the_directory_says(run: Run, ask: Run, scratch: Path, arguments: list[str]) -> None:
    result = ask(*arguments, "--events")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == run("trace", *arguments, "--events", store=scratch / "store").stdout


def test_a_message_that_waits_has_its_due_time(ask: Run, server: BrokerServer) -> None:
    server.store.create_topic("Waiting", 1)
    sent = server.store.send(Message("Waiting", b"x", delay_level=18, queue_id=0))
    for way in (["--uniq-key", sent.msg_id, "-t", "Waiting"], ["--msg-id", sent.offset_msg_id]):
        (life,) = json.loads(ask(*way, "--json").stdout)
        (step,) = life["steps"]
        assert (step["event"], life["groups"][0]["state"]) == ("DELAYED", "WAITING")
        assert step["due"] == life["groups"][0]["due"]
        assert step["due"][11:13] != step["time"][11:13]  # two hours


def test_every_copy_leads_to_the_same_life(ask: Run, server: BrokerServer) -> None:
    store = server.store
    store.create_topic("Bills", 1)
    store.create_group(SubscriptionGroup("cg"))
    sent = store.send(Message("Bills", b"x", queue_id=0))
    store.commit_offsets("cg", {("Bills", 0): 1})
    store.retry.send_back("cg", sent.commit_log_offset, delay_level=18)
    store.retry.send_back("cg", sent.commit_log_offset, delay_level=-1)
    (life,) = json.loads(ask("--uniq-key", sent.msg_id, "-t", "Bills", "--json").stdout)
    assert [step["event"] for step in life["steps"]] == ["STORED", "FAILED", "DEAD"]
    assert [(one["group"], one["state"]) for one in life["groups"]] == [("cg", "DEAD")]
    for step in life["steps"]:
        assert json.loads(ask("--msg-id", step["offsetMsgId"], "--json").stdout) == [life]


def test_a_key_finds_the_dead_letter_of_an_original_that_is_gone(
    ask: Run, server: BrokerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = server.store
    store.create_topic("Bills", 1)
    store.create_group(SubscriptionGroup("cg"))
    sent = store.send(Message("Bills", b"x", keys="B-1", queue_id=0))
    store.commit_offsets("cg", {("Bills", 0): 1})
    store.retry.send_back("cg", sent.commit_log_offset, delay_level=-1)
    ask_brokers = queries.copies_by_key

    def without_the_original(cluster: Any, topics: Any, brokers: Any, key: str, **options: Any) -> Any:
        return ask_brokers(cluster, [one for one in topics if one != "Bills"], brokers, key, **options)

    monkeypatch.setattr(queries, "copies_by_key", without_the_original)
    (life,) = json.loads(ask("-t", "Bills", "-k", "B-1", "--json").stdout)
    assert (life["msgId"], [step["event"] for step in life["steps"]]) == (sent.msg_id, ["GONE", "DEAD"])
    assert ask("-t", "OrderTopic", "-k", "B-1").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--uniq-key", DEAD], 2, "--uniq-key needs -t TOPIC over a cluster"),
        (["-t", "OrderTopci", "-k", "x"], 2, "did you mean 'OrderTopic'?"),
        (["--msg-id", "7F000001000051AF0000000000009E68"], 2, "none of this cluster"),
        (["--uniq-key", "C0" * 16, "-t", "OrderTopic"], 1, "rmq: no record of this message"),
        (["-t", "OrderTopic", "-k", "x", "--archive", "/"], 2, "--archive belongs to a store"),
    ],
)
def test_mistakes_are_one_line(ask: Run, arguments: list[str], code: int, words: str) -> None:
    result = ask(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [
    ["queryMsgByKey", "-t", "Orders", "-k", "K-1"],
    ["queryMsgByUniqueKey", "-t", "Orders", "-i", "C0" * 16],
    ["queryMsgById", "-t", "Orders", "-i", "C0" * 16],
    ["queryMsgTraceById", "-t", "Orders", "-i", "C0" * 16],
    ["trace", "-t", "Orders", "--uniq-key", "C0" * 16],
    ["trace", "-t", "Orders", "-k", "K-1"],
])  # fmt: skip
@pytest.mark.parametrize("has_message", [True, False])
def test_a_broker_that_is_away_hides_nothing_that_others_have(arguments: list[str], has_message: bool) -> None:
    host = Host.parse("10.0.0.1:10911")
    properties = f"KEYS\x01K-1\x02UNIQ_KEY\x01{'C0' * 16}\x02".encode()
    frame = encode_frame(
        topic="Orders", body=TRACE_RECORD.encode(), properties=properties, queue_id=0, queue_offset=0,
        commit_log_offset=0, born_timestamp_ms=1_700_000_000_000, born_host=host,
        store_timestamp_ms=1_700_000_000_000, store_host=host,
    )  # fmt: skip
    fields = {"indexLastUpdateTimestamp": "1", "indexLastUpdatePhyoffset": "2"}
    with SimulatedCluster(brokers=2) as cluster:
        cluster.create_topic("Orders", queue_count=1)
        for broker in cluster.brokers.values():
            broker._answerers[RequestCode.QUERY_TOPIC_CONSUME_BY_WHO] = lambda _: (0, {}, b'{"groupList":[]}')
        if has_message:
            cluster.brokers["broker-000"]._answerers[RequestCode.QUERY_MESSAGE] = lambda asked: (
                (0, fields, frame) if asked.ext_fields["topic"] == "Orders" else (22, {}, b"")
            )
        cluster.brokers["broker-001"].stop()
        line = ["-n", cluster.name_server, *arguments]
        result = CliRunner().invoke(commands, line, env={"RMQ_STORE": None}, prog_name="rmq", catch_exceptions=False)
    assert result.exit_code == 1
    assert "broker-001" in result.stderr
    assert ("rmq: without broker broker-001" in result.stderr, bool(result.stdout)) == (has_message, has_message)
    assert "208" not in result.stderr
