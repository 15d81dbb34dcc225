"""The options of `rmq broker run` about a slave."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq_store.cli.replica.master_option import CLUSTER, MASTER_HELP, master_of
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.remoting.transport.settings import ClusterSettings
    from rmq_store.replica.master import Master

FIRST_SLAVE_ID: Final = 1

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Slave:
    """The values of the options. `master` "": none was given. `broker`: the master's name among name servers."""

    master: str
    broker: str
    ha_address: str
    broker_id: int
    reads: bool | None

    @property
    def is_given(self) -> bool:
        """Whether any of the options was given that a master does not have."""
        return bool(self.master or self.broker or self.ha_address or self.broker_id != FIRST_SLAVE_ID)

    def open_master(self, root: Path, way: str | ClusterSettings) -> Master:
        """The master, to be closed. `way`: the name servers where the slave registers; their keys and TLS are those of
        the way to the master, too.

        Raises:
            UsageError: no master, a malformed address, or no name.
        """
        from dataclasses import replace

        from rmq_store.remoting.transport.settings import ClusterSettings

        if not self.master:
            raise UsageError("a slave follows a master: say --master HOST:PORT, or rmq://ADDRESSES of name servers")
        settings = ClusterSettings.of_text(self.master)
        if isinstance(way, ClusterSettings):
            settings = replace(way, name_servers=settings.name_servers)
        broker = self.broker
        if self.master.startswith(CLUSTER) and not broker:
            from rmq_store.replica.replica_store import known_role

            role = known_role(root)
            broker = role.broker if role is not None else ""
        return master_of(self.master, settings, broker=broker, ha_address=self.ha_address)


def slave_options(command: F) -> F:
    """Add the options; the command gets them as its argument `slave`."""

    @functools.wraps(command)
    def with_slave(
        *args: Any,
        slave_master: str,
        slave_broker: str,
        slave_ha: str,
        slave_id: int,
        slave_reads: bool | None,
        **rest: Any,
    ) -> Any:
        return command(*args, slave=Slave(slave_master, slave_broker, slave_ha, slave_id, slave_reads), **rest)

    for option in reversed(_OPTIONS):
        with_slave = option(with_slave)
    return with_slave  # type: ignore[return-value]


_OPTIONS: Final = (
    click.option(
        "--master", "slave_master", metavar="HOST:PORT", default="", help=f"With --role SLAVE: {MASTER_HELP}"
    ),
    click.option(
        "--broker", "slave_broker", metavar="NAME", default="",
        help="The name of the master among the name servers, for a new slave.",
    ),
    click.option(
        "--master-ha", "slave_ha", metavar="HOST:PORT", default="",
        help="The HA port of the master, if that is another one from here than the master says.",
    ),
    click.option(
        "--broker-id", "slave_id", metavar="N", type=click.IntRange(min=1), default=FIRST_SLAVE_ID,
        help="The id of the slave, above 0; each slave of a name has its own. 1 by default.",
    ),
    click.option(
        "--slave-read/--no-slave-read", "slave_reads", default=None,
        help="slaveReadEnable. A slave answers pulls, unless it is off. A master, if it is on, sends readers that are "
        "further behind than 40 % of its memory to a slave.",
    ),
)  # fmt: skip
