"""The JVM of the tests is made for a short life, and has its classes from the archive where there is one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import spark_jvm


def test_without_an_archive_no_jvm_is_told_of_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spark_jvm, "ROOT", tmp_path)
    assert spark_jvm.environment()["SPARK_SUBMIT_OPTS"] == spark_jvm.SHORT_LIFE
    archive = spark_jvm.archive()
    assert archive is not None
    archive.parent.mkdir(exist_ok=True)
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in spark_jvm.environment()["SPARK_SUBMIT_OPTS"]


def test_another_spark_gets_another_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    before = spark_jvm.archive()
    monkeypatch.setattr("importlib.metadata.version", lambda package: "0.0")
    assert spark_jvm.archive() != before


def test_a_machine_without_java_has_no_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert spark_jvm.archive() is None


def test_an_archive_that_cannot_be_made_is_told_and_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_jvm, "ROOT", tmp_path)
    monkeypatch.setattr(spark_jvm, "TRAINING", "raise SystemExit('no Spark today')")
    spark_jvm.make()
    assert "No archive of Spark's classes" in (said := capsys.readouterr().err)
    assert "no Spark today" in said
    assert [path for path in (tmp_path / "build").iterdir() if not path.name.startswith("spark-home-")] == []


@pytest.mark.spark
def test_a_python_process_of_spark_finds_bytecode(spark: Any) -> None:
    """From the zip of the installed home it would compile pyspark each time."""

    def origins(batches: Any) -> Iterator[Any]:
        import pyarrow as pa
        import pyspark

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"origin": [pyspark.__file__]})

    (row,) = spark.range(1).mapInArrow(origins, "origin string").collect()
    assert Path(row.origin).exists(), "a file, and no member of a zip"


def test_a_jvm_with_an_archive_that_does_not_fit_starts_without_it(tmp_path: Path) -> None:
    (tmp_path / "wrong.jsa").write_bytes(b"no archive")
    options = [f"-XX:SharedArchiveFile={tmp_path / 'wrong.jsa'}", "-Xlog:disable"]
    done = subprocess.run(["java", *options, "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "shar" not in done.stderr and "archive" not in done.stdout


@pytest.mark.spark
def test_the_session_of_the_tests_has_these_options(spark: Any) -> None:
    arguments = list(spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    assert set(spark_jvm.SHORT_LIFE.split()) <= set(arguments)
    archive = spark_jvm.archive()
    if f"-XX:SharedArchiveFile={archive}" in arguments:
        maps = Path(f"/proc/{spark._jvm.java.lang.ProcessHandle.current().pid()}/maps").read_text()
        assert str(archive) in maps, "the JVM refused the archive"
