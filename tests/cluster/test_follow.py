"""A replica of a released master beside the files of that master and of its Java slave, while clients of both write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.followed.equality import same_files, same_queues
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.waiting import until
from helpers.cluster.witness import Witness
from rmq_store import Store
from rmq_store.client import Message, Producer, ProducerConfig
from rmq_store.protocol.errors import RemotingError
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.follow import Follower, Progress
from rmq_store.replica.ha_connection import HAConnection
from rmq_store.replica.master import Master
from rmq_store.verify import verify_store

SEGMENT_BYTES = 1 << 20
FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE = 12, 11

NewName = Callable[[str], str]


@pytest.fixture(scope="module", params=VERSIONS)
def small_cluster(request: pytest.FixtureRequest) -> Iterator[RocketmqCluster]:
    """With a slave, and segments that roll soon."""
    require_released(request.param)
    sizes = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "mappedFileSizeConsumeQueue": 20 * 1000}
    with RocketmqCluster(request.param, slaves=1, properties=sizes) as cluster:
        yield cluster


def master_of(cluster: RocketmqCluster) -> Master:
    return Master(ClusterSettings(name_servers=cluster.name_servers, timeout_ms=10_000), broker="broker-a")


def once(root: Path, cluster: RocketmqCluster, **given: Any) -> Progress:
    with master_of(cluster) as master:
        given.setdefault("should_stop", lambda seconds: bool(time.sleep(seconds)))
        return Follower(root, master, **given).run(once=True)


class Following:
    """A follower in a thread, for a `with` block."""

    def __init__(self, root: Path, cluster: RocketmqCluster) -> None:
        self._stop = threading.Event()
        self._master = master_of(cluster)
        self.follower = Follower(root, self._master, should_stop=self._stop.wait)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.follower.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Following:
        self._thread.start()
        return self

    def caught_up(self, end: int) -> None:
        until(lambda: self.error is not None or self.follower.progress.end >= end, "the replica does not catch up")
        assert self.error is None, self.error

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._master.close()
        if self.error is not None:
            raise self.error


def write_all_kinds(cluster: RocketmqCluster, topic: str, rounds: int) -> None:
    """Java's client and ours send: single messages, batches, compressed and delayed ones, and halves."""
    config = ProducerConfig(compress_msg_body_over_howmuch=1000, send_msg_timeout=30_000)
    with (
        Witness(cluster) as java,
        Producer("p", f"rmq://{cluster.name_server}", config) as producer,
        cluster.connect() as broker,
    ):
        java.ask("begin", topic=topic, everyMs=2)
        for number in range(1, rounds + 1):
            producer.send(Message(topic, b"%d" % number + b"x" * 8000, tags=f"T{number % 3}", keys=f"k{number}"))
            properties = {"KEYS": f"b{number}", "TAGS": "T1"}
            requests.send_batch(broker, topic, [b"%d" % each * 150 for each in range(100)], properties=properties)
            requests.send(broker, topic, body=b"later", properties={"DELAY": "1"})
            half = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": f"{number:032d}"}
            requests.send(broker, topic, body=b"half", properties=half, sys_flag=4)
        java.ask("end")


def test_a_replica_has_the_bytes_and_the_entries_of_its_master(
    small_cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    cluster, topic = small_cluster, small_cluster.create_topic(new_name("Orders"), 4, on_slaves=True)
    root, master_store = tmp_path / "replica", cluster.broker().directory / "store"
    write_all_kinds(cluster, topic, 20)
    first = once(root, cluster)
    assert first.behind_bytes == 0
    same_files(root, master_store, 0, first.end, SEGMENT_BYTES)
    with Following(root, cluster) as following:
        write_all_kinds(cluster, topic, 120)
        time.sleep(2)  # delayed messages become due
        with master_of(cluster) as master:
            end = master.log_end()
        following.caught_up(end)
        with Store.open(root, read_only=True) as reader:
            assert reader.log_range()[1] >= end
            with cluster.connect() as broker:
                ends = {queue: requests.max_offset(broker, topic, queue) for queue in range(4)}
            assert {queue: reader.queue_range(topic, queue).max_offset for queue in range(4)} == ends
    with Store.open(root, read_only=True) as replica, cluster.connect() as broker:
        end = replica.log_range()[1]
        assert end > 3 * SEGMENT_BYTES
        for key in ("k1", "k17", "b3"):
            found = requests.records(bytes(requests.query(broker, topic, key).body))
            assert len(replica.query.by_key(topic, key)) == len(list(found)) > 0
    same_files(root, master_store, 0, end, SEGMENT_BYTES)
    with master_of(cluster) as master:
        assert master.log_end() == end, "the cluster is not quiet"
    assert same_queues(root, master_store) > 5000
    slave = cluster.broker("broker-a", 1).directory / "store"
    cluster.await_replicated(topic)
    same_files(root, slave, 0, end, SEGMENT_BYTES)
    report = verify_store(root)
    assert report.status == "clean", report.problems


def test_what_a_first_report_of_0_and_of_1_gives(
    small_cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    cluster, topic = small_cluster, small_cluster.create_topic(new_name("Orders"), 1)
    with cluster.connect() as broker:
        for _ in range(10):
            requests.send_batch(broker, topic, [bytes(2000)] * 100)
    with master_of(cluster) as master:
        settings, end = master.look(), master.log_end()
    last = end - end % SEGMENT_BYTES
    assert last > 0
    for report, begin in ((0, last), (1, 1), (last - 5, last - 5)):
        with HAConnection(settings.ha_address, ClusterSettings(name_servers=("x:1",)), report, lambda: 1) as connection:
            offset, data = next(piece for _ in range(100) for piece in connection.transfers(1.0))
            assert offset == begin
            segment = cluster.broker().directory / f"store/commitlog/{begin - begin % SEGMENT_BYTES:020d}"
            with segment.open("rb") as log:
                log.seek(begin % SEGMENT_BYTES)
                assert log.read(len(data)) == data
                log.seek(0)
                assert log.read(1) == b"\0"
    once(tmp_path / "newest", cluster, start="newest-segment")
    with Store.open(tmp_path / "newest", read_only=True) as newest:
        assert newest.log_range()[0] >= last
    assert verify_store(tmp_path / "newest").status == "clean"


def test_a_master_that_is_killed_and_comes_back_is_followed_on(
    small_cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    cluster, topic = small_cluster, small_cluster.create_topic(new_name("Orders"), 1)
    root = tmp_path / "replica"
    with Following(root, cluster) as following:
        with cluster.connect() as broker:
            requests.send_batch(broker, topic, [b"before"] * 500)
            requests.await_end(broker, topic, 500)
        cluster.broker().kill()
        cluster.heal()
        with cluster.connect() as broker:
            until(lambda: requests.send(broker, topic, body=b"after").code == 0, "the master does not come back")
        with master_of(cluster) as master:
            following.caught_up(master.log_end())
    with Store.open(root, read_only=True) as replica:
        assert replica.queue_range(topic, 0).max_offset >= 501
    same_files(root, cluster.broker().directory / "store", 0, following.follower.progress.end, SEGMENT_BYTES)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_tap_acknowledges_nothing_of_a_sync_master(version: str, tmp_path: Path, new_name: NewName) -> None:
    require_released(version)
    with RocketmqCluster(version, slaves=1, sync=True) as cluster:
        topic = cluster.create_topic(new_name("Orders"), 1)
        with cluster.connect(timeout_s=30) as broker:

            def stored() -> bool:
                return requests.send(broker, topic).code == 0

            until(stored, "the slave does not acknowledge")
            with Following(tmp_path / "replica", cluster) as following:
                until(lambda: following.follower.progress.end > 0, "the replica does not begin")
                cluster.broker("broker-a", 1).kill()
                time.sleep(1)
                codes = [requests.send(broker, topic).code for _ in range(4)]
                assert 0 not in codes, "a producer was told that a slave has its message"
                assert set(codes) <= {FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE, 1}


def test_a_follower_says_what_a_broker_that_is_away_costs(small_cluster: RocketmqCluster, tmp_path: Path) -> None:
    settings = ClusterSettings(name_servers=small_cluster.name_servers)
    with Master(settings, broker="broker-z") as master, pytest.raises(RemotingError, match="broker-z"):
        Follower(tmp_path / "replica", master, should_stop=lambda seconds: False).run(once=True)
