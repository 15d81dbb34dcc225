"""suggestWhichBrokerId of a master: readers that are far behind go to a slave, if the operator wants that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.protocol.wire.header_fields import request
from rmq_store.protocol.wire.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rmq_store.remoting.transport.client import RemotingClient
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.processors import pulling
from rmq_store.server.processors.pulling import SUBSCRIPTION
from storage.server.ha.conftest import Serve, fill

GROUPS = (
    SubscriptionGroup("plain"),
    SubscriptionGroup("moved", broker_id=3, which_broker_when_consume_slowly=7),
)


@pytest.fixture
def client() -> Iterator[RemotingClient]:
    made = RemotingClient(ClusterSettings(name_servers=("unused:1",)))
    yield made
    made.close()


def suggested(client: RemotingClient, server: BrokerServer, group: str, offset: int = 0) -> int:
    """What an answer to a pull of one message says."""
    header = PullMessageRequestHeader(
        consumer_group=group, topic="Orders", queue_id=0, queue_offset=offset, max_msg_nums=1, sys_flag=SUBSCRIPTION,
        commit_offset=0, suspend_timeout_millis=0, subscription="*", sub_version=0, expression_type="TAG",
    )  # fmt: skip
    answer = client.call(server.address, request(header), 10_000)
    return PullMessageResponseHeader.from_ext(answer.ext_fields).suggest_which_broker_id


def test_a_reader_that_is_far_behind_is_sent_to_the_slave_of_its_group(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the place of the last message in the log, as in DefaultMessageStore#getMessage: equal is not behind."""
    monkeypatch.setattr(pulling, "hot_bytes", lambda: 0)
    server = serve(slave_read_enable=True)
    for group in GROUPS:
        server.store.create_group(group)
    fill(server.store, 20)
    end = server.store.log_range()[1]
    newest = server.store.queue_range("Orders", 0)[1] - 1
    distance = end - server.store.commit_log_offset_before("Orders", 0, newest + 1)
    for slow_bytes, first, last in ((distance - 1, (1, 7), (1, 7)), (distance, (1, 7), (0, 3)), (end, (0, 3), (0, 3))):
        server._pulls._slow_bytes = slow_bytes
        for number, group in enumerate(GROUPS):
            assert suggested(client, server, group.group_name) == first[number]
            assert suggested(client, server, group.group_name, newest) == last[number]
    server._pulls._slow_bytes = 0
    assert suggested(client, server, "moved", newest + 1) == 3  # nothing was found: not slow
    assert suggested(client, server, "made-by-its-pull") == 1


def test_a_master_suggests_itself_unless_its_operator_says_otherwise(
    serve: Serve, client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "hot_bytes", lambda: 0)
    server = serve()
    for group in GROUPS:
        server.store.create_group(group)
    fill(server.store, 20)
    assert [suggested(client, server, group.group_name) for group in GROUPS] == [0, 0]
