"""A store into the real Kafka: what arrives, once, in its order, and where the mirror goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_mirrors import catch_up, committed_rows, fill, headers, mirror_of, values
from kafka_server import KafkaServer
from rmq_store import Store

TOPIC = "Orders"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", create=True) as opened:
        opened.create_topic(TOPIC, queue_count=2)
        yield opened


@pytest.fixture
def target(request: pytest.FixtureRequest) -> str:
    """A mirror's name that no test had before; its topic is renamed to this."""
    return request.node.name[:50].replace("[", "-").replace("]", "")


def test_messages_arrive_in_their_partitions_and_in_order(kafka: KafkaServer, store: Store, target: str) -> None:
    store.create_topic(target, queue_count=2)
    fill(store, target, [b"a%d" % number for number in range(50)], 0, keys="k 1", tags="T", properties={"user": "x"})
    fill(store, target, [b"b%d" % number for number in range(50)], 1, sharding_key="s")
    with mirror_of(kafka, store, "plain", [target]) as (mirror, _):
        catch_up(mirror)
        assert mirror.lag() == 0
        assert mirror.counts.copied == 100
    rows = committed_rows(kafka, target, 0)
    assert [row["value"] for row in rows] == [b"a%d" % number for number in range(50)]
    assert values(kafka, target, 1) == [b"b%d" % number for number in range(50)]
    assert headers(rows[7])["user"] == b"x"
