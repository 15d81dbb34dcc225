"""Errors of brokers in commands of our own: an address once, no codes, and a next step."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from rmq_store.cli import commands
from rmq_store.cli.target.error_text import without_codes
from rmq_store.errors import ResponseError
from rmq_store.protocol.errors import MQBrokerError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.protocol.wire.request_codes import RequestCode, request_name
from rmq_store.remoting.transport.calls import Call

Run = Callable[..., Result]


def ask(*arguments: str) -> Result:
    environment = {"RMQ_STORE": None, "NAMESRV_ADDR": None}
    return CliRunner().invoke(commands, list(arguments), env=environment, prog_name="rmq", catch_exceptions=False)


@pytest.fixture
def closed_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(
    "words", ["topics", "tail T", "read T", "groups", "send T --body x", "metrics", "topicList"]
)
def test_a_name_server_that_is_away_is_named_once_with_a_next_step(closed_address: str, words: str) -> None:
    result = ask("-n", closed_address, *words.split())
    assert result.exit_code in (1, 2), result.output
    assert (result.stderr.count("\n"), result.stderr.count(closed_address)) == (1, 1), result.stderr
    assert result.stderr.startswith(f"rmq: no name server answers: {closed_address}: no connection: ")
    assert "`rmq doctor -n`" in result.stderr
    assert "_" not in result.stderr and " was not sent" not in result.stderr


def test_each_of_several_is_named_once(closed_address: str) -> None:
    other = "127.0.0.1:1"
    text = ask("-n", f"{closed_address};{other}", "topics").stderr
    assert [text.count(f"{address}: ") for address in (closed_address, other)] == [1, 1]


def test_one_that_does_not_answer_in_time_is_named_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        text = ask("-n", address, "topics", "--timeout", "0.2").stderr
    assert text.startswith(f"rmq: no name server answers: {address}: no answer within 200 ms. "), text


def test_the_doctor_names_it_once_and_does_not_speak_of_brokers(closed_address: str) -> None:
    text = ask("-n", closed_address, "doctor").stdout
    assert text.count(closed_address) == 1
    assert "(106)" not in text and "brokerIP1" not in text and "9876" in text


def _failed(end: Callable[[Call], object], *, started: bool) -> str:
    call = Call("ns:1", RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC), 300, 0.0, lambda _: None)
    call.started = started
    end(call)
    assert isinstance(call.outcome, Exception)
    assert request_name(RequestCode.GET_ROUTEINFO_BY_TOPIC) in str(call.outcome)
    return without_codes(str(call.outcome))


@pytest.mark.parametrize(
    ("end", "started", "text"),
    [
        (lambda call: call.lost("reset"), True, "ns:1: the connection was lost before the answer: reset"),
        (lambda call: call.lost("reset"), False, "ns:1: reset"),
        (lambda call: call.expire(True), True, "ns:1: no answer within 300 ms"),
        (lambda call: call.expire(False), False, "ns:1: no connection within 300 ms"),
        (
            lambda call: call.expire(True), False,
            "ns:1: the request was not sent within 300 ms: the server takes no bytes",
        ),
    ],
)  # fmt: skip
def test_a_request_named_by_the_transport_is_left_out(end: Callable[[Call], object], started: bool, text: str) -> None:
    assert _failed(end, started=started) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ResponseError(208, "no record"), "no record"),
        (MQBrokerError(17, "no route", "b", "h:1"), "no route, says b (h:1)"),
        (MQBrokerError(16, "", "b"), "NO_PERMISSION, says b"),
        (MQBrokerError(4711, ""), "an answer of kind 4711 without a reason"),
        (f"queue 1: CODE: 2 DESC: busy; {request_name(999)} was not sent", "queue 1: busy"),
    ],
)
def test_answers_are_shown_without_their_codes(error: object, text: str) -> None:
    assert without_codes(str(error)) == text


def test_the_names_of_mqadmin_keep_its_form_in_any_case(run: Run) -> None:
    for name in ("queryMsgByUniqueKey", "querymsgbyuniquekey"):
        assert run(name, "-t", "OrderTopic", "-i", "C0" * 16).stderr.startswith("rmq: CODE: 208  DESC: ")
    assert run("trace", "--uniq-key", "C0" * 16).stderr.startswith("rmq: no record of this message")
