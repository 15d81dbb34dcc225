"""Streams with a group on a replica: messages are read from the directory, lease and offsets are at the master."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers.replicas import FedReplica
from pyspark_rmq.access import replica_reader, store_location
from pyspark_rmq.options.options import source_options
from pyspark_rmq.read import group as group_module
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store import StoreConfig
from rmq_store.errors import DataLossError, LeaseHeldError, ReadOnlyError, UsageError
from rmq_store.protocol.errors import RemotingConnectError, RemotingError

from ...storage.remoting.cluster.fake_cluster import FakeNet
from ..planned_batches import LIMIT, first_batch, planned, through_spark
from .conftest import Clock

Make = Callable[..., Any]
SMALL = StoreConfig(
    mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000, max_hash_slot_num=1000,
    max_index_num=10_000,
)  # fmt: skip


@pytest.fixture(autouse=True)
def at_master(net: FakeNet, clock: Clock, in_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster of the options is the one in memory; waits for a lease move its clock."""
    monkeypatch.setattr(store_location, "take", lambda options: net.cluster(timer=clock))
    monkeypatch.setattr(store_location, "give_back", lambda options: None)
    lease = partial(replica_reader.GroupLease, sleep=clock.sleep, timer_s=clock.now_s)
    monkeypatch.setattr(replica_reader, "GroupLease", lease)
    monkeypatch.setattr(group_module, "CLAIM_TIMEOUT_S", 0.0)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[FedReplica]:
    with FedReplica(tmp_path / "replica", SMALL) as made:
        made.add("T", 6)
        made.add("T", 4, queue_id=1)
        yield made


@pytest.fixture
def on_replica(replica: FedReplica) -> Iterator[Make]:
    """Make a stream reader, as a new planning process would: `on_replica(group="g")`."""
    made: list[RmqStreamReader] = []

    def make(**options: str) -> RmqStreamReader:
        given = {"path": str(replica.root), "nameServer": "ns:9876", "subscribe": "T", "group": "g", **options}
        asked = source_options({name: text for name, text in given.items() if text}, "stream read", 1_000_000)
        made.append(RmqStreamReader(asked, SOURCE_SCHEMA))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def committed(net: FakeNet, topic: str = "T", group: str = "g") -> dict[int, int]:
    """What the master has of a group, by queue id."""
    found = net.brokers["broker-a"].offsets.items()
    return {queue_id: offset for (name, of, queue_id), offset in found if (name, of) == (group, topic)}


def commit_at_master(net: FakeNet, *offsets: int, group: str = "g") -> None:
    """Another consumer of the group commits queues 0, 1, ... at the master."""
    broker = net.brokers["broker-a"]
    broker.groups.add(group)
    broker.offsets |= {(group, "T", number): offset for number, offset in enumerate(offsets)}


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.glob("config/*"))}


def test_a_group_on_a_replica_commits_at_the_master(
    on_replica: Make, more: Make, net: FakeNet, replica: FedReplica
) -> None:
    commit_at_master(net, 1, 0)
    before = files(replica.root)
    reader = on_replica()
    start, end = first_batch(reader)
    assert planned(reader, start, end) == [("T", 0, 1, 6), ("T", 1, 0, 4)]
    rows = [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]
    assert len(rows) == 9 and {row["body"] for row in rows} == {b"body"}
    replica.add("T", 2)
    last = more(reader, end)
    assert committed(net) == {0: 6, 1: 4}
    assert planned(reader, end, last) == [("T", 0, 6, 8)]
    reader.commit(last)
    assert committed(net) == {0: 8, 1: 4}
    reader.stop()
    assert files(replica.root) == before, "nothing is written into the replica"
    assert on_replica().initialOffset(), "the lease is free again"


def test_without_the_name_servers_a_group_is_refused_with_the_option_to_give(on_replica: Make) -> None:
    reader = on_replica(nameServer="")
    with pytest.raises(ReadOnlyError, match=r"replica of broker 'broker-a'.*option nameServer, beside path"):
        reader.initialOffset()


def test_without_a_commit_nothing_is_asked_of_the_master(on_replica: Make, net: FakeNet) -> None:
    reader = on_replica(nameServer="", commitOffsets="false", startingOffsets="earliest")
    start, end = first_batch(reader)
    assert planned(reader, start, end) == [("T", 0, 0, 6), ("T", 1, 0, 4)]
    assert net.calls == []


def test_a_stream_of_the_group_elsewhere_holds_the_lease(on_replica: Make, net: FakeNet, stream: Make) -> None:
    """It does not matter where the other one reads: the lease is one."""
    net.brokers.pop("broker-b")
    on_brokers = stream(group="g")
    first_batch(on_brokers)
    with pytest.raises(LeaseHeldError, match="a_Spark_stream"):
        on_replica().initialOffset()
    on_brokers.stop()
    first_batch(on_replica())
    with pytest.raises(LeaseHeldError, match="a_Spark_stream"):
        stream(group="g").initialOffset()


def test_only_the_master_of_the_replica_is_asked(on_replica: Make, net: FakeNet) -> None:
    first_batch(on_replica())
    asked = {address for address, _ in net.calls if address != "ns:9876"}
    broker = net.brokers["broker-a"]
    assert len(asked) == 1
    assert {code for _, command in net.calls for code in [command.code]} & {11, 310} == set(), "no message is pulled"
    assert net.brokers["broker-b"].locks == {} and not net.brokers["broker-b"].members["g"]
    assert broker.locks and broker.members["g"]


def test_committed_offsets_that_are_ahead_of_the_replica_are_waited_for(
    on_replica: Make, more: Make, net: FakeNet, replica: FedReplica
) -> None:
    """Another consumer was faster at the master. Nothing is read twice, and nothing counts as lost."""
    commit_at_master(net, 9, 2)
    reader = on_replica()
    start, end = first_batch(reader)
    assert planned(reader, start, end) == [("T", 1, 2, 4)]
    replica.add("T", 2)
    assert more(reader, end) == end, "messages 6 and 7 were consumed"
    replica.add("T", 3)
    last = more(reader, end)
    assert planned(reader, end, last) == [("T", 0, 9, 11)]
    assert committed(net) == {0: 9, 1: 4}
    reader.stop()
    again = on_replica()
    assert planned(again, end, last) == [("T", 0, 9, 11)], "a batch that is repeated by a new process"


def test_a_query_restarts_while_the_replica_is_still_behind(
    on_replica: Make, more: Make, net: FakeNet, replica: FedReplica
) -> None:
    commit_at_master(net, 9, 4)
    reader = on_replica()
    start, end = first_batch(reader)
    reader.stop()
    reader = on_replica()
    assert planned(reader, start, end) == []
    assert more(reader, end) == end
    reader.commit(end)
    replica.add("T", 4)
    assert planned(reader, end, more(reader, end)) == [("T", 0, 9, 10)]


def test_a_queue_that_turns_up_behind_the_groups_offset_is_waited_for(
    on_replica: Make, more: Make, net: FakeNet, replica: FedReplica
) -> None:
    reader = on_replica(subscribe="", subscribePattern="T|New")
    _, end = first_batch(reader)
    net.brokers["broker-a"].put("New", 0, 9)
    net.brokers["broker-a"].offsets["g", "New", 0] = 5
    replica.add("New", 2, queue_count=1)
    after = more(reader, end)
    assert planned(reader, end, after) == []
    replica.add("New", 4, queue_count=1)
    assert planned(reader, after, more(reader, after)) == [("New", 0, 5, 6)]


def test_available_now_ends_at_the_end_of_a_replica_that_is_behind(
    on_replica: Make, net: FakeNet, replica: FedReplica
) -> None:
    commit_at_master(net, 9, 0)
    reader = on_replica()
    reader.prepareForTriggerAvailableNow()
    start, end = first_batch(reader)
    assert planned(reader, start, end) == [("T", 1, 0, 4)]
    assert through_spark(reader.latestOffset(end, LIMIT)) == end


def test_another_message_in_place_of_one_that_was_read_is_a_loss_on_a_replica_too(on_replica: Make) -> None:
    """An unsure end does not hide it."""
    reader = on_replica(startingOffsets="earliest")
    start, end = first_batch(reader)
    reader.stop()
    other = json.loads(json.dumps(end).replace(str(_mark(end)), str(_mark(end) + 1)))
    with pytest.raises(DataLossError, match="these messages do not exist any more"):
        more_of(on_replica(), other)
    assert start != end


def _mark(position: dict[str, Any]) -> int:
    """The commit-log offset of a fingerprint."""
    text = json.dumps(position)
    marks = list(json.loads(text)["after"]["T"].values())
    return int(max(marks[0]) if isinstance(marks[0], list) else marks[0])


def more_of(reader: RmqStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return through_spark(reader.latestOffset(start, LIMIT))


def test_the_stream_reads_on_while_the_master_is_away_and_owes_its_offsets(
    on_replica: Make, more: Make, net: FakeNet, replica: FedReplica
) -> None:
    reader = on_replica(startingOffsets="earliest")
    commit_at_master(net, 0, 0)
    _, end = first_batch(reader)
    assert committed(net) == {0: 0, 1: 0}
    process = net.brokers["broker-a"].processes[0]
    process.down = True
    replica.add("T", 1)
    after = more(reader, end)
    assert planned(reader, end, after) == [("T", 0, 6, 7)]
    replica.add("T", 1)
    last = more(reader, after)
    process.down = False
    reader.stop()
    assert committed(net) == {0: 7, 1: 4}, "with the next renewal of the lease, or when the query ends"
    assert planned(reader, after, last) == [("T", 0, 7, 8)]


def test_name_servers_of_another_cluster_are_refused(on_replica: Make, net: FakeNet) -> None:
    net.brokers["broker-a"].cluster = "other"
    with pytest.raises(RemotingConnectError, match="do not know broker 'broker-a' of cluster 'DefaultCluster'"):
        on_replica().initialOffset()
    net.brokers.pop("broker-a")
    with pytest.raises(RemotingError):
        on_replica().initialOffset()


def test_name_servers_beside_a_store_of_its_own_are_refused(on_replica: Make, tmp_path: Path) -> None:
    from rmq_store import Store

    with Store.open(tmp_path / "own", create=True, config=SMALL) as store:
        store.create_topic("T", 1)
    with pytest.raises(UsageError, match="no replica of a broker"):
        on_replica(path=str(tmp_path / "own")).initialOffset()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"group": ""}, "option path is not possible with nameServer"),
        ({"commitOffsets": "false"}, "leave it out with commitOffsets=false"),
        ({"namespace": "ns"}, "option namespace is not possible with path and nameServer"),
        ({"pullGroup": "p"}, "option pullGroup is not possible with path and nameServer"),
        ({"onBrokerAway": "wait"}, "option onBrokerAway is not possible with path and nameServer"),
        ({"requiredBrokers": "broker-a"}, "option requiredBrokers is not possible with path and nameServer"),
        ({"enableLmq": "true"}, "option enableLmq is not possible with path and nameServer"),
        ({"storePathCommitLog": "/x"}, "option storePathCommitLog"),
        ({"subscribe": "", "assign": '{"T":["broker-a:0"]}'}, "queues of a store have numbers"),
    ],
)
def test_options_that_contradict_a_replica_are_refused(on_replica: Make, options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        on_replica(**options)


def test_the_way_to_the_brokers_may_be_given(on_replica: Make) -> None:
    """And the options of a store, as of its bytes."""
    on_replica(addressMap="10.0.0.3:10911=localhost:10911", accessKey="env:A", secretKey="env:S", tls="true")
    on_replica(maxBytesPerTrigger="1000", brokerName="broker-a")
    on_replica(subscribe="", assign='{"T":[0]}')


# -- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["", "g"])
def test_a_checkpoint_does_not_move_from_a_replica_to_brokers(
    on_replica: Make, stream: Make, net: FakeNet, group: str
) -> None:
    reader = on_replica() if group else on_replica(group="", nameServer="", startingOffsets="earliest")
    _, end = first_batch(reader)
    reader.stop()
    with pytest.raises(UsageError, match="queues of a store, and the query reads from brokers: a checkpoint does not"):
        more_of(stream(group=group) if group else stream(), end)


@pytest.mark.parametrize("group", ["", "g"])
def test_a_checkpoint_does_not_move_from_brokers_to_a_replica(on_replica: Make, stream: Make, group: str) -> None:
    reader = stream(group=group) if group else stream(startingOffsets="earliest")
    _, end = first_batch(reader)
    reader.stop()
    moved = on_replica() if group else on_replica(group="", nameServer="")
    with pytest.raises(UsageError, match="queues of brokers, and the query reads from a store: a checkpoint does not"):
        more_of(moved, end)


def test_a_group_moves_from_a_replica_to_brokers_and_back_without_its_checkpoint(
    on_replica: Make, stream: Make, more: Make, net: FakeNet, replica: FedReplica
) -> None:
    """A new checkpoint begins where the group stands."""
    commit_at_master(net, 2, 1)
    reader = on_replica()
    _, end = first_batch(reader)
    reader.commit(end)
    reader.stop()
    assert committed(net) == {0: 6, 1: 4}
    on_brokers = stream(group="g")
    start, end = first_batch(on_brokers)
    slices = [one for one in planned(on_brokers, start, end) if str(one[1]).startswith("broker-a")]
    assert [one[2:] for one in slices] == [(6, 10), (4, 10)]
    on_brokers.commit(end)
    on_brokers.stop()
    replica.add("T", 5)
    back = on_replica()
    start, end = first_batch(back)
    assert planned(back, start, end) == [("T", 0, 10, 11)]
