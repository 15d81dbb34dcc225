"""Checks of Java and PySpark: whether a session can start, whether its workers find this package, and format("rmq").

This imports nothing of Spark, and starts a JVM only to get its version. `probe` answers for Python, in processes of its
own: in the interpreter of the driver and in that of the workers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmq_store.cli.checks import FAIL, OK, WARN, Finding
from rmq_store.cli.checks.machine import version_tuple

JAVA_LEAST = 17  # Spark 4
PYSPARK_LEAST = (4, 0)
PANDAS_LEAST = (2, 2)  # PySpark's mapInArrow
TIMEOUT_S = 60

_JAVA_VERSION = re.compile(r'version "([0-9]+)(?:\.([0-9]+))?')


def checks(environment: Mapping[str, str], driver: str = sys.executable) -> list[Finding]:
    """All checks. `environment` is the environment in which Spark would start."""
    known, why = _ask(driver, environment)
    if known is None:
        return [Finding("pyspark", FAIL, f"{driver} does not run: {why}", "repair this Python")]
    spark = known["packages"]["pyspark"]
    if spark is None:
        text = "not installed: the engine works without it, Spark's data source does not"
        return [Finding("pyspark", WARN, text, f"{driver} -m pip install 'pyspark>=4.0'")]
    found = [java(environment), _pyspark(driver, spark, known["lacking"]), pandas(driver, known["packages"]["pandas"])]
    name, origin = worker_python(environment)
    worker, why = _ask(name, {**environment, "PYTHONPATH": _worker_path(known, environment)})
    if worker is None:
        fix = f"export PYSPARK_PYTHON={driver}"
        return [*found, Finding("worker python", FAIL, f"{name} ({origin}) does not run: {why}", fix)]
    found += [_worker(known, worker, origin), siblings(worker)]
    # Where tasks crash, that is what has to be put right first.
    return found if found[-2].status == FAIL else [*found, discovery(worker)]


def java(environment: Mapping[str, str]) -> Finding:
    """Check the Java that Spark starts: JAVA_HOME's, else that on the PATH (Spark's bin/spark-class)."""
    home = environment.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH", ""))
    origin = "JAVA_HOME" if home else "PATH"
    fix = f"install Java {JAVA_LEAST} or newer, and set JAVA_HOME to it"
    if path is None:
        return Finding("java", FAIL, "none on the PATH, and JAVA_HOME is not set", fix)
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=TIMEOUT_S, env=dict(environment), check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("java", FAIL, f"{path} ({origin}) does not run: {error}", fix)
    version = _JAVA_VERSION.search(done.stderr + done.stdout)
    if version is None:
        return Finding("java", FAIL, f"{path} ({origin}) does not tell its version", fix)
    number = int(version[2] or 0) if version[1] == "1" else int(version[1])
    if number < JAVA_LEAST:
        return Finding("java", FAIL, f"{number}, {path} ({origin}): Spark 4 needs {JAVA_LEAST}", fix)
    return Finding("java", OK, f"{number}, {path} ({origin})")


def worker_python(environment: Mapping[str, str]) -> tuple[str, str]:
    """The interpreter that Spark starts for workers, and the setting that names it."""
    chosen = environment.get("PYSPARK_PYTHON")
    return (chosen, "PYSPARK_PYTHON") if chosen else ("python3", "PATH, for PYSPARK_PYTHON is not set")


def siblings(worker: Mapping[str, Any]) -> Finding:
    """Check the modules `pyspark_*`: if one cannot be imported, Spark drops all Python data sources."""
    broken = worker["broken"]
    if not broken:
        return Finding("pyspark_* modules", OK, f"{len(worker['sources'])} data sources, none is broken")
    text = "; ".join(f"{name} cannot be imported: {why}" for name, why in broken.items())
    return Finding("pyspark_* modules", FAIL, f"{text}: Spark finds no Python data source at all",
                   f"repair or uninstall {', '.join(broken)}, or call pyspark_rmq.register(spark)")  # fmt: skip


def discovery(worker: Mapping[str, Any]) -> Finding:
    """Check that Spark knows format("rmq") without `register`."""
    if worker["sources"].get("pyspark_rmq") == "rmq":
        return Finding("data source", OK, 'format("rmq") is found')
    if not worker["connector"]:
        return Finding("data source", FAIL, f"{worker['executable']} has no pyspark_rmq",
                       f"{worker['executable']} -m pip install pyspark-rmq")  # fmt: skip
    text = 'format("rmq") is not found: pyspark_rmq lies in no directory on the path, or has no DefaultSource'
    return Finding("data source", FAIL, text, "install it as a wheel, or call pyspark_rmq.register(spark)")


def _pyspark(driver: str, spark: str, lacking: Mapping[str, str]) -> Finding:
    if version_tuple(spark) < PYSPARK_LEAST:
        return Finding("pyspark", FAIL, f"{spark}: 4.0 or newer is needed", f"{driver} -m pip install 'pyspark>=4.0'")
    lacks = "; ".join(f"it has no {name}: {follows}" for name, follows in lacking.items())
    return Finding("pyspark", OK, f"{spark}; {lacks}" if lacks else spark)


def pandas(driver: str, version: str | None) -> Finding:
    """Check pandas, which only `pyspark_rmq.consume` needs."""
    if version is not None and version_tuple(version) >= PANDAS_LEAST:
        return Finding("pandas", OK, version)
    text = "not installed" if version is None else version
    text += ": pyspark_rmq.consume needs 2.2 or newer, because PySpark's mapInArrow does; reading and writing do not"
    return Finding("pandas", WARN, text, f"{driver} -m pip install 'pandas>=2.2'")


def _worker(driver: Mapping[str, Any], worker: Mapping[str, Any], origin: str) -> Finding:
    fix = f"export PYSPARK_PYTHON={driver['executable']}"
    text = f"{'.'.join(map(str, worker['version']))}, {worker['executable']} ({origin})"
    if worker["version"][:2] != driver["version"][:2]:
        ours = ".".join(map(str, driver["version"][:2]))
        return Finding("worker python", FAIL, f"{text}: the driver has {ours}, and Spark refuses that", fix)
    can_lack = ("pyspark", "pandas")
    missing = [name for name, version in worker["packages"].items() if version is None and name not in can_lack]
    missing += [] if worker["engine"] else ["rmq_store"]
    if missing:
        return Finding("worker python", FAIL, f"{text} has no {', '.join(missing)}: tasks crash", fix)
    other = [
        f"{name} {driver['packages'][name]} and {version or 'none'}"
        for name, version in worker["packages"].items()
        if version != driver["packages"][name] and (version is not None or name == "pandas")
    ]
    if other:
        return Finding("worker python", WARN, f"{text}: driver and workers differ in {', '.join(other)}", fix)
    return Finding("worker python", OK, text)


def _worker_path(driver: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """PYTHONPATH as Spark sets it for workers: its own libraries first (PythonUtils#sparkPythonPath)."""
    libraries = sorted(Path(driver["spark_home"]).glob("python/lib/*.zip"))
    return os.pathsep.join(filter(None, [*map(str, libraries), environment.get("PYTHONPATH", "")]))


def _ask(python: str, environment: Mapping[str, str]) -> tuple[dict[str, Any] | None, str]:
    """The output of `probe` in that interpreter; or None, and the reason why there is none."""
    path = shutil.which(python, path=environment.get("PATH", ""))
    if path is None:
        return None, "there is no such program"
    script = (Path(__file__).parent / "probe.py").read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [path, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, env=dict(environment), check=False
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    except (ValueError, IndexError):
        return None, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return (found, "") if isinstance(found, dict) else (None, "it printed something else")
