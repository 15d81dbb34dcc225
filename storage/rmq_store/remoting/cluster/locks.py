"""Locks of queues at the masters: a client's claim, which the broker forgets after 60 s (RebalanceLockManager.java).

A consumer of ordered messages locks the queues of its group. A process that claims anything else of a group locks under
a group of its own, `<group>_rmq_lease` or `<group>_rmq_redrive`: while a group has locked queues, brokers of 5.x send
what comes back to it straight to its dead letters.

Slaves grant locks of their own and know nothing of those of their master, so only masters are asked. A lock needs
neither the group nor the topic to exist.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions.answer import checked
from rmq_store.remoting.questions.groups import ask_lock, ask_unlock, read_lock

LOCK_LASTS_S: Final = 60.0
"""A master forgets a lock so long after the request that asked for it last."""
LEASE_SUFFIX: Final = "_rmq_lease"
REDRIVE_SUFFIX: Final = "_rmq_redrive"


def lock(cluster: Cluster, group: str, client_id: str, queues: Collection[MessageQueue]) -> set[MessageQueue]:
    """Lock queues for a client of the group, or renew its locks (41): those that it holds now, for 60 s.

    Raises:
        MQBrokerError: a broker refuses. RemotingError: a master does not answer; others may have granted locks.
    """
    granted: set[MessageQueue] = set()
    for outcome in try_lock(cluster, group, client_id, queues).values():
        if isinstance(outcome, (MQBrokerError, RemotingError)):
            raise outcome
        granted |= outcome
    return granted


def try_lock(
    cluster: Cluster, group: str, client_id: str, queues: Collection[MessageQueue]
) -> dict[str, set[MessageQueue] | MQBrokerError | RemotingError]:
    """As `lock`, but raises nothing: for each broker the queues that the client holds there now, or the error."""
    of_brokers = _by_broker(queues)
    commands = [(name, ask_lock(cluster, group, client_id, of_broker)) for name, of_broker in of_brokers.items()]
    outcomes: dict[str, set[MessageQueue] | MQBrokerError | RemotingError] = {}
    for (broker_name, of_broker), given in zip(of_brokers.items(), cluster.call_all(commands), strict=True):
        try:
            outcomes[broker_name] = read_lock(cluster, of_broker, given, broker_name)
        except (MQBrokerError, RemotingError) as error:
            outcomes[broker_name] = error
    return outcomes


def unlock(cluster: Cluster, group: str, client_id: str, queues: Collection[MessageQueue]) -> None:
    """Release locks of the client (42); those of others stay. Raises as `lock`."""
    of_brokers = _by_broker(queues)
    commands = [(name, ask_unlock(cluster, group, client_id, of_broker)) for name, of_broker in of_brokers.items()]
    for (broker_name, _), given in zip(commands, cluster.call_all(commands), strict=True):
        checked(given, broker_name)


def _by_broker(queues: Collection[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        found[queue.broker_name].append(queue)
    return found
