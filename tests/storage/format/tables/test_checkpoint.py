from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import CorruptConfigError
from rmq_store.format.tables.checkpoint import FIELDS, Checkpoint

int64 = st.integers(-(2**63), 2**63 - 1)


@given(st.builds(Checkpoint, *[int64] * 6))
def test_checkpoint_reads_back_from_its_4096_bytes(checkpoint: Checkpoint) -> None:
    raw = checkpoint.pack()
    assert len(raw) == 4096
    assert not any(raw[48:])
    assert Checkpoint.unpack(raw) == checkpoint
    (fields,) = np.frombuffer(raw, FIELDS, 1)
    assert all(fields[name] == getattr(checkpoint, name) for name in FIELDS.names or ())


def test_messages_of_the_last_three_seconds_are_not_counted_on() -> None:
    assert Checkpoint(10_000, 9_000, 20_000).min_timestamp == 6_000
    assert Checkpoint(0, 9_000, 5_000).min_timestamp == 0
    assert Checkpoint().min_timestamp == 0


def test_short_file_is_corrupt_but_the_fields_alone_will_do() -> None:
    assert Checkpoint.unpack(Checkpoint(1, 2, 3, 4, 5, 6).pack()[:48]) == Checkpoint(1, 2, 3, 4, 5, 6)
    with pytest.raises(CorruptConfigError, match="store/checkpoint"):
        Checkpoint.unpack(bytes(47), "store/checkpoint")


def test_file_of_a_broker_comes_back_byte_for_byte(golden: Path, golden_small: Path) -> None:
    for path in (golden / "store" / "checkpoint", golden_small / "normal" / "checkpoint"):
        checkpoint = Checkpoint.unpack(path.read_bytes())
        assert checkpoint.physic_msg_timestamp > 1_700_000_000_000
        assert checkpoint.pack() == path.read_bytes()
