"""Writes to brokers that know their users, speak TLS with known clients alone, and have names in a namespace: the
rights that a sink needs, and that its secrets are nowhere to be seen.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.security import Account, Acl, Tls
from helpers.cluster.waiting import until
from pyspark_rmq import failure
from pyspark_rmq.access import cluster_pool
from pyspark_rmq.source import DefaultSource
from rmq_store import Message, SendStatus
from rmq_store.client import Producer
from rmq_store.cluster import ClusterSettings, RemoteBackend, TlsSettings
from rmq_store.errors import StoreError

from ..connector.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]
SECRET = "n0body-reads-this"
NAMESPACE = "shop"
RECORDS = f"{NAMESPACE}%PYRMQ_SINK_RECORDS"
BILLS = f"{NAMESPACE}%Bills"


def writer_of(version: str) -> Account:
    """The rights that docs/cluster.md names for a sink with the replay check."""
    right = "PUB|SUB" if version.startswith("4.") else "PUB|SUB|GET"
    return Account(
        "writer-of-bills", SECRET, dict.fromkeys((BILLS, RECORDS), right), {f"{NAMESPACE}%pulls": right[4:]}
    )


@pytest.fixture(params=VERSIONS)
def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocketmqCluster]:
    require_released(request.param)
    writer = writer_of(request.param)
    acl, tls = Acl(accounts=(writer,)), Tls(tmp_path, client_certificates=True)
    with RocketmqCluster(request.param, acl=acl, tls=tls) as cluster:
        if not request.param.startswith("4."):
            cluster.create_account(writer)
        cluster.create_topic(BILLS, 2)
        cluster.create_topic(RECORDS, 1)
        yield cluster
        cluster_pool.close_unused()


@pytest.fixture
def options(guarded: RocketmqCluster, tmp_path: Path) -> dict[str, str]:
    for name, text in (("access", "writer-of-bills"), ("secret", SECRET), ("wrong", SECRET[::-1])):
        (tmp_path / name).write_text(text)
    assert guarded.tls is not None
    certificate, key = guarded.tls.client_files
    return {
        "nameServer": guarded.name_server, "topic": "Bills", "namespace": NAMESPACE, "pullGroup": "pulls",
        "accessKey": f"file:{tmp_path}/access", "secretKey": f"file:{tmp_path}/secret", "settleTime": "1200ms",
        "tls": "true", "tlsCaFile": str(guarded.tls.ca_file), "tlsCertFile": str(certificate), "tlsKeyFile": str(key),
    }  # fmt: skip


def stored(guarded: RocketmqCluster, count: int) -> Counter[str]:
    """The bodies in Bills, on the wire in its namespace, as soon as there are so many."""
    with guarded.connect() as broker:
        until(
            lambda: sum(requests.max_offset(broker, BILLS, queue_id) for queue_id in (0, 1)) >= count, "too few bills"
        )
        frames = [frame for queue_id in (0, 1) for frame in requests.frames(requests.pull(broker, BILLS, queue_id))]
    return Counter(requests.body_of(frame).decode() for frame in frames)


def shown_by_spark(spark: Any) -> list[str]:
    """What Spark's UI shows of each query, physical plan and all."""
    store = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    return [executions.apply(number).toString() for number in range(executions.size())]


def test_writes_work_with_their_rights_alone_and_show_no_secret(
    spark: Any, guarded: RocketmqCluster, options: dict[str, str], tmp_path: Path,
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    spark.sparkContext.setLogLevel("INFO")
    seen: list[str] = []
    rows = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) AS body")
    try:
        for version, expected in ((1, 10), (1, 10), (2, 20)):
            once = {"txnAppId": "bills", "txnVersion": str(version)}
            rows.write.format("rmq").options(**options, **once).mode("append").save()
            assert stored(guarded, expected) == {str(number): expected // 10 for number in range(10)}

        def stream(place: str, **changed: str) -> Any:
            source = spark.readStream.schema("body string").text(str(tmp_path / "in"))
            writer = source.writeStream.format("rmq").options(**options | changed)
            writer = writer.option("checkpointLocation", str(tmp_path / place / "checkpoint"))
            return writer.trigger(availableNow=True).start()

        rows.write.text(str(tmp_path / "in"))
        done = stream("good")
        assert done.awaitTermination(300)
        assert stored(guarded, 30) == {str(number): 3 for number in range(10)}
        seen += [str(done.lastProgress), str(done.status)]
        refused = [
            stream("with-wrong", secretKey=f"file:{tmp_path}/wrong", sendTimeout="5s"),
            stream("with-none", secretKey=f"file:{tmp_path}/nothing-is-here"),
        ]
        for query in refused:
            with pytest.raises(Exception) as caught:
                query.awaitTermination(300)
            seen += [str(caught.value), repr(caught.value), str(failure(query)), repr(failure(query))]
        assert any("ignature" in text for text in seen), "the broker says what is wrong"
        assert any("nothing-is-here" in text for text in seen), "the reference may be shown"
        with pytest.raises(Exception) as caught:
            given = options | once | {"topic": "Other", "createTopic": "false"}
            rows.write.format("rmq").options(**given).mode("append").save()
        assert "Other" in str(caught.value)
        seen.append(str(caught.value))
    finally:
        spark.sparkContext.setLogLevel("OFF")
    assert stored(guarded, 30).total() == 30
    seen += shown_by_spark(spark)
    assert any("Execution" in text or "plan" in text.lower() for text in seen)
    stream_writer = DefaultSource(dict(options)).streamWriter(rows.schema, False)
    batch_writer = DefaultSource(options | once).writer(rows.schema, False)
    pickled = cloudpickle.dumps([stream_writer, batch_writer])
    assert b"secret" in pickled, "the reference is sent to the tasks"
    seen.append(pickled.decode(errors="replace"))
    checkpoints = [path for path in tmp_path.rglob("checkpoint/**/*") if path.is_file()]
    assert checkpoints
    seen += [path.read_bytes().decode(errors="replace") for path in checkpoints]
    seen += [record.getMessage() for record in caplog.records]
    # The JVM has begun before this test, and writes to what was its standard error then.
    process_id = spark._jvm.java.lang.ProcessHandle.current().pid()
    log = Path(f"/proc/{process_id}/fd/2").read_text(errors="replace")
    assert "INFO" in log, "Spark's own log is looked at"
    written = capfd.readouterr()
    seen += [log, written.out, written.err]
    for text in seen:
        assert SECRET not in text and SECRET[::-1] not in text and "Signature=" not in text


def test_a_producer_works_with_its_rights_alone_and_shows_no_secret(
    guarded: RocketmqCluster, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    tls = TlsSettings(options["tlsCaFile"], options["tlsCertFile"], options["tlsKeyFile"])

    def settings(**changed: Any) -> ClusterSettings:
        given = {"access_key": options["accessKey"], "secret_key": options["secretKey"], "tls": tls} | changed
        return ClusterSettings(name_servers=guarded.name_servers, namespace=NAMESPACE, **given)

    with RemoteBackend(settings()) as backend, Producer("pg", backend) as producer:
        assert producer.send(Message("Bills", b"one")).status is SendStatus.SEND_OK
        producer.send_batch([Message("Bills", b"two"), Message("Bills", b"three")])
        assert stored(guarded, 3) == {"one": 1, "two": 1, "three": 1}
        with pytest.raises(StoreError) as caught:
            producer.send(Message("Other", b"refused"))
    seen = [str(caught.value), repr(caught.value), repr(settings())]
    wrong = settings(secret_key=options["secretKey"].replace("secret", "wrong"))
    for refused in (wrong, settings(access_key="", secret_key=""), settings(tls=TlsSettings(options["tlsCaFile"]))):
        with (
            RemoteBackend(refused) as backend,
            Producer("pg", backend) as producer,
            pytest.raises(StoreError) as caught,
        ):
            producer.send(Message("Bills", b"refused"))
        named = (guarded.address(), guarded.name_server, "broker-a")
        assert any(name in str(caught.value) for name in named), caught.value
        seen += [str(caught.value), repr(caught.value)]
    assert stored(guarded, 3).total() == 3
    seen += [record.getMessage() for record in caplog.records]
    for text in seen:
        assert SECRET not in text and SECRET[::-1] not in text and "Signature=" not in text

