"""`rmq resend run` over a cluster: the relay, until it is stopped."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.outbox.resend_run import relay_options, relay_with
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options

if TYPE_CHECKING:
    from rmq_store.client import Backend


@click.command(
    "run",
    cls=ClusterCommand,
    short_help="Run the relay: send and resend messages, until stopped.",
    epilog="\b\nExample:\n  rmq -n 'ns1:9876;ns2:9876' resend run --database env:ORDERS_DB",
)
@cluster_options()
@relay_options
def run(target: ClusterTarget, **given: Any) -> None:
    """Run the relay: send messages that no broker has, send lost messages again, add dead letters to the manual list,
    and notify operators of new entries.

    Several instances may run in parallel, on one database and one cluster. Ctrl-C and SIGTERM stop it after the current
    page of messages. On a terminal it reports every few seconds; with --json it prints a line for each round in which
    it did something. Of messages whose broker is away nothing is lost: they are sent to another broker, or later.
    """

    def open_brokers(stack: contextlib.ExitStack) -> Backend:
        from rmq_store.client import RemoteBackend

        return stack.enter_context(RemoteBackend(stack.enter_context(target.open())))

    relay_with(open_brokers, **given)
