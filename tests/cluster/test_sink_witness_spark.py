"""A Java consumer reads what Spark's sink has sent, field by field; beside it is what a Java producer sends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.witness import Witness
from pyspark_rmq.access import cluster_pool

from ..connector.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]
NewName = Callable[[str], str]

BORN_S = 1_700_000_000.123
PATIENCE_MS = 60_000
MESSAGES: list[dict[str, Any]] = [
    {"body": "plain"},
    {"body": "tagged", "tags": "TagA", "keys": "k1 k2", "flag": 7},
    {"body": "Wörter 消息 \N{GRINNING FACE}", "properties": {"a": "ä=1", "empty-ish": " "}, "flag": -1},
    {"body": "x" * 10_000, "tags": "TagA"},  # Java compresses it.
    {"body": "later", "tags": "TagB", "delayLevel": 2, "properties": {"b": "2"}},
]
COLUMNS = "body string, tags string, keys string, flag int, delayLevel int, properties map<string,string>"
SAME_NAMES = ("topic", "brokerName", "queueId", "queueOffset", "msgId", "tags", "keys", "flag", "reconsumeTimes")
# Each message has its own, or its broker's; the rest must be alike. A broker of 5.x writes INNER_NUM and the like into
# batches only.
OWN = {"UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "WAIT"}


@pytest.fixture(autouse=True)
def _connections_end() -> Iterator[None]:
    yield
    cluster_pool.close_unused()


@pytest.fixture(
    params=[
        pytest.param((own, binary), id=f"client {'alike' if own else 'of the other version'}, {form} headers")
        for own in (True, False)
        for binary, form in ((False, "JSON"), (True, "ROCKETMQ"))
    ]
)  # fmt: skip
def witness(request: pytest.FixtureRequest, cluster: RocketmqCluster) -> Iterator[Witness]:
    own, binary = request.param
    version = cluster.version if own else next(name for name in VERSIONS if name != cluster.version)
    with Witness(cluster, version, has_binary_headers=binary) as witness:
        yield witness


def write(spark: Any, cluster: RocketmqCluster, topic: str, *columns: str, **options: str) -> None:
    names = [field.split()[0] for field in COLUMNS.split(", ")]
    rows = spark.createDataFrame([tuple(message.get(name) for name in names) for message in MESSAGES], COLUMNS)
    writer = rows.coalesce(1).selectExpr("*", *columns).write.format("rmq")
    writer.options(nameServer=cluster.name_server, topic=topic, **options).mode("append").save()


def received(witness: Witness, group: str, topic: str) -> dict[str, dict[str, Any]]:
    """What a Java member of a new group gets, by body."""
    witness.ask("push", group=group, topic=topic)
    found = witness.ask("received", count=len(MESSAGES), timeoutMs=PATIENCE_MS)
    witness.ask("leave")
    assert sorted(one["body"] for one in found) == sorted(message["body"] for message in MESSAGES)
    return {one["body"]: one for one in found}


def test_java_reads_what_the_sink_sends_field_by_field(
    spark: Any, cluster: RocketmqCluster, witness: Witness, new_name: NewName
) -> None:
    ours, theirs = cluster.create_topic(new_name("Ours"), 1), cluster.create_topic(new_name("Theirs"), 1)
    before_ms = time.time() * 1000
    write(spark, cluster, ours, txnAppId=ours, txnVersion="1", settleTime="1200ms")
    witness.ask("send", topic=theirs, messages=MESSAGES)
    found, javas = (received(witness, new_name("cg"), topic) for topic in (ours, theirs))
    rows = spark.read.format("rmq").options(nameServer=cluster.name_server, subscribe=ours).load().collect()
    assert len({row.msgId for row in rows}) == len(rows) == len(MESSAGES)
    for row in rows:
        java = found[row.body.decode()]
        for name in SAME_NAMES:
            assert java[name] == row[name], name
        for name in ("bornTimestamp", "storeTimestamp"):
            assert java[name] == round(row[name].timestamp() * 1000), name
        assert java["bornHost"] == row.bornHost.split(":")[0]
    for message in MESSAGES:
        one, other = found[message["body"]], javas[message["body"]]
        assert (one["tags"], one["keys"]) == (message.get("tags"), message.get("keys"))
        assert one["flag"] == message.get("flag", 0) == other["flag"]
        assert one["reconsumeTimes"] == other["reconsumeTimes"] == 0
        assert one["properties"]["UNIQ_KEY"] == one["msgId"] and len(one["msgId"]) == 32
        assert before_ms - 1 <= one["bornTimestamp"] <= time.time() * 1000
        same = [
            {name: value for name, value in seen["properties"].items() if name not in OWN and "TOPIC" not in name}
            for seen in (one, other)
        ]
        assert same[0] == same[1]
        assert message.get("properties", {}).items() <= same[0].items()
    later = found["later"]
    assert later["storeTimestamp"] - later["bornTimestamp"] >= 4_900


def test_java_reads_the_born_time_and_the_queue_that_a_row_asks_for(
    spark: Any, cluster: RocketmqCluster, witness: Witness, new_name: NewName
) -> None:
    topic = cluster.create_topic(new_name("Placed"), 3)
    columns = (f"timestamp_millis({round(BORN_S * 1000)}L) AS bornTimestamp", "length(tags) % 2 + 1 AS queueId")
    write(spark, cluster, topic, *columns, useQueueId="true", replayCheck="false")
    found = received(witness, new_name("cg"), topic)
    assert {one["bornTimestamp"] for one in found.values()} == {round(BORN_S * 1000)}
    placed = {body: one["queueId"] for body, one in found.items() if body in ("tagged", "later")}
    assert placed == {"tagged": 1, "later": 1}
