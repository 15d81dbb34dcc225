"""What is done once in a Python worker of Spark's, for all the tasks that it will have. Control plane.

A worker collects garbage behind each task, and before that is over it has no other one (pyspark/daemon.py). Python then
looks at every object that could be garbage: 80,000 of PySpark, pandas, numpy and of ours, which stay for as long as
the process. That takes a processor 20 to 40 ms: a tenth of what a small trigger takes, and it has several tasks.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from pyspark_rmq.access.store_pool import close_all, close_pooled

_modules_spared = 0
_closes_before_it_ends = False


def is_worker() -> bool:
    """Whether this is a worker of Spark's, which will have the next task or commit too."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    # pyspark/daemon.py: without it (spark.python.worker.reuse=false) a process has one task only.
    return spec is not None and spec.name == "pyspark.daemon" and "SPARK_REUSE_WORKER" in os.environ


def spare_modules() -> None:
    """Where a task or a commit begins: have later collections look past everything that there is now (gc.freeze), once
    and whenever modules have come since. Nothing happens outside of a worker.

    What is alive now and becomes part of a cycle of garbage later is never collected. So it is not done for each
    task, only behind a collection, and with no home open.
    """
    global _modules_spared
    if len(sys.modules) == _modules_spared or not is_worker():
        return
    close_pooled()
    gc.collect()
    gc.freeze()
    _modules_spared = len(sys.modules)


def close_before_it_ends() -> None:
    """Where a commit begins: have this worker close what it keeps before it ends with its session. Nothing happens
    outside of a worker.

    When a session stops, Spark closes the sockets of its workers, and has its daemon send SIGHUP to all processes of
    the daemon's group. A worker that sees the end of its socket leaves the loop of pyspark/daemon.py with a code that
    is not 0, and calls `_exit`. So the loop's function is wrapped, and the worker leaves the group: no handler of the
    signal would stay, since the loop sets it back before each task. If a later Spark has another loop, a worker ends as
    before, and whoever opens the store next recovers it.
    """
    global _closes_before_it_ends
    if _closes_before_it_ends or not is_worker():
        return
    daemon: Any = sys.modules["__main__"]
    serve = getattr(daemon, "worker", None)
    if serve is None:
        return

    def worker(*arguments: Any) -> int:
        code: int = serve(*arguments)
        if code:
            close_all()
        return code

    daemon.worker = worker
    os.setpgid(0, 0)
    _closes_before_it_ends = True
