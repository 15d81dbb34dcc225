"""The cleaning commands of mqadmin: expired files, and leftovers of deleted topics.

Source: CleanExpiredCQSubCommand.java, DeleteExpiredCommitLogSubCommand.java, CleanUnusedTopicCommand.java.
"""

from __future__ import annotations

from pathlib import Path

import click

from rmq_store.cli.maintenance import retention
from rmq_store.cli.mqadmin.common import deletion_json, mqadmin_options, write_deletion
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.output import open_store, write_json


@click.command(
    "deleteExpiredCommitLog",
    short_help="Delete old messages: `retention run --manual`.",
    epilog="\b\nExample:\n  rmq deleteExpiredCommitLog --dry-run --store /data/store",
)
@mqadmin_options()
@changing_options
@click.pass_context
def delete_expired_commit_log(context: click.Context, root: Path, as_json: bool, dry_run: bool, yes: bool) -> None:
    """Delete commit log files that are older than fileReservedTime, at any hour: `rmq retention run --manual`."""
    context.invoke(retention.run, root=root, as_json=as_json, dry_run=dry_run, manual=True, yes=yes)


@click.command(
    "cleanExpiredCQ",
    short_help="Delete queue files of messages that are gone.",
    epilog="\b\nExample:\n  rmq cleanExpiredCQ --store /data/store",
)
@mqadmin_options()
def clean_expired_cq(root: Path, as_json: bool) -> None:
    """Delete queue files whose messages were all deleted by retention.

    The last file of a queue stays, because it holds the next queue offset. A broker would delete it, and start again at
    0.
    """
    from rmq_store import Store

    with Store.open(root) as store:
        removed = store.admin.clean_queue_files()
    if as_json:
        write_json({"removedQueueFiles": removed})
    else:
        write_line("success")


@click.command(
    "cleanUnusedTopic",
    short_help="Delete groups' offsets on deleted topics.",
    epilog="\b\nExample:\n  rmq cleanUnusedTopic --dry-run --store /data/store",
)
@mqadmin_options()
@changing_options
def clean_unused_topic(root: Path, as_json: bool, dry_run: bool, yes: bool) -> None:
    """Delete the offsets on topics that no longer exist, and the queue files that `cleanExpiredCQ` deletes.

    The last file of each queue stays until the topic is made again, and so do messages that retention has not deleted.
    """
    from rmq_store import Store

    with open_store(root) as store:
        deletion = store.admin.plan_cleaning()
        write_deletion(deletion)
    if not dry_run:
        if deletion:
            confirm("Forget these?", yes=yes)
        with Store.open(root) as store:
            deletion = store.admin.clean_unused_topics()
            store.admin.clean_queue_files()
    if as_json:
        write_json({"deleted": not dry_run, **deletion_json(deletion)})
    elif not dry_run:
        write_line("success")


COMMANDS = (clean_expired_cq, delete_expired_commit_log, clean_unused_topic)
