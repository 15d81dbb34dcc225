"""Units of consumequeue_ext. A broker with enableConsumeQueueExt=true keeps the tags codes of its queue entries there.

The queue entry then holds the address of its unit: the unit's byte offset in the units of the queue, minus 2^63.

Source of the layout: ConsumeQueueExt.java. The verifier decodes it itself, without the engine's code.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from functools import lru_cache

from .files import numbered_files
from .records import EXT_ADDRESS_END
from .report import Ledger

UNIT = struct.Struct(">hqqh")  # size, tags code, store ms, size of a bit map behind it
DIRECTORY = "consumequeue_ext"
QUEUES_KEPT = 1024


class ExtUnits:
    """The units of one store."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.has_units = (ledger.root / DIRECTORY).is_dir()
        self.files = lru_cache(QUEUES_KEPT)(self._files)

    def _files(self, queue: str) -> list[int]:
        directory = self.ledger.root / DIRECTORY / queue
        return [int(path.name) for path in numbered_files(directory)] if directory.is_dir() else []

    def tags_code(self, queue_path: str, code: int, store_ms: int) -> int:
        """The tags code of a message stored at `store_ms`, whose entry in the queue `queue_path` has `code`. Returns
        `code` itself if it is no address, or if no unit of this message is there.
        """
        if not self.has_units or code >= EXT_ADDRESS_END:
            return code
        queue, place = queue_path.partition("/")[2], code + (1 << 63)
        bases = self.files(queue)
        number = bisect_right(bases, place) - 1
        if number < 0:
            return code
        data = self.ledger.map(f"{DIRECTORY}/{queue}/{bases[number]:020d}")
        position = place - bases[number]
        if position + UNIT.size > len(data):
            return code
        size, found, unit_ms, bit_map_bytes = UNIT.unpack_from(data, position)
        return found if size == UNIT.size + max(bit_map_bytes, 0) and unit_ms == store_ms else code
