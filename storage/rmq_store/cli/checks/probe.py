"""Runs in the Python that Spark starts for its workers, and prints its findings as JSON. It uses only the standard
library: whether this package is installed there is one of its questions.

It looks up data sources as Spark does: modules on the path with names `pyspark_*`, and their `DefaultSource`
(pyspark/sql/worker/lookup_data_sources.py).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import pathlib
import pkgutil
import sys


def probe() -> dict[str, object]:
    """Versions (None: not installed); `sources`: module -> name of its data source; `broken`: module -> error."""
    sources: dict[str, str] = {}
    broken: dict[str, str] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for name in sorted({info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")}):
            try:
                module = importlib.import_module(name)
                if hasattr(module, "DefaultSource"):
                    sources[name] = str(module.DefaultSource.name())
            except BaseException as error:  # what a module does when it is imported may be anything
                broken[name] = f"{type(error).__name__}: {error}"[:500]
    return {
        "executable": sys.executable,
        "version": list(sys.version_info[:3]),
        "packages": {name: _version(name) for name in ("pyspark", "numpy", "pyarrow", "pandas")},
        "engine": importlib.util.find_spec("rmq_store") is not None,
        "connector": importlib.util.find_spec("pyspark_rmq") is not None,
        "lacking": _lacking(),
        "sources": sources,
        "broken": broken,
        "spark_home": os.environ.get("SPARK_HOME") or _home("pyspark"),
    }


def _lacking() -> dict[str, str]:
    """The things that this Spark lacks, as `pyspark_rmq` knows; nothing where one of the two cannot be imported."""
    try:
        return dict(importlib.import_module("pyspark_rmq.access.spark_api").lacking())
    except ImportError:
        return {}


def _home(name: str) -> str:
    spec = importlib.util.find_spec(name)
    return str(pathlib.Path(spec.origin).parent) if spec is not None and spec.origin else ""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(probe()) + "\n")
