"""The options of `rmq broker run` about its slaves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq_store.cli.maintenance.access_options import FILE
from rmq_store.cli.maintenance.grpc_options import Address, listen_address
from rmq_store.cli.maintenance.role_option import SYNC_MASTER
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.server.broker_server import BrokerServer
    from rmq_store.server.ha.settings import HASettings
    from rmq_store.server.transport.tls import TlsFiles

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class HA:
    """The values of the options."""

    address: Address | None
    allow: tuple[str, ...]
    advertise: str | None
    in_sync_replicas: int
    slave_timeout_ms: int | None
    tls: bool
    client_ca: Path | None

    @property
    def is_given(self) -> bool:
        """Whether any of the options was given."""
        return self != _NOTHING

    def settings(self, role: str, server_tls: TlsFiles | None, *, slave_reads: bool) -> HASettings | None:
        """The argument of a master's server, whose clients see `server_tls`; None: it has no slaves. UsageError: the
        options do not fit each other.
        """
        if self.address is None:
            if self.is_given or role == SYNC_MASTER or slave_reads:
                raise UsageError(
                    "--role, --slave-read, --ha-allow and their like are about slaves, which connect to --ha-listen"
                )
            return None
        if role != SYNC_MASTER and (self.in_sync_replicas or self.slave_timeout_ms is not None):
            raise UsageError("--in-sync-replicas and --slave-timeout are about sends that wait: say --role SYNC_MASTER")
        tls = self._tls(server_tls)
        from rmq_store.log.broker_role import BrokerRole
        from rmq_store.log.replication import SLAVE_TIMEOUT_MS
        from rmq_store.server.broker_server import advertised
        from rmq_store.server.ha.settings import AllowedPeers, HASettings

        return HASettings(
            host=self.address[0], port=self.address[1], role=BrokerRole[role],
            advertised=advertised(self.advertise) if self.advertise else "",
            allowed=AllowedPeers.parse(self.allow), in_sync_replicas=self.in_sync_replicas,
            slave_timeout_ms=SLAVE_TIMEOUT_MS if self.slave_timeout_ms is None else self.slave_timeout_ms, tls=tls,
            slave_read_enable=slave_reads,
        )  # fmt: skip

    def _tls(self, server_tls: TlsFiles | None) -> TlsFiles | None:
        if not self.tls and self.client_ca is None:
            return None
        if server_tls is None:
            raise UsageError("--ha-tls uses the certificate that clients see: say --tls-cert and --tls-key")
        return server_tls if self.client_ca is None else replace(server_tls, client_ca_file=self.client_ca)

    def places(self, server: BrokerServer, role: str) -> str:
        """The part of the command's first line about slaves."""
        over = " over TLS" if self.tls or self.client_ca is not None else ""
        return f", {role}, slaves at {server.ha_address}{over}" if server.ha_address else ""


_NOTHING: Final = HA(None, (), None, 0, None, tls=False, client_ca=None)


def ha_options(command: F) -> F:
    """Add the options; the command gets them as its argument `ha`."""

    @functools.wraps(command)
    def with_ha(
        *args: Any,
        ha_address: Address | None,
        ha_allow: tuple[str, ...],
        ha_advertise: str | None,
        in_sync_replicas: int,
        slave_timeout: int | None,
        ha_tls: bool,
        ha_tls_client_ca: Path | None,
        **rest: Any,
    ) -> Any:
        given = HA(
            ha_address, ha_allow, ha_advertise, in_sync_replicas, slave_timeout, tls=ha_tls, client_ca=ha_tls_client_ca
        )
        return command(*args, ha=given, **rest)

    for option in reversed(_OPTIONS):
        with_ha = option(with_ha)
    return with_ha  # type: ignore[return-value]


_OPTIONS: Final = (
    click.option(
        "--ha-listen",
        "ha_address",
        metavar="HOST:PORT",
        callback=listen_address,
        help="With --listen: slaves copy the log here, those of RocketMQ 4.9 and 5.x and `rmq follow`. Port 0: a free "
        "one.",
    ),
    click.option(
        "--ha-allow",
        metavar="ADDRESS",
        multiple=True,
        help="An address or a network, as 10.0.0.0/24, from which slaves may connect. May be repeated. Without it only "
        "this machine may.",
    ),
    click.option(
        "--ha-advertise",
        metavar="HOST:PORT",
        help="Tell slaves this address instead of --ha-listen.",
    ),
    click.option(
        "--ha-tls",
        is_flag=True,
        help="Slaves connect over TLS only, with the certificate of --tls-cert. Those of RocketMQ cannot.",
    ),
    click.option(
        "--ha-tls-client-ca",
        metavar="FILE",
        type=FILE,
        help="As --ha-tls, and slaves must show a certificate of these authorities (PEM). Without --ha-allow they may "
        "have any address then.",
    ),
    click.option(
        "--in-sync-replicas",
        metavar="N",
        type=click.IntRange(min=0),
        default=0,
        help="With SYNC_MASTER: by the rules of 5.x, N brokers must have a message, this one included. 0, the default: "
        "a slave, by those of 4.x.",
    ),
    click.option(
        "--slave-timeout",
        metavar="MS",
        type=click.IntRange(min=0),
        help="With SYNC_MASTER: for how long a send waits; 3000 by default.",
    ),
)
