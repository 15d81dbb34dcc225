"""Driver and executors have the same release of this package, and a PySpark that lacks the same. Checked where a task
begins, before it reads or writes anything.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from pyspark_rmq.access.spark_api import lacking
from pyspark_rmq.position.position import refuse


class MadeBy:
    """Says with which releases an object was made. Unpickled in a process that has others, it raises `UsageError`: what
    the object is there may be something else.
    """

    def __reduce__(self) -> tuple[object, ...]:
        import pyspark

        from rmq_store import __version__

        return check_release, (__version__, str(pyspark.__version__), tuple(lacking()))


def check_release(release: str, spark: str, lacks: Iterable[str]) -> MadeBy:
    """Raise `UsageError` unless this process has what the driver has. Two releases of Spark that lack the same may be
    mixed as far as this package goes.
    """
    import pyspark

    from rmq_store import __version__

    if release != __version__:
        refuse(
            f"the driver has pyspark-rmq {release}, and this executor {__version__} ({sys.executable}): install the "
            "same release in both"
        )
    if set(lacks) != set(lacking()):
        refuse(
            f"the driver has PySpark {spark}, and this executor {pyspark.__version__} ({sys.executable}): name a "
            "Python with the driver's PySpark in PYSPARK_PYTHON"
        )
    return MadeBy()
