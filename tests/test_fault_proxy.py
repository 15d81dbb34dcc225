"""The proxy of the tests does the harm that it is told to do, and none else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from helpers.cluster.asking import Connection
from helpers.cluster.fault_proxy import FaultProxy, Loss
from helpers.cluster.stub_server import StubServer, echo
from rmq_store.protocol.wire.request_codes import RequestCode

SEND, PULL = RequestCode.SEND_BATCH_MESSAGE, RequestCode.PULL_MESSAGE


@pytest.fixture
def server() -> Iterator[StubServer]:
    with StubServer(echo) as server:
        yield server


@pytest.fixture
def proxy(server: StubServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.address) as proxy:
        yield proxy


def test_without_a_fault_all_bytes_pass_and_requests_are_counted(server: StubServer, proxy: FaultProxy) -> None:
    body = bytes(range(256)) * 4000
    with Connection(proxy.address) as client:
        first, second = client.send(SEND, {"n": 1}, body), client.send(PULL, {"n": 2})
        assert client.answer(second).ext_fields == {"n": "2"}
        assert client.answer(first).body == body
    assert proxy.requests == {SEND: 1, PULL: 1}
    assert [request.code for request in server.requests] == [SEND, PULL]


@pytest.mark.parametrize("loss", Loss)
def test_an_answer_is_lost_after_the_server_has_done_the_request(
    server: StubServer, proxy: FaultProxy, loss: Loss
) -> None:
    proxy.lose_answers(SEND, count=1, as_=loss)
    with Connection(proxy.address, timeout_s=0.3) as client:
        assert client.ask(PULL).code == 0
        expected = {Loss.SILENCE: TimeoutError, Loss.RESET: ConnectionResetError, Loss.TORN: ConnectionError}[loss]
        with pytest.raises(expected):
            client.ask(SEND)
    assert [request.code for request in server.requests] == [PULL, SEND]
    assert proxy.lost == 1
    with Connection(proxy.address) as client:
        assert client.ask(SEND).code == 0
    assert proxy.lost == 1


def test_all_answers_of_a_code_are_lost_until_they_are_kept_again(proxy: FaultProxy) -> None:
    proxy.lose_answers(SEND)
    with Connection(proxy.address, timeout_s=0.3) as client:
        lost = [client.send(SEND) for _ in range(3)]
        assert client.ask(PULL).code == 0
        with pytest.raises(TimeoutError):
            client.answer(lost[0])
        proxy.keep_answers()
        assert client.ask(SEND).code == 0
    assert proxy.lost == 3


def test_requests_are_held_back_until_their_connection_ends(server: StubServer, proxy: FaultProxy) -> None:
    proxy.hold_requests(SEND, after=1)
    with Connection(proxy.address, timeout_s=0.3) as client:
        assert client.ask(SEND).code == 0
        assert proxy.held == 0
        with pytest.raises(TimeoutError):
            client.ask(SEND)
        assert proxy.held == 1
        proxy.hold_no_requests()
        with pytest.raises(TimeoutError):
            client.ask(PULL)
    proxy.reset()
    with Connection(proxy.address) as client:
        assert client.ask(SEND).code == 0
    assert [request.code for request in server.requests] == [SEND, SEND]


def test_answers_come_late(proxy: FaultProxy) -> None:
    with Connection(proxy.address) as client:
        client.ask(PULL)
        proxy.delay_ms = 200
        start_s = time.monotonic()
        client.ask(PULL)
        assert time.monotonic() - start_s >= 0.2


def test_answers_come_byte_by_byte(proxy: FaultProxy) -> None:
    proxy.bytewise = True
    with Connection(proxy.address) as client:
        assert client.ask(PULL, {"n": 1}, b"body").body == b"body"


def test_a_half_open_connection_says_nothing_and_goes_on_afterwards(server: StubServer, proxy: FaultProxy) -> None:
    with Connection(proxy.address, timeout_s=0.3) as client:
        client.ask(PULL)
        proxy.half_open()
        opaque = client.send(SEND)
        with pytest.raises(TimeoutError):
            client.answer(opaque)
        with Connection(proxy.address, timeout_s=0.3) as other, pytest.raises(TimeoutError):
            other.ask(PULL)
        assert [request.code for request in server.requests] == [PULL]
        proxy.flow()
        assert client.answer(opaque).code == 0


def test_a_reset_ends_the_connections_of_now(proxy: FaultProxy) -> None:
    with Connection(proxy.address) as client:
        client.ask(PULL)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.answer(1000)
    with Connection(proxy.address) as client:
        assert client.ask(PULL).code == 0


def test_a_server_that_is_cut_off_refuses_and_comes_back_at_the_same_address(
    server: StubServer, proxy: FaultProxy
) -> None:
    address = proxy.address
    with Connection(address) as client:
        client.ask(PULL)
        proxy.cut_off()
        with pytest.raises(ConnectionError):
            client.ask(PULL)
    with pytest.raises(ConnectionRefusedError):
        Connection(address)
    proxy.restore()
    with Connection(address) as client:
        assert client.ask(PULL).code == 0


def test_the_end_of_the_server_is_the_end_of_the_connection(server: StubServer, proxy: FaultProxy) -> None:
    with Connection(proxy.address) as client:
        client.ask(PULL)
        server.stop()
        with pytest.raises(ConnectionError):
            client.ask(PULL)
