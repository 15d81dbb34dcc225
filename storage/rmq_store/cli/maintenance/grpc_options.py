"""The options of `rmq broker run` about its gRPC ports, and the form of an address to listen at."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from rmq_store.errors import UsageError
from rmq_store.format.text.host import Host
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.server.broker_server import BrokerServer
    from rmq_store.server.grpc_v2.tls import Certificate

F = TypeVar("F", bound=Callable[..., Any])
Address: TypeAlias = tuple[str, int]


def listen_address(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> Address | None:
    """`--listen` as an IP address and a port; no name is looked up."""
    if value is None:
        return None
    try:
        host = Host.parse(value)
    except UsageError as error:
        raise click.BadParameter(str(error)) from error
    return host.ip, host.port


@dataclass(frozen=True, slots=True)
class Grpc:
    """The values of --grpc, --grpc-tls-listen and --grpc-tls."""

    address: Address | None
    tls_address: Address | None
    tls: str | None

    @property
    def port(self) -> int | None:
        """A server's `grpc_port`."""
        return None if self.address is None else self.address[1]

    @property
    def tls_port(self) -> int | None:
        """A server's `grpc_tls_port`."""
        return None if self.tls_address is None else self.tls_address[1]

    def check(self, listen: Address | None) -> None:
        """UsageError: the options do not fit each other, or --listen."""
        if self.tls is not None and self.address is None and self.tls_address is None:
            raise UsageError("--grpc-tls needs --grpc HOST:PORT or --grpc-tls-listen HOST:PORT")
        if self.tls_address is not None and self.tls is None:
            raise UsageError("--grpc-tls-listen needs a certificate: say --grpc-tls CERT,KEY or --grpc-tls self-signed")
        for option, address in (("--grpc", self.address), ("--grpc-tls-listen", self.tls_address)):
            if address is not None and (listen is None or listen[0] != address[0]):
                raise UsageError(f"{option} needs --listen with the same host: --listen {address[0]}:10911")

    def certificate(self, host: str) -> Certificate | None:
        """The certificate that --grpc-tls names. UsageError: it is no pair of files, or one of them cannot be read."""
        if self.tls is None:
            return None
        from rmq_store.server.grpc_v2.tls import SELF_SIGNED, Certificate

        if self.tls == SELF_SIGNED:
            return Certificate.self_signed(host)
        chain, comma, key = self.tls.partition(",")
        if not (chain and comma and key):
            raise UsageError(f"--grpc-tls takes CERT,KEY (two PEM files) or {SELF_SIGNED}")
        return Certificate.of_files(Path(chain), Path(key))

    def places(self, server: BrokerServer) -> str:
        """The part of the command's first line about gRPC. A Java client that speaks TLS to the plain port learns no
        reason, and the server does not see its call: so this line has the reason.
        """
        places = ""
        if self.address is not None and (self.tls is None or self.tls_address is not None):
            other = "" if self.tls is None else ", or take the port with TLS"
            hint = f"clients in Java and Go have TLS on by default: switch enableSsl off{other}"
            places += f", gRPC at {server.grpc_address} (plain; {hint})"
        if self.tls is not None:
            places += f", gRPC at {server.grpc_tls_address} (TLS)"
        return places


def grpc_options(command: F) -> F:
    """Add the options; the command gets them as its argument `grpc`."""

    @functools.wraps(command)
    def with_grpc(
        *args: Any,
        grpc_address: Address | None,
        grpc_tls_address: Address | None,
        grpc_tls: str | None,
        **rest: Any,
    ) -> Any:
        return command(*args, grpc=Grpc(grpc_address, grpc_tls_address, grpc_tls), **rest)

    for option in reversed(_OPTIONS):
        with_grpc = option(with_grpc)
    return with_grpc  # type: ignore[return-value]


_OPTIONS: Final = (
    click.option(
        "--grpc",
        "grpc_address",
        metavar="HOST:PORT",
        callback=listen_address,
        help=(
            "With --listen: also serve RocketMQ's clients of version 5 over gRPC, with the users of --acl. HOST as "
            "there. Port 0: a free one."
        ),
    ),
    click.option(
        "--grpc-tls",
        metavar="CERT,KEY",
        help=(
            "Serve gRPC over TLS with these two PEM files; `self-signed` makes a throw-away certificate in memory. "
            "Without --grpc-tls-listen the port of --grpc takes nothing else."
        ),
    ),
    click.option(
        "--grpc-tls-listen",
        "grpc_tls_address",
        metavar="HOST:PORT",
        callback=listen_address,
        help="A port of its own for --grpc-tls; that of --grpc stays in plain text. HOST as there.",
    ),
)
