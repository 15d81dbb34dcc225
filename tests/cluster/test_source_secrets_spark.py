"""A stream at brokers that know their users: what rights it needs, and that its secrets are nowhere to be seen."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.security import Account, Acl
from helpers.cluster.waiting import until
from pyspark_rmq import failure
from pyspark_rmq.access import cluster_pool

from ..connector.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
SECRET = "n0body-reads-this"


def reader_of(version: str) -> Account:
    """The rights that a stream of the group "bills" needs: 5.x has one for reading and one for asking."""
    is_old = version.startswith("4.")
    right = "SUB" if is_old else "SUB|GET"
    # 4.9 takes the rights of a group for its retry topic.
    topics = dict.fromkeys(("Orders",) if is_old else ("Orders", "%RETRY%bills"), right)
    return Account("reader-of-bills", SECRET, topics, dict.fromkeys(("bills", "bills_rmq_lease", "pulls"), right))


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) if name[0] == "4" else name for name in VERSIONS])
def guarded(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    require_released(request.param)
    reader = reader_of(request.param)
    with RocketmqCluster(request.param, acl=Acl(accounts=(reader,))) as cluster:
        if not request.param.startswith("4."):
            cluster.create_account(reader)
        yield cluster
        cluster_pool.close_unused()


def test_a_stream_works_with_its_rights_alone_and_shows_no_secret(
    spark: Any, guarded: RocketmqCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    topic = guarded.create_topic("Orders", 1)
    with guarded.connect() as administrator:
        for number in range(5):
            assert requests.send(administrator, topic, body=b"%d" % number).code == 0
        until(lambda: requests.max_offset(administrator, topic) == 5, "the queue ends early")
    for name, text in (("access", "reader-of-bills"), ("secret", SECRET), ("wrong", SECRET[::-1])):
        (tmp_path / name).write_text(text)

    def query(place: Path, secret: str, **options: str) -> Any:
        given = {
            "nameServer": guarded.name_server, "subscribe": topic, "group": "bills", "startingOffsets": "earliest",
            "accessKey": f"file:{tmp_path}/access", "secretKey": f"file:{tmp_path}/{secret}", "pullGroup": "pulls",
        }  # fmt: skip
        frame = spark.readStream.format("rmq").options(**{**given, **options}).load()
        plan = io.StringIO()
        with contextlib.redirect_stdout(plan):
            frame.explain(True)
        seen.append(plan.getvalue())
        writer = frame.writeStream.format("parquet").option("path", str(place / "rows"))
        return writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()

    seen: list[str] = []
    done = query(tmp_path / "good", "secret")
    assert done.awaitTermination(300)
    assert spark.read.parquet(str(tmp_path / "good" / "rows")).count() == 5
    with guarded.connect() as administrator:
        assert requests.committed(administrator, "bills", topic).ext_fields["offset"] == "5"
    seen += [str(done.lastProgress), str(done.status)]
    for refused in (query(tmp_path / "bad", "wrong"), query(tmp_path / "missing", "nothing-is-here")):
        with pytest.raises(Exception) as caught:
            refused.awaitTermination(300)
        error = failure(refused)
        seen += [str(caught.value), repr(caught.value), str(error), repr(error)]
    assert any("ignature" in text for text in seen), "the broker says what is wrong"
    assert any("nothing-is-here" in text for text in seen), "the reference may be shown"
    checkpoints = [path for path in tmp_path.rglob("checkpoint/**/*") if path.is_file()]
    assert checkpoints
    seen += [path.read_bytes().decode(errors="replace") for path in checkpoints]
    seen += [record.getMessage() for record in caplog.records]
    for text in seen:
        assert SECRET not in text and SECRET[::-1] not in text and "Signature=" not in text
