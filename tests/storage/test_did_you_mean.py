"""The error about an unknown name ends with the known name that is most like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig, UnknownTopicError
from rmq_store.errors import did_you_mean, nearest


def test_the_nearest_name_in_any_case() -> None:
    assert did_you_mean("ordertopc", ["Bills", "OrderTopic"]) == "; did you mean 'OrderTopic'?"
    assert did_you_mean("x", ["OrderTopic"]) == did_you_mean("x", []) == ""
    assert nearest("OFFSET", ["queueOffset"]) == "queueOffset"


def test_an_error_among_very_many_names_is_not_slow() -> None:
    compared: list[int] = []

    def names() -> object:
        for number in range(1_000_000):
            compared.append(number)
            yield f"name-{number}"

    did_you_mean("other", names())  # type: ignore[arg-type]
    assert len(compared) <= 5001


def test_a_store_names_the_nearest_topic_to_readers_and_writers(tmp_path: Path) -> None:
    config = StoreConfig(auto_create_topic_enable=False)
    with Store.open(tmp_path / "store", create=True, config=config) as store:
        store.create_topic("Orders", 1)
        for call in (store.topic, store.queue_ranges):
            with pytest.raises(UnknownTopicError, match=r"no topic 'Ordres' in .*; did you mean 'Orders'\?$"):
                call("Ordres")
        with pytest.raises(UnknownTopicError, match=r"; did you mean 'Orders'\?$"):
            store.send(Message("Ordres", b"x"))
