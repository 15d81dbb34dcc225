"""`rmq metrics`: printed, in a file, and over HTTP."""

from __future__ import annotations

import _thread
import contextlib
import http.client
import json
import os
import queue
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from rmq_store import Message, Store
from rmq_store.cli.monitoring import http_limits, metrics_server
from rmq_store.cli.monitoring.http_limits import (
    CONNECTIONS_MOST,
    REQUEST_BYTES_MOST,
    LimitedReader,
    RequestTooLargeError,
    check_name,
    is_ours,
)
from rmq_store.cli.monitoring.metrics_server import parse_address

from .conftest import mind_ctrl_c

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"
# Ages, and what the disk says, differ from run to run.
_MOVING = re.compile(
    r"^((?:rocketmq_\w+_milliseconds|rocketmq_storage_size_bytes|rmq_storage_\w+|rmq_disk_\w+){.*}) .*$", re.MULTILINE
)


@pytest.fixture
def store(made_store: Path, copy_store: Callable[[Path, Path], Path], scratch: Path) -> Path:
    return copy_store(made_store, scratch / "store")


def lag_of(text: str) -> float:
    (family,) = (family for family in parse(text) if family.name == "rocketmq_consumer_lag_messages")
    return sum(sample.value for sample in family.samples)


# ---- printed, and in a file


def test_the_text_is_as_kept_and_a_parser_reads_it(run: Run, store: Path) -> None:
    result = run("metrics", store=store)
    assert (result.exit_code, result.stderr) == (0, "")
    assert lag_of(result.stdout) == 2
    assert _MOVING.sub(r"\1 N", result.stdout) == (EXPECTED / "metrics.txt").read_text(encoding="utf-8")


def test_queues_are_shown_if_they_are_asked_for(run: Run, store: Path) -> None:
    assert "queue_id" not in run("metrics", store=store).stdout
    shown = {family.name: family.samples for family in parse(run("metrics", "--queues", store=store).stdout)}
    (offset,) = (sample for sample in shown["rmq_consumer_queue_offset"] if sample.labels["consumer_group"] == "g")
    assert (offset.labels["topic"], offset.labels["queue_id"], offset.value) == ("T", "0", 2)


def test_json_has_the_same_metrics(run: Run, store: Path) -> None:
    shown = json.loads(run("metrics", "--json", store=store).stdout)
    text = run("metrics", store=store).stdout
    assert [metric["name"] for metric in shown] == [
        family.name + ("_total" if family.type == "counter" else "") for family in parse(text)
    ]
    (lag,) = (metric for metric in shown if metric["name"] == "rocketmq_consumer_lag_messages")
    assert (lag["type"], lag["unit"]) == ("gauge", "")
    (sample,) = lag["samples"]
    assert (sample["labels"]["consumer_group"], sample["value"]) == ("g", 2)


def test_a_file_is_replaced_and_the_text_collector_can_parse_it(run: Run, store: Path, tmp_path: Path) -> None:
    """The collector of a node_exporter knows the older format only: for it UNIT and EOF are comments."""
    target = tmp_path / "rmq.prom"
    for _ in range(2):
        result = run("metrics", "--output", str(target), store=store)
        assert (result.exit_code, result.output) == (0, "")
    assert lag_of(target.read_text()) == 2
    values = {sample.name: sample.value for family in parse_classic(target.read_text()) for sample in family.samples}
    assert values["rocketmq_consumer_lag_messages"] == 2
    assert values["rmq_topic_put_messages_total"] >= 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("rmq")] == ["rmq.prom"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--output", "x", "--json"], "one of them at a time"),
        (["--listen", "127.0.0.1:0", "--json"], "one of them at a time"),
        (["--expose"], "--expose goes with --listen"),
        (["--host", "metrics.example.com"], "--host goes with --listen"),
        (["--listen", "127.0.0.1:0", "--host", "http://x:1/"], "a name without a port"),
        (["--listen", "127.0.0.1"], "a host and a port"),
        (["--listen", "127.0.0.1:65536"], "a host and a port"),
        (["--listen", "0.0.0.0:0"], "other machines could read that"),
        (["--listen", "[::]:0"], "other machines could read that"),
        (["--listen", "192.0.2.1:0"], "other machines could read that"),
        (["--listen", "no..host:1"], "is no address of this machine"),
        (["--listen", "192.0.2.1:0", "--expose"], "--listen 192.0.2.1:0"),
    ],
)
def test_mistakes_are_one_line(run: Run, store: Path, arguments: list[str], words: str) -> None:
    result = run("metrics", *arguments, store=store)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert words in result.stderr


def test_a_missing_directory_of_the_output_is_named(run: Run, store: Path) -> None:
    result = run("metrics", "--output", "absent/rmq.prom", store=store)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert "the directory absent does not exist; make it" in result.stderr


def test_every_address_of_this_machine_alone_is_served_without_a_question() -> None:
    assert parse_address("127.0.0.1:5557", expose=False) == ("127.0.0.1", 5557)
    assert parse_address("127.8.9.10:0", expose=False) == ("127.8.9.10", 0)
    assert parse_address("[::1]:5557", expose=False) == ("::1", 5557)
    assert parse_address("0.0.0.0:5557", expose=True) == ("0.0.0.0", 5557)


# ---- over HTTP


class Server:
    """`rmq metrics --listen` in a process of its own."""

    def __init__(self, store: Path, *arguments: str) -> None:
        environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", "from rmq_store.cli import main; main()", "metrics", *arguments],
            env={**environment, "RMQ_STORE": str(store)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=mind_ctrl_c,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/metrics \(Ctrl-C ends\)\n", self.said)
        assert found, self.said
        self.port = int(found[1])

    def ask(self, method: str = "GET", path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
        """(status, content type, body)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, answer.headers.get("Content-Type", ""), body

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@pytest.fixture
def server(store: Path) -> Iterator[Server]:
    started = Server(store, "--listen", "127.0.0.1:0")
    yield started
    if started.process.poll() is None:
        started.process.kill()
        started.process.communicate()


def test_each_request_looks_anew_in_the_format_that_it_asks_for_and_ctrl_c_ends_quietly(
    server: Server, store: Path
) -> None:
    prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"
    status, kind, text = server.ask(Accept=prometheus)
    assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert lag_of(text) == 2
    with Store.open(store) as opened:
        opened.send(Message("T", b"one more", queue_id=1))
        assert lag_of(server.ask()[2]) == 3  # written by another process, at this moment
    status, kind, text = server.ask(Accept="text/plain")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    counters = [family.name for family in parse_classic(text) if family.type == "counter"]
    assert counters == ["rocketmq_send_to_dlq_messages", "rmq_topic_put_messages"]
    assert "# EOF" not in text
    assert server.ask("HEAD")[::2] == (200, "")
    assert server.ask(path="/metrics?x=1")[0] == 200
    assert server.ask(path="/")[0] == 404
    assert server.ask(path="/../etc/passwd")[0] == 404
    assert server.ask("POST")[0] == 501
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")  # and no more: nobody else waits for it
        assert server.ask()[0] == 200
    with socket.create_connection(("127.0.0.1", server.port)) as rude:
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no goodbye
        rude.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert server.ask()[0] == 200
    assert server.end() == (0, "", "")


def test_a_look_that_fails_is_told_and_the_next_one_may_succeed(server: Server, store: Path) -> None:
    good = {path: path.read_bytes() for path in (store / "config").glob("topics.json*")}
    for path in good:
        path.write_bytes(b"{")
    status, _, text = server.ask()
    assert status == 500
    assert "topics.json" in text
    for path, content in good.items():
        path.write_bytes(content)
    assert server.ask()[0] == 200
    assert server.end(signal.SIGTERM) == (0, "", "")


def test_looks_follow_each_other_and_a_silent_client_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: Ctrl-C comes when the clients are through."""
    said: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(metrics_server.click, "echo", said.put)
    assert metrics_server._Handler.patience_s == 10
    monkeypatch.setattr(metrics_server._Handler, "patience_s", 0.5)
    busy, overlaps, answers, closed = threading.Lock(), [], [], []

    def look() -> list[Any]:
        overlaps.append(not busy.acquire(blocking=False))
        time.sleep(0.01)
        if not overlaps[-1]:
            busy.release()
        return []

    def ask(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/metrics")
        answers.append(connection.getresponse().read())
        connection.close()

    def clients() -> None:
        try:
            found = re.search(r":(\d+)/", said.get(timeout=30))
            assert found
            port = int(found[1])
            threads = [threading.Thread(target=ask, args=(port,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            with socket.create_connection(("127.0.0.1", port), timeout=30) as silent:
                closed.append(silent.recv(1))
        finally:
            _thread.interrupt_main()

    thread = threading.Thread(target=clients)
    thread.start()
    metrics_server.serve("127.0.0.1", 0, look)
    thread.join()
    assert answers == [b"# EOF\n"] * 4
    assert overlaps == [False] * 4
    assert closed == [b""]


# ---- clients that take too much, and web pages of others


def raw(server: Server, request: bytes) -> bytes:
    """What the server answers to these bytes, until it hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:9", 200), ("192.0.2.7", 200), ("[::1]:5557", 200), ("localhost", 200), ("LOCALHOST.:80", 200),
     ("metrics.example.com", 200), ("Metrics.Example.com:5557", 200), ("evil.example", 421),
     ("metrics.example.com.evil.example", 421), ("127.0.0.1.evil.example", 421), ("[localhost]", 421), ("", 421),
     ("x@127.0.0.1", 421), ("127.0.0.1:5557:9", 421)],
)  # fmt: skip
def test_only_addresses_localhost_and_named_hosts_are_answered(host: str, status: int) -> None:
    names = [check_name("Metrics.example.com")]
    assert is_ours(host, names) is (status == 200)


def test_a_name_that_was_not_given_gets_an_answer_that_says_how_to_give_it(store: Path) -> None:
    """DNS rebinding: a page of evil.example asks the address to which that name was led."""
    server = Server(store, "--listen", "127.0.0.1:0", "--host", "metrics.example.com")
    assert server.ask(Host=f"metrics.example.com:{server.port}")[0] == 200
    for method in ("GET", "HEAD"):
        status, kind, text = server.ask(method, Host="evil.example\x9b")
        assert (status, kind) == (421, "text/plain; charset=utf-8")
        said = "not served under the name evil.example\\x9b: start rmq metrics with --host NAME, "
        said += "or ask for the address\n"
        assert text == ("" if method == "HEAD" else said)
    for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        assert raw(server, b"GET /metrics HTTP/1.1\r\n" + hosts + b"\r\n").startswith(b"HTTP/1.0 400 ")
    assert raw(server, b"GET /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200 ")
    assert server.end() == (0, "", "")


def test_a_request_that_is_too_large_is_refused(server: Server) -> None:
    for request in (b"GET /" + b"x" * 20_000, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 90 + b"C: " + b"d" * 17_000):
        with contextlib.suppress(ConnectionResetError):  # what it has not read is in the way of its answer
            assert raw(server, request).startswith(b"HTTP/1.0 431 ")
    assert server.ask()[0] == 200
    assert server.end() == (0, "", "")


def test_a_request_that_drips_has_an_end_however_often_a_byte_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(http_limits, "real_time", SimpleNamespace(monotonic=lambda: now_s))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = LimitedReader(ours, patience_s=30)
        theirs.sendall(b"GET")
        assert reader.read(3) == b"GET"
        now_s += 31  # each byte would have been in time
        theirs.sendall(b" ")
        with pytest.raises(TimeoutError):
            reader.read(1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * (REQUEST_BYTES_MOST + 1))
        reader = LimitedReader(ours)
        with pytest.raises(RequestTooLargeError):
            while reader.read(4096):
                pass


def test_a_client_too_many_is_told_to_come_again(server: Server) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(CONNECTIONS_MOST)]
    try:
        status, _, text = server.ask()
        assert (status, text) == (503, f"{CONNECTIONS_MOST} clients are being served: come again\n")
        silent.pop().close()
        while server.ask()[0] == 503:  # until the thread of the one that left has seen it
            time.sleep(0.01)
    finally:
        for client in silent:
            client.close()
    assert server.end() == (0, "", "")


def test_a_port_that_is_taken_is_the_callers_mistake(server: Server, run: Run, store: Path) -> None:
    result = run("metrics", "--listen", f"127.0.0.1:{server.port}", store=store)
    assert (result.exit_code, result.stderr) == (2, f"rmq: --listen 127.0.0.1:{server.port}: Address already in use\n")
