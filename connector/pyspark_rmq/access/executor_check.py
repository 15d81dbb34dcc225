"""A task reads and writes only with this package, in the driver's release, with the driver's C extension, and with a
PySpark that lacks what the driver's lacks.

Spark pickles readers and writers on the driver, for a read the data source in front of them, and unpickles them in each
task. `SentToExecutors` makes that the place of the check, because nothing of a task runs before it:

    driver      `sent`                         what the driver has travels with the object
    task        `arrive`                       pickled by value, so it also runs where this package is missing
                `check`                        the package of the task against what has travelled
                the object                     its modules are imported only now
"""

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value

from pyspark_rmq.access.spark_api import lacking
from pyspark_rmq.position.position import refuse

_log = logging.getLogger(__name__)
_has_warned = False


class SentToExecutors:
    """Base of the readers and writers that Spark sends to tasks. Only the outermost objects need it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sent(self)


def sent(one: object) -> tuple[Any, ...]:
    """The value of `__reduce__` for an object that a task unpickles."""
    kind = type(one)
    # A class of a script is pickled by value: in a task, its module is another one. All others go by their names.
    named = kind if kind.__module__ == "__main__" else (kind.__module__, kind.__qualname__)
    return arrive, (*driver_has(), named), one.__getstate__()


def driver_has() -> tuple[str, bool, tuple[str, ...]]:
    """The facts that `check` compares: the release, whether the C extension is loaded, the lacks of PySpark."""
    from rmq_store import __version__

    return __version__, _has_extension(), tuple(lacking())


def arrive(version: str, has_extension: bool, lacks: tuple[str, ...], kind: tuple[str, str] | type) -> Any:
    """An empty object of the class `kind`, in a task. Raises ImportError where this package is missing, and what
    `check` raises. Names nothing of this module: where the task runs, that may not exist.
    """
    import importlib
    import socket
    import sys

    try:
        check = importlib.import_module("pyspark_rmq.access.executor_check").check
    except ImportError as error:
        raise ImportError(
            f"the Python worker {sys.executable} on host {socket.gethostname()} cannot import pyspark-rmq {version}, "
            f"which the driver has: {error}. This task has read and written nothing. Install the package there, or "
            "send an environment that has it by --archives (docs/deploy.md)"
        ) from error
    check(version, has_extension, lacks)
    made: Any = getattr(importlib.import_module(kind[0]), kind[1]) if isinstance(kind, tuple) else kind
    return made.__new__(made)


def check(version: str, has_extension: bool, lacks: tuple[str, ...]) -> None:
    """Raise `UsageError` unless this process can do the work of a driver with this release of the package, with or
    without the C extension, and with a PySpark that lacks just what `spark_api.lacking` says.
    """
    import rmq_store
    from rmq_store import extension

    worker = f"the Python worker {sys.executable} on host {socket.gethostname()}"
    nothing = "This task has read and written nothing"
    if rmq_store.__version__ != version:
        place = Path(rmq_store.__file__).parents[1]
        refuse(
            f"{worker} has pyspark-rmq {rmq_store.__version__} in {place}, and the driver has {version}. {nothing}. "
            "Give the driver and all executors the same release (docs/deploy.md)"
        )
    if set(lacks) != set(lacking()):
        import pyspark

        refuse(
            f"{worker} has PySpark {pyspark.__version__}, which is another one than the driver's. {nothing}. Name a "
            "Python with the driver's PySpark in PYSPARK_PYTHON (docs/deploy.md)"
        )
    lack = extension.lack() if has_extension else None
    if lack is not None and not lack.is_wanted:
        refuse(
            f"{worker} would take two to three times the processor time of the driver: {lack.reason}. {nothing}. "
            f"What to do: {lack.fix}. Or accept it by spark.executorEnv.RMQ_PURE=1 (docs/deploy.md)"
        )


def _has_extension() -> bool:
    """Of the driver, which warns once if it lacks the extension and nobody wanted that."""
    from rmq_store import extension

    global _has_warned
    lack = extension.lack()
    if lack is not None and not lack.is_wanted and not _has_warned:
        _has_warned = True
        _log.warning(
            "pyspark-rmq takes two to three times the processor time here: %s. What to do: %s. RMQ_PURE=1 accepts it "
            "without this warning", lack.reason, lack.fix,
        )  # fmt: skip
    return lack is None


register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
