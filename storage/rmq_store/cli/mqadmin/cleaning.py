"""The cleaning commands of mqadmin: expired files, and leftovers of deleted topics.

Source: CleanExpiredCQSubCommand.java, DeleteExpiredCommitLogSubCommand.java, CleanUnusedTopicCommand.java.
"""

from __future__ import annotations

import click

from rmq_store.cli.maintenance import retention
from rmq_store.cli.mqadmin.common import Target, brokers_of, choosing, cluster_brokers, mqadmin_command
from rmq_store.cli.mqadmin_print.lines import write_line
from rmq_store.cli.mqadmin_targets.deletions import run_deletion
from rmq_store.cli.shared.confirm import changing_options
from rmq_store.cli.shared.output import write_json
from rmq_store.cli.target.store_target import StoreTarget


@mqadmin_command(
    "deleteExpiredCommitLog",
    short_help="Delete old messages: `retention run --manual`.",
    epilog="\b\nExample:\n  rmq deleteExpiredCommitLog --dry-run --store /data/store",
)
@changing_options
@choosing("bc")
def delete_expired_commit_log(
    target: Target, as_json: bool, dry_run: bool, yes: bool, **chosen: str | None
) -> None:
    """[store: Delete commit log files that are older than fileReservedTime, at any hour: `rmq retention run --manual`.]
    [cluster: Let one broker (-b), or every master, delete commit log files that are older than fileReservedTime now, at
    any hour.]"""
    if isinstance(target, StoreTarget):
        context = click.get_current_context()
        context.invoke(retention.run, root=target.root, as_json=as_json, dry_run=dry_run, manual=True, yes=yes)
        return
    with cluster_brokers(target, chosen) as brokers:
        run_deletion(brokers.expired_log_files(), as_json=as_json, dry_run=dry_run, yes=yes)


@mqadmin_command(
    "cleanExpiredCQ",
    short_help="Delete queue files of messages that are gone.",
    epilog="\b\nExample:\n  rmq cleanExpiredCQ --store /data/store",
)
@choosing("bc")
def clean_expired_cq(target: Target, as_json: bool, **chosen: str | None) -> None:
    """[store: Delete][cluster: Let one broker (-b), or every master, delete] queue files whose messages were all
    deleted by retention.

    [store: The last file of a queue stays, because it holds the next queue offset. A broker would delete it, and start
    again at 0.]
    """
    if isinstance(target, StoreTarget):
        from rmq_store import Store

        with Store.open(target.root) as store:
            removed = store.admin.clean_queue_files()
        if as_json:
            write_json({"removedQueueFiles": removed})
        else:
            write_line("success")
        return
    with cluster_brokers(target, chosen) as brokers:
        run_deletion(brokers.expired_queue_files(), as_json=as_json, dry_run=False, yes=True)


@mqadmin_command(
    "cleanUnusedTopic",
    short_help="Delete groups' offsets on deleted topics.",
    epilog="\b\nExample:\n  rmq cleanUnusedTopic --dry-run --store /data/store",
)
@changing_options
@choosing("bc")
def clean_unused_topic(target: Target, as_json: bool, dry_run: bool, yes: bool, **chosen: str | None) -> None:
    """[store: Delete the offsets on topics that no longer exist, and the queue files that `cleanExpiredCQ` deletes.]
    [cluster: Let one broker (-b), or every master, delete the queues of topics that it does not have any more.]

    [store: The last file of each queue stays until the topic is made again, and so do messages that retention has not
    deleted.]
    """
    with brokers_of(target, chosen) as brokers:
        run_deletion(brokers.unused_topics(), as_json=as_json, dry_run=dry_run, yes=yes)


COMMANDS = (clean_expired_cq, delete_expired_commit_log, clean_unused_topic)
