"""Ways in which the extension takes CRCs (native/crc.c), for tests that must hold in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rmq_store.format.bytes import native


@contextmanager
def crc_way(way: int) -> Iterator[None]:
    """For a block: 0 by tables, 1 and 2 by instructions of some processors."""
    try:
        if native.functions.crc_way(way) != way:
            pytest.skip("this processor does not have it")
        yield
    finally:
        native.functions.crc_way(2)
