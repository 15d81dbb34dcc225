"""`rmq broker clock advance`: moves the time of a broker that runs with --virtual-clock."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from rmq_store.cli.shared.output import time_text
from rmq_store.cli.shared.times import parse_duration
from rmq_store.errors import UsageError

# The answer comes when all that is due by then is delivered.
_DELIVERY_MS: Final = 60_000


@click.group(short_help="Move the time of a broker with --virtual-clock.")
def clock() -> None:
    """The time of a broker that was started with --ephemeral --virtual-clock."""


@clock.command(
    short_help="Move the time forward.",
    epilog="\b\nExample:\n  rmq broker clock advance --port-file broker.port 2h",
)
@click.option(
    "--port-file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file that `rmq broker run --port-file` has written.",
)  # fmt: skip
@click.option("--address", metavar="HOST:PORT", help="The broker's address, instead of --port-file.")
@click.argument("duration", metavar="DURATION")
def advance(port_file: Path | None, address: str | None, duration: str) -> None:
    """Move the time forward by DURATION (500ms, 30s, 10m, 2h, 1d), deliver what is due by then, and print the new time.

    Delays, retries, timers and invisible times of messages follow this clock. Long pulls, heartbeats, locks and
    timeouts do not. 0s only prints the time.
    """
    from rmq_store.protocol.errors import MQBrokerError
    from rmq_store.protocol.wire.admin_headers import AdvanceClockRequestHeader, AdvanceClockResponseHeader
    from rmq_store.protocol.wire.header_fields import request
    from rmq_store.remoting.transport.client import RemotingClient
    from rmq_store.remoting.transport.settings import ClusterSettings

    if (port_file is None) == (address is None):
        raise UsageError("name the broker by --port-file or by --address, one of the two")
    where = address or (port_file.read_text(encoding="ascii").strip() if port_file else "")
    header = AdvanceClockRequestHeader(duration_ms=parse_duration(duration))
    with RemotingClient(ClusterSettings.of_text(where)) as client:
        answer = client.call(where, request(header), _DELIVERY_MS)
    if answer.code != 0:
        raise MQBrokerError(answer.code, answer.remark or "", where)
    click.echo(time_text(AdvanceClockResponseHeader.from_ext(answer.ext_fields).time_ms * 1000))
