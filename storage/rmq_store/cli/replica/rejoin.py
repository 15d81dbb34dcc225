"""`rmq broker rejoin`: the old master becomes a replica of the master that took over."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.replica.master_option import MASTER_HELP, master_of
from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.shared.parameters import NewFile, store_options
from rmq_store.cli.target.cluster_target import ClusterCommand, settings_of, way_options

if TYPE_CHECKING:
    from rmq_store.replica.take_over.rejoin import Rejoined


@click.command(
    cls=ClusterCommand,
    short_help="Make an old master a replica of the new one.",
    epilog=(
        "\b\nExamples:\n  rmq broker rejoin /data/store --master 10.0.0.8:10911 --dry-run\n"
        "  rmq broker rejoin /data/store --master rmq://ns1:9876"
    ),
)
@store_options()
@click.option("--master", "text", metavar="HOST:PORT", required=True, help=MASTER_HELP)
@click.option("--broker", metavar="NAME", default="", help="Its name; by default the name of the store's broker.")
@click.option("--ha", "ha_address", metavar="HOST:PORT", default="", help="Its HA port, as in `rmq follow`.")
@click.option(
    "--export", "file", metavar="FILE", type=NewFile(),
    help="Where messages that only this store has are written; by default beside the directory.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say where both logs part; change nothing.")
@way_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def rejoin(
    root: Path, text: str, broker: str, ha_address: str, file: Path | None, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Make the store in directory PATH, of a master that was replaced, a replica of the new master.

    The logs of both are compared by their bytes. Messages behind the point where they part are nowhere else: they are
    written to a file of JSON lines, and only then cut off. `rmq send TOPIC --jsonl` takes the lines. Afterwards `rmq
    follow`, `rmq broker run --role SLAVE` or a RocketMQ slave goes on with PATH.

    The store may be ours or a RocketMQ broker's; nobody may have it open. A run that was killed is finished by the
    next one. Exit codes: 0 done; 1 the logs have nothing in common, or the master has deleted what comes next; 2 PATH
    is in use, or the master does not answer.
    """
    from rmq_store.replica.take_over.rejoin import rejoin as carry_out

    settings = settings_of(text, given)
    with master_of(text, settings, broker=broker or _name_of(root), ha_address=ha_address) as master:
        found = carry_out(root, master, file=file, dry_run=dry_run)
    if as_json:
        write_json({"path": str(root.absolute()), **asdict(found), "file": found.file and str(found.file)})
    else:
        _write(root, found)


def _name_of(root: Path) -> str:
    from rmq_store import Store

    with Store.open(root, read_only=True) as store:
        return store.replica.broker if store.replica is not None else store.broker_name


def _write(root: Path, found: Rejoined) -> None:
    lines = [
        ("log", f"{root}: bytes {found.start} to {found.end}"),
        ("master", f"bytes {found.master_start} to {found.master_end}"),
        ("parting", f"both logs are the same up to {found.parting}"),
    ]
    if found.file is not None and found.is_done:
        lines.append(("tail", f"{found.messages} records that only this store had are in {found.file} now"))
    elif found.file is not None:
        lines.append(("tail", f"{found.messages} records that only this store has would go to {found.file}"))
    else:
        lines.append(("tail", "nothing that only this store has"))
    lines.append(("done", "a replica now: feed it") if found.is_done else ("dry run", "nothing was changed"))
    for name, text in lines:
        click.echo(f"{name:<8}  {printable(text)}")
