"""Options that the commands of `rmq mirror` share, and the display of a running mirror."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store import real_time
from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.shared.parameters import FiniteRange, NewFile
from rmq_store.errors import MirrorConflictError, UsageError

if TYPE_CHECKING:
    from rmq_store.bridge.kafka.connection import KafkaConnection
    from rmq_store.bridge.mirror.report import MirrorReport
    from rmq_store.bridge.positions.topics import TopicChoice

EXIT_CONFLICT = 4
"""Another mirror of this name has taken over: whoever starts services must not start this one again by itself."""

PATIENCE_ONCE_S = 60.0
"""How long Kafka may be away from a mirror that is to end; one that runs until it is stopped waits."""

_SETTING = re.compile(r"([a-z_]+)\s*=\s*(.*)")
_FILE_BYTES_MAX = 1 << 20
# Between two lines: of a terminal, of --json, and between two files of metrics.
_SHOWN_S = 0.5
_REPORTED_S = 10.0


def kafka_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a connection; the command gets `connection: KafkaConnection`."""

    @functools.wraps(command)
    def with_connection(
        bootstrap_servers: tuple[str, ...], kafka_settings: tuple[str, ...], kafka_file: Path | None, **given: Any
    ) -> None:
        command(connection=_kafka_connection(bootstrap_servers, kafka_settings, kafka_file), **given)

    options = (
        click.option("--bootstrap-servers", required=True, multiple=True, metavar="HOST:PORT",
                     envvar="KAFKA_BOOTSTRAP_SERVERS", show_envvar=True,
                     help="Kafka brokers for the first connection; commas or repetition for more."),
        click.option("--kafka", "kafka_settings", multiple=True, metavar="NAME=VALUE",
                     help="A setting of kafka-python's client for TLS, SASL or time-outs, such as "
                     "security_protocol=SASL_SSL. Secrets as env:NAME or file:/path. May be repeated."),
        click.option("--kafka-file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                     help="A file of settings as for --kafka, one a line."),
    )  # fmt: skip
    return _with_options(with_connection, options)


def topic_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose and rename topics; the command gets `choice: TopicChoice` and `create_topics`."""

    @functools.wraps(command)
    def with_choice(
        source_topics: tuple[str, ...], pattern: str | None, renames: tuple[str, ...], dots_as: str, **given: Any
    ) -> None:
        command(choice=_topic_choice(source_topics, pattern, renames, dots_as), **given)

    options = (
        click.option("--topics", "source_topics", multiple=True, metavar="NAME",
                     help="Topics to copy; commas or repetition for more."),
        click.option("--pattern", metavar="REGEX",
                     help="Copy all topics whose whole names match, also topics made later; never retry topics, "
                          "dead letters or system topics."),
        click.option("--rename", "renames", multiple=True, metavar="REGEX=NAME",
                     help="Target name of a topic whose whole name matches; \\1 is its first group. May be repeated; "
                          "the first that matches counts."),
        click.option("--dots-as", default="", metavar="CHARACTER",
                     help="Replacement for dots in Kafka's topic names, because RocketMQ allows none."),
        click.option("--create-topics", is_flag=True,
                     help="Make missing topics on the other side, and add queues or partitions to existing ones."),
    )  # fmt: skip
    return _with_options(with_choice, options)


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about a run. The command gets `name`, `cluster_id`, `rate`, `windows`, `once`, `letters_max` and
    `display: Display`; it must have --json, too.
    """

    @functools.wraps(command)
    def with_display(as_json: bool, windows: tuple[str, ...], metrics_file: Path | None, **given: Any) -> None:
        from rmq_store.bridge.mirror.pace import Window

        times = tuple(map(Window.parse, windows))
        command(windows=times, display=Display(as_json, metrics_file), **given)

    options = (
        click.option("--name", required=True, metavar="NAME", help="Name of the mirror, under which its position is "
                                                                   "stored."),
        click.option("--cluster-id", required=True, metavar="ID",
                     help="Cluster id of the RocketMQ side. Choose one that no other cluster has, and do not change "
                          "it. Copies carry it, so that no record is copied in a loop."),
        click.option("--rate", type=FiniteRange(min=0.001), metavar="RECORDS", help="Maximum number of records per "
                                                                                    "second."),
        click.option("--window", "windows", multiple=True, metavar="HH:MM-HH:MM",
                     help="Copy only at these times of the day, UTC. May be repeated."),
        click.option("--max-letters", "letters_max", type=click.IntRange(0), metavar="N",
                     help="End when more than N records became dead letters."),
        click.option("--once", is_flag=True, help="Copy the records that are there now, then end."),
        click.option("--metrics", "metrics_file", metavar="FILE", type=NewFile(),
                     help="Write OpenMetrics text to this file, for node_exporter's textfile collector."),
    )  # fmt: skip
    return _with_options(with_display, options)


def names_of(texts: Sequence[str]) -> tuple[str, ...]:
    """The names that an option was given, by repetition or commas."""
    return tuple(dict.fromkeys(part.strip() for text in texts for part in text.split(",") if part.strip()))


def write_remarks(remarks: Sequence[tuple[int, str]]) -> None:
    """Print a line for each count that is not 0."""
    for count, text in remarks:
        if count:
            click.echo(printable(f"{count} {text}"))


def _with_options(
    command: Callable[..., None], options: Sequence[Callable[[Callable[..., None]], Callable[..., None]]]
) -> Callable[..., None]:
    for option in reversed(options):
        command = option(command)
    return command


def _kafka_connection(bootstrap_servers: Sequence[str], settings: Sequence[str], file: Path | None) -> KafkaConnection:
    from rmq_store.bridge.kafka.connection import KafkaConnection

    given: dict[str, str] = {}
    for line in _lines(file) if file is not None else ():
        _add_setting(given, line, str(file))
    for text in settings:
        _add_setting(given, text, "--kafka")
    return KafkaConnection(tuple(bootstrap_servers), given)


def _topic_choice(topics: Sequence[str], pattern: str | None, renames: Sequence[str], dots_as: str) -> TopicChoice:
    from rmq_store.bridge.positions.topics import Rename, TopicChoice, compiled

    return TopicChoice(
        names_of(topics),
        None if pattern is None else compiled(pattern, "--pattern"),
        tuple(Rename.parse(text) for text in renames),
        dots_as,
    )


@contextlib.contextmanager
def conflict_exit() -> Iterator[None]:
    """Turn a conflict with another mirror of this name into an exit status of its own."""
    try:
        yield
    except MirrorConflictError as error:
        click.echo(f"rmq: {printable(str(error))}", err=True)
        raise click.exceptions.Exit(EXIT_CONFLICT) from error


class Display:
    """Shows a running mirror: a line on a terminal, JSON lines with --json, a file of metrics. Nothing in a pipe."""

    def __init__(self, as_json: bool, metrics_file: Path | None) -> None:
        self._as_json = as_json
        self._metrics_file = metrics_file
        self._is_live = sys.stderr.isatty() and not as_json
        self._shown_s = self._reported_s = 0.0
        self._units = 0
        self._failures: set[object] = set()
        self._width = 0

    def show(self, report: MirrorReport) -> None:
        """Show a report; the mirror calls this whenever it may have changed."""
        now_s = real_time.monotonic()
        for place, reason in report.failures.items():
            if place not in self._failures:
                self._failures.add(place)
                self._clear()
                click.echo(f"rmq: {printable(reason)}", err=True)
        if self._is_live and now_s - self._shown_s >= _SHOWN_S:
            self._shown_s = now_s
            self._write(status_line(report))
        if now_s - self._reported_s >= _REPORTED_S:
            self._reported_s = now_s
            if self._as_json and report.units != self._units:
                self._units = report.units
                write_json(report_json(report), one_line=True)
            self._keep_metrics(report)

    def end(self, report: MirrorReport) -> None:
        """Show the counts of the whole run."""
        self._clear()
        self._keep_metrics(report)
        if self._as_json:
            write_json(report_json(report), one_line=True)
        else:
            click.echo(printable(status_line(report)))

    def _write(self, line: str) -> None:
        line = printable(line)
        click.echo(f"\r{line.ljust(self._width)}", err=True, nl=False)
        self._width = len(line)

    def _clear(self) -> None:
        if self._is_live and self._width:
            click.echo(f"\r{' ' * self._width}\r", err=True, nl=False)
            self._width = 0

    def _keep_metrics(self, report: MirrorReport) -> None:
        if self._metrics_file is None:
            return
        from rmq_store.broker.monitoring.metrics import write_openmetrics

        try:
            write_openmetrics(self._metrics_file, report.families())
        except FileNotFoundError as error:
            raise UsageError(f"{self._metrics_file}: there is no directory {self._metrics_file.parent}") from error


def status_line(report: MirrorReport) -> str:
    """The counts of a mirror in one line."""
    parts = [f"{report.copied} copied", f"lag {report.lag}", f"{report.rate:.0f}/s"]
    for count, what in (
        (report.dropped_loops, "left out as loops"), (report.letters, "dead letters"), (report.lost, "lost"),
        (report.damaged, "damaged"), (report.older_than_retention, "older than the target's retention"),
        (len(report.failures), "partitions stopped"),
    ):  # fmt: skip
        if count:
            parts.append(f"{count} {what}")
    return f"{report.mirror}: {', '.join(parts)}; {'caught up' if report.is_caught_up else report.state}"


def report_json(report: MirrorReport) -> dict[str, Any]:
    """The report for `write_json`."""
    return {
        "mirror": report.mirror,
        "direction": report.direction,
        "state": report.state,
        "copied": report.copied,
        "droppedLoops": report.dropped_loops,
        "letters": report.letters,
        "lost": report.lost,
        "damaged": report.damaged,
        "olderThanRetention": report.older_than_retention,
        "lag": report.lag,
        "recordsPerSecond": round(report.rate, 1),
        "caughtUp": report.is_caught_up,
        "partitions": [
            {
                "topic": place.topic, "partition": place.partition, "position": one.next_offset,
                "stableEnd": None if one.stable_end < 0 else one.stable_end, "lag": one.lag,
                "failure": one.failure or None,
            }
            for place, one in sorted(report.partitions.items())
        ],
    }  # fmt: skip


def _lines(file: Path) -> list[str]:
    from rmq_store.files.durable import read_limited

    try:
        text = read_limited(file, _FILE_BYTES_MAX).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is no text") from error
    return [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]


def _add_setting(given: dict[str, str], text: str, where: str) -> None:
    found = _SETTING.fullmatch(text.strip())
    if found is None:
        # The text may hold a secret.
        raise UsageError(f"{where}: NAME=VALUE is expected, such as security_protocol=SASL_SSL")
    given[found[1]] = found[2]
