"""`rmq dlq`: archive dead letters and restore them; the other commands of the group are in modules of their own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from rmq_store.cli.dlq import dlq_export, dlq_list, dlq_redrive
from rmq_store.cli.shared.completion import DEAD_GROUP, GROUP
from rmq_store.cli.shared.output import common_options, open_store, printable, write_json
from rmq_store.cli.shared.parameters import OFFSET, FiniteRange
from rmq_store.cli.shared.progress import counting_bar

_HOUR_MS = 3_600_000

# A century: older than any message.
_HOURS_MAX = 1_000_000


@click.group(short_help="Dead letters: list, show, redrive, export, archive, restore.")
def dlq() -> None:
    """Dead letters: show them, send them back to their group, and archive them."""


@dlq.command(
    short_help="Write dead letters to Parquet files.",
    epilog="\b\nExample:\n  rmq dlq archive cg_orders --to /archive/dlq --older-than 48 --store /data/rocketmq/store",
)
@common_options
@click.argument("groups", type=DEAD_GROUP, metavar="[GROUP]...", nargs=-1)
@click.option("--to", "directory", required=True, metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
              help="Directory of the archive, outside of the store; created if it is missing.")  # fmt: skip
@click.option("--older-than", "hours", type=FiniteRange(0, _HOURS_MAX), metavar="HOURS",
              help="Only dead letters that are older than this many hours.")  # fmt: skip
def archive(root: Path, as_json: bool, groups: tuple[str, ...], directory: Path, hours: float | None) -> None:
    """Write dead letters to Parquet files: of the named groups, or of all groups.

    The dead letters also stay in the store. Those that are already in the archive are skipped, so you can repeat the
    command, also after it was killed. pandas, pyarrow and Spark can read the files; `rmq dlq restore` restores them
    into a store.
    """
    with open_store(root) as store, counting_bar("archive") as tell:
        there = store.archive(directory)
        wanted = groups or None
        if hours is None:
            report = there.archive_up_to(store.log_range()[1], wanted, progress=tell)
        else:
            report = there.archive_older(store.clock() - int(hours * _HOUR_MS), wanted, progress=tell)
    if as_json:
        write_json(asdict(report))
        return
    click.echo(printable(f"{directory}: {report.row_count} dead letters in {len(report.files)} new files"))
    if report.damaged_count:
        click.echo(f"{report.damaged_count} of them are damaged: see the column damage")


@dlq.command(
    short_help="Put archived dead letters back into a store.",
    epilog="\b\nExample:\n  rmq dlq restore /archive/dlq cg_orders --from 100 --to 200 --store /data/rocketmq/store",
)
@common_options
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("group", type=GROUP, required=False)
@click.option("--from", "start", type=OFFSET, default=0, metavar="OFFSET",
              help="First offset that a dead letter had when it was archived.")  # fmt: skip
@click.option("--to", "end", type=OFFSET, metavar="OFFSET",
              help="End of the range of archived offsets; this one is not restored.")  # fmt: skip
@click.option(
    "--again",
    is_flag=True,
    help="Also restore dead letters that are still in this store, or were restored into it before.",
)
def restore(
    root: Path, as_json: bool, directory: Path, group: str | None, start: int, end: int | None, again: bool
) -> None:
    """Append archived dead letters to their %DLQ% topics again: of the named groups, or of all groups.

    They get new offsets. Dead letters that are still in this store at their archived offsets are skipped, and so are
    those that were restored into it before. So you can repeat the command, also after it was killed. A file that was
    moved out of its archive is restored from DIR/GROUP/FILE. The store is opened for writing: no RocketMQ broker may
    run on it.
    """
    from rmq_store import Store

    with Store.open(root) as store, counting_bar("restore") as tell:
        report = store.dead_letters.restore(directory, group, start=start, end=end, again=again, progress=tell)
    if as_json:
        write_json(asdict(report))
        return
    click.echo(f"{report.restored_count} dead letters restored")
    for count, why in (
        (report.in_place_count, "are still in this store, where they were archived"),
        (report.present_count, "had been restored before"),
        (report.damaged_count, "were archived damaged, and cannot be restored"),
        (report.refused_count, "do not fit this store: larger than its segments, or no room for its checksum"),
    ):
        if count:
            click.echo(f"{count} {why}")


for _command in (dlq_list.list_, dlq_list.show, dlq_redrive.redrive, dlq_export.export):
    dlq.add_command(_command)
