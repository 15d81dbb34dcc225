"""Send-backs and redrives at brokers that check rights: those of docs/cluster.md are enough, and each is needed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from cluster.test_retry_tools import produced, rows, stored
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.security import Account, Acl
from rmq_store.client import ClientError
from rmq_store.client.cluster_retry.redrive import ClusterDeadLetters
from rmq_store.client.cluster_retry.send_back_task import SendBackReport, SendBackSettings, SendBackTask
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.offsets import queue_ranges
from rmq_store.remoting.transport.settings import ClusterSettings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SECRET = "n0body-reads-this"
TOPIC, GROUP, RECORDS, LEDGER = "Bills", "billing", "PYRMQ_SINK_RECORDS", "PYRMQ_REDRIVEN"
RETRY, DLQ, SCHEDULE, LOCKS = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}", "SCHEDULE_TOPIC_XXXX", f"{GROUP}_rmq_redrive"


def accounts(version: str) -> tuple[Account, ...]:
    """The rights of docs/cluster.md, section 6. A broker of 4.9 checks a producer's group when it sends to a
    retry topic.
    """
    if version.startswith("4."):
        both, reads = "PUB|SUB", "SUB"
        groups = dict.fromkeys(("pulls", "pyspark_rmq"), reads)
        return (
            Account("returner", SECRET, {DLQ: reads, SCHEDULE: reads, RECORDS: both}, {GROUP: reads, **groups}),
            Account("redriver", SECRET, {DLQ: reads, LEDGER: both}, groups),
        )
    both, reads = "PUB|SUB|GET", "SUB|GET"
    back = dict.fromkeys((DLQ, SCHEDULE, "rmq_sys_wheel_timer"), reads) | {RECORDS: both}
    return (
        Account("returner", SECRET, back, dict.fromkeys((GROUP, "pulls"), reads)),
        Account("redriver", SECRET, {DLQ: reads, LEDGER: both}, dict.fromkeys((GROUP, LOCKS, "pulls"), reads)),
    )


def weaker(account: Account) -> Iterator[Account]:
    """The same user without one of its rights, for each of them."""
    for number, lost in enumerate((*account.topics, *account.groups)):
        topics, groups = (
            {name: right for name, right in named.items() if name != lost} for named in (account.topics, account.groups)
        )
        yield Account(f"{account.access_key}-{number}", SECRET, topics, groups)


@pytest.fixture(params=VERSIONS)
def guarded(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    require_released(request.param)
    full = accounts(request.param)
    known = (*full, *(user for account in full for user in weaker(account)))
    with RocketmqCluster(request.param, acl=Acl(accounts=known)) as cluster:
        if not request.param.startswith("4."):
            for account in known:
                cluster.create_account(account)
        for topic in (RETRY, DLQ, RECORDS, LEDGER):
            cluster.create_topic(topic, 1)
        yield cluster


Connect = Callable[[str], Cluster]


@pytest.fixture
def connect(guarded: RocketmqCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Connect as a user."""
    assert guarded.acl is not None
    monkeypatch.setenv("T_SECRET", SECRET)
    monkeypatch.setenv("T_ADMIN", guarded.acl.secret_key)
    connected: list[Cluster] = []

    def connect(user: str) -> Cluster:
        assert guarded.acl is not None
        (tmp_path / user).write_text(user)
        secret = "env:T_ADMIN" if user == guarded.acl.access_key else "env:T_SECRET"
        settings = ClusterSettings(
            name_servers=guarded.name_servers, timeout_ms=5_000, access_key=f"file:{tmp_path}/{user}", secret_key=secret
        )
        connected.append(Cluster(settings))
        return connected[-1]

    yield connect
    for cluster in connected:
        cluster.close()


Failing = Callable[[], pa.RecordBatch]


@pytest.fixture
def fail(guarded: RocketmqCluster, connect: Connect) -> Failing:
    """Make four more failed messages: two to try again, two to give up."""
    administrator, numbers = connect("administrator"), itertools.count(0, 4)

    def fail() -> pa.RecordBatch:
        messages = produced(administrator, guarded, TOPIC, [0, 0, 0, 0], next(numbers))
        return rows(messages, [1, 1, -1, -1], [False, True, True, False])

    return fail


def send_back(cluster: Cluster, failed: pa.RecordBatch, part: str = "back/query") -> SendBackReport:
    settings = SendBackSettings(GROUP, settle_ms=1_200, send_timeout_ms=3_000, pull_group="pulls")
    with SendBackTask(cluster, settings, WritePart(part, 0, 0)) as task:
        task.write(failed)
        return task.finish()


def redrive(cluster: Cluster, dead: list[StoredMessage]) -> list[str]:
    letters = pa.RecordBatch.from_pylist(
        [{"brokerName": "broker-a", "queueId": 0, "queueOffset": one.queue_offset} for one in dead]
    )
    dead_letters = ClusterDeadLetters(cluster, settle_ms=1_200, send_timeout_ms=3_000, pull_group="pulls")
    outcomes: list[str] = dead_letters.redrive(GROUP, letters).column("outcome").to_pylist()
    return outcomes


def test_send_backs_and_redrives_work_with_their_rights_alone(connect: Connect, fail: Failing) -> None:
    administrator = connect("administrator")
    failed = fail()
    assert send_back(connect("returner"), failed) == SendBackReport(4, 0, 0, {})
    assert send_back(connect("returner"), failed) == SendBackReport(0, 4, 0, {})
    assert {one.body for one in stored(administrator, RETRY, 2)} == {b"bill 0", b"bill 1"}
    dead = stored(administrator, DLQ, 2)
    assert redrive(connect("redriver"), dead) == ["REDRIVEN", "REDRIVEN"]
    assert redrive(connect("redriver"), dead) == ["ALREADY_REDRIVEN", "ALREADY_REDRIVEN"]
    assert len(stored(administrator, RETRY, 4)) == 4


def test_each_of_these_rights_is_needed(guarded: RocketmqCluster, connect: Connect, fail: Failing) -> None:
    administrator, dead = connect("administrator"), 2
    send_back(administrator, fail())
    stored(administrator, DLQ, dead)
    returner, redriver = accounts(guarded.version)
    enough = []
    for full in (returner, redriver):
        for user, lost in zip(weaker(full), (*full.topics, *full.groups), strict=True):
            cluster = connect(user.access_key)
            failed = fail()
            if full is redriver:
                send_back(administrator, failed)
                letters = stored(administrator, DLQ, dead + 2)[dead:]
            try:
                if full is returner:
                    for _ in "ab":  # a repetition looks for what the first attempt has sent
                        send_back(cluster, failed, f"back/{user.access_key}")
                else:
                    redrive(cluster, letters)
            except ClientError as error:
                assert re.search("no permission|No default permission", str(error)), error
            else:
                enough.append((full.access_key, lost))
            dead = max(
                one.max_offset for one in queue_ranges(administrator, [MessageQueue(DLQ, "broker-a", 0)]).values()
            )
    assert not enough
