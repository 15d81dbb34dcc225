"""The process of a broker that is read: the master, or a slave while the master does not answer or asks for it.

Source: PullAPIWrapper.java (recalculatePullFromWhichNode), MQClientInstance.java (findBrokerAddressInSubscribe).
"""

from __future__ import annotations

from typing import Final

from rmq_store.protocol.errors import MQBrokerError, RemotingConnectError, RemotingError
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.routes import MASTER_ID, BrokerAddresses

REFUSED_FOR_MS: Final = 5_000
SILENT_FOR_MS: Final = 30_000
"""So long a process that gave no answer is not asked while another one is there: each try may take a time limit."""


class PullSource:
    """The process that reads of one queue go to now. Not safe for threads; what has failed is known to all readers of
    the cluster.
    """

    def __init__(self, cluster: Cluster, broker_name: str) -> None:
        self._cluster = cluster
        self._broker_name = broker_name
        self.broker_id = MASTER_ID
        if self._is_held_off(MASTER_ID):
            self._choose()

    @property
    def may_lag(self) -> bool:
        """Whether the process may not have all messages, see `lags`."""
        return self.lags(self.broker_id)

    def lags(self, broker_id: int) -> bool:
        """Whether a process may not have all messages: a slave, or one that a name server may show in its master's
        place. Of an answer it counts who was asked: reads may go elsewhere by now.
        """
        if broker_id != MASTER_ID:
            return True
        broker = self._broker()
        return broker is not None and broker.acting_enabled

    def suggested(self, broker_id: int) -> None:
        """Follow what an answer suggests, if there is such a process and it has answered lately."""
        if broker_id != self.broker_id and broker_id in self._addresses() and not self._is_held_off(broker_id):
            self.broker_id = broker_id

    def failed(self, error: RemotingError) -> bool:
        """Go to another process after one gave no answer. False: there is no other."""
        hold_off_ms = REFUSED_FOR_MS if isinstance(error, RemotingConnectError) else SILENT_FOR_MS
        until_ms = self._cluster.timer() + hold_off_ms
        self._cluster.held_off[self._broker_name, self.broker_id] = until_ms
        self._cluster.routes.not_reached(self._broker_name)
        before = self.broker_id
        self._choose()
        return self.broker_id != before

    def is_behind(self) -> bool:
        """Go to the master after a slave did not have a message (yet), or refused. False: the master is not there."""
        if self.broker_id == MASTER_ID or MASTER_ID not in self._addresses() or self._is_held_off(MASTER_ID):
            return False
        self.broker_id = MASTER_ID
        return True

    def _choose(self) -> None:
        ids = sorted(self._addresses()) or [MASTER_ID]
        self.broker_id = next((broker_id for broker_id in ids if not self._is_held_off(broker_id)), ids[0])

    def _addresses(self) -> frozenset[int]:
        broker = self._broker()
        return frozenset(() if broker is None else broker.addresses)

    def _broker(self) -> BrokerAddresses | None:
        try:
            return self._cluster.routes.broker(self._broker_name)
        except (RemotingError, MQBrokerError):  # no name server tells it: the pull itself has the error
            return None

    def _is_held_off(self, broker_id: int) -> bool:
        return self._cluster.timer() < self._cluster.held_off.get((self._broker_name, broker_id), 0)
