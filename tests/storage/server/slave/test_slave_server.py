"""A slave that follows a master in memory, asked on the wire: it serves reads, refuses the rest, keeps offsets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from helpers.cluster import requests
from helpers.cluster.asking import Connection
from helpers.cluster.waiting import until
from rmq_store import Store, UsageError
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.errors import ReplicaDivergedError, StoreLockedError
from rmq_store.protocol.bodies.routes import ClusterInfo, TopicRouteData
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.wire.request_codes import RequestCode
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica import follow
from rmq_store.replica.follow import Follower
from rmq_store.replica.master import LogEnds, Master
from rmq_store.server.name_server.name_server import NameServer
from rmq_store.server.slave.slave_server import SlaveServer
from storage.replica.conftest import CONFIG, fill
from storage.replica.fake_master import offsets
from storage.replica.ha_master import FollowedMaster, HAMaster

GROUP = "billing"  # which the master has


class Pair:
    """A master of 60 messages, and its slave."""

    def __init__(self, directory: Path, **given: Any) -> None:
        self.root = directory / "slave"
        self.store = Store.open(directory / "master", create=True, config=CONFIG)
        self.store.create_topic("Orders", queue_count=2)
        fill(self.store, 60)
        self.ha = HAMaster(self.store)
        self.master = FollowedMaster.of(self.ha, CONFIG)
        self.master.bodies[RequestCode.UPDATE_CONSUMER_OFFSET] = b""
        self.slave = SlaveServer(
            self.root, cast(Master, self.master), should_stop=lambda seconds: bool(time.sleep(seconds)), **given
        )
        end = self.store.log_range()[1]
        until(lambda: self.slave.store.log_range()[1] == end, "the slave has not come to the end")
        until(lambda: (self.root / "config" / "consumerOffset.json").exists(), "the slave has no offsets")

    def away(self) -> None:
        """The master does not answer any more."""
        self.ha.close()
        self.master.lost |= {*self.master.bodies, 28}

    def close(self) -> None:
        self.slave.close()
        if not self.ha._closed.is_set():
            self.ha.close()
        self.store.close()


@pytest.fixture
def make(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Pair]]:
    monkeypatch.setattr(follow, "WAIT_S", 0.02)
    monkeypatch.setattr(follow, "METADATA_S", 0.1)
    made: list[Pair] = []

    def pair(**given: Any) -> Pair:
        made.append(Pair(scratch, **given))
        return made[-1]

    yield pair
    for each in made:
        each.close()


@pytest.fixture
def pair(make: Callable[..., Pair]) -> Pair:
    return make()


@pytest.fixture
def asked(pair: Pair) -> Iterator[Connection]:
    with Connection(pair.slave.address) as connection:
        yield connection


def test_reads_are_served_as_the_master_has_them(pair: Pair, asked: Connection) -> None:
    answer = requests.pull(asked, "Orders", 1, 28)
    assert (answer.code, answer.ext_fields["minOffset"], answer.ext_fields["maxOffset"]) == (0, "0", "30")
    assert requests.frames(answer) == [
        pair.store.frame_at(int(entry["commit_log_offset"])) for entry in pair.store.queue_entries("Orders", 1, 28, 30)
    ]
    assert requests.max_offset(asked, "Orders") == 30
    assert requests.query(asked, "Orders", "k59").code == 0
    assert requests.committed(asked, GROUP, "Orders").ext_fields["offset"] == "1"
    assert requests.heartbeat(asked, "client@1", GROUP, "Orders").code == 0
    assert json.loads(asked.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}).body)
    assert requests.lock(asked, GROUP, "client@1", "Orders", 0)
    settings = asked.ask(RequestCode.GET_BROKER_CONFIG).body.decode().splitlines()
    assert {"brokerId=1", "brokerRole=SLAVE", "slaveReadEnable=true"} <= set(settings)


def test_an_offset_that_the_slave_does_not_have_is_asked_for_again(asked: Connection) -> None:
    """The master answers 21 there, which moves the group."""
    for offset in 31, 500:
        answer = requests.pull(asked, "Orders", 0, offset)
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, str(offset))
    assert requests.pull(asked, "Orders", 0, 30).code == ResponseCode.PULL_NOT_FOUND


def test_a_pull_waits_for_what_comes_from_the_master(pair: Pair, asked: Connection) -> None:
    fields = requests.pull_fields("Orders", 0, 30, sys_flag=2 | 4, suspend_ms=20_000)
    waits = asked.send(RequestCode.PULL_MESSAGE, fields)
    fill(pair.store, 1)
    assert len(requests.frames(asked.answer(waits))) == 1


def test_what_only_a_master_does_is_refused(pair: Pair, asked: Connection) -> None:
    before = pair.slave.store.log_range()
    for code in RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE:
        assert asked.ask(code, {"topic": "Orders"}).code == ResponseCode.SERVICE_NOT_AVAILABLE
    for code in RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE:
        assert asked.ask(code, {"group": GROUP}).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert asked.ask(RequestCode.END_TRANSACTION, {}).code == ResponseCode.SLAVE_NOT_AVAILABLE
    for code in RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.CLEAN_UNUSED_TOPIC:
        assert asked.ask(code, {"topic": "Orders"}).code == ResponseCode.NO_PERMISSION
    new = {"topic": "New", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    answer = asked.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**new, "defaultTopic": "TBW102", "topicSysFlag": 0})
    assert answer.code == ResponseCode.NO_PERMISSION
    assert requests.heartbeat(asked, "client@1", "unknown_group", "Orders").code == 0
    assert pair.slave.store.log_range() == before
    assert set(pair.slave.store.groups()) == {GROUP}
    assert "%RETRY%unknown_group" not in pair.slave.store.topics()


def test_without_reads_every_pull_is_refused(make: Callable[..., Pair]) -> None:
    pair = make(reads=False)
    with Connection(pair.slave.address) as asked:
        assert requests.pull(asked, "Orders").code == ResponseCode.SYSTEM_BUSY
        assert requests.max_offset(asked, "Orders") == 30
        assert "slaveReadEnable=false" in asked.ask(RequestCode.GET_BROKER_CONFIG).body.decode()


def test_offsets_of_groups_outlive_the_return_of_the_master(pair: Pair, asked: Connection) -> None:
    pair.away()
    assert requests.commit(asked, GROUP, "Orders", 9).code == 0
    assert requests.committed(asked, GROUP, "Orders").ext_fields["offset"] == "9"
    sent: list[int] = []
    ask = pair.master.ask
    pair.master.ask = lambda command: (sent.append(command.code), ask(command))[1]  # type: ignore[method-assign]
    pair.ha = HAMaster(pair.store)
    pair.master.ha = pair.ha
    pair.master.lost.clear()
    until(lambda: RequestCode.UPDATE_CONSUMER_OFFSET in sent, "the offset has not gone up")
    pair.master.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET] = offsets(billing={0: 11})
    until(lambda: OffsetTable(pair.root).committed(GROUP) == {("Orders", 0): 11}, "the master's does not count")


@pytest.mark.statement("G20")
def test_it_serves_while_its_master_is_away_from_the_start(make: Callable[..., Pair]) -> None:
    pair = make()
    pair.away()
    pair.slave.close()
    again = SlaveServer(pair.root, cast(Master, pair.master), should_stop=lambda seconds: bool(time.sleep(seconds)))
    with again, Connection(again.address) as asked:
        assert len(requests.frames(requests.pull(asked, "Orders", 0, 0))) == 30
        cluster = Cluster(ClusterSettings.of_text(again.address))  # as a name server, too
        route = TopicRouteData.decode(asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Orders"}).body)
        assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911", 1: again.address}
        cluster.close()


def test_a_name_server_has_it_beside_its_master(make: Callable[..., Pair]) -> None:
    with NameServer() as name_server:
        pair = make(name_servers=name_server.address, broker_id=2)
        with Connection(name_server.address) as asked:
            known = ClusterInfo.decode(asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
            assert known.broker_addr_table["broker-a"].broker_addrs == {2: pair.slave.address}
            pair.slave.close()
            known = ClusterInfo.decode(asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
            assert not known.broker_addr_table


def test_what_cannot_begin_says_why(make: Callable[..., Pair], scratch: Path) -> None:
    pair, stop = make(), threading.Event()
    with pytest.raises(UsageError, match="broker id 0"):
        SlaveServer(scratch / "other", cast(Master, pair.master), broker_id=0, should_stop=stop.wait)
    with pytest.raises(StoreLockedError, match="one feeder"):
        SlaveServer(pair.root, cast(Master, pair.master), should_stop=stop.wait)
    stop.set()
    pair.master.lost.add(28)
    away = FollowedMaster.of(pair.ha, CONFIG)
    away.ends = LogEnds(0, 0)
    with pytest.raises(InterruptedError, match="before the master had answered"):
        SlaveServer(scratch / "other", cast(Master, pair.master), should_stop=lambda seconds: True)


def test_a_feed_that_ends_is_told_and_reads_go_on(pair: Pair, asked: Connection) -> None:
    pair.slave.check()
    pair.away()
    pair.master.lost.clear()
    pair.master.ends = LogEnds(0, 100)

    def has_ended() -> bool:
        try:
            pair.slave.check()
        except ReplicaDivergedError:
            return True
        return False

    until(has_ended, "nobody has noticed that the logs part")
    assert len(requests.frames(requests.pull(asked, "Orders", 0, 0))) == 30


def test_it_reports_what_is_on_disk(pair: Pair) -> None:
    until(lambda: pair.ha.acknowledged == pair.store.log_range()[1], "the master is not told of it")
    assert isinstance(pair.slave._feeding.follower, Follower)
