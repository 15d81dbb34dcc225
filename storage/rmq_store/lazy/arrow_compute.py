"""`pyarrow.compute`, loaded when the first of its functions is used.

It makes 300 functions when it is imported, which takes a seventh of a broker's start; a store that is opened or served
uses none of them before the first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmq_store.real_time import real_datetime

__all__ = ["pc"]


class _LateCompute:
    def __getattr__(self, name: str) -> Any:
        with real_datetime():
            import pyarrow.compute

        found = getattr(pyarrow.compute, name)
        setattr(self, name, found)  # from now on as quick as the module itself
        return found


if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = _LateCompute()
