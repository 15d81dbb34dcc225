"""`rmq metrics`: the state of a store as OpenMetrics text, for Prometheus and compatible systems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.monitoring.metrics_output import Destination, metrics_options
from rmq_store.cli.shared.output import common_options, open_store

if TYPE_CHECKING:
    from rmq_store import Store
    from rmq_store.format.text.openmetrics import MetricFamily


@click.command(
    short_help="State and lag as OpenMetrics text, for Prometheus.",
    epilog="\b\nExamples:\n  rmq metrics --store /data/rocketmq/store\n"
    "  rmq metrics --output /var/lib/node_exporter/rmq.prom\n"
    "  rmq metrics --listen 127.0.0.1:5557",
)
@common_options
@metrics_options
def metrics(root: Path, queues: bool, destination: Destination) -> None:
    """State and lag as OpenMetrics text: printed once, written to a file, or served over HTTP.

    Names and labels are those of a RocketMQ 5 broker where the meaning is the same; others begin with rmq_.
    docs/metrics.md lists all. Over HTTP each request reads the store again. There is no password and no encryption:
    only this machine is served, unless --expose is given. A request is answered if its Host is an address, localhost,
    or a name given by --host: otherwise a web page opened on this machine could read the answer. With --json: a list of
    metrics, each with its samples.
    """
    with open_store(root) as store:
        destination.write(lambda: _sample(store, queues))


def _sample(store: Store, queues: bool) -> list[MetricFamily]:
    from rmq_store.broker.monitoring.metrics import store_metrics
    from rmq_store.cli.mqadmin_targets.store_facts import cluster_name

    store.refresh()
    return store_metrics(store, cluster_name(store), queues=queues)

