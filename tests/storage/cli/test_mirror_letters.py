"""`rmq mirror dead-letters | redrive` against a real Kafka, and what `rmq dlq` shows of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from helpers.kafka_server import KafkaServer
from helpers.kafka_upstream import produce, produce_in_transactions
from rmq_store import Store, StoreConfig

Run = Callable[..., Result]

CONNECT = [
    ("__connect.errors.topic", b"%s"), ("__connect.errors.partition", b"1"), ("__connect.errors.offset", b"41"),
    ("__connect.errors.connector.name", b"orders-sink"), ("__connect.errors.stage", b"VALUE_CONVERTER"),
    ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    ("__connect.errors.exception.message", b"not JSON"),
    ("__connect.errors.exception.stacktrace", b"DataException: not JSON\n\tat a.B.c(B.java:1)\n"),
]  # fmt: skip
SPRING = [
    ("kafka_dlt-original-topic", b"%s"), ("kafka_dlt-original-partition", b"\0\0\0\1"),
    ("kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException"), ("kafka_dlt-exception-message", b"no stock"),
]  # fmt: skip
OWN = [("trace", b"1"), ("trace", b"\xff"), ("empty", b"")]


def headers(named: list[tuple[str, bytes]], topic: str) -> list[tuple[str, bytes]]:
    return [*OWN, *((name, value.replace(b"%s", topic.encode())) for name, value in named)]


def consumed(kafka: KafkaServer, topic: str) -> list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]]]]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=kafka.address, isolation_level="read_committed")
    places = [TopicPartition(topic, partition) for partition in sorted(consumer.partitions_for_topic(topic))]
    consumer.assign(places)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(places)
    found = []
    while any(consumer.position(place) < ends[place] for place in places):
        for records in consumer.poll(500).values():
            found += [(record.partition, record.key, record.value, list(record.headers)) for record in records]
    consumer.close()
    return found


@pytest.mark.slow
def test_dead_letters_of_kafka_are_shown_and_go_back_once(run: Run, kafka: KafkaServer, scratch: Path) -> None:
    orders = kafka.new_topic("orders", partition_count=2)
    letters = kafka.new_topic("letters")
    produce(kafka, letters, [
        (b"k1", b"not json", headers(CONNECT, orders)), (b"\xff", b"two teas", headers(SPRING, orders)),
        (None, b"of nobody", [("trace", b"3")]),
    ])  # fmt: skip
    produce_in_transactions(kafka, letters, [(False, [(b"k", b"aborted", headers(SPRING, orders))])])
    root = scratch / "store"
    Store.open(root, create=True).close()
    at = ("--bootstrap-servers", kafka.address)

    def mirror(command: str, *arguments: str, expected: int = 0) -> Any:
        result = run("mirror", command, *arguments, *at, "--json", store=root)
        assert result.exit_code == expected, result.output
        return json.loads(result.stdout)

    importing = ("--topics", letters, "--group", "billing", "--cluster-id", "rmq-tests", "--once")
    assert mirror("dead-letters", *importing) == {"imported": {"billing": 3}, "unknown": 1, "refused": 0, "lost": 0}
    assert mirror("dead-letters", *importing)["imported"] == {}

    [listed] = json.loads(run("dlq", "list", "--json", store=root).stdout)
    assert (listed["group"], listed["deadLetters"], listed["topics"]) == ("billing", 3, {orders: 2, "(unknown)": 1})
    shown = run("dlq", "show", "billing", "--reason", "DataException", "--wide", store=root).stdout
    assert f"{orders}:1:41" in shown and "org.apache.kafka.connect.errors.DataException: not JSON" in shown
    assert run("dlq", "export", "billing", "--to", str(scratch / "dead.jsonl"), store=root).exit_code == 0
    exported = [json.loads(line) for line in (scratch / "dead.jsonl").read_text().splitlines()]
    assert [(row["errorMessage"], row["originTopic"]) for row in exported] == [
        ("not JSON", orders), ("no stock", orders), (None, None),
    ]  # fmt: skip
    assert run("dlq", "redrive", "billing", "--yes", "--json", store=root).exit_code == 1

    plan = mirror("redrive", "billing", "--dry-run", expected=1)
    assert (plan["REDRIVEN"], plan["REFUSED"], plan["topics"]) == (2, 1, {orders: 2})
    some = mirror("redrive", "billing", "--topic", orders, "--reason", "IllegalStateException", "--yes")
    assert (some["REDRIVEN"], some["topics"]) == (1, {orders: 1})
    rest = mirror("redrive", "billing", "--to-topic", orders, "--yes")
    assert (rest["REDRIVEN"], rest["ALREADY_REDRIVEN"]) == (2, 1)
    again = mirror("redrive", "billing", "--to-topic", orders, "--yes")
    assert (again["REDRIVEN"], again["ALREADY_REDRIVEN"]) == (0, 3)
    assert sorted(consumed(kafka, orders), key=lambda record: record[2] or b"") == [
        (1, b"k1", b"not json", OWN), (0, None, b"of nobody", [("trace", b"3")]), (1, b"\xff", b"two teas", OWN),
    ]  # fmt: skip
    assert json.loads(run("dlq", "list", "--json", store=root).stdout)[0]["redriven"] == 3


def test_topics_that_letters_may_go_to_are_named_before_anything_else(run: Run, scratch: Path) -> None:
    Store.open(scratch / "store", create=True).close()
    result = run("mirror", "redrive", "billing", "--bootstrap-servers", "localhost:1", "--yes", store=scratch / "store")
    assert result.exit_code != 0
    assert "--dry-run shows which ones they name" in result.output


def test_an_import_needs_one_group_for_all_other_letters(run: Run, scratch: Path) -> None:
    Store.open(scratch / "store", create=True).close()
    arguments = ("--topics", "t", "--group", "a=b", "--cluster-id", "c", "--bootstrap-servers", "localhost:1")
    result = run("mirror", "dead-letters", *arguments, store=scratch / "store")
    assert result.exit_code != 0
    assert "one name without = is needed" in result.output


@pytest.mark.slow
def test_failed_records_return_after_their_delay_and_are_dead_in_the_end(
    run: Run, kafka: KafkaServer, scratch: Path
) -> None:
    """Delays of one second; the consumer fails twice, and one retry is allowed."""
    orders, failed = kafka.new_topic("retried", partition_count=2), kafka.new_topic("failed", partition_count=2)
    root = scratch / "store"
    Store.open(root, create=True, config=StoreConfig(message_delay_level=" ".join(["1s"] * 18))).close()
    produce(kafka, failed, [(b"\xff", b"two teas", OWN)], partition=1)
    options = ("--failed", failed, "--topic", orders, "--cluster-id", "rmq-tests", "--max-attempts", "1", "--once")

    def retry() -> Any:
        result = run("mirror", "retry", "billing", *options, "--bootstrap-servers", kafka.address, "--json", store=root)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    first = retry()
    assert (first["read"], first["returned"]) == ({"waiting": 1, "dead": 0}, {})
    deadline_s = time.monotonic() + 60
    while not retry()["returned"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    [(partition, key, value, named)] = consumed(kafka, orders)
    assert (partition, key, value) == (1, b"\xff", b"two teas")
    assert named == [*OWN, ("rmq.attempts", b"1"), ("rmq.retry-group", b"billing")]
    produce(kafka, failed, [(key, value, named)])  # the consumer fails again, and copies all headers
    assert retry()["dead"] == {f"{orders}-dead-letters": 1}
    [(*_, named)] = consumed(kafka, f"{orders}-dead-letters")
    assert dict(named)["rmq.letter.attempts"] == b"2"
    assert len(consumed(kafka, orders)) == 1

    at = ("--bootstrap-servers", kafka.address, "--topics", f"{orders}-dead-letters", "--cluster-id", "rmq-tests")
    assert run("mirror", "dead-letters", "--group", "billing", *at, "--once", store=root).exit_code == 0
    [letter] = [json.loads(line) for line in run("dlq", "show", "billing", "--json", store=root).stdout.splitlines()]
    assert (letter["reconsumeTimes"], letter["properties"]["KAFKA_LETTER"]) == (2, "rmq")
