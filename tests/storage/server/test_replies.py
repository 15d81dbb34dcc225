"""Requests between clients: a reply goes to the client that waits for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.patient import PATIENT
from rmq_store.client import Message, Producer, ResponseCode
from rmq_store.format.properties.property_string import encode_properties, parse_properties
from rmq_store.protocol.bodies.clients import HeartbeatData, ProducerData
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import SendMessageRequestHeader, SendMessageResponseHeader
from rmq_store.protocol.wire.reply_headers import (
    ReplyMessageRequestHeader,
    SendReplyMessageRequestHeader,
    SendReplyMessageRequestHeaderV2,
)
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.processors import client_requests, replies
from rmq_store.server.requests.request import Request
from rmq_store.server.transport import client_calls

KINDS = (SendReplyMessageRequestHeader, SendReplyMessageRequestHeaderV2)


class Asker:
    """A producer that waits for replies."""

    def __init__(self, server: BrokerServer) -> None:
        self.cluster = Cluster(ClusterSettings.of_text(server.address))
        self.got: list[RemotingCommand] = []
        self.answer: RemotingCommand | None = RemotingCommand(0)
        self.cluster.client.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._reply)
        beat = HeartbeatData(client_id="asker", producer_data_set=(ProducerData(group_name="pg"),)).encode()
        self.cluster.client.call(server.address, RemotingCommand(RequestCode.HEART_BEAT, {}, beat), 20_000)

    def _reply(self, address: str, command: RemotingCommand) -> RemotingCommand | None:
        self.got.append(command)
        return self.answer


@pytest.fixture
def asker(server: BrokerServer) -> Iterator[Asker]:
    asker = Asker(server)
    yield asker
    asker.cluster.close()


def reply(
    cluster: Cluster, kind: type[SendMessageRequestHeader] = SendReplyMessageRequestHeaderV2, **properties: str
) -> RemotingCommand:
    header = kind(
        producer_group="answerers", topic="DefaultCluster_REPLY_TOPIC", default_topic="TBW102",
        default_topic_queue_nums=4, queue_id=1, sys_flag=0, born_timestamp=7, flag=0,
        properties=encode_properties({"CORRELATION_ID": "c", **properties}).decode(),
    )  # fmt: skip
    return cluster.client.call(cluster.settings.name_servers[0], request(header, b"yes"), 20_000)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_goes_to_the_client_that_waits(
    asker: Asker, cluster: Cluster, server: BrokerServer, kind: type[SendMessageRequestHeader]
) -> None:
    answer = reply(cluster, kind, REPLY_TO_CLIENT="asker")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert SendMessageResponseHeader.from_ext(answer.ext_fields).msg_id == "0"
    (command,) = asker.got
    header = ReplyMessageRequestHeader.from_ext(command.ext_fields)
    assert (command.body, header.topic, header.store_host) == (b"yes", "DefaultCluster_REPLY_TOPIC", server.address)
    assert header.born_host.startswith("127.0.0.1:") and header.born_timestamp == 7
    properties = parse_properties((header.properties or "").encode())
    assert properties["CORRELATION_ID"] == "c" and int(properties["PUSH_REPLY_TIME"]) > 0
    assert server.store.log_range() == (0, 0)


def test_a_reply_that_reaches_nobody_is_refused(
    asker: Asker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "[REPLY_TO_CLIENT] is null" in (reply(cluster).remark or "")
    assert "<other> not found" in (reply(cluster, REPLY_TO_CLIENT="other").remark or "")
    asker.answer = RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="not now")
    assert "not now" in (reply(cluster, REPLY_TO_CLIENT="asker").remark or "")
    monkeypatch.setattr(client_requests, "CALL_TIMEOUT_MS", 200)
    asker.answer = None
    answer = reply(cluster, REPLY_TO_CLIENT="asker")
    assert answer.code == ResponseCode.SYSTEM_ERROR and "no answer" in (answer.remark or "")


def test_a_reply_that_waits_for_its_client_keeps_no_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not in work meanwhile, so that its bytes count for nobody."""
    waiting: list[Callable[[RemotingCommand | None], None]] = []
    answers: list[RemotingCommand] = []
    monkeypatch.setattr(replies, "call_peer", lambda peer, command, on_answer: waiting.append(on_answer))
    members: Any = SimpleNamespace(producer_peer=lambda client_id: object())
    served: Any = SimpleNamespace(address="127.0.0.1:10911")
    peer: Any = SimpleNamespace(address="127.0.0.1:4711", send=answers.append)
    body, text = bytes(1000), encode_properties({"REPLY_TO_CLIENT": "asker", "LONG": "x" * 1000}).decode()
    known = sys.getrefcount(body), sys.getrefcount(text)

    def ask() -> None:
        header = SendReplyMessageRequestHeaderV2(
            producer_group="answerers", topic="DefaultCluster_REPLY_TOPIC", default_topic="TBW102",
            default_topic_queue_nums=4, queue_id=1, sys_flag=0, born_timestamp=7, flag=0, properties=text,
        )  # fmt: skip
        command = request(header, body)
        command.opaque = 77
        replies.ReplyProcessor(served, members).reply(Request(command, peer))

    ask()
    assert (sys.getrefcount(body), sys.getrefcount(text)) == known
    waiting[0](RemotingCommand(ResponseCode.SUCCESS))
    assert [(answer.opaque, answer.code, answer.ext_fields["queueId"]) for answer in answers] == [(77, 0, "1")]


def test_a_client_that_answers_nothing_has_a_number_of_calls_that_wait() -> None:
    calls, got = client_calls.ClientCalls(), []
    opaques = [calls.begin(got.append) for _ in range(client_calls.CALLS_MAX)]
    assert None not in opaques
    assert calls.begin(got.append) is None
    calls.end(opaques[0] or 0, None)
    assert calls.begin(got.append) is not None
    calls.close()
    assert len(got) == client_calls.CALLS_MAX + 1


def test_a_message_that_wants_a_reply_names_the_cluster(place: str, server: BrokerServer) -> None:
    with Producer("pg", place, config=PATIENT) as producer:
        sent = producer.send(Message("Orders", b"a", properties={"REPLY_TO_CLIENT": "asker"}))
        other = producer.send(Message("Orders", b"b"))
    store = server.store
    assert store.message_at(sent.commit_log_offset).properties["CLUSTER"] == "DefaultCluster"
    assert "CLUSTER" not in store.message_at(other.commit_log_offset).properties
