"""`rmq doctor` over a cluster."""

from __future__ import annotations

import time

import click

from rmq_store.cli.maintenance.doctor import write_findings
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options


@click.command(
    cls=ClusterCommand,
    short_help="Check name servers, brokers, addresses and rights; propose fixes.",
    epilog="\b\nExamples:\n  rmq -n 'ns1:9876;ns2:9876' doctor\n"
    "  rmq -n ns1:9876 doctor --topic Orders --group cg_bills",
)
@cluster_options()
@click.option("--topic", default="", help="Also check the rights to read this topic, and to write it.")
@click.option("--group", default="", help="With --topic: also the rights of a member of this group.")
def doctor(target: ClusterTarget, as_json: bool, topic: str, group: str) -> None:
    """Check name servers, routes and brokers: each registered address, versions, clocks, disks, flow control, settings.

    An address that cannot be reached is tried at the hosts of the name servers, and an address map is proposed. Rights
    are asked for with --topic: by reads, and by a send to a queue that no topic has, which every broker refuses.
    Changes nothing. Exit code 1 if a line says FAIL.
    """
    from rmq_store.cli.checks import FAIL, Finding
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
    write_findings(findings, as_json=as_json)
