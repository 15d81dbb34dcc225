"""A store and a cluster behind one interface: who may know which of them it is, and that no side pretends.

The first rule is read off the source. Asked in many places, the question had other answers in some of them.
"""

from __future__ import annotations

import ast
import graphlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import pyspark_rmq
import pyspark_rmq.read
from pyspark_rmq.access import queue_source
from pyspark_rmq.access.cluster_location import ClusterLocation
from pyspark_rmq.access.cluster_reader import ClusterReader
from pyspark_rmq.access.queue_source import Brokers, DelayedMessages, LostOffsets, Pins, Sizes
from pyspark_rmq.access.store_location import LossReport, StoreDirectory, StoreLocation
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read.reader import RmqReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA

from ..storage.remoting.cluster.fake_cluster import FakeNet

Make = Callable[..., Any]
PACKAGE = Path(pyspark_rmq.__file__).parent

# (module, function): each chooses once, and hands out what it has chosen.
CHOOSE = {
    ("access/store_location.py", "location_of"),
    ("write/sink.py", "sink_of"),
    ("options/options.py", "place"),
    ("retry/redriven_from.py", "redriven_from"),  # of what `consumed_from` has chosen by the caller's arguments
}
SIDES = {
    "StoreDirectory", "ClusterLocation", "StoreReader", "ClusterReader", "Store", "ConsumedStore", "ConsumedCluster",
    "StoreRows", "StoreSendBacks", "ClusterRows", "ClusterSendBacks",
}  # fmt: skip


def questions(tree: ast.AST, function: str = "") -> Iterator[tuple[str, int]]:
    """(function, line) of each question on which side the messages are: `x.cluster is None`, its truth, or a class."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.Assert):  # for a type checker, behind the question
            continue
        asked: list[ast.expr] = []
        # A text is compared with the column "cluster" of the table of options.
        if isinstance(node, ast.Compare) and not any(_is_text(one) for one in node.comparators):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            asked = [node.test]
        elif isinstance(node, ast.BoolOp):
            asked = node.values
        elif isinstance(node, ast.UnaryOp):
            asked = [node.operand]
        if any(isinstance(one, ast.Attribute) and one.attr == "cluster" for one in asked):
            yield inside, node.lineno
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass", "type"):
            if any(getattr(name, "id", getattr(name, "attr", "")) in SIDES for name in ast.walk(node)):
                yield inside, node.lineno
        yield from questions(node, inside)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_one_place_knows_on_which_side_the_messages_are() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), function, line)
        for path in sorted(PACKAGE.rglob("*.py"))
        for function, line in questions(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert sorted(place for place in found if place[:2] not in CHOOSE) == []
    assert {place[:2] for place in found} == CHOOSE, "the list is too long"


@pytest.mark.parametrize(
    "question",
    [
        "return 1 if options.cluster is None else 2", "if self._options.cluster: pass", "return not options.cluster",
        "return options.cluster and 1", "return isinstance(store, ClusterReader)",
        "return isinstance(source, (int, store_reader.StoreReader))",
    ],
)  # fmt: skip
def test_a_question_about_the_side_is_found(question: str) -> None:
    assert [name for name, _ in questions(ast.parse(f"def f(options):\n    {question}"))] == ["f"]


def test_a_side_has_the_capabilities_that_it_can_keep(make_store: Make) -> None:
    cluster = ClusterReader(FakeNet().cluster())
    assert [kind for kind in (Pins, Sizes, LostOffsets, DelayedMessages, LossReport) if isinstance(cluster, kind)] == []
    assert isinstance(cluster, Brokers)
    with StoreDirectory(str(make_store(T=1))).open_to_read() as store:
        assert all(isinstance(store, kind) for kind in (Pins, Sizes, LostOffsets, DelayedMessages))
        assert not isinstance(store, Brokers)
    assert isinstance(StoreDirectory("/nowhere"), LossReport)
    assert not issubclass(ClusterLocation, LossReport)


def test_both_sides_have_all_of_the_interfaces(make_store: Make) -> None:
    def members(protocol: type) -> set[str]:
        return {name for name in vars(protocol) if not name.startswith("_")} | set(protocol.__annotations__)

    with StoreDirectory(str(make_store(T=1))).open_to_read() as store:
        for side in (store, ClusterReader(FakeNet().cluster())):
            assert members(queue_source.QueueSource) - set(dir(side)) == set()
    for location in (StoreDirectory, ClusterLocation):
        assert members(StoreLocation) - set(dir(location)) == set()


def test_modules_of_a_read_do_not_import_each_other_in_turn() -> None:
    """Imports in functions count, too."""
    names = {path.stem for path in Path(pyspark_rmq.read.__path__[0]).glob("*.py")}
    graph: dict[str, set[str]] = {}
    for name in names - {"__init__"}:
        tree = ast.parse((PACKAGE / "read" / f"{name}.py").read_text(encoding="utf-8"))
        froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module is not None]
        found = {node.module.rpartition(".")[2] for node in froms if str(node.module).startswith("pyspark_rmq.read.")}
        found |= {alias.name for node in froms if node.module == "pyspark_rmq.read" for alias in node.names}
        graph[name] = found & names
    assert graph["task"] == {"slice_reader"}
    assert graph["slice_reader"] == {"loss_detection"}
    graphlib.TopologicalSorter(graph).prepare()


def test_the_read_of_a_partition_goes_one_way(make_store: Make) -> None:
    """Plan, read, report: no module is called by one that it has called, whichever of the steps there are."""
    path = make_store(T=0)
    with StoreDirectory(str(path)).open_to_commit("cg") as store:
        store.append(pa.record_batch({"body": pa.array([b"x" * 200] * 50)}), "T")
        places = [store.commit_log_offset_before("T", 0, offset + 1) for offset in range(4)]
    (log,) = path.glob("commitlog/*")
    with log.open("r+b") as file:
        file.seek(places[3])
        file.write(b"\xff" * 8)
    given = {"path": str(path), "subscribe": "T", "failOnDataLoss": "false", "onCorruption": "skip"}
    reader = RmqReader(source_options(given, "batch read", 0), SOURCE_SCHEMA)
    calls: dict[str, set[str]] = {}

    def module_of(frame: FrameType | None) -> str | None:
        name = "" if frame is None else frame.f_globals.get("__name__", "")
        return name if name.startswith("pyspark_rmq.read") else None

    def watch(frame: FrameType, event: str, _: object) -> None:
        called, caller = module_of(frame), module_of(frame.f_back)
        if event == "call" and called and caller and called != caller:
            calls.setdefault(caller, set()).add(called)

    (partition,) = [part for part in reader.partitions() if part.part.queue_id == 0]  # type: ignore[attr-defined]
    sys.setprofile(watch)
    try:
        rows = sum(batch.num_rows for batch in reader.read(partition))
    finally:
        sys.setprofile(None)
    assert rows == partition.part.end - 1  # type: ignore[attr-defined]
    order = ["task", "slice_reader", "loss_detection", "loss_report"]
    names = [f"pyspark_rmq.read.{name}" for name in order]
    assert {caller: sorted(called) for caller, called in calls.items()} == {
        caller: [called] for caller, called in itertools.pairwise(names)
    }
