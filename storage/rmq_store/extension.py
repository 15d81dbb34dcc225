"""Why the C extension is not loaded, where it is not: for whoever would otherwise be slow and not know it.

    lack = extension.lack()
    if lack is not None and not lack.is_wanted: ...

`format/bytes/native.py` loads it. Everything works without it, and takes two to three times the processor time.
"""

from __future__ import annotations

import os
import sys
import zipimport
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import NamedTuple

from rmq_store.format.bytes import native


class Lack(NamedTuple):
    """`reason` and `fix` are parts of a sentence. `is_wanted`: somebody has set RMQ_PURE=1 for this process."""

    reason: str
    fix: str
    is_wanted: bool = False


def lack(
    environment: Mapping[str, str] = os.environ, find: Callable[[str], object] = find_spec, spec: object = __spec__
) -> Lack | None:
    """None if this process has the extension. `spec` is that of a module of this package."""
    if native.LOADED:
        return None
    if environment.get("RMQ_PURE") == "1":
        return Lack("RMQ_PURE=1 is set, so the C extension is not loaded", "unset RMQ_PURE", is_wanted=True)
    loader = getattr(spec, "loader", None)
    if isinstance(loader, zipimport.zipimporter):
        reason = f"pyspark-rmq was imported from the zip {loader.archive}, and Python loads no C extension from a zip"
        return Lack(reason, "install the wheel there, or send an environment that has it by --archives, not --py-files")
    build = f"{sys.executable} -m pip install --force-reinstall --no-deps pyspark-rmq"
    if find("rmq_store._native") is None:
        return Lack("the C extension is not there", f"install a C compiler and this Python's headers, then {build}")
    return Lack("the C extension cannot be loaded, or is of another version", build)
