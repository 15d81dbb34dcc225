"""What a first opener does with the bytes behind X, the first offset that holds no good frame: the decision table.

Columns: what follows X up to the end of the files, and whether X lies below the durable point (the flushed end as last
persisted; a store that a broker wrote last has none, so nothing of it is below). Exactly one row fits every situation;
a test enumerates them. Source: reliability.md section 2 of the project's specification; CommitLog#recoverNormally.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Follows(Enum):
    """What lies between X and the end of the files."""

    ZEROS = "only zero bytes, or nothing"
    GARBAGE = "bytes that are no record"
    RECORDS = "at least one good record that knows its own offset"


class Action(Enum):
    """What recovery does."""

    NOTHING = "the log ends at X"
    CUT_TAIL = "copy what follows to pyrmq/removed, write zeros over it, sync, report"
    REFUSE = "raise CorruptionError: durable records are missing or damaged; reading is still possible"
    CUT_AS_JAVA = "write zeros over what follows, sync, report: a broker would cut here, too"


class Case(NamedTuple):
    """One row. `durable` is whether X lies below the durable point, `foreign` whether a broker wrote the store last."""

    name: str
    follows: frozenset[Follows]
    durable: bool
    foreign: bool
    action: Action


_ANYTHING = frozenset(Follows)

RECOVERY_TABLE: tuple[Case, ...] = (
    # A clean stop, or a crash between two appends.
    Case("clean", frozenset({Follows.ZEROS}), durable=False, foreign=False, action=Action.NOTHING),
    # A crash in the middle of copying a record: nothing behind it was ever complete.
    Case("torn tail", frozenset({Follows.GARBAGE}), durable=False, foreign=False, action=Action.CUT_TAIL),
    # A power cut: later pages reached the disk before earlier ones. Nothing here was acknowledged under SYNC_FLUSH.
    Case("hole", frozenset({Follows.RECORDS}), durable=False, foreign=False, action=Action.CUT_TAIL),
    # The disk lost or changed what fsync had promised.
    Case("damaged", _ANYTHING, durable=True, foreign=False, action=Action.REFUSE),
    # No durable point: as CommitLog#recoverNormally and #recoverAbnormally, but the bytes are zeroed so that they
    # cannot come back.
    Case("foreign", _ANYTHING, durable=False, foreign=True, action=Action.CUT_AS_JAVA),
)


def decide(follows: Follows, *, durable: bool, foreign: bool) -> Case:
    """The one row that fits. A foreign store has no durable point."""
    assert not (durable and foreign)
    fitting = [
        case
        for case in RECOVERY_TABLE
        if follows in case.follows and case.durable == durable and case.foreign == foreign
    ]
    assert len(fitting) == 1
    return fitting[0]
