"""The clusters of the tests: every process is there when they say so, comes back, and is gone afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import servers
from helpers.cluster import fixtures, java_process, requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.server_process import ServerError


def test_all_brokers_are_registered_and_replicate(cluster: RocketmqCluster, new_name: Callable[[str], str]) -> None:
    expected = {("broker-a", 0): cluster.address(), ("broker-a", 1): cluster.address("broker-a", 1)}
    assert cluster.registered(cluster.name_server) == expected
    topic = cluster.create_topic(new_name("Orders"), 1, on_slaves=True)
    with cluster.connect() as master, cluster.connect("broker-a", 1) as slave:
        assert requests.send(master, topic, body=b"one").code == 0
        requests.await_end(master, topic, 1)
        cluster.await_replicated(topic)
        answer = requests.pull(slave, topic)
    assert [requests.body_of(frame) for frame in requests.frames(answer)] == [b"one"]


def test_a_killed_broker_leaves_the_route_at_once_and_comes_back_with_its_store(
    cluster: RocketmqCluster, new_name: Callable[[str], str]
) -> None:
    topic = cluster.create_topic(new_name("Orders"), 1)
    with cluster.connect() as master:
        requests.send(master, topic, body=b"kept")
        requests.await_end(master, topic, 1)
    address = cluster.address()
    cluster.broker().kill()
    cluster.await_gone(("broker-a", 0))
    with pytest.raises(ConnectionRefusedError):
        cluster.connect()
    cluster.broker().start()
    cluster.await_registered(("broker-a", 0))
    assert cluster.address() == address
    with cluster.connect() as master:
        requests.await_end(master, topic, 1)
        assert [requests.body_of(frame) for frame in requests.frames(requests.pull(master, topic))] == [b"kept"]


@pytest.mark.slow
def test_a_suspended_broker_takes_connections_stays_in_the_route_and_answers_nobody(cluster: RocketmqCluster) -> None:
    cluster.broker().suspend()
    with cluster.connect(timeout_s=1) as connection, pytest.raises(TimeoutError):
        connection.ask(28)
    assert ("broker-a", 0) in cluster.registered(cluster.name_server)
    cluster.broker().resume()
    with cluster.connect() as resumed:
        assert resumed.ask(28).code == 0


def test_a_process_that_does_not_run_cannot_be_suspended(cluster: RocketmqCluster) -> None:
    cluster.broker("broker-a", 1).kill()
    with pytest.raises(ServerError, match="broker-a-1 does not run"):
        cluster.broker("broker-a", 1).suspend()


@pytest.mark.slow
def test_nothing_is_left_of_a_cluster_and_an_error_carries_its_logs() -> None:
    version = "4.9.7"
    fixtures.require_released(version)
    with pytest.raises(ValueError, match="mine") as caught, RocketmqCluster(version) as cluster:
        directories = [process.directory for process in cluster.processes()]
        pids = [process.pid for process in cluster.processes()]
        raise ValueError("mine")
    assert "broker-a-0 of RocketMQ 4.9.7" in "".join(caught.value.__notes__)
    deadline_s = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not any(directory.exists() for directory in directories)


def test_a_broker_that_does_not_start_says_why() -> None:
    fixtures.require_released("5.5.0")
    with pytest.raises(ServerError, match=r"broker-a-0 ended at its start"):
        RocketmqCluster("5.5.0", properties={"messageDelayLevel": "nonsense"}).__enter__()


def test_a_machine_without_maven_skips_and_ci_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_process.shutil, "which", lambda program: None if program == "mvn" else program)
    java_process.without_jars.cache_clear()
    try:
        monkeypatch.setattr(servers, "REQUIRED", False)
        with pytest.raises(pytest.skip.Exception, match="released RocketMQ brokers need mvn"):
            fixtures.require_released("5.5.0")
        monkeypatch.setattr(servers, "REQUIRED", True)
        with pytest.raises(pytest.fail.Exception, match="RMQ_TEST_SERVERS=required, but released RocketMQ brokers"):
            fixtures.require_released("5.5.0")
    finally:
        java_process.without_jars.cache_clear()
