"""The `rmq` command: look at a store, look after it, and change what is in it, without a broker.

Commands that only look open the store read-only. Exit codes: 0 all is well, 1 problems found or the store cannot be
used, 2 the caller's mistake. A mistake is one line on stderr. Modules of the commands import numpy and pyarrow only
when they run, because a shell calls this module for every TAB.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import click

from rmq_store.cli import (
    backup,
    broker,
    checkpoint,
    consume,
    dlq,
    doctor,
    groups,
    lag,
    metrics,
    mqadmin,
    offsets,
    output,
    read,
    repair,
    retention,
    send,
    tail,
    top,
    topics,
    trace,
    verify,
)
from rmq_store.cli.mqadmin import broker as mqadmin_broker
from rmq_store.cli.mqadmin import cleaning, consumer, export, message, message_dump, message_flow, offset, topic
from rmq_store.cli.sections import SectionedGroup
from rmq_store.errors import NotAStoreError, StoreError, UsageError

EXIT_PROBLEMS, EXIT_USAGE = 1, 2


class _Commands(SectionedGroup):
    """A group whose commands end with one line on stderr when the store refuses."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StoreError as error:
            self._give_up(
                ctx, str(error), EXIT_USAGE if isinstance(error, (UsageError, NotAStoreError)) else EXIT_PROBLEMS
            )
        except OSError as error:
            if error.errno == errno.EPIPE:  # `rmq read ... | head`: click ends quietly
                raise
            self._give_up(ctx, str(error), EXIT_PROBLEMS)

    def _give_up(self, ctx: click.Context, message: str, code: int) -> None:
        click.echo(f"rmq: {output.printable(message)}", err=True)
        ctx.exit(code)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "\b\nCompletion of commands and options in bash (zsh, fish: zsh_source, fish_source):\n"
        '  eval "$(_RMQ_COMPLETE=bash_source rmq)"\n\n'
        + mqadmin.NOT_HERE
    ),
)
@click.version_option(package_name="pyspark-rmq", prog_name="rmq")
def commands() -> None:
    """Look at an Apache RocketMQ store directory, without a broker.

    Commands that look take --store PATH (or the environment variable RMQ_STORE) and --json, and change nothing on
    disk.

    \b
    Example:
      rmq topics --store /data/rocketmq/store
    """


# One line each, in the order of the help. The modules under mqadmin/ list theirs in COMMANDS.
_LOOK = [
    topics.topics,
    top.top,
]
_MESSAGES = [
    read.read,
    trace.trace,
    tail.tail,
    send.send,
    consume.consume,
]
_CONSUMERS = [
    groups.groups,
    lag.lag,
    offsets.offsets,
    checkpoint.checkpoint,
]
_DEAD_LETTERS = [
    dlq.dlq,
]
_CARE = [
    verify.verify,
    repair.repair,
    backup.backup,
    retention.retention,
    broker.broker,
    doctor.doctor,
    metrics.metrics,
]
_MQADMIN: dict[str, Sequence[click.Command]] = {
    "messages": (*message.COMMANDS, *message_flow.COMMANDS, *message_dump.COMMANDS),
    "topics": topic.COMMANDS,
    "consumers": consumer.COMMANDS,
    "offsets": offset.COMMANDS,
    "broker": mqadmin_broker.COMMANDS,
    "cleaning": cleaning.COMMANDS,
    "export": export.COMMANDS,
}

commands.add_section("Look", _LOOK)
commands.add_section("Messages", _MESSAGES)
commands.add_section("Consumers", _CONSUMERS)
commands.add_section("Dead letters", _DEAD_LETTERS)
commands.add_section("Store care", _CARE)
commands.add_names("RocketMQ's mqadmin: its names and flags, with --store instead of -n", _MQADMIN)


def main() -> None:
    """Entry point of the `rmq` script."""
    commands(prog_name="rmq")
