"""Spark goes on from a checkpoint that `rmq checkpoint rewind` wrote, and its sinks take what comes again.

What is written file by file, and what is refused: tests/storage/cli/test_checkpoint_command.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rmq_store.cli import commands

from .spark_lacks import run_in_batches

pytestmark = [pytest.mark.long, pytest.mark.spark]

Make = Callable[..., Any]
LOG_VERSION = "spark.sql.streaming.offsetLog.formatVersion"


def rmq(store: Path, *words: object) -> Any:
    """What a command prints as JSON; it must end well."""
    arguments = ["checkpoint", *map(str, words), "--json"]
    result = CliRunner().invoke(commands, arguments, env={"RMQ_STORE": str(store)}, prog_name="rmq")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def orders(spark: Any, path: Path) -> Any:
    source = spark.readStream.format("rmq").option("path", str(path)).option("subscribe", "Orders")
    return source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "20").load()


def run(writer: Any, checkpoint: Path) -> None:
    """Run a query from its checkpoint until it has read all that was there when it began."""
    query = run_in_batches(writer.option("checkpointLocation", str(checkpoint)))
    assert query.exception() is None


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_sink_that_writes_once_writes_what_is_read_again(
    spark: Any, make_store: Make, add_messages: Make, tmp_path: Path, bodies: Make
) -> None:
    """The new checkpoint has another query id: with the old one each batch would be a MarkerError."""
    path, target, old, new = make_store(Orders=40), tmp_path / "target", tmp_path / "old", tmp_path / "new"
    writer = orders(spark, path).select("body").writeStream.format("rmq").option("path", str(target))
    run(writer.option("topic", "Bills"), old)
    shown = rmq(path, "show", old)
    assert (shown["planned"], shown["committed"], shown["state"]) == ([0, 1], [0, 1], False)
    assert {queue["position"] for queue in rmq(path, "diff", old)} == {10}
    before = contents(old)
    written = rmq(path, "rewind", old, new, "--shift", "-2", "--yes")
    assert (written["again"], written["skipped"]) == (8, 0)
    assert contents(old) == before

    add_messages(path, "Orders", 40, 44)
    run(writer, new)
    assert bodies(target, "Bills") == sorted(f"Orders-{number}" for number in [*range(44), *range(32, 40)])
    shown = rmq(path, "show", new)
    assert (shown["queryId"], shown["planned"], shown["runsAgain"]) == (written["queryId"], [0, 1, 2], None)


def test_other_sources_and_a_sink_that_knows_batches_by_number_go_on(
    spark: Any, make_store: Make, tmp_path: Path
) -> None:
    """Offsets log v2, if this Spark knows it. Its file sink would pass over batches 0 and 1 of the new query: it has
    seen these numbers.
    """
    path, old, new, out = make_store(Orders=40), tmp_path / "old", tmp_path / "new", tmp_path / "out"
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "one").write_text("from a file\n")
    lines = spark.readStream.format("text").load(str(tmp_path / "lines"))
    frame = orders(spark, path).selectExpr("cast(body as string) value").union(lines)
    writer = frame.writeStream.format("text").option("path", str(out))
    version = "v2" if spark.conf.isModifiable(LOG_VERSION) else "v1"
    spark.conf.set(LOG_VERSION, "2")
    try:
        run(writer, old)
    finally:
        spark.conf.unset(LOG_VERSION)
    assert (old / "offsets" / "1").read_text().startswith(f"{version}\n")
    assert rmq(path, "rewind", old, new, "--to-batch", "0", "--yes")["again"] == 20
    (tmp_path / "lines" / "two").write_text("from another\n")
    run(writer, new)
    found = Counter(row["value"] for row in spark.read.text(str(out)).collect())
    again = {f"Orders-{number}": 2 for number in range(20, 40)}
    assert found == {f"Orders-{number}": 1 for number in range(40)} | again | {"from a file": 1, "from another": 1}


def test_a_query_with_state_begins_without_any(spark: Any, make_store: Make, tmp_path: Path, bodies: Make) -> None:
    path, target, old, new = make_store(Orders=40), tmp_path / "target", tmp_path / "old", tmp_path / "new"
    unique = orders(spark, path).select("body").dropDuplicates(["body"])
    writer = unique.writeStream.format("rmq").option("path", str(target))
    run(writer.option("topic", "Unique"), old)
    assert rmq(path, "show", old)["state"] is True
    written = rmq(path, "rewind", old, new, "--to-offset", "7", "--drop-state", "--yes")
    assert (written["batch"], written["again"]) == (0, 12)
    run(writer.option("topic", "Again"), new)
    assert len(bodies(target, "Unique")) == 40
    assert bodies(target, "Again") == sorted(f"Orders-{number}" for number in range(28, 40))
