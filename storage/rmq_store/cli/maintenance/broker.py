"""`rmq broker run`: delivers delayed messages of a store without a running consumer, deletes old messages, and serves
the store.
"""

from __future__ import annotations

import ipaddress
import resource
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store import real_time
from rmq_store.cli.maintenance.access_options import Access, access_options
from rmq_store.cli.maintenance.broker_clock import clock
from rmq_store.cli.maintenance.broker_options import stopped, store_or_ephemeral, suite_options, written_address
from rmq_store.cli.maintenance.grpc_options import Grpc, grpc_options, listen_address
from rmq_store.cli.maintenance.ha_options import HA, ha_options
from rmq_store.cli.maintenance.registration_options import NameServers, registration_options
from rmq_store.cli.maintenance.role_option import SLAVE, SYNC_MASTER, role_option
from rmq_store.cli.replica.promote import promote
from rmq_store.cli.replica.rejoin import rejoin
from rmq_store.cli.replica.slave_options import Slave, slave_options
from rmq_store.cli.replica.slave_run import run_slave
from rmq_store.cli.shared.output import printable, time_text
from rmq_store.cli.shared.stop_signal import StopSignal
from rmq_store.errors import StoreError, StoreFailedError, StoreLockedError, UsageError
from rmq_store.format.text.host import Host
from rmq_store.lazy.imports import no_collection

if TYPE_CHECKING:
    from rmq_store import RetentionReport, Store, StoreConfig

# ScheduleMessageService.java: between two looks, after an exception, and between two writes of delayOffset.json.
POLL_S = 0.1
AFTER_ERROR_S = 10.0
SAVE_S = 10.0

# DefaultMessageStore#addScheduleTask: the first pass of the cleaner.
FIRST_CLEANING_S = 60.0

_NO_VIP_PORT = (
    "port {} is not free: clients before 4.5.1, and those with vipChannelEnabled=true, cannot send. Set "
    "com.rocketmq.sendMessageWithVIPChannel=false there, or choose another port"
)

# Between two lines on a terminal.
REPORT_S = 10.0


@click.group(short_help="Deliver delayed messages and delete old ones.")
def broker() -> None:
    """Background work of a broker: deliver delayed messages, delete old ones, serve clients, take over from one."""


broker.add_command(clock)
broker.add_command(promote)
broker.add_command(rejoin)


@broker.command(
    short_help="Deliver delayed messages and delete old ones, until stopped.",
    epilog=(
        "\b\nExamples:\n"
        "  rmq broker run /data/rocketmq/store\n"
        "  rmq broker run /data/store --listen 127.0.0.1:10911\n"
        "  rmq broker run --ephemeral --port-file broker.port --until-stdin-closes"
    ),
)
@store_or_ephemeral
@click.option(
    "--config",
    "conf",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The broker.conf of a store that a RocketMQ broker made. Needed mainly for its messageDelayLevel.",
)
@click.option("--no-retention", is_flag=True, help="Deliver only; delete nothing.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=listen_address,
    help="Also serve the store to RocketMQ's clients at this address, as broker and name server. Port 0: a free one.",
)
@click.option(
    "--vip/--no-vip",
    default=True,
    help="With --listen: listen at PORT - 2, too, if it is free. Clients before 4.5.1 send there, and later ones with "
    "vipChannelEnabled.",
)
@grpc_options
@click.option(
    "--insecure",
    is_flag=True,
    help="Let --listen take an address that other machines reach without --acl: everybody there may read and write.",
)
@access_options
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="With --listen: tell clients this address instead, as for --listen 0.0.0.0:10911 or behind a NAT.",
)
@registration_options
@role_option
@slave_options
@ha_options
@suite_options
def run(
    root: Path,
    conf: Path | None,
    no_retention: bool,
    listen: tuple[str, int] | None,
    vip: bool,
    grpc: Grpc,
    insecure: bool,
    access: Access,
    advertise: str | None,
    name_servers: NameServers,
    role: str,
    slave: Slave,
    ha: HA,
    port_file: Path | None,
    until_stdin_closes: bool,
) -> None:
    """Deliver delayed messages when they are due, and delete old messages, until stopped.

    Running consumers and streams deliver due messages themselves, so delivery needs this command only while none is
    running. Deletion follows the store's settings (fileReservedTime, deleteWhen, ...), as in a broker: after a minute,
    and then every cleanResourceInterval; see `rmq retention status`. Several instances may run in parallel. Opens the
    store for writing; a running RocketMQ broker prevents that. Stops on Ctrl-C and SIGTERM, and then brings
    config/delayOffset.json up to date. With --listen, RocketMQ's clients produce and consume while Spark and other
    programs use the same directory. --name-server makes it one of the brokers of a cluster, under the store's broker
    name; a name that another broker has is refused. With --ephemeral it is a broker for a test suite. With --role SLAVE
    it follows a master, delivers nothing, and answers reads only. Deletions and
    errors are reported on stderr; on a terminal also, every few seconds, the deliveries.
    """
    with no_collection():
        from rmq_store import Store, StoreConfig

    if role == SLAVE:
        if conf or no_retention or grpc != Grpc(None, None, None) or access.admin or ha.is_given:
            raise UsageError(
                "--config, --no-retention, --admin, gRPC and --ha-listen are a master's; a slave has none of them"
            )
        if listen is not None:
            refuse_open_address(listen[0], is_open=insecure or access.acl is not None, is_told=not advertise)
        raise_file_limit()
        with stopped(until_stdin_closes=until_stdin_closes) as stop:
            run_slave(
                root, slave, listen, stop, acl=access.acl, tls=access.tls.files(), advertise=advertise,
                name_servers=name_servers.settings(), told=partial(written_address, port_file),
            )  # fmt: skip
        return
    if slave.is_given:
        raise UsageError("--master, --broker-id and their like are about a slave: say --role SLAVE")
    config: StoreConfig | None = StoreConfig.from_broker_conf(conf) if conf else None
    grpc.check(listen)
    if listen is None:
        if access.is_given:
            raise UsageError("--acl, --admin and --tls-... are about the clients of --listen, which is missing")
        if ha.is_given or slave.reads is not None or role == SYNC_MASTER:
            raise UsageError("--ha-listen and --role are about the slaves of a served store: say --listen")
        if advertise or name_servers.is_given or port_file or not vip:
            raise UsageError(
                "--advertise, --name-server, --port-file and --no-vip are about a served store: say --listen"
            )
        with stopped(until_stdin_closes=until_stdin_closes) as stop, Store.open(root, config=config) as store:
            _run(store, stop, cleans=not no_retention)
        return
    refuse_open_address(listen[0], is_open=insecure or access.acl is not None, is_told=not advertise)
    raise_file_limit()
    with no_collection():
        from rmq_store.server.broker_server import VIP_PORTS_BEFORE, BrokerServer

    host, port = listen
    told_host = Host.parse(advertise).ip if advertise else host
    with (
        stopped(until_stdin_closes=until_stdin_closes) as stop,
        BrokerServer(
            root, host=host, port=port, config=config, acl_file=access.acl, admin=access.admin, tls=access.tls.files(),
            advertise=advertise, name_servers=name_servers.settings(), vip_channel=vip,
            grpc_port=grpc.port, grpc_tls_port=grpc.tls_port, grpc_certificate=grpc.certificate(told_host),
            ha=ha.settings(role, access.tls.files(), slave_reads=bool(slave.reads)),
        ) as server,
        written_address(port_file, server.address),
    ):
        name = printable(server.store.broker_name)
        places = f"{grpc.places(server)}{ha.places(server, role)}"
        click.echo(f"{printable(str(root))}: broker {name} listens at {server.address}{places}")
        sys.stdout.flush()
        if vip and server.vip_port is None:
            click.echo(f"rmq: {_NO_VIP_PORT.format(server.port - VIP_PORTS_BEFORE)}", err=True)
        _run(server.store, stop, cleans=not no_retention)


def refuse_open_address(host: str, *, is_open: bool, is_told: bool) -> None:
    """UsageError: no client can dial the address, which `is_told` to them, or other machines reach it and nobody has
    said that they may.
    """
    if is_told and ipaddress.ip_address(host).is_unspecified:
        raise UsageError(
            f"--listen {host}: clients are told this address and dial it. Name one of this machine, or say --advertise"
        )
    if not is_open and not ipaddress.ip_address(host).is_loopback:
        raise UsageError(
            f"--listen {host}: other machines reach this address, and whoever does may read and write. Name the users "
            "with --acl, listen at 127.0.0.1, or say --insecure"
        )


def raise_file_limit() -> None:
    """Let this process open as many files as it may: each connection, member and lock is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _run(store: Store, stop: StopSignal, *, cleans: bool) -> None:
    schedule, status = store.schedule, _Status(str(store.path))
    saved_s = real_time.monotonic()
    cleaner = _Cleaner(store, saved_s + FIRST_CLEANING_S) if cleans else None
    wait_s = 0.0
    while not stop.wait(wait_s):
        wait_s = POLL_S
        now_s = real_time.monotonic()
        try:
            delivery = schedule.deliver_due()
            status.show(delivery.delivered, delivery.next_due_ms)
            if now_s - saved_s >= SAVE_S:
                schedule.save_progress()
                saved_s = now_s
        except StoreError as error:
            if not error.retryable:
                raise
            click.echo(f"rmq: {printable(str(error))}; trying again in {AFTER_ERROR_S:.0f} s", err=True)
            wait_s = AFTER_ERROR_S
        if cleaner:  # also if nothing can be delivered: on a disk that is full nothing else makes room
            cleaner.clean(now_s)


class _Cleaner:
    """Runs retention now and then, and writes a line to stderr for each deletion."""

    def __init__(self, store: Store, first_s: float) -> None:
        self._store = store
        self._next_s = first_s
        self._problem = ""

    def clean(self, now_s: float) -> None:
        """Run one pass if it is due, unless another process runs one. Raises StoreFailedError. Any other error is
        reported once, and does not stop the delivery of messages.
        """
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._store.config.clean_resource_interval / 1000
        problem = ""
        try:
            self._print_deletions(self._store.retention.run())
        except StoreLockedError:
            return
        except StoreFailedError:
            raise
        except StoreError as error:
            problem = f"{self._store.path}: no old messages are deleted: {error}"
        if problem and problem != self._problem:
            click.echo(f"rmq: {printable(problem)}", err=True)
        self._problem = problem

    def _print_deletions(self, report: RetentionReport) -> None:
        gone = [fate for fate in report.plan.going if fate.start in report.removed]
        if gone:
            where = f"bytes {gone[0].start} to {gone[-1].end} of the log ({len(gone)} files)"
            click.echo(f"rmq: {printable(str(self._store.path))}: deleted {where}: {gone[-1].reason}", err=True)


class _Status:
    """A status line on a terminal: one at the start, and one after deliveries, but not too often."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_shown = sys.stdout.isatty()
        self._delivered: int | None = None
        self._shown_s = 0.0

    def show(self, delivered: int, next_due_ms: int | None) -> None:
        """Add delivered messages, and write a line if it is due."""
        if not self._is_shown:
            return
        is_first = self._delivered is None
        self._delivered = (self._delivered or 0) + delivered
        if is_first or (self._delivered and real_time.monotonic() - self._shown_s >= REPORT_S):
            next_due = "nothing waits" if next_due_ms is None else f"next due {time_text(next_due_ms * 1000)}"
            click.echo(f"{printable(self._path)}: {self._delivered} delivered, {next_due}")
            self._delivered, self._shown_s = 0, real_time.monotonic()
