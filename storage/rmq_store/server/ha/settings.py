"""The settings of a master's HA port, under RocketMQ's names where it has one (MessageStoreConfig.java)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final, TypeAlias

from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.broker_role import BrokerRole
from rmq_store.log.replication import SLAVE_TIMEOUT_MS
from rmq_store.replica.wire import HA_TLS
from rmq_store.server.transport.tls import TlsFiles

_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

HEARTBEAT_S: Final = 5.0
"""haSendHeartbeatInterval"""

HOUSEKEEPING_S: Final = 20.0
"""haHousekeepingInterval: a slave that reports nothing for so long, or takes nothing, is not connected any more."""

TRANSFER_BYTES: Final = 256 << 10
"""haTransferBatchSize. Java's has 32 KiB; its slaves read 4 MiB at a time, and each transfer costs the same."""

HANDSHAKE_S: Final = 10.0
"""As for clients of the listener."""

FALLBEHIND_BYTES_MAX: Final = 256 << 20
"""haSlaveFallbehindMax, haMaxGapNotInSync: a slave that is further behind does not count."""


@dataclass(frozen=True, slots=True)
class AllowedPeers:
    """This machine may connect, and `networks`."""

    networks: tuple[_Network, ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> AllowedPeers:
        """From addresses and networks, `10.0.0.7`, `10.0.0.0/24`; no name is looked up. UsageError: none of these."""
        networks = []
        for text in texts:
            try:
                networks.append(ipaddress.ip_network(text))
            except ValueError as error:
                raise UsageError(
                    f"--ha-allow {text}: {error}. Give the address of a slave, or a network as 10.0.0.0/24"
                ) from error
        return cls(tuple(networks))

    def has(self, address: str) -> bool:
        """Whether the peer with this IP address may connect."""
        peer = ipaddress.ip_address(address.partition("%")[0])
        mapped = getattr(peer, "ipv4_mapped", None)
        peer = mapped or peer
        return peer.is_loopback or any(peer in network for network in self.networks)


@dataclass(frozen=True, slots=True, kw_only=True)
class HASettings:
    """`host`, `port`: where slaves connect, 0 a free port; `advertised`: host:port that they are told instead.

    `role`: ASYNC_MASTER or SYNC_MASTER. `in_sync_replicas` 0: the rules of 4.x; n: those of inSyncReplicas of 5.x, the
    master included. `slave_timeout_ms`: for how long a send waits. Connections over `connections_max` are refused.

    `tls`: the port takes TLS only, so slaves of RocketMQ are refused. With `client_ca_file` slaves show a certificate
    of theirs; then every address may connect if `allowed` names none. `slave_read_enable`: a reader that is far behind
    is told to ask a slave (`suggested_broker_id`).

    Raises:
        UsageError: another role, an address that other machines reach without `allowed` networks, or a number below 0.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertised: str = ""
    role: BrokerRole = BrokerRole.ASYNC_MASTER
    allowed: AllowedPeers = AllowedPeers()
    in_sync_replicas: int = 0
    slave_timeout_ms: int = SLAVE_TIMEOUT_MS
    fallbehind_bytes_max: int = FALLBEHIND_BYTES_MAX
    transfer_bytes: int = TRANSFER_BYTES
    heartbeat_s: float = HEARTBEAT_S
    housekeeping_s: float = HOUSEKEEPING_S
    handshake_s: float = HANDSHAKE_S
    connections_max: int = 200
    tls: TlsFiles | None = None
    slave_read_enable: bool = False

    @property
    def waits_for_slaves(self) -> bool:
        """Whether sends wait. With inSyncReplicas=1 the master alone is enough (5.x)."""
        return self.role is BrokerRole.SYNC_MASTER and self.in_sync_replicas != 1

    def told(self) -> dict[str, int | bool | str]:
        """The settings that an answer to 26 has of them."""
        return {"brokerRole": self.role.name, HA_TLS: self.tls is not None, "slaveReadEnable": self.slave_read_enable}

    def allows(self, address: str) -> bool:
        """Whether the peer with this IP address may connect."""
        return self.allowed.has(address) or (self._asks_certificates and not self.allowed.networks)

    @property
    def _asks_certificates(self) -> bool:
        return self.tls is not None and self.tls.client_ca_file is not None

    def __post_init__(self) -> None:
        if self.role is BrokerRole.SLAVE:
            raise UsageError("a slave has no HA port: its slaves would have to ask another master")
        if min(self.in_sync_replicas, self.slave_timeout_ms) < 0:
            raise UsageError("inSyncReplicas and slaveTimeout must not be negative")
        is_open = not ipaddress.ip_address(self.host).is_loopback
        if is_open and not self.allowed.networks and not self._asks_certificates:
            raise UsageError(
                f"--ha-listen {self.host}: other machines reach this address, and whoever does may copy the whole log. "
                "The HA port of RocketMQ has no authentication: name the slaves with --ha-allow, or ask them for "
                "certificates (--ha-tls-client-ca)"
            )
