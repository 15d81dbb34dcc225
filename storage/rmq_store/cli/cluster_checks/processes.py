"""All registered processes of a cluster with their settings (26) and figures (28), asked for at once.

Each answer has the version of its sender, also a refusal.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import field

from rmq_store.cli.target.error_text import without_codes
from rmq_store.errors import StoreError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies.routes import TIMER_MESSAGES, ClusterInfo
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.versions import V5_0_0
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions.brokers import (
    ask_broker_config,
    ask_runtime_info,
    read_broker_config,
    read_runtime_info,
)


@dataclass(slots=True)
class Process:
    """A broker's process. `error`: why it does not answer. `refusals`: what it did not want to say. `asked_ms` and
    `answered_ms` (the wall clock) enclose the reading of `figures`.
    """

    broker_name: str
    broker_id: int
    address: str
    error: str = ""
    version: int = 0
    settings: Mapping[str, str] | None = None
    figures: Mapping[str, str] | None = None
    refusals: list[str] = field(default_factory=list)
    asked_ms: int = 0
    answered_ms: int = 0

    @property
    def name(self) -> str:
        """As `broker-a (master)`."""
        return f"{self.broker_name} ({'master' if self.broker_id == 0 else f'slave {self.broker_id}'})"

    @property
    def is_5x(self) -> bool:
        """Whether the broker is of 5.0 or above."""
        return self.version >= V5_0_0

    @property
    def is_served_store(self) -> bool:
        """Whether it is `rmq broker run`: it announces 4.9, has timers and POP, and takes no change of settings."""
        return (self.figures or {}).get(TIMER_MESSAGES) == "true"


def ask_processes(cluster: Cluster, info: ClusterInfo) -> list[Process]:
    """Ask all processes, each once and at the same time."""
    found = [
        Process(name, broker_id, address)
        for name, broker in sorted(info.broker_addr_table.items())
        for broker_id, address in sorted(broker.broker_addrs.items())
    ]
    asked = ask_runtime_info, ask_broker_config
    asked_ms = _now_ms()
    futures = [[cluster.client.submit(one.address, ask()) for ask in asked] for one in found]
    for process, (figures, settings) in zip(found, futures, strict=True):
        try:
            answer = figures.result()
            process.version = answer.version
            process.asked_ms, process.answered_ms = asked_ms, _now_ms()
            if _is_told(process, answer):
                process.figures = read_runtime_info(answer, process.broker_name)
            answer = settings.result()
            if _is_told(process, answer):
                process.settings = read_broker_config(answer, process.broker_name)
        except StoreError as error:
            process.error = without_codes(str(error))
    return found


def _is_told(process: Process, answer: RemotingCommand) -> bool:
    if answer.code == ResponseCode.SUCCESS:
        return True
    process.refusals.append(f"code {answer.code}: {(answer.remark or '').splitlines()[0] if answer.remark else ''}")
    return False


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
