"""`rmq backup`: copy a store while it is written."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.shared.parameters import LocalPath, is_typed, store_options
from rmq_store.cli.shared.progress import progress_bar


@click.command(
    short_help="Copy a store while it is in use.",
    epilog="\b\nExample:\n  rmq backup /data/rocketmq/store /backup/store-2026-11-21",
)
@store_options(is_required=False, text="Instead of STORE.")
@click.argument("places", metavar="[STORE] TARGET", nargs=-1, required=True, type=LocalPath(path_type=Path))
@click.option("--with-credentials", is_flag=True,
              help="Also copy the files in which a broker keeps passwords and secret keys.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def backup(places: tuple[Path, ...], root: Path | None, with_credentials: bool, as_json: bool) -> None:
    """Copy the store in directory STORE to the new directory TARGET, while other processes write the store.

    The copy is a cleanly closed store, in the state of one moment during the call: open it there, or move it to the
    directory of the store. Every record is checked on the way. A plain copy of a store in use is torn; this one is not.
    A store that a RocketMQ broker wrote last is copied as it is, and only while no broker runs on it. Its users and
    passwords (config/users, config/acls, plain_acl.yml, ...) are left out, and stderr names them.
    """
    from rmq_store.broker.backup.backup import backup as copy

    *named, target = places
    store = named[0] if named else root
    if store is None:
        raise click.UsageError("which store? Name STORE before TARGET, or --store, or RMQ_STORE")
    if len(named) > 1 or (named and is_typed("root")):
        raise click.UsageError("one STORE and one TARGET, but more names are given")
    if not store.is_dir():
        raise click.UsageError(f"{store} is no directory")
    with progress_bar("backup") as tell:
        report = copy(store, target, progress=tell, with_credentials=with_credentials)
    if as_json:
        write_json(asdict(report))
        return
    size = f"bytes {report.start} to {report.end} of the log"
    what = f"{report.record_count} records, {size}" if report.record_count else f"{report.copied_bytes} bytes, {size}"
    click.echo(printable(f"{report.target}: {what}"))
    if report.left_out:
        names = printable(", ".join(report.left_out))
        click.echo(f"rmq: left out, as they hold passwords or secret keys: {names} (see --with-credentials)", err=True)
