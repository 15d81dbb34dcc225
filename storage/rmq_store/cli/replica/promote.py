"""`rmq broker promote`: a replica becomes the store of a master."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.shared.output import printable, time_text, write_json
from rmq_store.cli.shared.parameters import store_options

if TYPE_CHECKING:
    from rmq_store.replica.take_over.promote import Promotion


@click.command(
    short_help="Make a replica the store of a master.",
    epilog="\b\nExamples:\n  rmq broker promote /data/replica --dry-run\n  rmq broker promote /data/replica",
)
@store_options()
@click.option("--dry-run", is_flag=True, help="Say what there is; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def promote(root: Path, dry_run: bool, as_json: bool) -> None:
    """Make the replica in directory PATH, of `rmq follow` or `rmq broker run --role SLAVE`, a store of its own.

    It keeps whole records with their queue entries. Half a batch of a Spark sink is dropped. Topics that only records
    name are put into the table. The markers of sinks are read from the log again, so a sink that repeats its batch
    finds it. Offsets of groups are those that came from the master last. Afterwards every writer opens the store, and
    so does a RocketMQ broker.

    Stop the old master first, and see to it that it stays away: nothing here looks for it. A process that feeds PATH is
    refused by name. Nobody can tell what the old master had acknowledged behind the end that is printed. A run that was
    killed is finished by the next one. Exit codes: 0 done; 1 the store is damaged; 2 PATH is no replica, or is fed.
    """
    from rmq_store.replica.take_over.promote import promote as carry_out

    found = carry_out(root, dry_run=dry_run)
    if as_json:
        write_json({"path": str(root.absolute()), **asdict(found), "missing_bytes": found.missing_bytes})
    else:
        _write(root, found)


def _write(root: Path, found: Promotion) -> None:
    lines = [
        ("replica", f"{root}: of broker {found.broker} of {found.cluster}, last at {found.address}"),
        ("log", f"bytes {found.log_start} to {found.log_end}; newest message stored at {_time(found.newest_ms)}"),
        (
            "unknown",
            f"what the old master acknowledged behind {found.log_end}: it is not here, and nothing here tells of it",
        ),
    ]
    if found.heard_ms:
        heard = f"the old master's log ended at {found.master_end} when it was last asked, at {_time(found.heard_ms)}"
        lines.append(("heard", f"{heard}: {found.missing_bytes} bytes more than here"))
    if found.dropped_unit >= 0:
        lines.append(("dropped", f"a batch without its end, from {found.dropped_unit} on"))
    if found.removed_bytes:
        lines.append(("removed", f"{found.removed_bytes} bytes of no whole record, kept in pyrmq/removed"))
    if found.topics:
        lines.append(("topics", f"only records named {', '.join(found.topics)}: put into the table"))
    lines.append(("markers", f"{found.units} of sinks and other units"))
    if found.promoted_ms:
        lines.append(("done", f"a store of its own since {_time(found.promoted_ms)}"))
    else:
        lines.append(("dry run", "nothing was changed"))
    for name, text in lines:
        click.echo(f"{name:<8}  {printable(text)}")


def _time(moment_ms: int) -> str:
    return time_text(moment_ms * 1000) if moment_ms else "no time"
