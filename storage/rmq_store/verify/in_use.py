"""Whether others have the store open, and where its log ends for them.

Source of the locks: DefaultMessageStore#start, docs/design.md section 9. The verifier queries the locks itself, without
the engine's code.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path
from typing import Literal

from rmq_store import real_time

from .known import is_ours, log_end

LockUse = Literal["free", "shared", "exclusive"]

# How long an opener that recovers, or a repair, is waited for: it has the store for itself, and changes every part.
SETTLE_S = 5.0
LOOK_AGAIN_S = 0.02

FLOCK = struct.Struct("@hhqqi4x")  # l_type, l_whence, l_start, l_len, l_pid of 64-bit Linux


def lock_use(root: Path) -> LockUse:
    """How byte 0 of `lock` is held: shared by writers of this engine; exclusively by a broker, opener or repair."""
    try:
        fd = os.open(root / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return "free"
    try:
        if _is_refused(fd, fcntl.F_RDLCK):
            return "exclusive"
        return "shared" if _is_refused(fd, fcntl.F_WRLCK) else "free"
    except OSError:  # a file system without locks
        return "free"
    finally:
        os.close(fd)


def _is_refused(fd: int, kind: int) -> bool:
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0))
    return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def settled_end(root: Path) -> int | None:
    """`log_end`, after a wait of at most 5 s until the store has settled. A store of this engine has settled when
    nobody holds it exclusively, and an open writer has published the log's end. A broker's store is not waited for.
    """
    deadline = real_time.monotonic() + SETTLE_S
    while True:
        end, use = log_end(root), lock_use(root)
        is_settled = use == "free" or (use == "shared" and end is not None) or not is_ours(root)
        if is_settled or real_time.monotonic() > deadline:
            return end
        time.sleep(LOOK_AGAIN_S)
