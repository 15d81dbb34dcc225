"""`failure(query)`: the error of a failed streaming query as Python raised it. Driver, control plane.

Spark reports a traceback of Python as text inside the messages of its own errors. The process that raised it has no
other way to tell the driver.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# The field `type` of a class hides the name in its own annotations.
_ErrorClass = type[BaseException]

_TRACEBACK = "Traceback (most recent call last):"

# The last line of a traceback: a name, perhaps with its module, and a message. Frames before it are indented.
_RAISED = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$", re.MULTILINE)

# The text that Spark writes after a traceback, on a line of its own or at the end of the last one.
_BEHIND = re.compile(
    r"\n*(?:\s+SQLSTATE: \w+|\n\s*at [\w.$]+\(|\nJVM stacktrace:|\n=== Streaming Query ===|\nDriver stacktrace:"
    r"|\nCaused by: )"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query failed. `str()` is `type: message`.

    `type` is the name of the Python exception without its module; `module` is that module ("builtins" for ValueError
    and the like). `message` is its text, `traceback` the whole traceback. If no Python code raised the error, `type` is
    that of Spark's error, `message` is Spark's text and `traceback` is "".
    """

    type: str
    module: str
    message: str
    traceback: str

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    def is_a(self, error: _ErrorClass) -> bool:
        """True if the error is of this class, or of a subclass. This imports nothing: if this process has not imported
        the module of the error, only the class itself is recognised.
        """
        raised: Any = getattr(sys.modules.get(self.module), self.type, None)
        if isinstance(raised, type):
            return issubclass(raised, error)
        return (self.module, self.type) == (error.__module__, error.__qualname__)


def failure(query: StreamingQuery) -> Failure | None:
    """Return why a query failed: the Python error of a source, sink or function; None if it has not failed.

    Works on Spark Classic and on Spark Connect.
    """
    error = query.exception()
    if error is None:
        return None
    texts = list(_texts(error))
    for text in texts:
        raised = _raised(text)
        if raised is not None:
            return raised
    return Failure(type(error).__name__, type(error).__module__, texts[0].strip(), "")


def _texts(error: BaseException) -> list[str]:
    """The messages of an error and its causes, the outermost first."""
    texts: list[str] = []
    cause: Any = error
    while cause is not None and len(texts) < _DEPTH_MAX:
        texts.append(str(getattr(cause, "desc", None) or cause))
        cause = getattr(cause, "cause", None) or getattr(cause, "__cause__", None)
    return texts


def _raised(text: str) -> Failure | None:
    """The exception that the last traceback in a text ends with."""
    start = text.rfind(_TRACEBACK)
    if start < 0:
        return None
    lines = text[start:]
    behind = _BEHIND.search(lines)
    traceback = (lines if behind is None else lines[: behind.start()]).rstrip()
    found = _RAISED.search(traceback, len(_TRACEBACK))
    if found is None:
        return None
    module, _, name = found["name"].rpartition(".")
    message = traceback[found.start("message") :] if found["message"] is not None else ""
    return Failure(name, module or "builtins", message.strip(), traceback)


_DEPTH_MAX = 20
