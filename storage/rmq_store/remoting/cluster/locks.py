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
from functools import partial
from typing import Final

from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import BrokerError, Question, gather
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
    return set().union(*gather(cluster, _questions(cluster, group, client_id, queues)).required().values())


def try_lock(
    cluster: Cluster, group: str, client_id: str, queues: Collection[MessageQueue]
) -> dict[str, set[MessageQueue] | BrokerError]:
    """As `lock`, but raises nothing: for each broker the queues that the client holds there now, or the error."""
    told = gather(cluster, _questions(cluster, group, client_id, queues)).told
    return {name: one.required() if one.error is None else one.error for name, one in told.items()}


def _questions(
    cluster: Cluster, group: str, client_id: str, queues: Collection[MessageQueue]
) -> dict[str, Question[set[MessageQueue]]]:
    return {
        name: Question(
            name, ask_lock(cluster, group, client_id, of_broker), partial(read_lock, cluster, of_broker)
        )
        for name, of_broker in _by_broker(queues).items()
    }


def unlock(cluster: Cluster, group: str, client_id: str, queues: Collection[MessageQueue]) -> None:
    """Release locks of the client (42); those of others stay. Raises as `lock`."""
    for error in try_unlock(cluster, group, client_id, queues).values():
        raise error


def try_unlock(
    cluster: Cluster, group: str, client_id: str, queues: Collection[MessageQueue]
) -> dict[str, BrokerError]:
    """As `unlock`, but raises nothing: the brokers that refuse, or do not answer, each with its error."""
    asked = {
        name: Question(name, ask_unlock(cluster, group, client_id, of_broker), checked)
        for name, of_broker in _by_broker(queues).items()
    }
    told = gather(cluster, asked).told
    return {name: one.error for name, one in told.items() if one.error is not None}


def _by_broker(queues: Collection[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        found[queue.broker_name].append(queue)
    return found
