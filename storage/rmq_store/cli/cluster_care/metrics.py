"""`rmq metrics`: the state of a store or a cluster as OpenMetrics text, for Prometheus and compatible systems."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rmq_store.cli.monitoring.metrics_output import Destination, metrics_options
from rmq_store.cli.target.command import target_command
from rmq_store.cli.target.store_target import StoreTarget

if TYPE_CHECKING:
    from rmq_store.cli.monitoring.metrics_server import Sample
    from rmq_store.cli.target.cluster_target import ClusterTarget
    from rmq_store.format.text.openmetrics import MetricFamily


@target_command(
    short_help="State and lag as OpenMetrics text, for Prometheus.",
    epilog="\b\nExamples:\n  rmq metrics --store /data/rocketmq/store\n"
    "  rmq metrics --output /var/lib/node_exporter/rmq.prom\n"
    "  rmq metrics --listen 127.0.0.1:5557",
    cluster_epilog="\b\nExamples:\n  rmq -n ns1:9876 metrics\n"
    "  rmq -n 'ns1:9876;ns2:9876' metrics --listen 127.0.0.1:5557",
)
@metrics_options
def metrics(target: StoreTarget | ClusterTarget, queues: bool, destination: Destination) -> None:
    """State and lag[cluster:  of all brokers] as OpenMetrics text: printed once, written to a file, or served over
    HTTP.

    [store: Names and labels are those of a RocketMQ 5 broker where the meaning is the same; others begin with rmq_.
    docs/metrics.md lists all. Over HTTP each request reads the store again.]
    [cluster: Names and labels are those of a store; the label node_id is the broker. Brokers do not tell how old an
    unread message is, so there are no latencies. docs/metrics.md lists all. Each reading asks each broker for its
    topics and groups, then once for each topic and once for each group. A broker that does not answer has
    rmq_broker_away 1 and rmq_unreadable 1, and no sample of a lag. Over HTTP each request reads again.]
    There is no password and no encryption: only this machine is served, unless --expose is given. A request is answered
    if its Host is an address, localhost, or a name given by --host: otherwise a web page opened on this machine could
    read the answer. [store: With --json: a list of metrics, each with its samples.]
    """
    with _samples(target, queues=queues) as sample:
        destination.write(sample)


@contextlib.contextmanager
def _samples(target: StoreTarget | ClusterTarget, *, queues: bool) -> Iterator[Sample]:
    """Open the target; yields a function that reads its metrics."""
    if isinstance(target, StoreTarget):
        from rmq_store.broker.monitoring.metrics import store_metrics
        from rmq_store.cli.mqadmin_targets.store_facts import cluster_name

        with target.open() as store:

            def of_store() -> Sequence[MetricFamily]:
                store.refresh()
                return store_metrics(store, cluster_name(store), queues=queues)

            yield of_store
        return
    from rmq_store.cli.cluster_care.cluster_samples import cluster_metrics

    seen: dict[str, str] = {}
    with target.open() as cluster:
        yield lambda: cluster_metrics(cluster, queues=queues, seen=seen)
