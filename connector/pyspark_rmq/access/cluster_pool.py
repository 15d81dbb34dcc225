"""The clusters that this process has connections to: one for each set of options, whoever uses it. Control plane.

Spark runs many tasks in one Python worker, one after the other, and forks workers. A cluster stays connected for a
while after its last user, because the next task usually needs it, and what it knows. A forked process begins without
any. Spark ends workers that are idle for a minute.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from pyspark_rmq.options.cluster_options import ClusterOptions

if TYPE_CHECKING:
    from rmq_store.cluster import Cluster, ClusterSettings, KnownRoutes

_log = logging.getLogger(__name__)

POOLED_S: Final = 60.0


class _Used:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.users = 0
        self.timer: threading.Timer | None = None


_lock = threading.Lock()
_clusters: dict[ClusterOptions, _Used] = {}


def take(options: ClusterOptions) -> Cluster:
    """The connected cluster of these options; `give_back` once for each call.

    Raises:
        UsageError: a secret is not where its reference says, or a file of TLS cannot be read.
    """
    with _lock:
        used = _clusters.get(options)
        if used is None:
            from rmq_store.cluster import Cluster

            used = _clusters[options] = _Used(Cluster(settings_of(options)))
        used.users += 1
        if used.timer is not None:
            used.timer.cancel()
            used.timer = None
        return used.cluster


def give_back(options: ClusterOptions) -> None:
    """End one use of the cluster; behind the last one it is closed in a while."""
    with _lock:
        used = _clusters.get(options)
        if used is None:
            return
        used.users -= 1
        if used.users == 0:
            used.timer = threading.Timer(POOLED_S, _close_unused, (options,))
            used.timer.daemon = True
            used.timer.start()


def known_routes(options: ClusterOptions, topics: Collection[str]) -> KnownRoutes | None:
    """The routes of topics and the addresses of all brokers, as this process knows them: for the tasks of a write. Name
    servers that do not answer are not waited for again. None: nothing is known. This process may lack a secret that
    tasks have.
    """
    from rmq_store.cluster import MQBrokerError, RemotingError
    from rmq_store.errors import UsageError

    known: KnownRoutes | None = None
    with contextlib.ExitStack() as stack:
        try:
            cluster = take(options)
            stack.callback(give_back, options)
            known = cluster.routes.known(topics)
            if cluster.name_servers.may_answer():
                for topic in topics:
                    cluster.route(topic)
                cluster.broker_names()
                known = cluster.routes.known(topics)
        except (RemotingError, MQBrokerError, UsageError) as error:
            _log.info("tasks find brokers by themselves, or by what was known before: %s", error)
    return known


def close_unused() -> None:
    """Close the clusters that nobody uses now."""
    for options in list(_clusters):
        _close_unused(options)


def _close_unused(options: ClusterOptions) -> None:
    with _lock:
        used = _clusters.get(options)
        if used is None or used.users:
            return
        del _clusters[options]
        if used.timer is not None:
            used.timer.cancel()
    try:
        used.cluster.close()
    except Exception:
        _log.exception("connections to %s could not be closed", options.name_server)


def settings_of(options: ClusterOptions) -> ClusterSettings:
    """The options as the engine's settings."""
    from rmq_store.cluster import ClusterSettings, TlsSettings

    tls = TlsSettings(
        ca_file=options.tls_ca_file,
        cert_file=options.tls_cert_file,
        key_file=options.tls_key_file,
        verify=options.tls_verify,
        server_name=options.tls_server_name,
    )
    return ClusterSettings(
        name_servers=tuple(options.name_server.split(";")),
        address_map=dict(options.address_map),
        access_key=options.access_key,
        secret_key=options.secret_key,
        security_token=options.security_token,
        tls=tls if options.tls else None,
        namespace=options.namespace,
    )


def _forget_in_child() -> None:
    """Connections are the parent's."""
    global _lock
    _lock = threading.Lock()
    _clusters.clear()


os.register_at_fork(after_in_child=_forget_in_child)
