"""The metadata of a replica beside the files that released masters write themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from helpers.cluster import requests
from helpers.cluster.brokers import RocketmqCluster
from helpers.cluster.waiting import until
from helpers.server_process import ServerError
from rmq_store import Store
from rmq_store.broker.metadata.offsets import OffsetTable
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.questions.answer import Given
from rmq_store.remoting.questions.brokers import ask_runtime_info, read_runtime_info
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica.metadata import MetadataCopy

NewName = Callable[[str], str]
TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json", "messageRequestMode.json")
DELETE_TOPIC, SET_MODE = 215, 401


class Master:
    """See `replica.metadata.Master`."""

    broker_name = "broker-a"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def ask(self, command: RemotingCommand) -> Given:
        return self.cluster.call_all([(self.broker_name, command)], 20_000)[0]

    def log_end(self) -> int:
        return int(read_runtime_info(self.ask(ask_runtime_info()), self.broker_name)["commitLogMaxOffset"])


def test_a_replica_has_the_tables_that_its_master_writes(
    cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    """Byte for byte, once the master has written them: it writes offsets every five seconds."""
    topic, group = cluster.create_topic(new_name("orders"), 2), new_name("billing")
    config = cluster.broker().directory / "store" / "config"
    with (
        cluster.connect() as broker,
        Cluster(ClusterSettings(name_servers=cluster.name_servers)) as network,
    ):
        requests.heartbeat(broker, "client", group, topic)
        for _ in range(3):
            assert requests.send(broker, topic).code == 0
        requests.send(broker, topic, properties={"DELAY": "1"})
        requests.commit(broker, group, topic, 2)
        if not cluster.version.startswith("4."):
            mode = f'{{"consumerGroup":"{group}","mode":"POP","popShareQueueNum":0,"topic":"{topic}"}}'
            assert broker.ask(SET_MODE, body=mode.encode()).code == 0
        copy = MetadataCopy(tmp_path, Master(network))
        differ: dict[str, tuple[bytes, bytes]] = {}

        def is_equal() -> bool:
            copy.take(copy.ask())
            assert copy.write_offsets(copy.waiting_end or 0)
            tables = {name: (_read(config / name), _read(tmp_path / "config" / name)) for name in TABLES}
            differ.clear()
            differ.update({name: both for name, both in tables.items() if both[0] != both[1]})
            return not differ

        def await_equal() -> None:
            try:
                until(is_equal, "the tables of the replica are not those of the master")
            except ServerError as error:
                raise AssertionError(f"master and replica: {differ}") from error

        await_equal()
        assert _read(tmp_path / "config" / "topics.json"), "it has one"
        assert OffsetTable(tmp_path).committed(group) == {(topic, 0): 2}

        requests.commit(broker, group, topic, 1)
        assert broker.ask(DELETE_TOPIC, {"topic": topic}).code == 0
        await_equal()
        assert topic not in TopicTable(tmp_path).all()


def test_the_offsets_are_below_the_end_of_the_masters_log(
    cluster: RocketmqCluster, new_name: NewName, tmp_path: Path
) -> None:
    """The master's store, cut at that end, has each message before a committed offset."""
    topic, group = cluster.create_topic(new_name("orders"), 1), new_name("billing")
    with (
        cluster.connect() as broker,
        Cluster(ClusterSettings(name_servers=cluster.name_servers)) as network,
        Store.open(cluster.broker().directory / "store", read_only=True) as store,
    ):
        requests.heartbeat(broker, "client", group, topic)
        copy = MetadataCopy(tmp_path, Master(network))
        for number in range(1, 20):
            requests.send(broker, topic)
            requests.commit(broker, group, topic, number)
            copy.take(copy.ask())
            end = copy.waiting_end
            assert end is not None and copy.write_offsets(end)
            committed = OffsetTable(tmp_path).committed(group)[topic, 0]
            assert committed == number
            store.refresh()
            assert store.commit_log_offset_before(topic, 0, committed) < end


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
