"""A released broker on the directory of a replica: it starts there, and Java's client reads all that the master had."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.fixtures import require_released
from helpers.cluster.followed.equality import same_files
from helpers.cluster.followed.processes import feeder_process
from helpers.cluster.java_process import VERSIONS
from helpers.cluster.waiting import until
from helpers.cluster.witness import Witness
from rmq_store import Store
from rmq_store.verify import verify_store

NewName = Callable[[str], str]
SEGMENT_BYTES = 1 << 20
DEATH = "follow: store appended_end"


def write(cluster: RocketmqCluster, topic: str, first: int, count: int) -> None:
    """Batches with keys, until they are in the queue."""
    with cluster.connect() as broker:
        for number in range(first, first + count):
            bodies = [b"%d-%d " % (number, each) + bytes(500) for each in range(50)]
            assert requests.send_batch(broker, topic, bodies, properties={"KEYS": f"k{number}"}).code == 0
        requests.await_end(broker, topic, 50 * (first + count))


def follow(cluster: RocketmqCluster, root: Path, tmp_path: Path, *arguments: str, aim: str = "") -> int:
    """Run `rmq follow` to its end; returns how it ended."""
    with (tmp_path / "feeder.log").open("ab") as log:
        feeder = feeder_process(cluster, root, tmp_path / "aim", log, *arguments, aim=(aim, 1) if aim else None)
        try:
            return feeder.wait(120)
        except subprocess.TimeoutExpired:
            feeder.kill()
            raise AssertionError((tmp_path / "feeder.log").read_text()) from None


def live_on(cluster: RocketmqCluster, root: Path) -> None:
    """Let the broker go on with a copy of the replica in the place of its store."""
    broker = cluster.broker()
    broker.stop()
    shutil.rmtree(broker.directory / "store")
    shutil.copytree(root, broker.directory / "store")
    broker.start()
    cluster.await_registered()


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_goes_on_with_a_replica_and_java_reads_all_of_it(
    version: str, new_name: NewName, tmp_path: Path
) -> None:
    require_released(version)
    sizes = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "mappedFileSizeConsumeQueue": 20 * 1000}
    root, died = tmp_path / "once", tmp_path / "died"
    with RocketmqCluster(version, properties=sizes) as cluster, Witness(cluster) as java:
        topic = cluster.create_topic(new_name("Orders"), 1)
        write(cluster, topic, 0, 40)
        assert follow(cluster, root, tmp_path, "--once") == 0
        assert follow(cluster, died, tmp_path, aim=DEATH) == -signal.SIGKILL
        assert follow(cluster, died, tmp_path, "--once") == 0
        for replica, count in ((root, 40), (died, 60)):
            if replica == died:
                write(cluster, topic, 40, 20)
                assert follow(cluster, died, tmp_path, "--once") == 0
            assert verify_store(replica).status == "clean"
            with Store.open(replica, read_only=True) as store:
                end = store.log_range()[1]
                assert store.queue_range(topic, 0) == (0, 50 * count)
            live_on(cluster, replica)
            same_files(replica, cluster.broker().directory / "store", 0, end, SEGMENT_BYTES)
            asked = {"group": new_name("readers"), "topic": topic, "count": 50 * count, "timeoutMs": 60_000}
            found = java.ask("lite", **asked)
            assert sorted(message["queueOffset"] for message in found) == list(range(50 * count))
            with cluster.connect() as broker:
                for number in (0, count // 2, count - 1):
                    keys = f"k{number}"

                    def known(broker: object = broker, keys: str = keys) -> bool:
                        return requests.query(broker, topic, keys).code == 0  # type: ignore[arg-type]

                    until(known, f"the broker does not find {keys}")
                    bodies = [requests.body_of(frame) for frame in requests.records(
                        bytes(requests.query(broker, topic, keys).body)
                    )]  # fmt: skip
                    assert sorted(body.split(b" ")[0] for body in bodies) == sorted(
                        b"%d-%d" % (number, each) for each in range(50)
                    )
