"""`rmq dlq export`: write dead letters to a file for other programs."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from rmq_store.cli.dlq.dlq_list import wanted_of
from rmq_store.cli.shared.completion import DEAD_GROUP
from rmq_store.cli.shared.message_text import json_row, rows_of
from rmq_store.cli.shared.output import printable, tell, write_json
from rmq_store.cli.shared.parameters import NewFile
from rmq_store.cli.shared.progress import counting_bar
from rmq_store.cli.target.command import target_command
from rmq_store.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.cli.target.view import Target

Write = Callable[["pa.RecordBatch"], None]

# Characters that begin a formula in a spreadsheet, which may read other cells and call programs; the last ones
# are = + - @ in full width.
_FORMULA_BEGINS = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


@target_command(
    short_help="Write dead letters to a Parquet, JSON Lines or CSV file.",
    epilog="\b\nExample:\n  rmq dlq export cg_orders --to /tmp/dead.parquet --since 1d --store /data/rocketmq/store",
)
@click.argument("group", type=DEAD_GROUP)
@click.option("--to", "path", required=True, metavar="FILE", type=NewFile(),
              help="A new file. Its ending selects the format: .parquet, .jsonl or .csv.")  # fmt: skip
@click.option(
    "--reason", help="Only dead letters of this error class, with or without its module, or of this stack hash."
)
@click.option("--since", metavar="TIME", help="Only dead letters of this time or later, or of the last 10m, 2h, 1d.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@click.option("--raw", is_flag=True, help="CSV: do not escape texts that a spreadsheet would take for a formula.")
def export(
    target: Target, as_json: bool, group: str, path: Path, reason: str | None, since: str | None, overwrite: bool,
    raw: bool,
) -> None:  # fmt: skip
    """Write the dead letters of a group to a file: the message, the position of its first copy, and the reason of its
    failure.

    [store: Bodies are bytes in Parquet. In JSON Lines and CSV they are text; a body that is not UTF-8 is in bodyHex, in
    hex digits. `rmq send --jsonl` accepts the lines. In CSV, a text that a spreadsheet would take for a formula (it
    begins with = + - @, a tab or a line end) gets an apostrophe before it, unless --raw is given.][cluster: The file is
    that of a store: bodies are bytes in Parquet, and text or bodyHex in JSON Lines and CSV, where --raw leaves formulas
    as they are. It]
    [store: The file] appears when it is complete, and only its owner may read it. [store: To keep dead letters beyond
    retention, and to restore them, see `rmq dlq archive`.][cluster: No file is written if a broker does not answer: one
    that lacks its dead letters would look complete.]
    """
    file = _LetterFile(path, raw=raw, overwrite=overwrite)
    with target.view(tell) as view:
        letters = view.dead_letters(group, wanted_of(view.now_ms(), since=since, reason=reason))
        view.failures.report()
        count = file.write(letters.batches())
    file.tell(group, count, as_json=as_json)
    view.failures.report()


class _LetterFile:
    """The file of an export.

    Raises (when constructed):
        UsageError: its ending is none that says what to write, it exists, or `raw` has no meaning for it.
    """

    def __init__(self, path: Path, *, raw: bool, overwrite: bool) -> None:
        kind = path.suffix.lower()
        opened = _WRITERS.get(kind)
        if opened is None:
            raise UsageError(f"{path}: a name that ends with {', '.join(_WRITERS)} says what to write")
        if raw and kind != ".csv":
            raise UsageError(f"{path}: --raw goes with .csv; {kind} has every value as it is")
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists; --overwrite replaces it")
        self._path, self._raw, self._opened = path, raw, opened

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Write rows of DEAD_LETTER_SCHEMA, and return their number. The file appears when it is complete."""
        count = size_bytes = 0
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        try:
            with self._opened(part, self._raw) as write, counting_bar("export") as progress:
                for batch in batches:
                    write(batch)
                    count += batch.num_rows
                    size_bytes += batch.nbytes
                    if progress is not None:
                        progress(count, size_bytes)
            part.replace(self._path)
        except OSError as error:
            if error.filename != str(part):
                raise
            raise OSError(error.errno, error.strerror, str(self._path)) from error  # nobody knows the other name
        finally:
            part.unlink(missing_ok=True)
        return count

    def tell(self, group: str, count: int, *, as_json: bool) -> None:
        """Print what was written."""
        if as_json:
            write_json({"group": group, "file": str(self._path), "deadLetters": count})
        else:
            click.echo(printable(f"{self._path}: {count} dead letters of {group}"))


def _new_file(path: Path, **how: Any) -> IO[Any]:
    """A file that only its owner may read, because it has bodies."""
    from rmq_store.files.durable import FILE_MODE

    file: IO[Any] = open(path, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, FILE_MODE), **how)
    return file


@contextmanager
def _parquet(path: Path, raw: bool) -> Iterator[Write]:
    import pyarrow.parquet as pq

    from rmq_store.broker.dlq.archive_schema import DEAD_LETTER_SCHEMA

    with _new_file(path, mode="xb") as file, pq.ParquetWriter(file, DEAD_LETTER_SCHEMA, compression="zstd") as writer:
        yield writer.write_batch


@contextmanager
def _jsonl(path: Path, raw: bool) -> Iterator[Write]:
    with _new_file(path, mode="x", encoding="utf-8", errors="backslashreplace") as file:
        yield lambda batch: file.writelines(
            json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in _plain(batch)
        )


@contextmanager
def _csv(path: Path, raw: bool) -> Iterator[Write]:
    import pyarrow as pa

    from rmq_store.broker.dlq.archive_schema import DEAD_LETTER_SCHEMA

    texts = {field.name for field in DEAD_LETTER_SCHEMA if field.type in (pa.string(), pa.binary())}
    with _new_file(path, mode="x", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.DictWriter(file, [*DEAD_LETTER_SCHEMA.names, "bodyHex"])
        writer.writeheader()
        yield lambda batch: writer.writerows(_csv_row(row, () if raw else texts) for row in _plain(batch))


def _csv_row(row: dict[str, Any], texts: Collection[str]) -> dict[str, Any]:
    """The cells of a row; `texts` are the columns that a spreadsheet might take for formulas."""
    cells = {name: _defused(cell) if name in texts else cell for name, cell in row.items()}
    return {**cells, "properties": json.dumps(row["properties"], ensure_ascii=False)}


def _defused(text: str | None) -> str | None:
    return f"'{text}" if text and text.startswith(_FORMULA_BEGINS) else text


_WRITERS = {".parquet": _parquet, ".jsonl": _jsonl, ".csv": _csv}


def _plain(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    for row in rows_of(batch):
        shown = json_row(row, "none")
        try:
            shown["body"] = (row["body"] or b"").decode()
        except UnicodeDecodeError:
            shown["bodyHex"] = row["body"].hex()
        yield shown
