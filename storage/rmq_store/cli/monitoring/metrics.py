"""`rmq metrics`: the state of a store as OpenMetrics text, for Prometheus and compatible systems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.output import common_options, open_store, write_json
from rmq_store.errors import UsageError

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
@click.option("--queues", is_flag=True, help="Also a series for each queue: offsets and lag.")
@click.option("--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write to this file instead of printing. The file is replaced atomically, and every user may "
                   "read it.")  # fmt: skip
@click.option("--listen", "address", metavar="HOST:PORT",
              help="Serve /metrics over HTTP until Ctrl-C or SIGTERM. Port 0: any free port.")  # fmt: skip
@click.option("--expose", is_flag=True, help="Allow --listen an address that other machines can reach.")
@click.option("--host", "names", metavar="NAME", multiple=True,
              help="With --listen: also answer requests for this host name; may be repeated.")  # fmt: skip
def metrics(
    root: Path, as_json: bool, queues: bool, output: Path | None, address: str | None, expose: bool,
    names: tuple[str, ...],
) -> None:  # fmt: skip
    """State and lag as OpenMetrics text: printed once, written to a file, or served over HTTP.

    Names and labels are those of a RocketMQ 5 broker where the meaning is the same; others begin with rmq_.
    docs/metrics.md lists all. Over HTTP each request reads the store again. There is no password and no encryption:
    only this machine is served, unless --expose is given. A request is answered if its Host is an address, localhost,
    or a name given by --host: otherwise a web page opened on this machine could read the answer. With --json: a list of
    metrics, each with its samples.
    """
    if sum((as_json, output is not None, address is not None)) > 1:
        raise UsageError("--json, --output and --listen: one of them at a time")
    if expose and address is None:
        raise UsageError("--expose goes with --listen")
    if names and address is None:
        raise UsageError("--host goes with --listen")
    if address is not None:
        from rmq_store.cli.monitoring.http_limits import check_name
        from rmq_store.cli.monitoring.metrics_server import parse_address, serve

        host, port = parse_address(address, expose=expose)
        known = [check_name(name) for name in names]
        with open_store(root) as store:
            serve(host, port, lambda: _sample(store, queues), known)
        return
    with open_store(root) as store:
        families = _sample(store, queues)
    if as_json:
        write_json([_json(family) for family in families])
    elif output is not None:
        from rmq_store.broker.monitoring.metrics import write_openmetrics

        try:
            write_openmetrics(output, families)
        except FileNotFoundError as error:
            raise UsageError(f"{output}: there is no directory {output.parent}") from error
    else:
        from rmq_store.format.text.openmetrics import openmetrics_text

        click.echo(openmetrics_text(families), nl=False)


def _sample(store: Store, queues: bool) -> list[MetricFamily]:
    from rmq_store.broker.monitoring.metrics import store_metrics
    from rmq_store.cli.mqadmin.common import cluster_name

    store.refresh()
    return store_metrics(store, cluster_name(store), queues=queues)


def _json(family: MetricFamily) -> dict[str, Any]:
    metric, samples = family
    return {
        "name": metric.sample_name,
        "type": metric.kind,
        "unit": metric.unit,
        "help": metric.help,
        "samples": [
            {"labels": dict(zip(metric.labels, values, strict=True)), "value": number} for values, number in samples
        ],
    }
