"""A task with another package than its driver's is refused before it reads or writes, in one sentence."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

import rmq_store
from pyspark_rmq.access import executor_check, spark_api
from pyspark_rmq.access.executor_check import SentToExecutors, check
from pyspark_rmq.older_spark import untold_reader
from pyspark_rmq.read import reader, refused_reader, reports, stream_reader
from pyspark_rmq.source import DefaultSource
from pyspark_rmq.write import writer
from rmq_store import UsageError, extension

LACK = extension.Lack("it was imported from a zip", "use --archives")

# A Python that has nothing but the standard library: what a task without the package is for `arrive`.
BARE = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"


class Sent(SentToExecutors):
    def __init__(self) -> None:
        self.rows = 3


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "lack", lambda: LACK)


def arrived(sent: bytes) -> Sent:
    """What a task makes of it."""
    made: Sent = cloudpickle.loads(sent)
    return made


def with_extension(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What a driver that has the extension sends."""
    monkeypatch.setattr(extension, "lack", lambda: None)
    sent: bytes = cloudpickle.dumps(Sent())
    return sent


def test_the_same_package_takes_the_object() -> None:
    assert arrived(cloudpickle.dumps(Sent())).rows == 3
    source = cloudpickle.loads(cloudpickle.dumps(DefaultSource({"path": "/data/store", "subscribe": "Orders"})))
    assert type(source) is DefaultSource
    assert dict(source.options) == {"path": "/data/store", "subscribe": "Orders"}


def test_all_that_spark_sends_to_tasks_is_checked() -> None:
    pushing = [importlib.import_module("pyspark_rmq.read.pushdown")] if spark_api.HAS_PUSHDOWN else []
    bases = (DataSourceReader, DataSourceStreamReader, DataSourceWriter, DataSourceStreamWriter)
    sent = {
        kind
        for module in (reader, reports, stream_reader, untold_reader, refused_reader, writer, *pushing)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, bases) and kind.__module__ == module.__name__
    }
    assert len(sent) >= 7
    # One never gets so far as a task.
    assert {kind.__name__ for kind in sent if not issubclass(kind, SentToExecutors)} == {"RefusedStreamReader"}


def test_another_release_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = cloudpickle.dumps(Sent())
    monkeypatch.setattr(rmq_store, "__version__", "0.0.9")
    with pytest.raises(UsageError) as refused:
        arrived(sent)
    said = str(refused.value)
    assert sys.executable in said and "has pyspark-rmq 0.0.9 in" in said and "the driver has " in said
    assert "has read and written nothing" in said and "the same release" in said


def test_a_task_without_the_extension_of_its_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = with_extension(monkeypatch)
    monkeypatch.setattr(extension, "lack", lambda: LACK)
    with pytest.raises(UsageError) as refused:
        arrived(sent)
    said = str(refused.value)
    assert LACK.reason in said and LACK.fix in said and "spark.executorEnv.RMQ_PURE=1" in said
    assert "has read and written nothing" in said


def test_a_task_whose_lack_is_wanted_works(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = with_extension(monkeypatch)
    monkeypatch.setattr(extension, "lack", lambda: LACK._replace(is_wanted=True))
    assert arrived(sent).rows == 3


@pytest.mark.usefixtures("lacking")
def test_a_driver_without_the_extension_warns_once_and_asks_its_tasks_for_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor_check, "_has_warned", False)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert arrived(cloudpickle.dumps(Sent())).rows == 3
    (warning,) = caplog.messages
    assert LACK.reason in warning and LACK.fix in warning


def test_a_driver_that_wants_none_is_silent(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(extension, "lack", lambda: LACK._replace(is_wanted=True))
    monkeypatch.setattr(executor_check, "_has_warned", False)
    with caplog.at_level(logging.WARNING):
        cloudpickle.dumps(Sent())
    assert caplog.messages == []
    check(rmq_store.__version__, has_extension=False, lacks=tuple(spark_api.lacking()))


def test_a_class_of_a_script_is_sent_as_it_is() -> None:
    """In a task, `__main__` is another module."""

    class Own(Sent):
        __module__ = "__main__"

    made = arrived(cloudpickle.dumps(Own()))
    assert made.rows == 3
    assert type(made).__name__ == "Own"


# The source stands in front of the reader in what Spark sends for a read.
@pytest.mark.parametrize("make", [Sent, lambda: DefaultSource({"path": "/data/store", "subscribe": "Orders"})])
def test_a_python_without_the_package_says_so(make: Callable[[], object], tmp_path: Path) -> None:
    """The check is pickled by value. By reference, Spark's error would only name a module."""
    sent = cloudpickle.dumps(make())
    only_pyspark = tmp_path / "spark"
    only_pyspark.mkdir()
    # What unpickles a function by value is in pyspark.cloudpickle, and Spark brings that.
    (only_pyspark / "pyspark").symlink_to(Path(cloudpickle.__file__).parents[1])
    (only_pyspark / "py4j").symlink_to(Path(__import__("py4j").__file__).parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(only_pyspark)!r}); {BARE}"],
        input=sent, capture_output=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    said = done.stderr.decode().strip().splitlines()[-1]
    assert said.startswith(f"ImportError: the Python worker {sys.executable} on host ")
    assert f"cannot import pyspark-rmq {rmq_store.__version__}, which the driver has" in said
    assert "No module named 'pyspark_rmq'" in said
    assert "has read and written nothing" in said and "--archives" in said
