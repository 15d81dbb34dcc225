"""Metrics over HTTP: GET /metrics, in the format that the client asks for. By default only for this machine.

Each request reads the store again, one request at a time. A failure is an answer 500 with the reason, and the next
request tries again. `http_limits` has the limits for clients and host names.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.monitoring import http_limits
from rmq_store.cli.shared.output import printable, remarks_with_time
from rmq_store.errors import StoreError, UsageError

if TYPE_CHECKING:
    from rmq_store.format.text.openmetrics import MetricFamily

Sample = Callable[[], "Sequence[MetricFamily]"]

_TEXT = "text/plain; charset=utf-8"
_BUSY = (
    f"HTTP/1.0 503 Service Unavailable\r\nContent-Type: {_TEXT}\r\nRetry-After: 1\r\n\r\n"
    f"{http_limits.CONNECTIONS_MOST} clients are being served: come again\n"
).encode("ascii")


def parse_address(text: str, *, expose: bool) -> tuple[str, int]:
    """`127.0.0.1:5557`, `localhost:0` or `[::1]:5557` as host and port.

    Raises:
        UsageError: an invalid address, or one that other machines can reach, without `expose`.
    """
    host, colon, digits = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and digits.isascii() and digits.isdecimal() and len(digits) < 6 and int(digits) < 1 << 16):
        raise UsageError(f"--listen {text!r}: a host and a port, such as 127.0.0.1:5557, are needed")
    try:
        found = socket.getaddrinfo(host, int(digits), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--listen {text!r}: {host} is no address of this machine: {error}") from error
    if not expose and not all(ipaddress.ip_address(str(place[0])).is_loopback for *_, place in found):
        raise UsageError(
            f"--listen {text!r}: other machines could read that, without a password; listen on 127.0.0.1, or add "
            "--expose"
        )
    return host, int(digits)


def serve(host: str, port: int, sample: Sample, names: Collection[str] = ()) -> None:
    """Print the address, and serve until Ctrl-C or SIGTERM. UsageError: the address cannot be used."""
    turn = threading.Lock()

    class Handler(_Handler):
        def families(self) -> Sequence[MetricFamily]:
            with turn:
                return sample()

    class Server(_Server):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    Handler.names = frozenset(map(str.lower, (host, *names)))
    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise UsageError(f"--listen {host}:{port}: {error.strerror or error}") from error
    with server, remarks_with_time():
        shown = f"[{host}]" if ":" in host else host
        # Service managers send SIGTERM: it ends as Ctrl-C does.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            click.echo(f"http://{shown}:{server.server_address[1]}/metrics (Ctrl-C ends)")
            server.serve_forever()
        except KeyboardInterrupt:
            return
        finally:
            signal.signal(signal.SIGTERM, before)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = http_limits.CONNECTIONS_MOST

    def __init__(self, *given: Any) -> None:
        self._free = threading.Semaphore(http_limits.CONNECTIONS_MOST)
        super().__init__(*given)

    def server_bind(self) -> None:
        """As HTTPServer's, without its question to a name server, which may take long, and whose answer is not used."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a request in a thread of its own, unless there are too many."""
        if not self._free.acquire(blocking=False):
            with contextlib.suppress(OSError):  # who does not even take that is let go all the same
                request.setblocking(False)
                request.sendall(_BUSY)
                request.recv(http_limits.REQUEST_BYTES_MOST)  # else the answer may be lost with what was not read
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle the request, then let the next one begin."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that went away."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    names: Collection[str] = ()
    patience_s = http_limits.REQUEST_S
    server_version, sys_version = "rmq", ""

    def families(self) -> Sequence[MetricFamily]:
        """The metrics now."""
        raise NotImplementedError

    def setup(self) -> None:
        """As StreamRequestHandler's, with a time limit for the request."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(http_limits.LimitedReader(self.connection, self.patience_s))

    def parse_request(self) -> bool:
        """As BaseHTTPRequestHandler's; afterwards the answer gets a time limit of its own."""
        is_whole = super().parse_request()
        self.connection.settimeout(self.patience_s)
        return is_whole

    def handle_one_request(self) -> None:
        """As BaseHTTPRequestHandler's, with an answer for a request that is too large."""
        try:
            super().handle_one_request()
        except http_limits.RequestTooLargeError:
            self.close_connection = True
            # Fields that parse_request sets; it was not reached, or not left.
            self.request_version, self.command, self.requestline = "HTTP/1.0", "GET", ""
            text = f"a request has at most {http_limits.REQUEST_BYTES_MOST} bytes\n"
            self._answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _TEXT, text)

    def do_GET(self) -> None:
        """Answer a scrape."""
        from rmq_store.format.text.openmetrics import CLASSIC_CONTENT_TYPE, CONTENT_TYPE, openmetrics_text

        if not self._is_asked_as_ours():
            return
        if self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, _TEXT, "the metrics are at /metrics\n")
            return
        accepted = self.headers.get("Accept", "*/*")
        classic = "text/plain" in accepted and "application/openmetrics-text" not in accepted
        try:
            families = self.families()
        except (StoreError, OSError) as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, f"{printable(str(error))}\n")
            return
        content_type = CLASSIC_CONTENT_TYPE if classic else CONTENT_TYPE
        self._answer(HTTPStatus.OK, content_type, openmetrics_text(families, classic=classic))

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""

    def _is_asked_as_ours(self) -> bool:
        """True if the Host may be answered; if not, send the refusal. Only HTTP/1.1 requires a Host."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) > 1 or (not hosts and self.request_version == "HTTP/1.1"):
            self._answer(HTTPStatus.BAD_REQUEST, _TEXT, "one Host header is needed\n")
            return False
        if hosts and not http_limits.is_ours(hosts[0], self.names):
            name = printable(hosts[0])
            text = f"not served under the name {name}: start rmq metrics with --host NAME, or ask for the address\n"
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, _TEXT, text)
            return False
        return True

    def _answer(self, status: HTTPStatus, content_type: str, text: str) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.connection.settimeout(self.patience_s)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
