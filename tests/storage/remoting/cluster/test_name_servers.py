"""Which name server is asked: shuffled, sticky, failed over; and the list of an address server."""

from __future__ import annotations

import http.server
import itertools
import threading

import pytest

from rmq_store import UsageError
from rmq_store.protocol.errors import RemotingConnectError, RemotingError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.name_servers import FETCH_EVERY_MS, NameServers, read_address_server

from .conftest import Timer
from .fake_cluster import FakeNet


def asked(net: FakeNet) -> list[str]:
    addresses = [address for address, _ in net.calls]
    net.calls.clear()
    return addresses


def servers(net: FakeNet, **given: object) -> NameServers:
    for address in ("ns1:9876", "ns2:9876", "ns3:9876"):
        net.add_name_server(address)
    return NameServers(
        ("ns1:9876", "ns2:9876", "ns3:9876"), net, **{"shuffle": lambda _: None, **given}  # type: ignore[arg-type]
    )


def ask(name_servers: NameServers) -> int:
    return name_servers.call(RemotingCommand(206), 3000).code


def test_one_is_asked_until_it_fails_and_then_the_next_one(net: FakeNet) -> None:
    name_servers = servers(net)
    assert [ask(name_servers), ask(name_servers)] == [0, 0]
    assert asked(net) == ["ns1:9876", "ns1:9876"]
    net.name_servers["ns1:9876"].down = True
    assert [ask(name_servers), ask(name_servers)] == [0, 0]
    assert asked(net) == ["ns1:9876", "ns2:9876", "ns2:9876"]
    net.name_servers["ns1:9876"].down = False
    assert ask(name_servers) == 0
    assert asked(net) == ["ns2:9876"]


def test_one_that_is_silent_is_left_as_well(net: FakeNet) -> None:
    name_servers = servers(net)
    net.name_servers["ns1:9876"].silent = True
    assert ask(name_servers) == 0
    assert asked(net) == ["ns1:9876", "ns2:9876"]


def test_the_list_is_shuffled(net: FakeNet) -> None:
    name_servers = servers(net, shuffle=lambda addresses: addresses.reverse())
    assert name_servers.addresses() == ("ns3:9876", "ns2:9876", "ns1:9876")


def test_when_all_fail_the_error_names_each_of_them_and_says_whether_one_was_reached(net: FakeNet) -> None:
    name_servers = servers(net)
    for process in net.name_servers.values():
        process.down = True
    with pytest.raises(RemotingConnectError, match=r"ns1:9876: .*ns2:9876: .*ns3:9876: "):
        ask(name_servers)
    net.name_servers["ns2:9876"].down, net.name_servers["ns2:9876"].silent = False, True
    with pytest.raises(RemotingError) as raised:
        ask(name_servers)
    assert not isinstance(raised.value, RemotingConnectError)


def test_a_cluster_needs_a_name_server(net: FakeNet) -> None:
    with pytest.raises(UsageError, match="name server"):
        NameServers((), net)  # type: ignore[arg-type]


def test_the_page_of_an_address_server_is_the_list_and_is_read_again(net: FakeNet, timer: Timer) -> None:
    pages = ["ns1:9876;ns2:9876\n", "ns2:9876;ns3:9876"]
    name_servers = servers(net)
    name_servers = NameServers(
        ("http://jmenv:8080/rocketmq/nsaddr",), net, shuffle=lambda _: None, fetch=lambda _: pages.pop(0), timer=timer
    )  # type: ignore[arg-type]
    assert name_servers.addresses() == ("ns1:9876", "ns2:9876")
    timer.now_ms += FETCH_EVERY_MS - 1
    assert name_servers.addresses() == ("ns1:9876", "ns2:9876")
    timer.now_ms += 1
    assert name_servers.addresses() == ("ns2:9876", "ns3:9876")


def test_the_known_list_stays_while_the_address_server_fails(net: FakeNet, timer: Timer) -> None:
    pages: list[str | Exception] = ["ns1:9876", OSError("refused"), "", OSError("refused")]

    def fetch(_: str) -> str:
        page = pages.pop(0)
        if isinstance(page, Exception):
            raise page
        return page

    name_servers = NameServers(("http://jmenv/x",), net, fetch=fetch, timer=timer)  # type: ignore[arg-type]
    assert name_servers.addresses() == ("ns1:9876",)
    timer.now_ms += FETCH_EVERY_MS
    assert name_servers.addresses() == ("ns1:9876",)
    timer.now_ms += FETCH_EVERY_MS
    with pytest.raises(RemotingConnectError, match="names no name server"):
        name_servers.addresses()
    fresh = NameServers(("http://jmenv/x",), net, fetch=fetch, timer=timer)  # type: ignore[arg-type]
    with pytest.raises(RemotingConnectError, match="jmenv"):
        fresh.addresses()


def test_a_page_longer_than_any_list_is_refused() -> None:
    class Endless(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ns1:9876;" if self.path == "/short" else b"x" * (70 << 10))

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        assert read_address_server(f"{base}/short") == "ns1:9876;"
        with pytest.raises(OSError, match="more than"):
            read_address_server(base)
        server.shutdown()


def test_an_answer_with_an_error_is_an_answer(net: FakeNet) -> None:
    name_servers = servers(net)
    assert name_servers.call(RemotingCommand(999), 3000).code == 3
    assert asked(net) == ["ns1:9876"]


def test_all_name_servers_can_be_asked_each(net: FakeNet) -> None:
    assert list(servers(net).call_each(RemotingCommand(216), 3000)) == ["ns1:9876", "ns2:9876", "ns3:9876"]


def test_after_none_has_answered_none_is_waited_for_until_one_answers_a_probe(net: FakeNet) -> None:
    timer = Timer()
    name_servers = servers(net, timer=timer)
    assert name_servers.may_answer()
    for process in net.name_servers.values():
        process.silent = True
    with pytest.raises(RemotingError):
        ask(name_servers)
    asked(net)
    probed: list[float] = []
    for _ in range(240):
        timer.now_ms += 500
        assert not name_servers.may_answer()
        if asked(net):
            probed.append(timer.now_ms)
    assert [(later - before) / 1000 for before, later in itertools.pairwise(probed)] == [2, 4, 8, 16, 30, 30]
    net.name_servers["ns2:9876"].silent = False
    timer.now_ms += 30_000
    assert name_servers.may_answer() and len(asked(net)) == 3
    assert name_servers.may_answer() and not asked(net)


def test_an_answer_to_a_question_ends_the_silence_too(net: FakeNet) -> None:
    name_servers = servers(net)
    net.name_servers["ns1:9876"].down = net.name_servers["ns2:9876"].down = net.name_servers["ns3:9876"].down = True
    with pytest.raises(RemotingConnectError):
        ask(name_servers)
    assert not name_servers.may_answer()
    net.name_servers["ns3:9876"].down = False
    assert ask(name_servers) == 0 and name_servers.may_answer()
