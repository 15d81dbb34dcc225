"""The restore ledger names the archived dead letters that were restored. So a restore can resume, and a repetition is
harmless.

The records are those of a redrive (`redrive_ledger`), in a topic of their own, and name the records themselves as well:

    {"group": "<store>/<group>", "moved": {"<queue id>": [[start, end], ...]}, "digests": {"<queue id>": "<hex>"}}

After a store was rolled back, other dead letters get the same offsets: only the digests, 16 hex digits for each, tell
them apart. A record without digests is refused: development versions wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.broker.dlq.redrive_ledger import OffsetRanges, RedriveLedger
from rmq_store.errors import development_version
from rmq_store.format.bytes.gather import value_bytes
from rmq_store.format.text.host import Host
from rmq_store.format.text.names import SYSTEM_PREFIX
from rmq_store.log.core.commit_log import CommitLog

Int64 = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]

RESTORED_TOPIC: Final = f"{SYSTEM_PREFIX}pyrmq_restored"

ROW_BYTES_MAX: Final = 96
"""The most bytes of a record for each dead letter that it names: a range and a digest, as text."""

_DIGEST = np.dtype(">u8")


class _Unit(NamedTuple):
    """Dead letters of a queue that one unit restored: their offsets lie in [start, end)."""

    start: int
    end: int
    digests: Digests


def digests_of(frames: pa.BinaryArray) -> Digests:
    """A digest of each record's bytes in the log, (n,): equal only for equal bytes."""
    offsets, data = value_bytes(frames)
    cuts, view = offsets.tolist(), data.data
    found = (blake2b(view[cuts[i] : cuts[i + 1]], digest_size=_DIGEST.itemsize).digest() for i in range(len(frames)))
    return np.frombuffer(b"".join(found), _DIGEST).astype(np.uint64)


class RestoreLedger(RedriveLedger):
    """Looks up dead letters that any process has restored to the store of `log` until now. Safe for threads and
    processes.
    """

    def __init__(self, log: CommitLog) -> None:
        super().__init__(log, topic=RESTORED_TOPIC)
        self._units: dict[tuple[str, int], list[_Unit]] = {}

    def contains(self, key: str, queue_id: int, offsets: Int64, digests: Digests) -> npt.NDArray[np.bool_]:
        """True for dead letters of an archived queue that were restored; bool (n,). CorruptionError: a record of the
        ledger is damaged.
        """
        self.read_on()
        found = np.zeros(len(offsets), np.bool_)
        if not len(offsets):
            return found
        first, last = int(offsets.min()), int(offsets.max())
        units = list(self._units.get((key, queue_id), ()))
        for unit in units:
            if unit.start <= last and first < unit.end:
                found |= np.isin(digests, unit.digests)
        return found

    def restored(self, key: str, queue_id: int, offsets: Int64, digests: Digests, host: Host) -> pa.RecordBatch:
        """The record (one row of ENCODED_SCHEMA) that names the restored dead letters of a unit; offsets ascending."""
        content = {
            "group": key,
            "moved": {str(queue_id): OffsetRanges.of(offsets).pairs()},
            "digests": {str(queue_id): digests.astype(_DIGEST).tobytes().hex()},
        }
        return self._encode(content, host)

    def _add(self, content: Mapping[str, Any]) -> None:
        if "digests" not in content:
            raise development_version(
                self._log.root, f"a record of {RESTORED_TOPIC} without `digests`", "restore into another store"
            )
        key, moved = content["group"], content["moved"]
        for queue_id, digests in content["digests"].items():
            ranges = np.array(moved[queue_id], np.int64).reshape(-1, 2)
            unit = _Unit(
                int(ranges.min()), int(ranges.max()), np.frombuffer(bytes.fromhex(digests), _DIGEST).astype(np.uint64)
            )
            self._units.setdefault((key, int(queue_id)), []).append(unit)
