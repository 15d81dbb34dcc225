"""The name servers and brokers of a cluster as processes: their settings, which are those of a broker.conf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from helpers.cluster.java_process import HOST, JavaProcess
from helpers.cluster.security import Acl, Tls

SETTINGS: dict[str, object] = {
    "brokerClusterName": "rmq-tests",
    "brokerIP1": HOST,
    "brokerIP2": HOST,
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 50_000 * 20,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "mappedFileSizeTimerLog": 4 << 20,
    # Each time 5.x copies its whole wheel, 38 MB: by default every second, an eighth of a processor for an idle broker.
    "timerFlushIntervalMs": 10_000,
    # The disk is the machine's; how full it is says nothing about a test.
    "diskMaxUsedSpaceRatio": 99,
    "enablePropertyFilter": "true",
    # The shortest period that brokers accept.
    "registerNameServerPeriod": 10_000,
    # How often a slave says how far it is: before the first time no master counts it.
    "haSendHeartbeatInterval": 500,
    # Without it no slave answers a pull, on 4.9 and on 5.x.
    "slaveReadEnable": "true",
    # For a client on 127.0.0.1 that may be slow: 200 ms in a queue are not yet an overload of this machine.
    "waitTimeMillsInSendQueue": 2000,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """What all processes of a cluster have in common. See `RocketmqCluster`."""

    version: str
    slaves: int
    sync: bool
    acl: Acl | None
    tls: Tls | None
    properties: Mapping[str, object]
    master_properties: Mapping[str, object]
    slave_properties: Mapping[str, object]

    def name_server(self, number: int, port: int) -> JavaProcess:
        """A name server that is not started."""
        files = {"settings.conf": _lines({"listenPort": port, "bindAddress": HOST})}
        return JavaProcess(
            f"name-server-{number}", self.version, "org.apache.rocketmq.namesrv.NamesrvStartup", port,
            heap="128m", files={**files, **self._tls_files()}, options=self._tls_options(),
        )  # fmt: skip

    def broker(self, name: str, broker_id: int, port: int, name_servers: str) -> JavaProcess:
        """A broker that is not started; 0 is the master."""
        own: dict[str, object] = {
            "brokerName": name,
            "brokerId": broker_id,
            "brokerRole": "SLAVE" if broker_id else ("SYNC_MASTER" if self.sync else "ASYNC_MASTER"),
            "listenPort": port,
            "bindAddress": HOST,
            "namesrvAddr": name_servers,
            "storePathRootDir": "{directory}/store",
            "storePathCommitLog": "{directory}/store/commitlog",
        }
        taken = own.keys() & self.properties.keys()
        assert not taken, f"{taken} differ from broker to broker: say them in master_properties or slave_properties"
        settings = {**SETTINGS, **self.properties, **own}
        if self.sync and not self.version.startswith("4."):
            settings |= {"inSyncReplicas": 2, "totalReplicas": 1 + self.slaves}
        files = {}
        if self.acl is not None:
            settings |= self.acl.broker_settings(self.version)
            files |= self.acl.files(self.version)
        settings |= self.slave_properties if broker_id else self.master_properties
        return JavaProcess(
            f"{name}-{broker_id}", self.version, "org.apache.rocketmq.broker.BrokerStartup", port,
            heap="512m", files={"settings.conf": _lines(settings), **files, **self._tls_files()},
            options=self._tls_options(),
        )  # fmt: skip

    def _tls_options(self) -> tuple[str, ...]:
        return ("-Dtls.server.mode=disabled",) if self.tls is None else self.tls.java_options()

    def _tls_files(self) -> dict[str, str]:
        return {} if self.tls is None else self.tls.files()


def _lines(settings: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
