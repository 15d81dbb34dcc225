"""RocketMQ 5's proxy as a process in front of a cluster: the only address that a test's clients are told.

    with RocketmqCluster("5.5.0") as cluster, RocketmqProxy(cluster) as proxy:
        Cluster(ClusterSettings.of_text(proxy.address))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from compat.stores import brokers as released
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.java_process import HOST, JavaProcess
from helpers.cluster.released import SETTINGS
from helpers.cluster.waiting import free_ports

VERSION: Final = "5.5.0"
PROXY: Final = released.proxy_of(VERSION)
"""Its class path, for `require_released`."""


class RocketmqProxy(JavaProcess):
    """In cluster mode; `settings` are lines of rmq-proxy.json. A context manager."""

    def __init__(self, cluster: RocketmqCluster, settings: Mapping[str, object] | None = None) -> None:
        (port,) = free_ports(1)
        name = SETTINGS["brokerClusterName"]
        written = {
            "rocketMQClusterName": name, "proxyClusterName": name, "localServeAddr": HOST, "remotingAccessAddr": HOST,
            "remotingListenPort": port, "grpcServerPort": port + 1, **(settings or {}),
        }  # fmt: skip
        options = ("-Dtls.server.mode=disabled", "-DRMQ_PROXY_HOME={directory}")
        super().__init__(
            "proxy", PROXY, "org.apache.rocketmq.proxy.ProxyStartup", port,
            heap="256m", files={"rmq-proxy.json": json.dumps(written)}, options=options,
        )  # fmt: skip
        self._name_server = cluster.name_server

    def _arguments(self, directory: Path) -> list[str]:
        return ["-n", self._name_server, "-pm", "cluster", "-pc", str(directory / "rmq-proxy.json")]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"--- proxy\n{self.log()}")
        self.close()
