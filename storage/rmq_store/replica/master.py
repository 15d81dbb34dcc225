"""The questions of a replica to its master, by remoting: its HA port, the ends of its log, and how its files are cut.

    906    the address of its HA port, as slaves dial it; brokers of 4.x do not know the question
    26     brokerIP2 and haListenPort, where 906 does not tell; sizes of files; messageDelayLevel; its id
    28     the first and the last offset of its log

A master is never told that a slave exists: nothing is registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from rmq_store.broker.metadata.store_config import StoreConfig, parse_settings
from rmq_store.errors import StoreKindError, UsageError
from rmq_store.format.views.consume_queue import ENTRY_BYTES
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.errors import MQBrokerError, RemotingCommandError, RemotingError
from rmq_store.protocol.versions import V5_4_0
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions.answer import Given, lacks_rights
from rmq_store.remoting.questions.brokers import (
    ask_broker_config,
    ask_ha_address,
    ask_runtime_info,
    read_broker_config,
    read_ha_address,
    read_runtime_info,
)
from rmq_store.remoting.transport.settings import ClusterSettings, TlsSettings, parse_address
from rmq_store.replica.wire import HA_TLS

# They decide the form of the files, and when delayed messages are due: a replica has its master's.
_TAKEN: Final = (
    "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum", "messageIndexEnable",
    "messageDelayLevel",
)  # fmt: skip
# What a broker.conf need not say: BrokerIdentity, MessageStoreConfig.
_OF_ROCKETMQ: Final = {
    "brokerClusterName": "DefaultCluster", "mappedFileSizeCommitLog": "1073741824",
    "mappedFileSizeConsumeQueue": "6000000",
}  # fmt: skip
_OTHER_HA: Final = {
    "enableDLegerCommitLog": "it keeps its log with DLedger",
    "enableControllerMode": "it replicates with AutoSwitchHA (controller mode)",
}


class LogEnds(NamedTuple):
    """The first offset of a master's log, and its end."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """A master's answer to 26: its names, its HA address, and the settings of a replica of it. `ha_tls`: of the way to
    its HA port, which takes TLS; None: it has none.
    """

    cluster: str
    broker: str
    ha_address: str
    config: StoreConfig
    ha_tls: TlsSettings | None = None


class Master:
    """The broker that a replica follows. `broker` is its name among `settings`' name servers; "" if `address` is given,
    which is then asked, and `ha_address`, if given, is dialled whatever the broker says. `broker_conf`: its settings,
    as its broker.conf has them, for somebody whom it does not tell them. Close it.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        broker: str = "",
        address: str = "",
        ha_address: str = "",
        broker_conf: Mapping[str, str] | None = None,
    ) -> None:
        if bool(broker) == bool(address):
            raise UsageError("which broker? Give its name and name servers, or its address")
        for each in filter(None, (address, ha_address)):
            parse_address(each)
        self.settings = settings
        self.broker_name = broker or address
        """How errors name it."""
        self._given_address = address
        self._given_ha_address = ha_address
        self._broker_conf = broker_conf
        self._cluster = Cluster(settings)
        self.is_by_name = bool(broker)
        """Whether name servers tell where it is."""

    def address(self) -> str:
        """host:port of the master now, as it has registered. RemotingConnectError: no name server knows it."""
        return self._cluster.address(self.broker_name) if self.is_by_name else self._given_address

    def ask(self, command: RemotingCommand) -> Given:
        """The answer with any code, or the error in its place."""
        try:
            if self.is_by_name:
                return self._cluster.call_broker(self.broker_name, command, ok=None)
            return self._cluster.client.call(self._given_address, command, self.settings.timeout_ms)
        except RemotingError as error:
            return error

    def log_end(self) -> int:
        """The end of its log now. Raises as `log_ends`."""
        return self.log_ends().end

    def log_ends(self) -> LogEnds:
        """The first offset and the end of its log now.

        Raises:
            RemotingError: the broker does not answer, or without these figures. MQBrokerError: it refuses.
        """
        figures = read_runtime_info(self.ask(ask_runtime_info()), self.broker_name)
        try:
            ends = LogEnds(int(figures["commitLogMinOffset"]), int(figures["commitLogMaxOffset"]))
        except (KeyError, ValueError):
            ends = LogEnds(-1, -1)
        if ends == (-1, 0):  # no segment yet: MappedFileQueue#getMinOffset
            return LogEnds(0, 0)
        if not 0 <= ends.start <= ends.end < 1 << 62:
            raise RemotingCommandError(f"broker {self.broker_name} does not tell where its log begins and ends (28)")
        return ends

    def look(self) -> MasterSettings:
        """Ask for its settings.

        Raises:
            RemotingError: the broker does not answer, or with settings that no broker has.
            MQBrokerError: it refuses: 26 needs the right to administer it, and no `broker_conf` was given.
            StoreKindError: it replicates in a way that this engine does not speak.
            UsageError: the broker is a slave, or its HA port takes TLS and the way to it has none.
        """
        given = self.ask(ask_broker_config())
        settings = self._settings_of(given)
        for name, reason in _OTHER_HA.items():
            if settings.get(name) == "true":
                raise StoreKindError(self.broker_name, f"{reason}: only a master with DefaultHA is followed", name)
        if settings.get("brokerId", "0") != "0":
            raise UsageError(f"broker {self.broker_name} at {self.address()} is a slave; the address of its master?")
        if settings.get(HA_TLS) == "true" and self.settings.tls is None:
            raise UsageError(
                f"the HA port of broker {self.broker_name} takes TLS only ({HA_TLS}), and there are no settings of TLS "
                "for the way to it: say --tls, and --tls-ca-file; a slave that is served, --name-server-tls"
            )
        try:
            taken = parse_settings({name: settings[name] for name in _TAKEN if name in settings}, self.broker_name)
            # MessageStoreConfig#getMappedFileSizeConsumeQueue rounds up to whole entries.
            taken["mapped_file_size_consume_queue"] += -taken["mapped_file_size_consume_queue"] % ENTRY_BYTES
            broker = settings.get("brokerName") or self.broker_name
            # A broker's records have no property with a checksum unless it says so, and a replica requires none.
            config = StoreConfig(
                **taken,
                broker_name=broker,
                enabled_append_prop_crc=False,
                message_index_tags=not isinstance(given, RemotingError) and given.version >= V5_4_0,
            )
        except (ValueError, TypeError, KeyError) as error:
            raise RemotingCommandError(f"broker {self.broker_name} tells settings that none has: {error}") from error
        ha_tls = self.settings.tls if settings.get(HA_TLS) == "true" else None
        return MasterSettings(settings.get("brokerClusterName", ""), broker, self._ha_address(settings), config, ha_tls)

    def _settings_of(self, given: Given) -> Mapping[str, str]:
        """Those of an answer to 26, or of `broker_conf` if the broker refuses it for want of rights."""
        if isinstance(given, RemotingError) or not given.code or not lacks_rights(given):
            return read_broker_config(given, self.broker_name)
        if self._broker_conf is None:
            raise MQBrokerError(
                given.code,
                f"{given.remark}. Without the right to ask for the broker's settings (26), give them: --broker-conf "
                f"FILE, its broker.conf, with {', '.join(_TAKEN[:2])} if they are not RocketMQ's own",
                self.broker_name,
            )
        return {**_OF_ROCKETMQ, **self._broker_conf}

    def _ha_address(self, settings: Mapping[str, str]) -> str:
        if self._given_ha_address:
            return self._given_ha_address
        told = read_ha_address(self.ask(ask_ha_address()), self.broker_name)
        if told is not None:
            return told
        host, port = parse_address(self.address())
        own, ha_port = settings.get("brokerIP2") or host, settings.get("haListenPort", "")
        return f"{own}:{ha_port if ha_port.isdigit() and int(ha_port) else port + 1}"

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

