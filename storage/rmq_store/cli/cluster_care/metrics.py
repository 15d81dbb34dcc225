"""`rmq metrics` over a cluster."""

from __future__ import annotations

import click

from rmq_store.cli.monitoring.metrics_output import Destination, metrics_options
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options


@click.command(
    cls=ClusterCommand,
    short_help="State and lag as OpenMetrics text, for Prometheus.",
    epilog="\b\nExamples:\n  rmq -n ns1:9876 metrics\n"
    "  rmq -n 'ns1:9876;ns2:9876' metrics --listen 127.0.0.1:5557",
)
@cluster_options()
@metrics_options
def metrics(target: ClusterTarget, queues: bool, destination: Destination) -> None:
    """State and lag of all brokers as OpenMetrics text: printed once, written to a file, or served over HTTP.

    Names and labels are those of a store; the label node_id is the broker. Brokers do not tell how old an unread
    message is, so there are no latencies. docs/metrics.md lists all. Each reading asks each broker for its topics and
    groups, then once for each topic and once for each group. A broker that does not answer has the sample
    rmq_unreadable. Over HTTP each request reads again. There is no password and no encryption: only this machine is
    served, unless --expose is given. A request is answered if its Host is an address, localhost, or a name given by
    --host: otherwise a web page opened on this machine could read the answer.
    """
    from rmq_store.cli.cluster_care.cluster_samples import cluster_metrics

    with target.open() as cluster:
        destination.write(lambda: cluster_metrics(cluster, queues=queues))
