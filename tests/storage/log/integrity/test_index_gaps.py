"""Who looks for a key hears that a file of the index is lost; the messages are there all the same."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from rmq_store import Store
from rmq_store.broker.repair.repair import carry_out, examine
from rmq_store.log.integrity.index_gaps import lost_keys


@pytest.fixture
def indexed(lab: Any) -> Any:
    """120 messages with keys, in some index files."""
    with lab.open() as store:
        store.append(lab.batch(120))
    return lab


def found(store: Store, number: int) -> int:
    topic = ("Alpha", "Beta")[number % 2]
    return len(store.query.by_key(topic, f"K{number}"))


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_lost_index_file_is_told_to_who_looks_for_a_key(
    indexed: Any, which: int, read_only: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with indexed.open(read_only=read_only) as store:
        assert all(found(store, number) == 1 for number in range(120))
    assert "index" not in caplog.text
    sorted((indexed.root / "index").iterdir())[which].unlink()
    with caplog.at_level(logging.WARNING), indexed.open(read_only=read_only) as store:
        assert 0 < sum(found(store, number) for number in range(120)) < 120
    assert caplog.text.count("a file of the index is lost: messages at bytes") == 1
    assert indexed.verify().status == "damaged"
    assert carry_out(examine(indexed.root)).status == "clean"
    caplog.clear()
    with indexed.open() as store:
        assert all(found(store, number) == 1 for number in range(120))
    assert "index" not in caplog.text


def test_records_without_keys_are_in_no_index_file(lab: Any) -> None:
    """Those around a unit."""
    with lab.open() as store:
        store.append(lab.batch(5))
        before = lab.boundaries(0, store.log_range()[1])
        head, first, *_, last, _ = lab.boundaries(*lab.append_unit(store, 5))
        assert lost_keys(store._log, [(first, last), (before[0], before[-1])]) is None
        assert lost_keys(store._log, [(first, last), (before[0], before[-2])]) == (before[-1], first)
        assert lost_keys(store._log, [(last, last), (before[0], before[-1])]) == (first, last)
        assert before[-1] < head < first


def test_what_retention_took_is_no_gap(indexed: Any, caplog: pytest.LogCaptureFixture) -> None:
    min((indexed.root / "commitlog").iterdir()).unlink()
    min((indexed.root / "index").iterdir()).unlink()
    with indexed.open() as store:
        found(store, 119)
    assert not [text for text in caplog.messages if "index" in text]


def test_a_store_whose_records_nobody_vouches_for_may_have_had_no_index(
    lab: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lab.config = replace(lab.config, enabled_append_prop_crc=False)
    with lab.open() as store:
        store.append(lab.batch(120))
    sorted((lab.root / "index").iterdir())[1].unlink()
    with lab.open() as store:
        found(store, 119)
    assert not [text for text in caplog.messages if "index" in text]


def test_a_brokers_gap_is_no_loss(indexed: Any, caplog: pytest.LogCaptureFixture) -> None:
    sorted((indexed.root / "index").iterdir())[1].unlink()
    indexed.broker_was_here()
    with indexed.open() as store:
        found(store, 119)
    assert not [text for text in caplog.messages if "index" in text]
