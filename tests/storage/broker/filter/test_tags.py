"""Tag expressions, as FilterAPI takes them apart."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rmq_store import UsageError
from rmq_store.broker.filter.tags import TagFilter
from rmq_store.format.text.hashing import java_hash


@pytest.mark.parametrize("expression", [None, "", "  ", "*", " * "])
def test_these_match_everything(expression: str | None) -> None:
    assert TagFilter.parse(expression) is None


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TagA", ("TagA",)),
        ("TagA||TagB", ("TagA", "TagB")),
        ("  TagA  ||  TagB ", ("TagA", "TagB")),
        ("TagA || || TagB ||", ("TagA", "TagB")),
        ("TagA || TagA", ("TagA",)),
        ("TagA | TagB", ("TagA | TagB",)),
        ("标签 || ☕", ("标签", "☕")),
    ],
)
def test_tags_are_separated_by_two_bars_and_trimmed(expression: str, tags: tuple[str, ...]) -> None:
    parsed = TagFilter.parse(expression)
    assert parsed is not None
    assert parsed.tags == tags


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_bars_without_a_tag_are_refused(expression: str) -> None:
    with pytest.raises(UsageError, match="names no tag"):
        TagFilter.parse(expression)


def test_hashes_choose_candidates_and_the_text_decides() -> None:
    parsed = TagFilter.parse("AaAa || TagB")
    assert parsed is not None
    assert java_hash("AaAa") == java_hash("BBBB")
    codes = np.array([java_hash(tag) for tag in ("AaAa", "BBBB", "TagB", "TagC")] + [0], dtype=">i8")
    assert parsed.may_match(codes).tolist() == [True, True, True, False, False]
    texts = pa.array(["AaAa", "BBBB", "TagB", "TagC", None])
    assert parsed.matches(texts).to_pylist() == [True, False, True, False, False]


def test_the_address_of_an_extension_unit_may_be_any_tag() -> None:
    parsed = TagFilter.parse("TagA")
    assert parsed is not None
    assert parsed.may_match(np.array([-(1 << 31) - 1, -(1 << 62), -(1 << 31)])).tolist() == [True, True, False]
