"""Whether others have the store open, and where its log ends for them.

Source of the locks: DefaultMessageStore#start, docs/design.md section 9.
"""

from __future__ import annotations

import time
from pathlib import Path

from rmq_store.files.lock import LockKind, OfdLock

from .known import is_ours, log_end

# How long an opener that recovers, or a repair, is waited for: it has the store for itself, and changes every part.
SETTLE_S = 5.0
LOOK_AGAIN_S = 0.02


def lock_use(root: Path) -> LockKind:
    """How byte 0 of `lock` is held: shared by writers of ours, exclusively by a broker, an opener or a repair."""
    try:
        return OfdLock(root / "lock").who().kind
    except OSError:  # no regular file, or a file system without locks
        return "free"


def settled_end(root: Path) -> int | None:
    """As `log_end`, when nobody has a store of ours for himself any more; and as long as a writer has it open, when he
    has said where its log ends.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        end, use = log_end(root), lock_use(root)
        is_settled = use == "free" or (use == "shared" and end is not None) or not is_ours(root)
        if is_settled or time.monotonic() > deadline:
            return end
        time.sleep(LOOK_AGAIN_S)
