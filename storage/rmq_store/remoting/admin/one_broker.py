"""One broker of a cluster, as if it were alone: for a reader whose messages are of this broker only, as a replica's.

A group that reads there takes locks, is a member and commits at this broker. Consumers of the group at other brokers
are not disturbed, and not seen.
"""

from __future__ import annotations

from rmq_store.protocol.errors import RemotingConnectError
from rmq_store.remoting.cluster.cluster import Cluster


class OneBroker(Cluster):
    """`cluster` without its other brokers, whoever asks for all of them. Connections, and what they have learned, are
    those of the cluster, which stays as it is for others.
    """

    def __init__(self, cluster: Cluster, broker_name: str) -> None:
        vars(self).update(vars(cluster))
        self._closes = False
        self._broker_name = broker_name

    def broker_names(self) -> list[str]:
        """The one broker, also while no name server knows it."""
        return [self._broker_name]

    def require_member_of(self, cluster_name: str) -> None:
        """Return if the broker is known, and belongs to this cluster.

        Raises:
            RemotingConnectError: the name servers do not know the broker, or it belongs to another cluster.
        """
        broker = self.routes.broker(self._broker_name)
        if broker is None or broker.cluster != cluster_name:
            found = "" if broker is None else f": theirs is one of cluster {broker.cluster!r}"
            raise RemotingConnectError(
                f"the name servers {', '.join(self.settings.name_servers)} do not know broker {self._broker_name!r} of "
                f"cluster {cluster_name!r}{found}"
            )
