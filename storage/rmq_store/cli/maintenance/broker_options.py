"""Options of `rmq broker run` for suites: a store that ends with the command, a file that has its address, and an end
with the process that has started it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from rmq_store.cli.shared.parameters import NewFile, is_store_typed, missing_store, store_options
from rmq_store.cli.shared.stop_signal import StopSignal, stopped_by_signals
from rmq_store.errors import UsageError
from rmq_store.lazy.imports import no_collection

_LOOPBACK = ("127.0.0.1", 0)


def store_or_ephemeral(command: Callable[..., None]) -> Callable[..., None]:
    """Add PATH, --store, --ephemeral and --virtual-clock; the command gets `root: Path`, and with --ephemeral an
    address of loopback for `listen`, if there is none.
    """

    @functools.wraps(command)
    def with_root(root: Path | None, ephemeral: bool, virtual_clock: bool, listen: Any, **given: Any) -> None:
        if ephemeral:
            if root is not None and is_store_typed():
                raise UsageError(f"{root}: --ephemeral makes a store of its own; leave out the path")
            with _ephemeral_store(virtual_clock=virtual_clock) as made:
                command(root=made, listen=listen or _LOOPBACK, **given)
            return
        if virtual_clock:
            raise UsageError("--virtual-clock needs --ephemeral: a store that is kept has the clock of the machine")
        if root is None:
            raise missing_store()
        command(root=root, listen=listen, **given)

    options = (
        store_options(is_required=False),
        click.option("--ephemeral", is_flag=True, help="Serve an empty store that is removed at the end; no PATH."),
        click.option(
            "--virtual-clock", is_flag=True,
            help="With --ephemeral: its time stands still until `rmq broker clock advance` moves it.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        with_root = option(with_root)
    return with_root


def suite_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --port-file and --until-stdin-closes."""
    port_file = click.option(
        "--port-file", metavar="FILE", type=NewFile(),
        help="Write HOST:PORT into this file when the server answers; it is removed at the end.",
    )  # fmt: skip
    until_stdin_closes = click.option(
        "--until-stdin-closes", is_flag=True,
        help="Also stop when standard input ends: a pipe of the parent ends with it, however it ends.",
    )  # fmt: skip
    return port_file(until_stdin_closes(command))


@contextlib.contextmanager
def stopped(*, until_stdin_closes: bool) -> Iterator[StopSignal]:
    """As `stopped_by_signals`, and if wanted by the end of standard input."""
    with stopped_by_signals() as stop:
        if until_stdin_closes:
            stop.ends_with(sys.stdin.fileno())
        yield stop


@contextlib.contextmanager
def written_address(port_file: Path | None, address: str) -> Iterator[None]:
    """Inside the block the file, if one is named, has the address as its whole content.

    Raises:
        UsageError: the file cannot be written.
    """
    if port_file is None:
        yield
        return
    from rmq_store.files.durable import write_atomically

    try:
        write_atomically(port_file.absolute(), f"{address}\n".encode())
    except FileNotFoundError as error:
        raise UsageError(f"{port_file}: its directory does not exist") from error
    try:
        yield
    finally:
        port_file.unlink(missing_ok=True)


@contextlib.contextmanager
def _ephemeral_store(*, virtual_clock: bool) -> Iterator[Path]:
    with no_collection():
        from rmq_store.server.scratch_store import make_scratch_store

    with tempfile.TemporaryDirectory(prefix="rmq-broker-") as directory:
        root = Path(directory) / "store"
        make_scratch_store(root, virtual_clock=virtual_clock)
        yield root
