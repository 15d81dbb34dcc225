"""`rmq init`: create an empty store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.shared.parameters import LocalPath, store_options
from rmq_store.errors import UsageError


@click.command(
    short_help="Make an empty store.",
    epilog="\b\nExample:\n  rmq init /data/rocketmq/store --flush-disk-type SYNC_FLUSH",
)
@store_options(LocalPath(file_okay=False, path_type=Path), text="Directory of the new store.")
@click.option(
    "--config",
    "conf",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A broker.conf whose settings the store gets. The options below override it.",
)
@click.option("--broker-name", metavar="NAME", help="brokerName [default: rmq-embedded].")
@click.option(
    "--flush-disk-type",
    type=click.Choice(["ASYNC_FLUSH", "SYNC_FLUSH"]),
    help="SYNC_FLUSH: a sender waits for the disk; ASYNC_FLUSH: it does not [default: ASYNC_FLUSH].",
)
@click.option(
    "--mapped-file-size-commit-log",
    metavar="BYTES",
    type=click.IntRange(1),
    help="Size in bytes of a commit log file [default: 67108864]. A broker that opens the store needs the same "
    "setting.",
)
@click.option(
    "--default-topic-queue-nums",
    metavar="N",
    type=click.IntRange(1),
    help="Number of queues of a topic that is made on first use [default: 4].",
)
@click.option(
    "--file-reserved-time",
    metavar="HOURS",
    type=click.IntRange(0),
    help="Hours after which `rmq retention run` and `rmq broker run` delete messages [default: 72].",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def init(root: Path, conf: Path | None, as_json: bool, **settings: Any) -> None:
    """Make an empty store in the directory PATH, which must be missing or empty.

    The command refuses a directory that already has a store, and changes nothing in it. Settings that decide the form
    of the files, and flushDiskType, cannot be changed later. Those of retention and flushing can: `rmq
    updateBrokerConfig`. A store deletes no message by itself: `rmq retention run` and `rmq broker run` do. Prints the
    settings of the new store. Stderr warns of a directory in memory (tmpfs), in a container, or on a network.
    """
    from rmq_store import Store, StoreConfig

    root = root.absolute()
    if _is_taken(root):
        raise UsageError(f"{root} holds a store already: nothing was changed")
    config = StoreConfig() if conf is None else StoreConfig.from_broker_conf(conf)
    config = replace(config, **{name: value for name, value in settings.items() if value is not None})
    with Store.open(root, create=True, config=config) as store:
        made = {
            "path": str(root),
            "brokerName": store.config.broker_name,
            "flushDiskType": store.config.flush_disk_type,
            "mappedFileSizeCommitLog": store.config.mapped_file_size_commit_log,
            "defaultTopicQueueNums": store.config.default_topic_queue_nums,
            "fileReservedTime": store.config.file_reserved_time,
        }
    _warn_of_file_system(root)
    if as_json:
        write_json(made)
        return
    click.echo(printable(f"made an empty store at {root}"))
    for name, value in list(made.items())[1:]:
        click.echo(printable(f"  {name} = {value}"))


def _warn_of_file_system(root: Path) -> None:
    """Write to stderr if the new store is lost with the machine's memory or a container, or is on a network."""
    from rmq_store.cli.checks import OK, directory

    finding = directory.file_system(root)
    if finding.status != OK:
        click.echo(printable(f"rmq: warning: {root} is on {finding.text}; {finding.fix}"), err=True)


def _is_taken(root: Path) -> bool:
    """True if a store, or the rest of one, is there."""
    return (root / "commitlog").exists() or (root / "pyrmq" / "store.json").exists()
