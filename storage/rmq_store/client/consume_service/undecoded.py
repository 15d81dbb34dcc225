"""Messages that no listener gets: their bodies could not be inflated (`compression.inflate`), so they are as they lie.

A listener would take such a body for the message. So the message fails without a call, and becomes a dead letter at
once, because no later delivery could inflate it. Java's clients lose it instead, with the messages behind it in the
same answer of the broker (MessageDecoder#decodesBatch).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

DEAD_LETTER_LEVEL = -1
"""The delay level of a message that no listener gets: straight to the dead letters."""

_log = logging.getLogger(__name__)


class Part(NamedTuple):
    """The rows [first, behind) of a pull: for one call of a listener, or one row for none."""

    first: int
    behind: int
    is_undecoded: bool


def parts(first: int, behind: int, size: int, undecoded: npt.NDArray[np.intp]) -> Iterator[Part]:
    """Cut the rows [first, behind) into pieces of at most `size` rows, and of one where a row is among `undecoded`."""
    if not len(undecoded):
        for start in range(first, behind, size):
            yield Part(start, min(start + size, behind), False)
        return
    for row in undecoded[(undecoded >= first) & (undecoded < behind)].tolist():
        yield from parts(first, row, size, undecoded[:0])
        yield Part(row, row + 1, True)
        first = row + 1
    yield from parts(first, behind, size, undecoded[:0])


def log_failure(group: str, name: str) -> None:
    """Log that a message, or several, fail without a call of the listener."""
    _log.error(
        "group %s: no listener gets %s: the sysFlag says that the body is compressed, and it cannot be inflated",
        group, name,
    )  # fmt: skip
