"""docs/cluster.md says of each option whether it is the same over a cluster."""

from __future__ import annotations

import pytest

from cluster_page import PAGE, page_with_table
from pyspark_rmq.options.option_table import OPTIONS, Option


def test_the_page_has_a_row_for_each_option() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_with_table(page) == page, "python tests/cluster_page.py writes the table"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_says_what_it_is_with_a_cluster(option: Option) -> None:
    verdict, _, sentence = option.cluster.partition(": ")
    assert verdict in ("same", "only", "differs", "refused")
    assert bool(sentence) is (verdict in ("differs", "refused"))
