"""What the extension reads of frames for queues and index, beside its twin in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import CorruptRecordError
from rmq_store.format.bytes import native
from rmq_store.format.frames import frame_dispatch
from rmq_store.format.frames.frame_dispatch import DispatchColumns, dispatch_columns

from .test_frame_decoder import BASE, LEVELS_MS, Segment, messages

pytestmark = pytest.mark.skipif(not native.LOADED, reason="the extension is not built")


def columns(segment: Segment, *, index_tags: bool = True, loaded: bool = True) -> DispatchColumns:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LOADED", loaded)
        return dispatch_columns(
            pa.py_buffer(segment.data), np.array(segment.positions), np.array(segment.sizes, np.int32), BASE, LEVELS_MS,
            index_tags=index_tags,
        )  # fmt: skip


def shown(found: DispatchColumns) -> dict[str, Any]:
    arrays = {name: value.tolist() for name, value in vars(found).items() if isinstance(value, np.ndarray)}
    return {"topic": found.topic.to_pylist(), "names": found.topic.dictionary.to_pylist(), **arrays}


def is_native(segment: Segment) -> bool:
    """Whether the extension answers for these frames."""
    buffer, positions = pa.py_buffer(segment.data), np.array(segment.positions)
    sizes = np.array(segment.sizes, np.int32)
    return frame_dispatch._natively(buffer, positions, sizes, BASE, index_tags=True) is not None


TEXT = st.text(st.sampled_from("ab# \u00e9\u4e2d\U0001f600"), max_size=6)
PIECE = st.tuples(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "UNIQ_KEYS", "x"]), TEXT)


@given(st.lists(st.tuples(messages(), st.lists(PIECE, max_size=8), st.booleans()), max_size=8), st.booleans())
def test_both_read_the_same(rows: list[tuple[dict[str, Any], list[tuple[str, str]], bool]], index_tags: bool) -> None:
    fields = []
    for message, pieces, is_ended in rows:
        text = "\x02".join(f"{name}\x01{value}" for name, value in pieces) + "\x02" * is_ended
        fields.append(message | {"properties": text.encode()} if pieces else message)
    segment = Segment(fields)
    assert shown(columns(segment, index_tags=index_tags)) == shown(
        columns(segment, index_tags=index_tags, loaded=False)
    )


def test_several_topics_of_one_length_and_a_batch_with_two_unique_keys() -> None:
    twice = b"UNIQ_KEY\x01own\x02KEYS\x01k  k2\x02UNIQ_KEY\x01batch\x02"
    segment = Segment([{"topic": f"T{number % 3}", "properties": twice} for number in range(7)])
    assert is_native(segment)
    assert shown(columns(segment)) == shown(columns(segment, loaded=False))
    assert columns(segment).topic.dictionary.to_pylist() == ["T0", "T1", "T2"]


def test_more_keys_than_expected() -> None:
    segment = Segment([{"properties": b"KEYS\x01" + b" ".join(b"%d" % key for key in range(50)) + b"\x02"}])
    assert is_native(segment)
    assert shown(columns(segment)) == shown(columns(segment, loaded=False))
    assert columns(segment).key_counts.tolist() == [50]


@pytest.mark.parametrize(
    "rows",
    [
        [{"topic": f"T{number}"} for number in range(257)],
        [{"properties": b"".join(b"n%d\x01v\x02" % number for number in range(65)) + b"TAGS\x01a\x02"}],
    ],
    ids=["topics", "properties"],
)
def test_what_is_not_usual_is_left_to_python(rows: list[dict[str, Any]]) -> None:
    segment = Segment(rows)
    assert not is_native(segment)
    assert shown(columns(segment)) == shown(columns(segment, loaded=False))


def test_properties_that_are_no_text_are_read_as_python_reads_them() -> None:
    segment = Segment([{"properties": b"TAGS\x01\xff\xfe\x02"}])
    assert not is_native(segment)
    assert shown(columns(segment)) == shown(columns(segment, loaded=False))


def test_a_frame_that_is_none_is_refused_with_its_place() -> None:
    segment = Segment([{}, {}])
    segment.sizes[1] -= 1
    with pytest.raises(CorruptRecordError) as refused:
        columns(segment)
    assert refused.value.offset == BASE + segment.positions[1]


@pytest.mark.parametrize("name", ["positions", "codes", "topic_starts"])
def test_arrays_of_another_size_or_kind_are_refused(name: str) -> None:
    narrow, wide, places = np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros(256, np.int64)
    given: dict[str, Any] = {
        "data": np.zeros(8, np.uint8), "positions": wide, "sizes": wide, "base": 0, "tags": True, "codes": narrow,
        "queue_ids": narrow, "queue_offsets": wide, "tags_codes": wide, "timestamps": wide,
        "dispatchable": np.zeros(2, np.bool_), "key_counts": narrow, "key_hashes": narrow, "topic_starts": places,
        "topic_sizes": places,
    }  # fmt: skip
    given[name] = given[name][:1].copy()
    with pytest.raises(ValueError, match="expected"):
        native.functions.dispatch_frames(*given.values())
