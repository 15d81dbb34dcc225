"""The options of `rmq broker run` about its slaves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq_store.cli.maintenance.grpc_options import Address, listen_address
from rmq_store.cli.maintenance.role_option import SYNC_MASTER
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.server.broker_server import BrokerServer
    from rmq_store.server.ha.settings import HASettings

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class HA:
    """The values of the options."""

    address: Address | None
    allow: tuple[str, ...]
    advertise: str | None
    in_sync_replicas: int
    slave_timeout_ms: int | None

    @property
    def is_given(self) -> bool:
        """Whether any of the options was given."""
        return bool(
            self.address or self.allow or self.advertise or self.in_sync_replicas or self.slave_timeout_ms is not None
        )

    def settings(self, role: str) -> HASettings | None:
        """The argument of a master's server; None: it has no slaves. UsageError: the options do not fit each other."""
        if self.address is None:
            if self.is_given or role == SYNC_MASTER:
                raise UsageError("--role, --ha-allow and their like are about slaves, which connect to --ha-listen")
            return None
        if role != SYNC_MASTER and (self.in_sync_replicas or self.slave_timeout_ms is not None):
            raise UsageError("--in-sync-replicas and --slave-timeout are about sends that wait: say --role SYNC_MASTER")
        from rmq_store.log.broker_role import BrokerRole
        from rmq_store.log.replication import SLAVE_TIMEOUT_MS
        from rmq_store.server.broker_server import advertised
        from rmq_store.server.ha.settings import AllowedPeers, HASettings

        return HASettings(
            host=self.address[0], port=self.address[1], role=BrokerRole[role],
            advertised=advertised(self.advertise) if self.advertise else "",
            allowed=AllowedPeers.parse(self.allow), in_sync_replicas=self.in_sync_replicas,
            slave_timeout_ms=SLAVE_TIMEOUT_MS if self.slave_timeout_ms is None else self.slave_timeout_ms,
        )  # fmt: skip

    def places(self, server: BrokerServer, role: str) -> str:
        """The part of the command's first line about slaves."""
        return f", {role}, slaves at {server.ha_address}" if server.ha_address else ""


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
        **rest: Any,
    ) -> Any:
        return command(*args, ha=HA(ha_address, ha_allow, ha_advertise, in_sync_replicas, slave_timeout), **rest)

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
