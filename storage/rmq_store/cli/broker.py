"""`rmq broker run`: delivers the delayed messages of a store that nobody looks at, and deletes old messages."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rmq_store.cli.output import printable, time_text
from rmq_store.errors import StoreError, StoreLockedError

if TYPE_CHECKING:
    from rmq_store import Store, StoreConfig

# ScheduleMessageService.java: between two looks, after an exception, and between two writes of delayOffset.json.
LOOK_S = 0.1
AFTER_ERROR_S = 10.0
SAVE_S = 10.0

# DefaultMessageStore#addScheduleTask: the first pass of the cleaner.
FIRST_CLEANING_S = 60.0

# Between two lines on a terminal.
REPORT_S = 10.0


@click.group(short_help="What a broker does for its store.")
def broker() -> None:
    """What a broker does for its store."""


@broker.command(
    short_help="Deliver delayed messages and delete old ones, until stopped.",
    epilog="\b\nExample:\n  rmq broker run /data/rocketmq/store",
)
@click.argument(
    "root", metavar="PATH", envvar="RMQ_STORE", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--config",
    "conf",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The broker.conf of a store that a RocketMQ broker made: its messageDelayLevel above all.",
)
@click.option("--no-retention", is_flag=True, help="Delete nothing.")
def run(root: Path, conf: Path | None, no_retention: bool) -> None:
    """Deliver delayed messages when they are due, and delete old messages, until stopped.

    Delivery needs this only for a store that no consumer or stream looks at: those deliver what is due by themselves.
    Deletion follows the store's settings (fileReservedTime, deleteWhen, ...), as in a broker: after a minute, and then
    every cleanResourceInterval; see `rmq retention status`. Any number of these may run at the same time. Opens the
    store for writing; a running RocketMQ broker refuses that. Stops at Ctrl-C and SIGTERM, and then leaves
    config/delayOffset.json up to date. On a terminal it says every few seconds what it did; otherwise it is silent.
    """
    from rmq_store import Store, StoreConfig

    config: StoreConfig | None = StoreConfig.from_broker_conf(conf) if conf else None
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with Store.open(root, config=config) as store:
            _run(store, stop, cleans=not no_retention)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(store: Store, stop: threading.Event, *, cleans: bool) -> None:
    schedule, status = store.schedule, _Status(str(store.path))
    saved_s = time.monotonic()
    clean_s = saved_s + FIRST_CLEANING_S
    wait_s = 0.0
    while not stop.wait(wait_s):
        wait_s = LOOK_S
        try:
            delivery = schedule.deliver_due()
            status.show(delivery.delivered, delivery.next_due_ms)
            now_s = time.monotonic()
            if now_s - saved_s >= SAVE_S:
                schedule.save_progress()
                saved_s = now_s
            if cleans and now_s >= clean_s:
                _clean(store)
                clean_s = now_s + store.config.clean_resource_interval / 1000
        except StoreError as error:
            if not error.retryable:
                raise
            click.echo(f"rmq: {printable(str(error))}; trying again in {AFTER_ERROR_S:.0f} s", err=True)
            wait_s = AFTER_ERROR_S


def _clean(store: Store) -> None:
    """One pass; nothing if another process is at it."""
    with contextlib.suppress(StoreLockedError):
        store.retention.run()


class _Status:
    """A line on a terminal: at first, and then whenever something was delivered, but not too often."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_shown = sys.stdout.isatty()
        self._delivered: int | None = None
        self._shown_s = 0.0

    def show(self, delivered: int, next_due_ms: int | None) -> None:
        """Tell of so many more messages, if it is time for a line."""
        if not self._is_shown:
            return
        is_first = self._delivered is None
        self._delivered = (self._delivered or 0) + delivered
        if is_first or (self._delivered and time.monotonic() - self._shown_s >= REPORT_S):
            next_due = "nothing waits" if next_due_ms is None else f"next due {time_text(next_due_ms * 1000)}"
            click.echo(f"{printable(self._path)}: {self._delivered} delivered, {next_due}")
            self._delivered, self._shown_s = 0, time.monotonic()
