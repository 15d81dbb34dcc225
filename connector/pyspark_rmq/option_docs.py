"""Writes docs/options.md from the option table: `python -m pyspark_rmq.option_docs docs/options.md [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark_rmq.options.option_table import OPTIONS, Option, Use

_HEAD = """# Options of `format("rmq")`

<!-- Generated from connector/pyspark_rmq/options/option_table.py: python -m pyspark_rmq.option_docs docs/options.md -->

Names and meanings are those of Spark's Kafka source wherever the meaning is the same. Names are compared without
case. An unknown option, or one in the wrong place, is an error. `load()` raises it; with Spark Connect the first use of
the columns does, and with a schema of your own the query. Two kinds of mistakes are found when the query runs. Spark
does not tell `load()` whether a batch or a stream is wanted, so an option of the other one is refused then. And topics,
queues and offsets are looked up in the store then. `pyspark_rmq.failure(query)` gives the error of a failed stream.

In SQL use `CREATE TEMPORARY VIEW name USING rmq OPTIONS (path '...', subscribe '...')`; with columns and the option
`topic` it takes `INSERT INTO`. A table of Spark's catalog is refused: Spark does not hand its options on to a data
source in Python.
"""

_SECTIONS: tuple[tuple[str, frozenset[Use]], ...] = (
    ("Reading", frozenset({"batch read", "stream read"})),
    ("Writing", frozenset({"batch write", "stream write"})),
)


def render() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for title, uses in _SECTIONS:
        parts.append(f"\n## {title}\n\n| option | value | default | for | meaning |\n|---|---|---|---|---|\n")
        parts += [_row(option, uses) for option in OPTIONS if option.uses & uses]
    return "".join(parts)


def _row(option: Option, section: frozenset[Use]) -> str:
    uses = option.uses & section
    where = "both" if uses == section else "".join(uses).split()[0]
    return f"| `{option.name}` | {option.kind} | {option.default} | {where} | {option.doc} |\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with `--check` compare it; returns 1 if it differs."""
    path = Path(next(argument for argument in arguments if argument != "--check"))
    text = render()
    if "--check" in arguments:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path} differs from the option table: python -m pyspark_rmq.option_docs {path}\n")
            return 1
        return 0
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
