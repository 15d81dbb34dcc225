"""`rmq trace` over a network says of a served store what it says of its directory, and asks each broker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmq_store import Message
from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.cli import commands
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
