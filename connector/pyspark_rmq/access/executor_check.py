"""A task reads and writes only with this package, in the driver's release, and with the driver's C extension.

Spark pickles readers and writers on the driver, and unpickles them in each task. `SentToExecutors` makes that the place
of the check, because nothing of a task runs before it:

    driver      `SentToExecutors.__reduce__`   release and extension of the driver travel with the object
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

from pyspark_rmq.position.position import refuse

_log = logging.getLogger(__name__)
_has_warned = False


class SentToExecutors:
    """Base of the readers and writers that Spark sends to tasks. Only the outermost object needs it."""

    def __reduce__(self) -> tuple[Any, ...]:
        from rmq_store import __version__

        kind = type(self)
        return arrive, (__version__, _has_extension(), kind.__module__, kind.__qualname__), self.__getstate__()


def arrive(version: str, has_extension: bool, module: str, name: str) -> Any:
    """An empty object of the class `name`, in a task. Raises ImportError where this package is missing, and what
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
    check(version, has_extension)
    kind = getattr(importlib.import_module(module), name)
    return kind.__new__(kind)


def check(version: str, has_extension: bool) -> None:
    """Raise `UsageError` unless this process can do the work of a driver with this release of the package, and with or
    without the C extension.
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
