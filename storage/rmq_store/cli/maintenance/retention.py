"""`rmq retention`: delete old messages by the rules of a broker, or show what would be deleted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.confirm import confirm
from rmq_store.cli.shared.output import (
    common_options,
    open_store,
    printable,
    time_text,
    wide_option,
    write_json,
    write_table,
)

if TYPE_CHECKING:
    from rmq_store import RetentionPlan, RetentionReport, Store

_TRIGGERS = {
    "time": "it is the hour of deleteWhen",
    "disk": "the disk is fuller than diskMaxUsedSpaceRatio",
    "manual": "asked for",
    "retry": "the oldest segment could not go before",
    "": "nothing to do: not the hour of deleteWhen, and the disk is not short (--manual deletes at any hour)",
}

_SETTINGS = (
    ("fileReservedTime", "file_reserved_time"),
    ("deleteWhen", "delete_when"),
    ("diskMaxUsedSpaceRatio", "disk_max_used_space_ratio"),
    ("diskSpaceCleanForciblyRatio", "disk_space_clean_forcibly_ratio"),
    ("diskSpaceWarningLevelRatio", "disk_space_warning_level_ratio"),
    ("cleanFileForciblyEnable", "clean_file_forcibly_enable"),
    ("unitMarkerReservedTime", "unit_marker_reserved_time"),
    ("dlqArchivePath", "dlq_archive_path"),
)


@click.group(short_help="Delete old messages, or show which ones would be deleted.")
def retention() -> None:
    """Delete old messages by the rules of a broker, or show which ones would be deleted.

    Whole commit log files are deleted, the oldest first, whether or not their messages were consumed. Only
    `rmq retention run` and `rmq broker run` delete messages.
    """


@retention.command(
    short_help="Run one pass: delete the files that may be deleted now.",
    epilog="\b\nExamples:\n  rmq retention run --store /data/rocketmq/store --dry-run\n"
    "  rmq retention run --store /data/rocketmq/store --manual --file-reserved-time 24",
)
@common_options
@wide_option
@click.option("--dry-run", is_flag=True, help="Only show the files that would be deleted; change nothing on disk.")
@click.option("--manual", is_flag=True, help="Delete at any hour, in up to 20 passes.")
@click.option(
    "--file-reserved-time",
    metavar="HOURS",
    type=click.IntRange(0),
    help="Use this number of hours instead of the store's fileReservedTime.",
)
@click.option("--drop-waiting", is_flag=True, help="Also delete delayed messages that were not delivered yet.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def run(
    root: Path,
    as_json: bool,
    dry_run: bool,
    manual: bool,
    file_reserved_time: int | None,
    drop_waiting: bool,
    yes: bool,
) -> None:
    """Run one pass: delete the files that may be deleted now.

    Without --manual, files are deleted only in the hour of deleteWhen, or if the disk is fuller than
    diskMaxUsedSpaceRatio. With options that go beyond the store's own settings the command asks first. Exit code 1 if
    no file could be deleted although one should have been.
    """
    from rmq_store import Store

    options: dict[str, Any] = {
        "manual": manual, "file_reserved_time": file_reserved_time, "drop_waiting": drop_waiting,
    }  # fmt: skip
    if dry_run:
        with open_store(root) as store:
            _show_plan(store.retention.plan(**options), as_json)
        return
    with Store.open(root) as store:
        if manual or drop_waiting or file_reserved_time is not None:
            _ask(store, options, yes=yes)
        reports = _passes(store, options)
    _show_reports(reports, as_json)
    if not any(report.removed for report in reports) and reports[-1].stopped and _should_have(reports[-1]):
        raise click.exceptions.Exit(1)


@retention.command(
    short_help="Disk usage, and the files that may be deleted.",
    epilog="\b\nExample:\n  rmq retention status --store /data/rocketmq/store",
)
@common_options
@wide_option
def status(root: Path, as_json: bool) -> None:
    """Disk usage, the settings of retention, and the files that --manual would delete now."""
    with open_store(root) as store:
        plan, settings = store.retention.plan(manual=True), store.retention.settings()
        values = {name: getattr(settings, field) for name, field in _SETTINGS}
        start, end = store.log_range()
    going = plan.going
    found: dict[str, Any] = {
        "diskUsedPercent": plan.usage_percent,
        "refusesWrites": (plan.usage_percent or 0) > settings.disk_space_warning_level_ratio,
        "logStart": start,
        "logEnd": end,
        "deletableSegments": len(going),
        "deletableBytes": sum(fate.end - fate.start for fate in going),
        "stopped": _stopped(plan),
        "settings": values,
    }
    if as_json:
        write_json(found)
        return
    shown = {name: value for name, value in found.items() if name != "settings"} | values
    write_table(("", ""), [(name, _text(value)) for name, value in shown.items()], header=False)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _passes(store: Store, options: dict[str, Any]) -> list[RetentionReport]:
    """As DefaultMessageStore.CleanCommitLogService: one pass, or up to 20 by hand."""
    from rmq_store.broker.store.retention import MANUAL_PASSES

    batch = store.retention.settings().delete_file_batch_max
    reports = [store.retention.run(**options)]
    while options["manual"] and len(reports[-1].removed) == batch and len(reports) < MANUAL_PASSES:
        reports.append(store.retention.run(**options))
    return reports


def _ask(store: Store, options: dict[str, Any], *, yes: bool) -> None:
    plan = store.retention.plan(**options)
    if not plan.going:
        return
    lost = "; delayed messages that were not delivered among them" if options["drop_waiting"] else ""
    more = " at least" if len(plan.going) == store.retention.settings().delete_file_batch_max else ""
    bytes_ = f"bytes {plan.going[0].start} to {plan.going[-1].end} of the log"
    confirm(f"Delete {len(plan.going)} segments{more}, {bytes_}{lost}?", yes=yes)


def _should_have(report: RetentionReport) -> bool:
    """True if a file was old enough and was not deleted nevertheless."""
    return any(fate.goes or fate.is_kept or fate.waiting for fate in report.plan.segments)


def _stopped(plan: RetentionPlan) -> str:
    return next((fate.reason for fate in plan.segments if not fate.goes), "")


def _plan_json(plan: RetentionPlan) -> dict[str, Any]:
    return {
        "trigger": plan.trigger,
        "diskUsedPercent": plan.usage_percent,
        "logStart": plan.log_start,
        "segments": [
            {
                "start": fate.start,
                "end": fate.end,
                "modified": time_text(fate.modified_ms * 1000),
                "goes": fate.goes,
                "reason": fate.reason,
                "waitingMessages": fate.waiting.messages if fate.waiting else 0,
                "waitingUntil": time_text(fate.waiting.until_ms * 1000) if fate.waiting else None,
            }
            for fate in plan.segments
        ],
    }


def _show_plan(plan: RetentionPlan, as_json: bool) -> None:
    if as_json:
        write_json(_plan_json(plan))
        return
    usage = "unknown" if plan.usage_percent is None else f"{plan.usage_percent} %"
    click.echo(f"disk in use: {usage}; {_TRIGGERS[plan.trigger]}")
    if plan.segments:
        rows = [
            (fate.start, fate.end, time_text(fate.modified_ms * 1000), "goes" if fate.goes else "stays", fate.reason)
            for fate in plan.segments
        ]
        write_table(("START", "END", "MODIFIED", "FATE", "REASON"), rows, flexible=("REASON",))


def _show_reports(reports: list[RetentionReport], as_json: bool) -> None:
    removed = [base for report in reports for base in report.removed]
    counts = {
        "removedSegments": len(removed),
        "removedQueueFiles": sum(report.queue_files for report in reports),
        "removedIndexFiles": sum(report.index_files for report in reports),
        "unitsWrittenAgain": sum(report.units for report in reports),
        "halfMessagesWrittenAgain": sum(report.half_messages for report in reports),
    }
    last = reports[-1]
    if as_json:
        write_json({**counts, "stopped": last.stopped, "trigger": reports[0].plan.trigger, "removed": removed})
    elif not last.plan.trigger:
        click.echo(_TRIGGERS[""])
    else:
        click.echo(
            f"deleted: {counts['removedSegments']} segments, {counts['removedQueueFiles']} queue files, "
            f"{counts['removedIndexFiles']} index files"
        )
        if last.stopped:
            click.echo(f"the next one stays: {printable(last.stopped)}")
