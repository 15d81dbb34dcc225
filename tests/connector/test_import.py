"""Spark imports every `pyspark_*` module when it looks for data sources: ours must be light, and must never fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HEAVY = "numpy", "pyarrow", "pandas", "rmq_store"


def python(program: str, *hidden: str) -> str:
    """Run a program in which the modules `hidden` cannot be imported; returns what it printed."""
    block = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {hidden!r}: raise ModuleNotFoundError('hidden: ' + name)\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", block + program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_data_source_is_found_without_anything_heavy() -> None:
    program = (
        "import pyspark_rmq; print(pyspark_rmq.DefaultSource.name(), issubclass(pyspark_rmq.DefaultSource, object))"
    )
    assert python(program, *HEAVY) == "rmq True"


def test_looking_for_data_sources_loads_nothing_heavy() -> None:
    program = "import pyspark.sql.datasource; before = set(sys.modules); import pyspark_rmq; "
    program += f"print(sorted({{name.split('.')[0] for name in set(sys.modules) - before}} & set({HEAVY!r})))"
    assert python(program) == "[]"


def test_without_pyspark_the_module_still_imports_and_register_says_what_to_install() -> None:
    program = (
        "import pyspark_rmq\n"
        "print(hasattr(pyspark_rmq, 'DefaultSource'))\n"
        "try: pyspark_rmq.register(None)\n"
        "except ImportError as error: print(error)\n"
    )
    printed = python(program, "pyspark")
    assert printed.startswith("False\npyspark_rmq needs PySpark 4.0 or newer")


@pytest.mark.spark
def test_register_makes_a_session_know_the_source(
    spark: Any, make_store: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another name: under its own the session has found it already."""
    from py4j.protocol import Py4JJavaError
    from rmq_test_sources import RegisteredSource

    import pyspark_rmq
    from pyspark_rmq import source

    monkeypatch.setattr(source, "DefaultSource", RegisteredSource)
    reader = spark.read.format("rmq_registered").options(path=str(make_store(Orders=3)), subscribe="Orders")
    with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
        reader.load()
    pyspark_rmq.register(spark)
    assert reader.load().count() == 3


@pytest.mark.spark
def test_register_works_in_a_session_that_has_found_it_already(spark: Any, make_store: Callable[..., Path]) -> None:
    import pyspark_rmq

    reader = spark.read.format("rmq").options(path=str(make_store(Orders=3)), subscribe="Orders")
    assert reader.load().count() == 3
    pyspark_rmq.register(spark)
    assert reader.load().count() == 3
