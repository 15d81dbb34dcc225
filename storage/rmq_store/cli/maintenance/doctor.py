"""`rmq doctor`: find problems of this machine, this Python, this Spark, and a store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.shared.parameters import LocalPath, store_options

if TYPE_CHECKING:
    from rmq_store.cli.checks import Finding

_COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


@click.command(
    short_help="Check Python, Java, PySpark, limits and a store; propose fixes.",
    epilog="\b\nExample:\n  rmq doctor /data/rocketmq/store",
)
@store_options(LocalPath(path_type=Path), is_required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--no-spark", is_flag=True, help="Do not check Java and PySpark, whose checks start processes.")
def doctor(root: Path | None, as_json: bool, no_spark: bool) -> None:
    """Check Python and its packages, limits and clock, Java and PySpark, and the store at PATH, if given.

    The content of the store's files is not checked: `rmq verify` does that. PySpark is checked as Spark would find it:
    with this environment, in the Python of its workers, and with an import of every module named pyspark_*, because one
    broken module makes all Python data sources vanish. Changes nothing. Exit code 1 if a line says FAIL.
    """
    from rmq_store.cli.checks import machine, spark

    findings = [
        machine.python(), *machine.packages(), machine.engine(os.environ), *machine.limits(),
        machine.time_zone(os.environ),
    ]  # fmt: skip
    if not no_spark:
        findings += spark.checks(os.environ)
    if root is not None:
        from rmq_store.cli.checks import directory

        findings += directory.checks(root.absolute())
    write_findings(findings, as_json=as_json)


def write_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print findings, and end with exit code 1 if one of them is a failure."""
    from rmq_store.cli.checks import FAIL, OK

    if as_json:
        write_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            _show(finding, is_well=finding.status == OK)
    if any(finding.status == FAIL for finding in findings):
        raise click.exceptions.Exit(1)


def _show(finding: Finding, *, is_well: bool) -> None:
    status = click.style(f"{finding.status:4}", fg=_COLOURS[finding.status], bold=not is_well)
    click.echo(f"{status}  {finding.check:17}  {printable(finding.text)}")
    if not is_well:
        click.echo(f"{'':25}fix: {printable(finding.fix)}")
