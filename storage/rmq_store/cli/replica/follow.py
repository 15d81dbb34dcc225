"""`rmq follow`: feed a replica of a live broker's log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.shared.parameters import LocalPath
from rmq_store.cli.shared.progress import behind_bar
from rmq_store.cli.shared.stop_signal import stopped_by_signals
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store.remoting.transport.settings import ClusterSettings
    from rmq_store.replica.follow import Start

F = TypeVar("F", bound=Callable[..., Any])

_HELP = """Make and feed a replica of a live broker's log in the directory PATH, until Ctrl-C or SIGTERM.

    The bytes come from the broker's HA port, as to a slave; queues and index are made here. Spark and all commands that
    only read open PATH meanwhile. Topics, groups and offsets come as the broker has them, every 10 s. Nobody else may
    write to a replica. A run that was killed goes on where it was. The broker is asked for its settings, which needs
    the right to administer it, and is told nothing: it does not know that a replica exists.

    A SYNC_MASTER takes every report of a connection for the acknowledgement of a slave. So a replica never reports what
    it has; --as-slave says otherwise. On 4.x, and with inSyncReplicas=2, a connection alone lets sends without a slave
    wait for slaveTimeout, and answers 12 in place of 11.

    If the broker's log is shorter than the replica, has other bytes at the same offset, or has lost what comes next to
    its retention, the command says so with the ranges, changes nothing, and ends with 1.
    """

_EPILOG = (
    "\b\nExamples:\n  rmq follow rmq://ns1:9876 --broker broker-a /data/replica\n"
    "  rmq follow --master 10.0.0.7:10911 /data/replica --once"
)


def _follow_options(command: F) -> F:
    for option in reversed((
        click.argument("replica", metavar="PATH", type=LocalPath(file_okay=False, path_type=Path)),
        click.option("--broker", metavar="NAME", help="Name of the broker; needed if the cluster has several."),
        click.option("--master", "address", metavar="HOST:PORT", help="Its address, instead of its name."),
        click.option(
            "--ha", "ha_address", metavar="HOST:PORT", default="",
            help="Its HA port, if that is another one from here than the broker says.",
        ),
        click.option(
            "--from", "start", type=click.Choice(["earliest", "newest-segment"]), default="earliest",
            help="What a new replica begins with: all that the broker has (default), or the last segment file of a "
            "Java broker. A served store of ours sends everything in both cases.",
        ),
        click.option("--once", is_flag=True, help="Stop at the end that the broker's log has now."),
        click.option(
            "--set", "own", metavar="NAME=VALUE", multiple=True,
            help="A setting of the replica's own retention, as fileReservedTime=720; it stays. May be repeated.",
        ),
        click.option(
            "--broker-conf", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="The broker's broker.conf, if it refuses to tell its settings (request 26).",
        ),
        click.option(
            "--resync", is_flag=True,
            help="Keep the directory aside, under another name, and begin a new replica.",
        ),
        click.option(
            "--as-slave", is_flag=True,
            help="Report what is on disk here: sends to a SYNC_MASTER may count on this replica alone.",
        ),
    )):  # fmt: skip
        command = option(command)
    return command


@click.command("follow", short_help="Feed a replica of a live broker's log.", help=_HELP, epilog=_EPILOG)
@_follow_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def follow(address: str | None, **given: Any) -> None:
    """Follow a broker whose address is given."""
    if not address:
        raise UsageError("which broker? Name the cluster, as rmq://ns1:9876, and --broker; or give --master HOST:PORT")
    from rmq_store.remoting.transport.settings import ClusterSettings

    _follow(ClusterSettings.of_text(address), address, **given)


@click.command("follow", cls=ClusterCommand, short_help=follow.short_help, help=_HELP, epilog=_EPILOG)
@cluster_options()
@_follow_options
def follow_cluster(target: ClusterTarget, address: str | None, broker: str | None, **given: Any) -> None:
    """Follow a broker of a cluster, by its name or its address."""
    if not address and not broker:
        with target.open() as cluster:
            names = cluster.broker_names()
        if len(names) != 1:
            raise UsageError(f"which broker? The cluster has {', '.join(names) or 'none'}: say --broker NAME")
        broker = names[0]
    _follow(target.settings, address, broker=broker, **given)


def _follow(
    settings: ClusterSettings,
    address: str | None,
    *,
    broker: str | None,
    ha_address: str,
    replica: Path,
    start: Start,
    once: bool,
    own: tuple[str, ...],
    broker_conf: Path | None,
    resync: bool,
    as_slave: bool,
    as_json: bool,
) -> None:
    from rmq_store.broker.metadata.store_config import read_broker_conf
    from rmq_store.replica.follow import Follower
    from rmq_store.replica.master import Master

    name, kept = "" if address else broker or "", _own_settings(own)
    known = None if broker_conf is None else read_broker_conf(broker_conf)
    with (
        stopped_by_signals() as stop,
        behind_bar() as tell,
        Master(settings, broker=name, address=address or "", ha_address=ha_address, broker_conf=known) as master,
    ):
        follower = Follower(
            replica, master, start=start, as_slave=as_slave, settings=kept, tell=tell, should_stop=stop.wait
        )
        aside = follower.resync() if resync else None
        if aside is not None:
            click.echo(printable(f"rmq: the replica that was there is {aside} now"), err=True)
        done = follower.run(once=once)
    if as_json:
        write_json({"path": str(replica.absolute()), **asdict(done), "behind_bytes": done.behind_bytes})
        return
    text = f"{replica}: {done.messages} messages, {done.received_bytes} bytes received, log to {done.end}"
    click.echo(printable(f"{text}; the broker has {done.behind_bytes} bytes more" if done.behind_bytes else text))


def _own_settings(texts: tuple[str, ...]) -> dict[str, Any]:
    """Settings of retention, under their names in StoreConfig. UsageError: there is no such one."""
    from rmq_store.broker.metadata.store_config import JAVA_NAMES, RETENTION, parse_settings

    pairs = dict(_pair(text) for text in texts)
    parsed = parse_settings(pairs, "--set")
    if foreign := sorted(parsed.keys() - set(RETENTION)):
        names = [name for name, known in JAVA_NAMES.items() if known.name in RETENTION]
        raise UsageError(f"--set: {foreign[0]} is its broker's to say; a replica has its own of: {', '.join(names)}")
    return parsed


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"--set {text}: expected NAME=VALUE, as fileReservedTime=720")
    return name.strip(), value.strip()
