"""The membership of a process that holds leases, and who else is a member: clients that live, and runs of its own query
that have ended.

A query has an id of its own, which its checkpoint keeps; each of its runs is a member with that id in its name:

    <owner>#<query>-<run>

A broker forgets a member at once when the connection is lost. If nobody ends the connection, as when a host dies, or if
the broker stood still and then carries out what had waited for it, a run that has ended stays a member for 120 s behind
its last heartbeat, and brokers look for such members every 10 s. So an earlier run of the query counts as ended until
one broker has shown it for 130 s: only who sends heartbeats is shown for longer. A member of any other name lives.

Source: ConsumerManager.java (scanNotActiveChannel), ClientHousekeepingService.java.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from rmq_store.client.backend.remote_member import RemoteMember
from rmq_store.remoting.cluster.cluster import Cluster

GHOST_LASTS_S: Final = 130.0
"""So long brokers show a member that has ended, at most."""


class Others(NamedTuple):
    """The ids of the other members of the group, sorted: those that live, and earlier runs of the same query that may
    have ended. `told`: the brokers that have answered.
    """

    living: list[str]
    earlier: list[str]
    told: list[str]


class LeaseMember:
    """The one member of a group, whose name has no namespace, that reads all queues. `timer_s`: seconds that never go
    back. `through`: another view of the cluster, through which brokers are asked.
    """

    def __init__(self, cluster: Cluster, group: str, timer_s: Callable[[], float]) -> None:
        self._member = RemoteMember(cluster, group, "", pulls=True)
        self._timer_s = timer_s
        self._has_joined = False
        self._query = ""
        self._run = secrets.token_hex(4)
        # Broker -> member -> since when it is shown there.
        self._shown_s: dict[str, dict[str, float]] = {}

    @property
    def client_id(self) -> str:
        """The id, "" before it is named."""
        return self._member.client_id

    def be_named(self, owner: str, query: str) -> None:
        """Be a run of `query`, "" for one without an id, for `owner`, which others see. Only of one that has not
        joined.
        """
        self._query = query
        run = f"{query}-{self._run}" if query else self._run
        self._member.client_id = f"{owner}#{run}".replace(" ", "_")

    def beat(
        self, topics: Collection[str], broker_names: Collection[str], *, through: Cluster | None = None
    ) -> list[str]:
        """Be a member that reads these topics, at brokers. Returns those that have answered. Raises as
        `RemoteMember.heartbeat`.
        """
        self._has_joined = True
        self._member.subscriptions = dict.fromkeys(sorted(topics))
        return self._member.heartbeat(broker_names, through=through)

    def leave(self, broker_names: Collection[str]) -> None:
        """Be no member any more, and tell these brokers; the others forget it. Nothing, if it has not joined."""
        if self._has_joined:
            self._has_joined = False
            self._member.leave(broker_names)

    def others(self, broker_names: Collection[str], *, through: Cluster | None = None) -> Others:
        """The other members, as those of these brokers know them that answer. MQBrokerError: one refuses."""
        now_s = self._timer_s()
        living: set[str] = set()
        earlier: set[str] = set()
        told = self._member.others_at(broker_names, through=through)
        for name, members in told.items():
            before = self._shown_s.get(name, {})
            self._shown_s[name] = shown_s = {one: before.get(one, now_s) for one in members}
            for one in members:
                is_earlier = self._is_of_query(one) and now_s - shown_s[one] < GHOST_LASTS_S
                (earlier if is_earlier else living).add(one)
        return Others(sorted(living), sorted(earlier - living), sorted(told))

    def _is_of_query(self, client_id: str) -> bool:
        return bool(self._query) and client_id.rpartition("#")[2].startswith(f"{self._query}-")
