"""A long read is cut into requests for its parts: none is lost, none is twice, and what was asked stays asked."""

from __future__ import annotations

import numpy as np
import pytest

from rmq_store import UsageError
from rmq_store.broker.read.read_request import ReadRequest


def offsets(parts: list[ReadRequest]) -> list[list[int]]:
    return [part.queue_offsets().tolist() for part in parts]


def test_the_parts_of_a_range_are_the_range() -> None:
    request = ReadRequest("T", 3, 10, 17, ["body"], "A || B", raw_body=True, two_threads=True)
    parts = list(request.parts(3))
    assert offsets(parts) == [[10, 11, 12], [13, 14, 15], [16]]
    for part in parts:
        assert (part.topic, part.queue_id, part.columns, part.tags, part.raw_body) == ("T", 3, ["body"], "A || B", True)
        assert part.two_threads
        assert not part.skip_lost
        assert part.tag_filter is not None
        assert part.tag_filter.tags == ("A", "B")
    assert list(ReadRequest("T", 0, 5, 5).parts(3)) == []


def test_of_single_messages_those_outside_the_range_are_left_out() -> None:
    request = ReadRequest("T", 0, 10, 17, only=np.array([2, 10, 12, 13, 16, 17, 40]))
    assert request.queue_offsets().tolist() == [10, 12, 13, 16]
    assert offsets(list(request.parts(3))) == [[10, 12, 13], [16]]
    assert list(ReadRequest("T", 0, 10, 17, only=np.array([2, 40])).parts(3)) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"columns": ["body", "boody"]}, "unknown column 'boody'"),
        ({"tags": " || "}, "names no tag"),
        ({"only": np.array([3, 3])}, "ascending queue offsets"),
        ({"only": np.array([[1, 2]])}, "ascending queue offsets"),
        ({"only": np.array([1.0, 2.0])}, "ascending queue offsets"),
    ],
)
def test_a_request_that_cannot_be_met_is_none(changes: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        ReadRequest("T", 0, 0, 10, **changes)  # type: ignore[arg-type]
