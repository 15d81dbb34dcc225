"""The recovery table: what a first opener does with the bytes from X on, the first offset without a good frame.

Columns: the bytes from X to the end of the files; whether X lies below the durable point (the flushed end as last
saved; 0 for a store that a broker wrote last); whether a unit was open at X; whether a broker wrote the store last.
Exactly one row fits every situation; a test enumerates them.

Two cases never come here. A blank frame that fills its segment is no X: the walk goes on in the next segment
("rolled"). A segment of the wrong size is refused by name when the sizes of a store are read ("foreign or short file").
Source: CommitLog#recoverNormally, which truncates at the first bad record wherever it is; this table truncates only
bytes that were never promised to be on disk.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Follows(Enum):
    """The bytes between X and the end of the files."""

    ZEROS = "only zero bytes, or nothing"
    GARBAGE = "bytes that are no record"
    RECORDS = "at least one good record that knows its own offset"
    NO_SEGMENT = "X begins a segment that is missing, and there is a later one"


class Action(Enum):
    """The action of a recovery. Truncated bytes are copied to pyrmq/removed, overwritten with zeros, synced and
    reported.
    """

    NOTHING = "the log ends at X"
    CUT_TAIL = "cut what follows X"
    DROP_UNIT = "cut from the unit's first record on"
    REFUSE = "raise CorruptRecordError, nothing is changed; reading is still possible"
    CUT_AS_JAVA = "cut what follows X: a broker would cut here, too"


class Case(NamedTuple):
    """One row; `in_unit` None: applies to either value."""

    name: str
    follows: frozenset[Follows]
    durable: bool
    in_unit: bool | None
    foreign: bool
    action: Action


def _tail(name: str, *follows: Follows, action: Action, in_unit: bool = False) -> Case:
    return Case(name, frozenset(follows), durable=False, in_unit=in_unit, foreign=False, action=action)


def _promised(name: str, *follows: Follows) -> Case:
    return Case(name, frozenset(follows), durable=True, in_unit=None, foreign=False, action=Action.REFUSE)


RECOVERY_TABLE: tuple[Case, ...] = (
    # A clean stop, or a crash between two appends.
    _tail("clean", Follows.ZEROS, action=Action.NOTHING),
    # A crash in the middle of copying a record: nothing behind it was ever complete.
    _tail("torn tail", Follows.GARBAGE, action=Action.CUT_TAIL),
    # A power cut: later pages or files reached the disk before earlier ones. Nothing here was acknowledged under
    # SYNC_FLUSH.
    _tail("hole", Follows.RECORDS, Follows.NO_SEGMENT, action=Action.CUT_TAIL),
    # A power cut in the middle of a unit, whatever of it is there.
    _tail("torn unit", *Follows, in_unit=True, action=Action.DROP_UNIT),
    # The disk lost what fsync had promised.
    _promised("lost durable tail", Follows.ZEROS, Follows.GARBAGE),
    # The disk changed what fsync had promised; good records behind it must not be lost with it.
    _promised("corruption", Follows.RECORDS),
    # Somebody removed a file from the middle.
    _promised("missing segment", Follows.NO_SEGMENT),
    # No durable point, and no units of ours that must be whole: as CommitLog#recoverNormally and #recoverAbnormally.
    Case("foreign", frozenset(Follows), durable=False, in_unit=None, foreign=True, action=Action.CUT_AS_JAVA),
)


def decide(follows: Follows, *, durable: bool, in_unit: bool, foreign: bool) -> Case:
    """The one row that fits. A foreign store has no durable point."""
    assert not (durable and foreign)
    fitting = [
        case
        for case in RECOVERY_TABLE
        if follows in case.follows
        and (case.durable, case.foreign) == (durable, foreign)
        and case.in_unit in (None, in_unit)
    ]
    assert len(fitting) == 1
    return fitting[0]
