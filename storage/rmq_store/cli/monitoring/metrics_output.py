"""Where metrics go: standard output, a file, or clients over HTTP. The same for a store and for a cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rmq_store.cli.shared.output import write_json
from rmq_store.cli.shared.parameters import NewFile
from rmq_store.errors import UsageError
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.format.text.openmetrics import MetricFamily

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS: Final = (
    click.option("--queues", is_flag=True, help="Also a series for each queue: offsets and lag."),
    click.option("--output", metavar="FILE", type=NewFile(),
                 help="Write to this file instead of printing. The file is replaced atomically, and every user may "
                      "read it."),
    click.option("--listen", "address", metavar="HOST:PORT",
                 help="Serve /metrics over HTTP until Ctrl-C or SIGTERM. Port 0: any free port."),
    click.option("--expose", is_flag=True, help="Allow --listen an address that other machines can reach."),
    click.option("--host", "names", metavar="NAME", multiple=True,
                 help="With --listen: also answer requests for this host name; may be repeated."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Destination:
    """The options about it, checked. `place` (host, port) and `names` are for HTTP."""

    as_json: bool
    output: Path | None
    place: tuple[str, int] | None
    names: tuple[str, ...]

    def write(self, sample: Callable[[], Sequence[MetricFamily]]) -> None:
        """Write the metrics once, or serve them; `sample` is called for each request.

        Raises:
            UsageError: the file or the address cannot be used.
        """
        if self.place is not None:
            from rmq_store.cli.monitoring.metrics_server import serve

            serve(*self.place, sample, self.names)
            return
        families = sample()
        if self.as_json:
            write_json([_json(family) for family in families])
        elif self.output is not None:
            from rmq_store.broker.monitoring.metrics import write_openmetrics

            try:
                write_openmetrics(self.output, families)
            except FileNotFoundError as error:
                raise UsageError(f"{self.output}: there is no directory {self.output.parent}") from error
        else:
            from rmq_store.format.text.openmetrics import openmetrics_text

            click.echo(openmetrics_text(families), nl=False)


def metrics_options(command: Command) -> Command:
    """Add --queues, and the options of the destination; the command gets `queues` and `destination`."""

    @functools.wraps(command)
    def with_destination(*, as_json: bool, **given: Any) -> Any:
        wanted = {name: given.pop(name) for name in ("output", "address", "expose", "names")}
        return command(destination=_checked(as_json, **wanted), **given)

    wrapped: Any = with_destination
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def _checked(
    as_json: bool, output: Path | None, address: str | None, expose: bool, names: tuple[str, ...]
) -> Destination:
    if sum((as_json, output is not None, address is not None)) > 1:
        raise UsageError("--json, --output and --listen: one of them at a time")
    if expose and address is None:
        raise UsageError("--expose goes with --listen")
    if names and address is None:
        raise UsageError("--host goes with --listen")
    place = None
    if address is not None:
        from rmq_store.cli.monitoring.http_limits import check_name
        from rmq_store.cli.monitoring.metrics_server import parse_address

        place = parse_address(address, expose=expose)
        names = tuple(check_name(name) for name in names)
    return Destination(as_json, output, place, names)


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
