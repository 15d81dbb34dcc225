"""`rmq namesrv run`: a name server without a store."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rmq_store.cli.maintenance.access_options import ServerTls, tls_options
from rmq_store.cli.maintenance.broker import raise_file_limit, refuse_open_address
from rmq_store.cli.maintenance.broker_options import stopped, suite_options, written_address
from rmq_store.cli.maintenance.grpc_options import listen_address


@click.group(short_help="Run a name server.")
def namesrv() -> None:
    """A name server: brokers register with it, and clients find them by it."""


@namesrv.command(
    short_help="Run a name server until it is stopped.",
    epilog=(
        "\b\nExamples:\n"
        "  rmq namesrv run --listen 127.0.0.1:9876\n"
        "  rmq namesrv run --listen 10.0.0.5:9876 --acl acl.toml --tls-cert server.pem --tls-key server.key"
    ),
)
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:9876", show_default=True, callback=listen_address,
    help="The address for brokers and clients. Port 0: a free one.",
)  # fmt: skip
@click.option(
    "--insecure", is_flag=True,
    help="Let --listen take an address that other machines reach without --acl: everybody there may register and ask.",
)  # fmt: skip
@click.option(
    "--acl", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Users and their rights, as TOML: docs/server.md has the form. Each request must be signed by one of them; "
    "brokers register as one with `admin = true`. It is read again when it changes.",
)  # fmt: skip
@tls_options
@suite_options
def run(
    listen: tuple[str, int],
    insecure: bool,
    acl: Path | None,
    tls: ServerTls,
    port_file: Path | None,
    until_stdin_closes: bool,
) -> None:
    """Keep the routes of brokers of RocketMQ and of `rmq broker run --name-server`, until stopped.

    Routes are in memory: after a restart they are complete when all brokers have registered again, within 30 seconds.
    Stops on Ctrl-C and SIGTERM.
    """
    # Nobody dials a name server by what it says, so 0.0.0.0 is an address as any other that is not loopback.
    refuse_open_address(listen[0], is_open=insecure or acl is not None, is_told=False)
    raise_file_limit()
    from rmq_store.server.name_server.name_server import NameServer

    with (
        stopped(until_stdin_closes=until_stdin_closes) as stop,
        NameServer(*listen, acl_file=acl, tls=tls.files()) as server,
        written_address(port_file, server.address),
    ):
        click.echo(f"name server listens at {server.address}{' (TLS)' if tls.is_given else ''}")
        sys.stdout.flush()
        while not stop.wait(60.0):
            pass
