"""`rmq broker run --role SLAVE`: follows a master, and serves reads."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rmq_store.cli.replica.slave_options import Slave
from rmq_store.cli.shared.output import printable
from rmq_store.cli.shared.stop_signal import StopSignal
from rmq_store.errors import UsageError
from rmq_store.lazy.imports import no_collection

if TYPE_CHECKING:
    from rmq_store.remoting.transport.settings import ClusterSettings
    from rmq_store.server.transport.tls import TlsFiles

_ROUND_S: Final = 1.0


def run_slave(
    root: Path,
    slave: Slave,
    listen: tuple[str, int] | None,
    stop: StopSignal,
    *,
    acl: Path | None,
    tls: TlsFiles | None,
    advertise: str | None,
    name_servers: str | ClusterSettings,
    told: Callable[[str], AbstractContextManager[None]],
) -> None:
    """Serve until `stop`, or until the feed cannot go on. `told(address)`: a block in which others know the address.

    Raises:
        UsageError: no address. Errors of `SlaveServer`, and of its `check`.
    """
    if listen is None:
        raise UsageError("a slave serves reads: say --listen. Without clients, `rmq follow --as-slave` is enough")
    with no_collection():
        from rmq_store.server.slave.slave_server import SlaveServer

    with slave.open_master(root, name_servers) as master, contextlib.ExitStack() as parts:
        try:
            server = parts.enter_context(SlaveServer(
                root, master, host=listen[0], port=listen[1], broker_id=slave.broker_id, reads=slave.reads is not False,
                acl_file=acl, tls=tls, advertise=advertise, name_servers=name_servers, should_stop=stop.wait,
            ))  # fmt: skip
        except InterruptedError:
            return
        parts.enter_context(told(server.address))
        name = printable(server.broker_name)
        click.echo(f"{printable(str(root))}: slave {slave.broker_id} of broker {name} listens at {server.address}")
        sys.stdout.flush()
        while not stop.wait(_ROUND_S):
            server.check()
