"""`rmq doctor`: find problems of this machine, this Python, this Spark, and a store; or of a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rmq_store.cli.shared.output import printable, write_json
from rmq_store.cli.target.command import by_target, target_command
from rmq_store.cli.target.store_target import StoreTarget

if TYPE_CHECKING:
    from rmq_store.cli.checks import Finding
    from rmq_store.cli.target.cluster_target import ClusterTarget

_COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


@target_command(
    short_help="Check [store: Python, Java, PySpark, limits and a store]"
    "[cluster: name servers, brokers, addresses and rights]; propose fixes.",
    epilog="\b\nExample:\n  rmq doctor /data/rocketmq/store",
    cluster_epilog="\b\nExamples:\n  rmq -n 'ns1:9876;ns2:9876' doctor\n"
    "  rmq -n ns1:9876 doctor --topic Orders --group cg_bills",
    store_is_required=False,
)
@by_target(
    store=click.option("--no-spark", is_flag=True, help="Do not check Java and PySpark, whose checks start processes.")
)
@by_target(
    cluster=click.option("--topic", default="", help="Also check the rights to read this topic, and to write it.")
)
@by_target(cluster=click.option("--group", default="", help="With --topic: also the rights of a member of this group."))
def doctor(
    target: StoreTarget | ClusterTarget | None, as_json: bool, no_spark: bool = False, topic: str = "", group: str = ""
) -> None:
    """[store: Check Python and its packages, limits and clock, Java and PySpark, and the store at PATH, if given.]
    [cluster: Check name servers, routes and brokers: each registered address, versions, clocks, disks, flow control,
    settings.]

    [store: The content of the store's files is not checked: `rmq verify` does that. PySpark is checked as Spark would
    find it: with this environment, in the Python of its workers, and with an import of every module named pyspark_*,
    because one broken module makes all Python data sources vanish. Changes nothing. Exit code 1 if a line says FAIL.]
    [cluster: An address that cannot be reached is tried at the hosts of the name servers, and an address map is
    proposed. Rights are asked for with --topic: by reads, and by a send to a queue that no topic has, which every
    broker refuses. Changes nothing. Exit code 1 if a line says FAIL.]
    """
    if target is None or isinstance(target, StoreTarget):
        findings = _of_machine(target, no_spark=no_spark)
    else:
        findings = _of_cluster(target, topic, group)
    _write(findings, as_json=as_json)


def _of_machine(target: StoreTarget | None, *, no_spark: bool) -> list[Finding]:
    """Of this machine, and of a store if one is named."""
    from rmq_store.cli.checks import machine, spark

    findings = [
        machine.python(), *machine.packages(), machine.engine(), *machine.limits(),
        machine.time_zone(os.environ),
    ]  # fmt: skip
    if not no_spark:
        findings += spark.checks(os.environ)
    if target is not None:
        from rmq_store.cli.checks import directory

        findings += directory.checks(target.root.absolute())
    return findings


def _of_cluster(target: ClusterTarget, topic: str, group: str) -> list[Finding]:
    from rmq_store.cli.checks import FAIL
    from rmq_store.cli.cluster_checks import brokers, reachability, rights
    from rmq_store.cli.cluster_checks.processes import ask_processes

    if group and not topic:
        raise click.UsageError("--group needs --topic")
    with target.open() as cluster:
        findings: list[Finding]
        findings, info = reachability.name_servers(cluster)
        if info is not None:
            processes = ask_processes(cluster, info)
            findings += reachability.masters(info)
            findings += reachability.addresses(cluster, processes)
            findings += brokers.checks(processes)
        # A proxy lists no brokers, and has routes.
        if topic and (info is not None or any(one.status != FAIL for one in findings)):
            findings += rights.checks(cluster, topic, group, target.pull_group, time.time_ns() // 1_000_000)
    return findings


def _write(findings: Sequence[Finding], *, as_json: bool) -> None:
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
