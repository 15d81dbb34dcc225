"""The `rmq` command: read a store, maintain it, and change it, without a broker; or ask a cluster of brokers.

Commands that only read open the store read-only. Exit codes: 0 success; 1 problems were found, or the store cannot be
used; 2 the caller's mistake, or the operating system refuses; 130 Ctrl-C and 143 SIGTERM, both of which close the
store; 141 the reader of the output has gone (`rmq read ... | head`). A mistake is one line on stderr. Modules of the
commands import numpy and pyarrow only when they run, because a shell calls this module for every TAB.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from rmq_store.cli import mqadmin, plugin_loader
from rmq_store.cli.cluster_care import doctor, metrics, trace
from rmq_store.cli.dlq import dlq
from rmq_store.cli.groups import groups, lag, offsets
from rmq_store.cli.maintenance import backup, broker, init, namesrv, repair, retention, verify
from rmq_store.cli.messages import consume, delayed, read, send, tail, transactions
from rmq_store.cli.mirror import mirror
from rmq_store.cli.monitoring import top, topics
from rmq_store.cli.mqadmin import broker as mqadmin_broker
from rmq_store.cli.mqadmin import cleaning, consumer, export, message, message_dump, message_flow, offset, topic
from rmq_store.cli.outbox import resend
from rmq_store.cli.replica import follow
from rmq_store.cli.sections import SectionedGroup
from rmq_store.cli.shared import output
from rmq_store.cli.target.cluster_target import remember_target
from rmq_store.cli.target.commands import cluster_of, cluster_only, command_of
from rmq_store.cli.target.error_text import without_codes
from rmq_store.errors import NotAStoreError, StoreError, UsageError

EXIT_PROBLEMS, EXIT_USAGE = 1, 2
# As a shell counts those that a signal has ended.
EXIT_SIGNAL = 128
_STDERR = 2
_INTERRUPTED = "rmq: interrupted"


class _Commands(SectionedGroup):
    """A group whose commands end with one line on stderr if the store refuses, or a signal stops them."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        """As click does; --help prints here."""
        try:
            with _shown_safely():
                return super().make_context(*given, **more)
        except OSError as error:
            text, code = _refused(error)
            click.echo(text, err=True, nl=False)
            sys.exit(code)
        except KeyboardInterrupt:  # --help imports the commands of other packages
            click.echo(_INTERRUPTED, err=True)
            sys.exit(EXIT_SIGNAL + signal.SIGINT)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As `SectionedGroup`, and then the command for the store or the cluster that is named."""
        asks_for_help = args[0] == "help" and len(args) > 1
        name = args[1] if asks_for_help else args[0]
        only = None if self.get_command(ctx, name) is not None else cluster_only(name)
        if only is not None:
            rest = ["--help"] if asks_for_help else args[1:]
            target = cluster_of(ctx, only, rest)
            if target is not None:
                remember_target(ctx, target[0])
                return only.name, only, target[1]
        found_name, found, rest = super().resolve_command(ctx, args)
        target = None if found is None else cluster_of(ctx, found, rest)
        if found is None or target is None:
            return found_name, found, rest
        chosen = command_of(str(found.name), found)
        if chosen is found:  # it needs no target
            return found_name, found, rest
        remember_target(ctx, target[0])
        return found_name, chosen, target[1]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _terminated_as_interrupted(), output.remarks_shown(), _shown_safely():
                return super().invoke(ctx)
        except StoreError as error:
            is_mistake = isinstance(error, (UsageError, NotAStoreError))
            text = str(error) if str(ctx.invoked_subcommand).lower() in _MQADMIN_NAMES else without_codes(str(error))
            self._give_up(ctx, text, EXIT_USAGE if is_mistake else EXIT_PROBLEMS)
        except OSError as error:
            text, code = _refused(error)
            click.echo(text, err=True, nl=False)
            ctx.exit(code)
        except KeyboardInterrupt as error:
            click.echo(_INTERRUPTED, err=True)
            ctx.exit(EXIT_SIGNAL + (error.args[0] if error.args else signal.SIGINT))
        except click.Abort as error:
            if not isinstance(error.__context__, KeyboardInterrupt):  # the answer to a question was no
                raise
            click.echo(_INTERRUPTED, err=True)
            ctx.exit(EXIT_SIGNAL + signal.SIGINT)

    def _give_up(self, ctx: click.Context, message: str, code: int) -> None:
        click.echo(f"rmq: {output.printable(message)}", err=True)
        ctx.exit(code)


def _refused(error: OSError) -> tuple[str, int]:
    """The line for stderr, and the exit code. No line if the reader of the output has gone (`| head`)."""
    _give_up_output()
    if error.errno == errno.EPIPE:
        return "", EXIT_SIGNAL + signal.SIGPIPE
    text = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # as StoreFullError
    return f"rmq: {output.printable(text)}\n", EXIT_PROBLEMS if is_full else EXIT_USAGE


def _give_up_output() -> None:
    """If standard output accepts no more, discard the rest: otherwise Python tries to write it again at its end, and
    sets an exit code of its own.
    """
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _shown_safely() -> Iterator[None]:
    """Escape click's error messages: they repeat arguments, which a script may have read from anywhere."""
    try:
        yield
    except click.ClickException as error:
        text = error.format_message()
        safe = "\n".join("\t".join(map(output.printable, line.split("\t"))) for line in text.split("\n"))
        if safe == text:
            raise
        raise click.UsageError(safe, getattr(error, "ctx", None)) from error


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM, which service managers send, end a command as Ctrl-C does: everything that it has opened is closed.
    """

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "\b\nCompletion of commands and options in bash (zsh, fish: zsh_source, fish_source):\n"
        '  eval "$(_RMQ_COMPLETE=bash_source rmq)"\n\n' + mqadmin.NOT_HERE
    ),
)
@click.option(
    "-n", "--name-server", "--namesrvAddr", "name_server", metavar="ADDRESSES", is_eager=True,
    help="A cluster instead of a store: its name servers, `ns1:9876;ns2:9876`. Before or behind the command.",
)
@click.version_option(package_name="pyspark-rmq", prog_name="rmq")
def commands(name_server: str | None) -> None:
    """Read, check, change and copy an Apache RocketMQ store directory, without a broker; or ask a cluster of brokers.

    A store is named by PATH, by --store PATH, or by the environment variable RMQ_STORE. A command with arguments of its
    own, as `rmq tail TOPIC`, takes --store only. Commands that only read take --json, and change nothing on disk.

    `-n ADDRESSES`, `--store rmq://ADDRESSES` and RMQ_STORE=rmq://ADDRESSES name a cluster; so does NAMESRV_ADDR, where
    no store is named. docs/cluster.md says what each command is over a cluster.

    \b
    Examples:
      rmq topics /data/rocketmq/store
      rmq -n 'ns1:9876;ns2:9876' topics
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
    delayed.delayed,
    transactions.transactions,
    offsets.offsets,
]
_DEAD_LETTERS = [
    dlq.dlq,
]
_OUTBOX = [
    resend.resend,
]
_KAFKA = [
    mirror.mirror,
]
_CARE = [
    init.init,
    verify.verify,
    repair.repair,
    backup.backup,
    follow.follow,
    retention.retention,
    broker.broker,
    namesrv.namesrv,
    doctor.doctor,
    metrics.metrics,
]
_MQADMIN: dict[str, Sequence[click.Command]] = {
    "messages": (
        *message.COMMANDS, *message_flow.COMMANDS, message.query_msg_trace_by_id, *message_dump.COMMANDS,
    ),
    "topics": topic.COMMANDS,
    "consumers": consumer.COMMANDS,
    "offsets": offset.COMMANDS,
    "broker": mqadmin_broker.COMMANDS,
    "cleaning": cleaning.COMMANDS,
    "export": export.COMMANDS,
}
# They print errors as mqadmin does.
_MQADMIN_NAMES = frozenset(str(command.name).lower() for several in _MQADMIN.values() for command in several)

commands.add_section("Look", _LOOK)
commands.add_section("Messages", _MESSAGES)
commands.add_section("Consumers", _CONSUMERS)
commands.add_section("Dead letters", _DEAD_LETTERS)
commands.add_section("Outbox and inbox", _OUTBOX)
commands.add_section("Kafka", _KAFKA)
commands.add_section("Store care", _CARE)
commands.add_names("RocketMQ's mqadmin: its names and flags, with --store or -n", _MQADMIN)
commands.absent = mqadmin.ABSENT
commands.plugins = plugin_loader.plugins


def main() -> None:
    """Run the command that the arguments of this process name, and end the process."""
    _open_what_is_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may know fewer letters than a message has
        sys.stdout.reconfigure(errors="backslashreplace")
    commands(prog_name="rmq")


def _open_what_is_closed() -> None:
    """Open /dev/null for closed standard streams (`>&-`, some services). Otherwise a file of the store would become
    standard output, and a program of `rmq consume --exec` would write into it.
    """
    number = -1
    while number <= _STDERR:
        number = os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))
