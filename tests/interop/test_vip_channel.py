"""Java clients with the VIP channel: before 4.5.1 as they are, later ones by a setting. They send to the port - 2 of a
served store, and ask there for members, locks and offsets; pulls and heartbeats go to the port itself.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from compat.stores import brokers as released
from helpers.cluster.fixtures import require_released
from helpers.cluster.waiting import connected, free_ports
from helpers.interop.clients import SOURCES, building, is_newer, run
from helpers.interop.program import Program, RefusedError
from helpers.interop.served import serving
from interop.test_connections import bodies, make
from rmq_store import Store

SETTING = "com.rocketmq.sendMessageWithVIPChannel"
VERSIONS = ("4.4.0", "4.9.7", "5.5.0")
TIMEOUT_MS = 60_000
SHORT_TIMEOUT_MS = 3000
"""Of a send that must fail."""


def vip_client(version: str, address: str, home: Path, vip: bool | None, timeout_ms: int = TIMEOUT_MS) -> Program:
    """The client of a version. `vip`: its setting; None: its default."""
    require_released(version)
    source, jars = SOURCES / "java" / "VipClient.java", f"{released.jars(version)}/*"
    with building(f"vip-{version}") as target:
        if is_newer(source, target / "VipClient.class"):
            run("javac", "-nowarn", "-d", target, "-cp", jars, source)
    home.mkdir()
    settings = [] if vip is None else [f"-D{SETTING}={str(vip).lower()}"]
    options = ("-Xmx192m", *released.JVM, f"-Duser.home={home}", "-Drocketmq.client.logUseSlf4j=true", *settings)
    command = ["java", *options, "-cp", f"{target}:{jars}", source.stem, address]
    return Program(f"the client of {version}", command, home, {"CLIENT_TIMEOUT_MS": str(timeout_ms)})


def with_vip(version: str) -> bool | None:
    """The setting that turns it on: none before 4.5.1."""
    return None if version == "4.4.0" else True


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_sends_consumes_and_asks_at_the_port_before_the_last(
    version: str, own_store: Path, tmp_path: Path
) -> None:
    make(own_store)
    with Store.open(own_store) as store:
        for group in ("cg-ordered", "cg-retry"):
            store.commit_offsets(group, {("Orders", 0): 0})
    with serving(own_store) as server:
        address = server.place.remoting
        vip_port = int(address.rpartition(":")[2]) - 2
        with vip_client(version, address, tmp_path / "client", with_vip(version)) as client:
            for number in range(3):
                assert client.ask("send", topic="Orders", body=f"{number}") == "SEND_OK"
            assert connected(vip_port) >= 1
            for mode, group in (("concurrent", "cg"), ("ordered", "cg-ordered")):
                client.ask("consume", topic="Orders", group=group, mode=mode)
                assert sorted(client.ask("received", count=3, timeoutMs=60_000)) == ["0", "1", "2"]
                client.ask("leave")
            client.ask("consume", topic="Orders", group="cg-retry", mode="concurrent", fails=True)
            assert sorted(client.ask("received", count=6, timeoutMs=90_000)) == sorted([*"012"] * 2)
            client.ask("leave")
            assert client.ask("pull", topic="Orders", group="cg-pull") == ["0", "1", "2"]
            assert client.ask("admin", topic="Orders", group="cg") == {
                "queues": 1, "behind": 0, "clusters": ["DefaultCluster"],
            }  # fmt: skip
    with Store.open(own_store, read_only=True) as store:
        for group in ("cg", "cg-ordered", "cg-retry", "cg-pull"):
            assert store.committed_offsets(group)["Orders", 0] == 3, group


@pytest.mark.parametrize("version", VERSIONS)
def test_where_that_port_is_taken_the_server_says_so_and_the_setting_helps(
    version: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sends and consumers of such a client fail: sends by a timeout, members get nothing."""
    path = tmp_path / "store"
    make(path)
    [port] = free_ports(1)
    with socket.create_server(("127.0.0.1", port - 2)), serving(path, "--listen", f"127.0.0.1:{port}") as server:
        address = server.place.remoting
        with vip_client(version, address, tmp_path / "vip", with_vip(version), SHORT_TIMEOUT_MS) as client:
            with pytest.raises(RefusedError, match=r"(?i)timeout"):
                client.ask("send", topic="Orders", body="lost")
        with vip_client(version, address, tmp_path / "plain", vip=False) as client:
            assert client.ask("send", topic="Orders", body="paid") == "SEND_OK"
            client.ask("consume", topic="Orders", group="cg", mode="concurrent")
            assert client.ask("received", count=1, timeoutMs=60_000) == ["paid"]
            client.ask("leave")
    said = [line for line in capfd.readouterr().err.splitlines() if "is not free" in line]
    assert said == [
        f"rmq: port {port - 2} is not free: clients before 4.5.1, and those with vipChannelEnabled=true, cannot send. "
        f"Set {SETTING}=false there, or choose another port"
    ]
    assert bodies(path) == [b"paid"]


@pytest.mark.parametrize("version", VERSIONS)
def test_where_nobody_listens_there_a_send_says_which_port_it_could_not_reach(version: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    make(path)
    with serving(path, "--no-vip") as server:
        port = int(server.place.remoting.rpartition(":")[2])
        with vip_client(version, server.place.remoting, tmp_path / "vip", with_vip(version)) as client:
            with pytest.raises(RefusedError, match=rf"connect to <?127\.0\.0\.1:{port - 2}>? failed"):
                client.ask("send", topic="Orders", body="lost")
