"""RocketMQ's own clients and our broker: what they send lies in the store, what the store has they get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.witness import Witness
from rmq_store import Message, Store, StoreConfig
from rmq_store.server.broker_server import BrokerServer

SMALL = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=1000, max_index_num=10_000)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    require_released(request.param)
    return str(request.param)


@pytest.fixture
def server(scratch: Path) -> Iterator[BrokerServer]:
    with BrokerServer(scratch / "store", config=SMALL, create=True) as server:
        yield server


def test_a_java_client_sends_and_consumes(version: str, server: BrokerServer) -> None:
    one = {"body": "body", "tags": "T", "keys": "k1", "properties": {"a": "b"}}
    place = SimpleNamespace(version=version, tls=None, acl=None, name_server=server.address)
    with Witness(place) as java:  # type: ignore[arg-type]
        sent = java.ask("send", topic="Orders", messages=[one] * 4)
        batch = java.ask("batch", topic="Orders", messages=[one] * 4, brokerName="rmq-embedded", queueId=0)
        assert {each["status"] for each in sent} == {batch["status"]} == {"SEND_OK"}
        with Store.open(server.store.path, read_only=True) as store:
            rows = [
                row
                for queue_id, ends in store.queue_ranges("Orders").items()
                for found in store.read("Orders", queue_id, *ends)
                for row in found.to_pylist()
            ]
        assert {(row["body"], row["tags"], row["keys"]) for row in rows} == {(b"body", "T", "k1")}
        ids = {each["msgId"] for each in sent} | set(batch["msgId"].split(","))
        assert {row["msgId"] for row in rows} == ids and len(rows) == len(ids) == 8
        assert {row["storeHost"] for row in rows} == {server.address}

        java.ask("push", group="cg_push", topic="Orders")
        got = java.ask("received", count=8, timeoutMs=60_000)
        assert {each["msgId"] for each in got} == ids
        assert all((each["body"], each["tags"], each["properties"]["a"]) == ("body", "T", "b") for each in got)
        # From another program of the directory, into a pull that the server holds.
        with Store.open(server.store.path) as other:
            fresh = other.send(Message("Orders", b"fresh")).msg_id
        got = java.ask("received", count=9, timeoutMs=60_000)
        assert {each["msgId"] for each in got} == ids | {fresh}
        java.ask("leave")
        lite = java.ask("lite", group="cg_lite", topic="Orders", count=9, timeoutMs=60_000)
        assert {each["msgId"] for each in lite} == ids | {fresh}
    assert sum(offset for (topic, _), offset in server.store.committed_offsets("cg_push").items()) == 9
