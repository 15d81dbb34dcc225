"""Metrics over HTTP: GET /metrics, in the format that the client asks for. Only this machine, unless it was asked for.

A request looks at the store anew, one at a time. A look that fails is an answer 500 that says why, and the next request
looks again.
"""

from __future__ import annotations

import ipaddress
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import click

from rmq_store.errors import StoreError, UsageError

if TYPE_CHECKING:
    from rmq_store.format.openmetrics import MetricFamily

Look = Callable[[], "Sequence[MetricFamily]"]

# A client that sends nothing, or reads nothing, is let go.
_PATIENCE_S = 10.0


def parse_address(text: str, *, expose: bool) -> tuple[str, int]:
    """`127.0.0.1:5557`, `localhost:0` or `[::1]:5557` as host and port.

    Raises:
        UsageError: no such address, or one that other machines can reach without `expose`.
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


def serve(host: str, port: int, look: Look) -> None:
    """Say where, and serve until Ctrl-C or SIGTERM. UsageError if nobody can listen there."""
    turn = threading.Lock()

    class Handler(_Handler):
        def look(self) -> Sequence[MetricFamily]:
            with turn:
                return look()

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            if not isinstance(sys.exc_info()[1], OSError):  # a client that went away is no news, either
                super().handle_error(request, client_address)  # type: ignore[arg-type]

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise UsageError(f"--listen {host}:{port}: {error.strerror or error}") from error
    with server:
        shown = f"[{host}]" if ":" in host else host
        # Who stops services sends SIGTERM: it ends as Ctrl-C does.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            click.echo(f"http://{shown}:{server.server_address[1]}/metrics (Ctrl-C ends)")
            server.serve_forever()
        except KeyboardInterrupt:
            return
        finally:
            signal.signal(signal.SIGTERM, before)


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server_version, sys_version = "rmq", ""

    def look(self) -> Sequence[MetricFamily]:
        """The metrics now."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer a scrape."""
        from rmq_store.format.openmetrics import CLASSIC_CONTENT_TYPE, CONTENT_TYPE, openmetrics_text

        if self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", "the metrics are at /metrics\n")
            return
        accepted = self.headers.get("Accept", "*/*")
        classic = "text/plain" in accepted and "application/openmetrics-text" not in accepted
        try:
            families = self.look()
        except (StoreError, OSError) as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", f"{error}\n")
            return
        content_type = CLASSIC_CONTENT_TYPE if classic else CONTENT_TYPE
        self._answer(HTTPStatus.OK, content_type, openmetrics_text(families, classic=classic))

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no news."""

    def _answer(self, status: HTTPStatus, content_type: str, text: str) -> None:
        body = text.encode("utf-8", "backslashreplace")
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
