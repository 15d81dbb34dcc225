"""One server of a directory at one address: what is refused, and what is left behind by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.patient import PATIENT
from rmq_store import Message, Store, StoreConfig, UsageError
from rmq_store.cli.maintenance import broker
from rmq_store.client import Producer
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.transport.listener import Listener


def broker_host(root: Path) -> str:
    settings = json.loads((root / "pyrmq/store.json").read_text())["settings"]
    return str(settings["brokerHost"])


def test_a_store_has_one_server_and_a_refused_one_changes_nothing(root: Path, small: StoreConfig) -> None:
    with BrokerServer(root, config=small, create=True) as first:
        for given in (root, first.store):
            with pytest.raises(UsageError, match="another"):
                BrokerServer(given)
        assert broker_host(root) == first.address
    with BrokerServer(root) as second:
        assert broker_host(root) == second.address == second.store.config.broker_host
    with Store.open(root) as store, BrokerServer(store) as third:
        assert third.store is store
        store.send(Message("T", b"x"))


def test_a_store_is_served_at_the_default_address_after_another_one(root: Path, small: StoreConfig) -> None:
    from rmq_store.server.single_server_lock import open_alone

    for address in ("127.0.0.1:4711", StoreConfig().broker_host):
        store, lock = open_alone(root, address, small, create=True)
        assert store.config.broker_host == broker_host(root) == address
        assert str(store.message_at(store.send(Message("T", b"x")).commit_log_offset).store_host) == address
        store.close()
        lock.close()


def test_two_servers_that_have_bound_one_port_do_not_both_listen() -> None:
    """Each has asked for this port."""
    earlier = Listener("127.0.0.1", 0, lambda request: None)
    earlier.close()
    first, second = (Listener("127.0.0.1", earlier.port, lambda request: None) for _ in range(2))
    try:
        first.start()
        with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{first.port}: "):
            second.start()
    finally:
        first.close()
        second.close()


def test_a_server_that_does_not_begin_leaves_nothing_open(
    root: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Listener) -> None:
        raise UsageError("cannot listen")

    with monkeypatch.context() as patch:
        patch.setattr(Listener, "start", fail)
        with pytest.raises(UsageError, match="cannot listen"):
            BrokerServer(root, config=small, create=True)
    assert not (root / "abort").exists()
    BrokerServer(root).close()


def test_an_error_while_a_server_ends_leaves_nothing_open(
    root: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.server.processors.held_pulls import HeldPulls

    close = HeldPulls.close

    def fail(self: HeldPulls) -> None:
        close(self)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(HeldPulls, "close", fail)
    server = BrokerServer(root, config=small, create=True)
    with pytest.raises(OSError, match="Input/output"):
        server.close()
    monkeypatch.undo()
    server.close()
    assert not (root / "abort").exists()
    BrokerServer(root).close()


def test_a_store_is_served_over_ipv6(root: Path, small: StoreConfig) -> None:
    with BrokerServer(root, host="::1", config=small, create=True) as server:
        assert server.address == f"[::1]:{server._listener.port}"
        cluster = Cluster(ClusterSettings.of_text(server.address))
        with Producer("pg", f"rmq://{server.address}", config=PATIENT) as producer:
            sent = producer.send(Message("Orders", b"a"))
        stored = server.store.message_at(sent.commit_log_offset)
        assert str(stored.store_host) == server.address
        assert stored.born_host.is_ipv6
        cluster.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_an_address_that_nobody_can_dial_is_refused(root: Path, host: str) -> None:
    with pytest.raises(UsageError, match="clients are told this address"):
        BrokerServer(root, host=host, create=True)
    assert not root.exists()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
@pytest.mark.parametrize("option", [[], ["--insecure"]])
def test_the_command_refuses_it_too(root: Path, small: StoreConfig, address: str, option: list[str]) -> None:
    Store.open(root, create=True, config=small).close()
    result = CliRunner().invoke(broker.broker, ["run", str(root), "--listen", address, *option])
    assert isinstance(result.exception, UsageError)
    assert "clients are told this address" in str(result.exception)


def test_the_command_may_open_as_many_files_as_the_machine_lets_it(
    root: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(root, create=True, config=small).close()
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(broker.resource, "getrlimit", lambda kind: (256, 4096))
    monkeypatch.setattr(broker.resource, "setrlimit", lambda kind, pair: limits.append(pair))
    monkeypatch.setattr(broker, "_run", lambda store, stop, *, cleans: None)
    result = CliRunner().invoke(broker.broker, ["run", str(root), "--listen", "[::1]:0"])
    assert result.exit_code == 0, result.exception
    assert "listens at [::1]:" in result.output
    assert limits == [(4096, 4096)]


def test_a_server_that_nobody_asks_loads_nothing_that_it_does_not_need(root: Path) -> None:
    """Together they take longer than the rest of a server's start in a test."""
    script = """import sys, time
from rmq_store import Message
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.server.broker_server import BrokerServer
with BrokerServer(sys.argv[1], create=True) as server:
    late = {"pandas", "pyarrow.compute", "pyarrow.dataset", "numpy.random", "grpc", "cryptography", "click", "rich"}
    assert not late & set(sys.modules)
    server.store.send(Message("T", b"x"))
    assert not server._warm_up.is_begun and "pandas" not in sys.modules
    cluster = Cluster(ClusterSettings.of_text(server.address))
    cluster.topics()
    assert server._warm_up.is_begun
    cluster.close()
"""
    subprocess.run([sys.executable, "-c", script, str(root)], check=True, timeout=120)
