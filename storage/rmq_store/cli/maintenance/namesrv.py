"""`rmq namesrv run`: a name server without a store."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rmq_store.cli.maintenance.broker import listen_address, raise_file_limit, refuse_open_address
from rmq_store.cli.maintenance.broker_options import stopped, suite_options, written_address


@click.group(short_help="Run a name server.")
def namesrv() -> None:
    """A name server: brokers register with it, and clients find them by it."""


@namesrv.command(
    short_help="Run a name server until it is stopped.",
    epilog="\b\nExample:\n  rmq namesrv run --listen 127.0.0.1:9876",
)
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:9876", show_default=True, callback=listen_address,
    help="The address for brokers and clients. Port 0: a free one.",
)  # fmt: skip
@click.option(
    "--insecure", is_flag=True,
    help="Let --listen take an address that other machines reach: everybody there may register and ask.",
)  # fmt: skip
@suite_options
def run(listen: tuple[str, int], insecure: bool, port_file: Path | None, until_stdin_closes: bool) -> None:
    """Keep the routes of brokers of RocketMQ and of `rmq broker run --name-server`, until stopped.

    Routes are in memory: after a restart they are complete when all brokers have registered again, within 30 seconds.
    Stops on Ctrl-C and SIGTERM.
    """
    # Nobody dials a name server by what it says, so 0.0.0.0 is an address as any other that is not loopback.
    refuse_open_address(listen[0], is_open=insecure, is_told=False)
    raise_file_limit()
    from rmq_store.server.name_server.name_server import NameServer

    with stopped(until_stdin_closes=until_stdin_closes) as stop, NameServer(*listen) as server:
        with written_address(port_file, server.address):
            click.echo(f"name server listens at {server.address}")
            sys.stdout.flush()
            while not stop.wait(60.0):
                pass
