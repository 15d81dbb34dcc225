"""Our clients dial addresses of the route table only: a message id names one, and anybody can make an id (SSRF)."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rmq_store import Message, UsageError
from rmq_store.cli import commands
from rmq_store.format.text.host import Host
from rmq_store.format.text.ids import offset_message_id
from rmq_store.remoting.cluster import queries
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from security.conftest import TINY

pytestmark = pytest.mark.harness


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "store", config=TINY, create=True) as server:
        server.store.create_topic("Orders", 1)
        server.store.send(Message("Orders", b"paid"))
        yield server


@pytest.fixture
def bait() -> Iterator[socket.socket]:
    """An address of this machine that no route names: whoever dials it is seen."""
    with socket.create_server(("127.0.0.1", 0)) as bait:
        bait.setblocking(False)
        yield bait


def address_of(bait: socket.socket) -> str:
    return f"127.0.0.1:{bait.getsockname()[1]}"


def assert_nobody_dialled(bait: socket.socket) -> None:
    with pytest.raises(BlockingIOError):
        bait.accept()


def test_a_client_asks_no_address_of_a_message_id_that_no_broker_has_registered(
    server: BrokerServer, bait: socket.socket
) -> None:
    with Cluster(ClusterSettings.of_text(server.address)) as cluster:
        cluster.route("Orders")
        for address in (address_of(bait), "169.254.169.254:80"):
            with pytest.raises(UsageError, match="none of this cluster: nothing was asked"):
                queries.view_message(cluster, offset_message_id(Host.parse(address), 0))
        found = queries.view_message(cluster, offset_message_id(Host.parse(server.address), 0))
        assert found is not None and b"paid" in found.frames
    assert_nobody_dialled(bait)


COMMANDS = (
    ("queryMsgById", "-i", "ID"),
    ("trace", "--msg-id", "ID"),
    ("brokerStatus", "-b", "ADDRESS"),
    ("getBrokerConfig", "-b", "ADDRESS"),
    ("updateTopic", "-t", "Orders", "-b", "ADDRESS"),
    ("exportMetadata", "-f", "unused", "-b", "ADDRESS"),
)
REASONS = "none of this cluster: nothing was asked|no broker has registered the address"


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_no_command_dials_an_address_that_its_arguments_name(
    server: BrokerServer, bait: socket.socket, words: tuple[str, ...]
) -> None:
    values = {"ID": offset_message_id(Host.parse(address_of(bait)), 0), "ADDRESS": address_of(bait)}
    line = ["-n", server.address, *(values.get(word, word) for word in words)]
    result = CliRunner().invoke(commands, line, env={"RMQ_STORE": None}, prog_name="rmq")
    assert result.exit_code in (1, 2) and re.search(REASONS, result.stderr), result.output
    assert_nobody_dialled(bait)
