"""Set-up of Spark's Python workers, done once for all tasks of a worker. Control plane.

After each task a worker runs a garbage collection, and only then accepts the next task (pyspark/daemon.py). Python
visits every tracked object: 80,000 of PySpark, pandas, numpy and this package, which live as long as the process. A
collection takes 20 to 40 ms of a processor: a tenth of a small trigger, which has several tasks.
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
    """True in a Python worker of Spark that will also run the next task or commit."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    # pyspark/daemon.py: without it (spark.python.worker.reuse=false) a process has one task only.
    return spec is not None and spec.name == "pyspark.daemon" and "SPARK_REUSE_WORKER" in os.environ


def spare_modules() -> None:
    """Exempt all objects that exist now from later garbage collections (gc.freeze). Called at the start of a task or
    commit; acts once, and again whenever modules were imported since. Does nothing outside of a worker.

    A frozen object that becomes part of a garbage cycle later is never collected. So this is not done for each
    task, only after a collection, and with no store open.
    """
    global _modules_spared
    if len(sys.modules) == _modules_spared or not is_worker():
        return
    close_pooled()
    gc.collect()
    gc.freeze()
    _modules_spared = len(sys.modules)


def close_before_it_ends() -> None:
    """Make this worker close its pooled stores before it ends with its session. Called at the start of a commit; does
    nothing outside of a worker.

    When a session stops, Spark closes the sockets of its workers, and its daemon sends SIGHUP to all processes of its
    group. A worker that reads the end of its socket leaves the loop of pyspark/daemon.py with a code that is not 0, and
    calls `_exit`. So this function wraps the function of that loop, and takes the worker out of the group. A signal
    handler does not help, because the loop resets it before each task. If a later Spark has another loop, a worker ends
    without closing, and the next opener recovers the store.
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
