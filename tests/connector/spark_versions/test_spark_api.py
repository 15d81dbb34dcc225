"""What a Spark lacks is known in one module, by names and signatures."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import CaseInsensitiveDict

from pyspark_rmq.access import executor_check, spark_api
from pyspark_rmq.read.refused_reader import RefusedStreamReader
from pyspark_rmq.source import DefaultSource
from rmq_store.cli.checks import OK
from rmq_store.cli.checks.spark import checks
from rmq_store.errors import UsageError

from .. import spark_lacks

SUITE = Path(__file__).resolve().parents[1]
CONNECTOR = SUITE.parents[1] / "connector" / "pyspark_rmq"
# The names that some Spark from 4.0 on lacks, or has with fewer parameters.
FILTERS = {
    "EqualNullSafe", "EqualTo", "Filter", "GreaterThan", "GreaterThanOrEqual", "In", "IsNotNull", "IsNull", "LessThan",
    "LessThanOrEqual", "Not", "StringContains", "StringEndsWith", "StringStartsWith",
}  # fmt: skip
LACKED = {"DataSourceStreamArrowWriter", "to_arrow_schema", *FILTERS}
WITHOUT = """
import sys
import inspect
import pyspark.sql.datasource as api, pyspark.sql.pandas.types as types, pyspark.sql.streaming as streaming
for name in {names!r}:
    if hasattr(api, name): delattr(api, name)
if {untold}:
    if hasattr(streaming, "datasource"): del streaming.datasource
    sys.modules["pyspark.sql.streaming.datasource"] = None
    whole = types.to_arrow_schema
    if "timezone" in inspect.signature(whole).parameters:
        types.to_arrow_schema = lambda schema, timestamp_utc=True: whole(schema, timezone="UTC")
"""


def without(untold: bool, names: set[str], program: str) -> str:
    """What a program prints over a Spark that lacks this."""
    code = WITHOUT.format(untold=untold, names=sorted(names)) + program
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("root", "importers", "ask_for_the_number"),
    [
        # The sentence about a worker with another PySpark names both.
        (CONNECTOR, {"access/spark_api.py"}, {"access/executor_check.py"}),
        (SUITE, set(), {"spark_versions/test_spark_api.py"}),
    ],
    ids=["package", "tests"],
)
def test_nobody_else_imports_what_a_spark_may_lack(
    root: Path, importers: set[str], ask_for_the_number: set[str]
) -> None:
    """Else a module, or its tests, could not be imported there."""
    imports, asks = set(), set()
    for path in root.rglob("*.py"):
        place = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark."):
                names = {alias.name for alias in node.names}
                if node.module == "pyspark.sql.streaming.datasource" or names & LACKED:
                    imports.add(place)
            elif isinstance(node, ast.Import):
                assert not [alias for alias in node.names if alias.name.startswith("pyspark.sql.streaming.data")]
            elif isinstance(node, ast.Attribute) and node.attr == "__version__":
                if "pyspark" in ast.unparse(node).split("."):
                    asks.add(place)
    assert (imports, asks) == (importers, ask_for_the_number)


def test_a_release_of_spark_lacks_what_the_page_says() -> None:
    """The table of docs/spark.md. It has numbers, so this test asks for one."""
    release = tuple(map(int, pyspark.__version__.split(".")[:2]))
    untold = ["admission control"] if release < (4, 2) else []
    assert list(spark_api.lacking()) == (["filter pushdown"] if release < (4, 1) else []) + untold


def test_the_tests_know_all_that_a_spark_may_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_api, "HAS_PUSHDOWN", False)
    monkeypatch.setattr(spark_api, "TELLS_STARTS", False)
    assert spark_api.lacking().keys() == spark_lacks.FEATURES.keys()


def test_the_doctor_says_what_this_spark_lacks_and_what_follows() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYSPARK_PYTHON": sys.executable}
    (found,) = [finding for finding in checks(environment) if finding.check == "pyspark"]
    lacks = [f"it has no {name}: {follows}" for name, follows in spark_api.lacking().items()]
    assert (found.status, found.text) == (OK, "; ".join([pyspark.__version__, *lacks]))


@pytest.mark.parametrize(
    ("untold", "names", "lacks"),
    [
        pytest.param(
            True, {"DataSourceStreamArrowWriter", *FILTERS}, ["filter pushdown", "admission control"], id="4.0"
        ),
        pytest.param(True, set(), ["admission control"], id="4.1", marks=spark_lacks.needs_spark("filter pushdown")),
    ],
)
def test_an_older_spark_gets_what_it_lacks(untold: bool, names: set[str], lacks: list[str]) -> None:
    program = """
from pyspark_rmq.access import spark_api
from pyspark_rmq.write.writer import RmqStreamWriter
from pyspark_rmq.read import stream_reader, refused_reader, loss_report
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from pyspark.sql.datasource import DataSourceStreamWriter
print(list(spark_api.lacking()), issubclass(RmqStreamWriter, DataSourceStreamWriter))
print(spark_api.arrow_schema(SOURCE_SCHEMA).field("storeTimestamp").type, hasattr(spark_api, "EqualTo"))
print(isinstance(RmqStreamWriter(None), api.DataSourceArrowWriter) or spark_api.HAS_STREAM_ARROW_WRITER)
"""
    assert without(untold, names, program).splitlines() == [
        f"{lacks} True",
        f"timestamp[us, tz=UTC] {not names}",
        "True",
    ]


def test_a_spark_without_sources_in_python_is_refused_in_a_sentence() -> None:
    """3.5, say."""
    program = """
import sys
sys.modules["pyspark.sql.datasource"] = None
import pyspark_rmq
print(hasattr(pyspark_rmq, "DefaultSource"))
for name in ("register", "consume", "GroupListener"):
    try: getattr(pyspark_rmq, name)(None)
    except ImportError as error: print(error)
"""
    first, *sentences = without(False, set(), program).splitlines()
    assert first == "False"
    assert len(sentences) == 3
    for sentence in sentences:
        assert sentence.startswith("pyspark_rmq needs PySpark 4.0 or newer, and this is ")
        assert sentence.endswith("pip install 'pyspark>=4.0'")


def test_filter_pushdown_is_refused_by_name_where_spark_pushes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At `load()`, and where a schema of the user's passes that by."""
    options = {"path": "/nowhere", "subscribe": "T"}
    schema = DefaultSource(CaseInsensitiveDict(options)).schema()
    source = DefaultSource(CaseInsensitiveDict({**options, "filterPushdown": "true"}))
    monkeypatch.setattr(spark_api, "HAS_PUSHDOWN", False)
    for call in (source.schema, lambda: source.reader(schema)):
        with pytest.raises(UsageError, match="option filterPushdown: this Spark pushes no filters"):
            call()


@pytest.mark.parametrize(
    ("shown", "is_there"),
    [('{"a": true}', True), ("{'a': True}", True), ("-", False), ("[1]", False), ("null", False), (None, False)],
    ids=["4.2", "4.0", "another format", "a list", "nothing", "none"],
)
def test_an_offset_of_a_progress_is_read_as_each_spark_shows_it(shown: str | None, is_there: bool) -> None:
    source: Any = SimpleNamespace(endOffset=shown, json=json.dumps({"endOffset": {"a": True} if is_there else shown}))
    assert spark_api.offset_of(source, "endOffset") == ({"a": True} if is_there else {})


@pytest.mark.parametrize("given", [(), ({}, spark_api.ReadAllAvailable())], ids=["4.0", "4.2"])
def test_each_spark_gets_the_reason_of_a_refused_stream(given: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match="no such option"):
        RefusedStreamReader(UsageError("no such option")).latestOffset(*given)


@pytest.mark.parametrize("condition", ["DATA_SOURCE_ALREADY_EXISTS", "DATA_SOURCE_NOT_FOUND"])
def test_a_session_that_has_found_the_source_keeps_it(condition: str) -> None:
    """4.0 refuses what it has found by itself."""

    class Refusing:
        dataSource = property(lambda self: self)

        def register(self, source: type) -> None:
            raise AnalysisException("refused", errorClass=condition)

    session: Any = Refusing()
    if condition == "DATA_SOURCE_ALREADY_EXISTS":
        spark_api.register_source(session, DefaultSource)
        return
    with pytest.raises(AnalysisException):
        spark_api.register_source(session, DefaultSource)


@pytest.mark.parametrize("other", ["release", "Spark"])
def test_a_task_with_another_release_than_the_driver_is_refused(
    other: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a task gets cannot be unpickled there, so nothing is read or written."""
    import rmq_store
    from pyspark_rmq.read.reader import RmqReader
    from pyspark_rmq.write.writer import RmqStreamWriter, RmqWriter

    options = CaseInsensitiveDict({"path": str(tmp_path), "subscribe": "T"})
    source = DefaultSource(options)
    schema = source.schema()
    stream: Any = source.streamReader(schema)
    sent = [cloudpickle.dumps(one) for one in (RmqWriter(None), RmqStreamWriter(None), source.reader(schema),
                                               stream)]  # type: ignore[arg-type]  # fmt: skip
    for pickled, kind in zip(sent, (RmqWriter, RmqStreamWriter, RmqReader, type(stream)), strict=True):
        assert isinstance(cloudpickle.loads(pickled), kind)
    if other == "release":
        monkeypatch.setattr(rmq_store, "__version__", "9.9.9")
        expected = r"has pyspark-rmq 9\.9\.9 in .*, and the driver has .*the same release"
    else:
        monkeypatch.setattr(executor_check, "lacking", lambda: {"filter pushdown": "..."})
        expected = "has PySpark .*, which is another one than the driver.*PYSPARK_PYTHON"
    for pickled in sent:
        with pytest.raises(UsageError, match=expected):
            cloudpickle.loads(pickled)
