"""Shared by the commands: common options, tables for people and for pipes, JSON, text that is safe for a terminal, the
log on stderr.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rmq_store.cli.shared.parameters import LocalPath, store_options
from rmq_store.cli.shared.tables import Row, columns_of, table_lines
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    from rmq_store import Store, StoreConfig

Command = TypeVar("Command", bound=Callable[..., Any])

# Letters and marks that nobody sees, besides what Python knows to be unprintable: of Unicode's
# Default_Ignorable_Code_Point. The selectors that choose between text and emoji (FE0E, FE0F) may pass.
_UNSEEN = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u3164\ufe00-\ufe0d\uffa0\U000e0100-\U000e01ef"
_DOUBTFUL = re.compile(rf"[^\w -~]|[{_UNSEEN}]")
_HIDDEN = re.compile(f"[{_UNSEEN}]")
# In a column of numbers: none, unknown, at least so many.
_NO_NUMBER = re.compile(r"-|(?:[0-9]+\+)?\?")

# Key of a context's `meta`.
_WIDE = "rmq.wide"
_LMQ = "rmq.enable_lmq"
_LMQ_VARIABLE = "RMQ_ENABLE_LMQ"
_WITH_TIME = "%(asctime)s %(levelname)s %(message)s"
_LOG_PATHS_VARIABLE = "RMQ_STORE_PATH_COMMIT_LOG"


def common_options(command: Command, *, store_is_required: bool = True) -> Command:
    """Add the store (`store_options`) and --json; the command gets `root: Path` and `as_json: bool`. Without
    `store_is_required` the root may be None, and need not be a directory.
    """
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)
    if store_is_required:
        return store_options()(command)  # type: ignore[return-value]
    return store_options(LocalPath(path_type=Path), is_required=False)(command)  # type: ignore[return-value]


def wide_option(command: Command) -> Command:
    """Add --wide, which `terminal_columns` reads."""

    def remember(context: click.Context, option: click.Parameter, value: bool) -> None:
        context.meta[_WIDE] = value

    text = "On a terminal: do not cut or wrap long lines."
    return click.option("--wide", is_flag=True, expose_value=False, callback=remember, help=text)(command)


def terminal_columns() -> int | None:
    """The number of columns of a line; None if lines may be as long as needed: in a pipe, and with --wide."""
    context = click.get_current_context(silent=True)
    if not sys.stdout.isatty() or (context is not None and context.meta.get(_WIDE)):
        return None
    return shutil.get_terminal_size().columns


def open_store(root: Path) -> Store:
    """Open the store read-only: it changes nothing on disk, and works beside a running broker and on a read-only copy.
    An environment variable may name other directories of the log (storePathCommitLog).
    """
    from rmq_store import Store  # imports numpy and pyarrow: too slow for --help and completion

    paths = os.environ.get(_LOG_PATHS_VARIABLE, "")
    return Store.open(root, read_only=True, config=_settings(), commit_log_paths=paths)


def open_to_write(root: Path) -> Store:
    """Open for writing, with the value of `--enable-lmq`, which then is a setting of the store."""
    from rmq_store import Store

    return Store.open(root, config=_settings())


def lmq_option(command: Command) -> Command:
    """Add --enable-lmq, which `open_store` and `open_to_write` read. Commands without it use the environment variable.
    """

    def remember(context: click.Context, option: click.Parameter, value: bool | None) -> None:
        context.meta[_LMQ] = value

    return click.option(
        "--enable-lmq", type=bool, metavar="BOOLEAN", expose_value=False, callback=remember, envvar=_LMQ_VARIABLE,
        show_envvar=True,
        help="Whether the store's broker has enableLmq=true. Needed if consumerOffset.json and "
             "lmqConsumerOffset.json have different offsets for a group.",
    )(command)  # fmt: skip


def tell_conflicts(store: Store) -> None:
    """Write to stderr which groups a list leaves out, because two files have different offsets for them."""
    for text in store.offset_conflicts():
        tell(text)


def _settings() -> StoreConfig | None:
    context = click.get_current_context(silent=True)
    value = context.meta.get(_LMQ) if context is not None else None
    text = os.environ.get(_LMQ_VARIABLE, "")
    if value is None and text:
        try:
            value = click.BOOL.convert(text, None, context)
        except click.BadParameter as error:
            raise UsageError(f"{_LMQ_VARIABLE}: {error.message}") from error
    if value is None:
        return None
    from rmq_store import StoreConfig

    return StoreConfig(enable_lmq=value)


def printable(text: str) -> str:
    """`text` with every character escaped that could break a line, move a cursor, change a colour, turn the direction
    of writing, or that is invisible. Keys, tags and bodies are untrusted text.
    """
    return _DOUBTFUL.sub(_as_python, text)


def printable_json(text: str) -> str:
    """A JSON document with the same characters as JSON escapes: its values do not change."""
    return "\n".join(_DOUBTFUL.sub(_as_json, line) for line in text.split("\n"))


def _as_python(found: re.Match[str]) -> str:
    return _escaped(found[0]) or found[0].encode("unicode_escape").decode("ascii")


def _as_json(found: re.Match[str]) -> str:
    if shown := _escaped(found[0]):
        return shown
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _escaped(character: str) -> str:
    """The character itself if it may be shown; "" if it has to be escaped."""
    return character if character.isprintable() and not _HIDDEN.match(character) else ""


def tell(line: str) -> None:
    """Write a remark to stderr, beside the output."""
    click.echo(f"rmq: {printable(line)}", err=True)


def time_text(time_us: int | None) -> str:
    """Microseconds since the epoch as `2026-11-21T00:21:54.856Z`; as milliseconds if they are outside of the calendar.
    """
    if time_us is None:
        return ""
    try:
        moment = datetime.fromtimestamp(time_us // 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_us // 1000)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_us // 1000 % 1000:03d}Z"


def queue_text(queue: Mapping[str, Any]) -> str | int:
    """A queue of `queueId` and, over a cluster, `brokerName`, as tables show it: `broker-a:0`."""
    broker, queue_id = queue.get("brokerName"), int(queue["queueId"])
    return queue_id if broker is None else f"{broker}:{queue_id}"


def write_json(value: object, *, one_line: bool = False) -> None:
    """Print a JSON document; in one line if it is one of a stream. In ASCII if standard output needs that."""
    indent = None if one_line else 2
    text = printable_json(json.dumps(value, ensure_ascii=False, indent=indent))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = printable_json(json.dumps(value, indent=indent))
    click.echo(text)


def write_table(
    columns: Sequence[str],
    rows: Sequence[Row],
    *,
    flexible: Collection[str] = (),
    cut: Collection[str] = (),
    header: bool = True,
    least: Sequence[int] = (),
) -> None:
    """Print rows under their columns, two spaces apart; integers are aligned to the right, and what `Total.text` has in
    their place.

    On a terminal that is too narrow the `flexible` columns are wrapped, and the cells of `cut` columns are cut. All
    others are complete, and make long lines if there is no room. In a pipe, and with --wide, there is one line for the
    header and one per row, and nothing is cut. `least`: widths of the first columns (`tables.widths_of`), so that a
    table that is written in parts is aligned.
    """
    is_number = [
        bool(rows) and all(isinstance(row[i], int) or _NO_NUMBER.fullmatch(str(row[i])) for row in rows)
        for i in range(len(columns))
    ]
    cells = [[printable(str(value)) for value in row] for row in rows]
    known = columns_of(columns, wrap=flexible, cut=cut, right=is_number)
    for number, line in enumerate(table_lines(known, cells, terminal_columns(), header=header, least=least)):
        click.echo(click.style(line, bold=True) if header and number == 0 else line)


class _Remarks(logging.Handler):
    """Writes log records as lines to stderr. Records may have untrusted text."""

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            click.echo(printable(line), err=True)


@contextlib.contextmanager
def remarks_shown() -> Iterator[None]:
    """Show log records on stderr, unless logging was set up."""
    before, logging.lastResort = logging.lastResort, _Remarks(logging.WARNING)
    try:
        yield
    finally:
        logging.lastResort = before


@contextlib.contextmanager
def remarks_with_time() -> Iterator[None]:
    """Let the lines of `remarks_shown` begin with time and level, as a command that runs for long needs them."""
    shown = logging.lastResort
    if not isinstance(shown, _Remarks):
        yield
        return
    shown.setFormatter(logging.Formatter(_WITH_TIME))
    try:
        yield
    finally:
        shown.setFormatter(None)
