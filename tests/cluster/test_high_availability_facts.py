"""What released brokers answer when slaves and masters are lost, and who may ask them: clusters of their own."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.security import Account, Acl, Tls
from helpers.cluster.waiting import until
from rmq_store.protocol.wire.request_codes import RequestCode

Start = Callable[..., RocketmqCluster]
SUCCESS, SYSTEM_ERROR, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT, NO_PERMISSION = 0, 1, 11, 12, 16
READER = Account("reader-user", "reader-password", {"Orders": "SUB"}, {requests.TOOLS_CONSUMER: "SUB"})


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    require_released(request.param)
    name: str = request.param
    return name


@pytest.fixture
def started(version: str, request: pytest.FixtureRequest) -> Iterator[Start]:
    """A cluster of the version as the arguments say, for one test."""
    clusters: list[RocketmqCluster] = []

    def start(**layout: object) -> RocketmqCluster:
        clusters.append(RocketmqCluster(version, **layout))  # type: ignore[arg-type]
        clusters[0].start()
        return clusters[0]

    yield start
    for cluster in clusters:
        cluster.close()


@pytest.mark.statement("G21")
def test_a_sync_master_that_misses_its_slave_stores_the_message_and_says_so(version: str, started: Start) -> None:
    """11 and 12 on 4.9, 12 alone on 5.x: the message is there each time, so that it must not be sent again."""
    cluster = started(slaves=1, sync=True)
    topic = cluster.create_topic("Orders", 1)
    with cluster.connect() as master:
        until(lambda: requests.send(master, topic).code == SUCCESS, "the slave is not in sync")
        start = requests.max_offset(master, topic)
        cluster.broker("broker-a", 1).suspend()
        late = requests.send(master, topic, body=b"late")
        batch = requests.send_batch(master, topic, [b"1", b"2"])
        assert (late.code, batch.code) == (FLUSH_SLAVE_TIMEOUT, FLUSH_SLAVE_TIMEOUT)
        assert requests.send(master, topic, properties={"WAIT": "false"}).code == SUCCESS
        cluster.broker("broker-a", 1).kill()
        lost = SLAVE_NOT_AVAILABLE if version.startswith("4.") else FLUSH_SLAVE_TIMEOUT
        until(lambda: requests.send(master, topic, body=b"alone").code == lost, f"no answer {lost} without a slave")
        stored = requests.frames(requests.pull(master, topic, 0, start))
        assert [requests.body_of(frame) for frame in stored[:4]] == [b"late", b"1", b"2", b"body"]
        assert {requests.body_of(frame) for frame in stored[4:]} == {b"alone"}


@pytest.mark.statement("G21")
@pytest.mark.slow
def test_a_sync_master_of_5_without_in_sync_replicas_does_not_wait_for_anybody(version: str, started: Start) -> None:
    cluster = started(master_properties={"brokerRole": "SYNC_MASTER"})
    topic = cluster.create_topic("Orders", 1)
    with cluster.connect() as master:
        answer = requests.send(master, topic)
    assert answer.code == (SLAVE_NOT_AVAILABLE if version.startswith("4.") else SUCCESS)


@pytest.mark.slow
def test_brokers_that_know_their_users(version: str, started: Start) -> None:
    old = version.startswith("4.")
    cluster = started(acl=Acl(accounts=(READER,)))
    refused = SYSTEM_ERROR if old else NO_PERMISSION
    topic = cluster.create_topic("Orders", 1)
    with cluster.connect() as administrator:
        assert requests.send(administrator, topic).code == SUCCESS
        requests.await_end(administrator, topic, 1)
        # The flag of a query by unique key belongs into the signature on 5.x alone.
        assert (requests.query(administrator, topic, "k").code == refused) is old
    with Connection(cluster.address()) as stranger:
        answer = requests.pull(stranger, topic)
        assert answer.code == refused
        assert ("No accessKey is configured" if old else "username cannot be null") in str(answer.remark)
    with Connection(cluster.address(), sign=Account("administrator", "guessed").sign) as guesser:
        answer = requests.pull(guesser, topic)
        assert answer.code == refused and "check signature failed" in str(answer.remark).lower()
    with Connection(cluster.name_server) as anybody:
        assert anybody.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == SUCCESS
    if not old:
        cluster.create_account(READER)
    with Connection(cluster.address(), sign=READER.sign) as reader:
        assert requests.pull(reader, topic).code == SUCCESS
        assert requests.pull(reader, topic, group="another").code == refused
        assert requests.send(reader, topic).code == refused
        # On 5.x ranges want the right to get, which reading does not include.
        ranges = reader.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        assert ranges.code == (SUCCESS if old else NO_PERMISSION)


@pytest.mark.slow
@pytest.mark.parametrize("client_certificates", [False, True])
def test_brokers_that_speak_tls_alone(version: str, started: Start, client_certificates: bool, tmp_path: Path) -> None:
    tls = Tls(tmp_path, client_certificates=client_certificates)
    cluster = started(tls=tls)
    topic = cluster.create_topic("Orders", 1)
    with cluster.connect() as master:
        assert requests.send(master, topic).code == SUCCESS
    with Connection(cluster.address()) as plain, pytest.raises(ConnectionError):
        plain.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    with pytest.raises(ssl.SSLCertVerificationError):
        Connection(cluster.address(), tls=ssl.create_default_context())
    nameless = ssl.create_default_context(cafile=str(tls.ca_file))
    with Connection(cluster.address(), tls=nameless) as client:
        if client_certificates:
            with pytest.raises(OSError):
                client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        else:
            # A young broker of 4.9 has no statistics yet, and answers a question for them with an error.
            assert requests.max_offset(client, topic) == 1
