"""The kills of masters and slaves beside released brokers: their plan, their witness, and their scene with brokers of
ours alone, which needs no Java.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from helpers.cluster import requests
from helpers.cluster.followed.ha_proxy import HAProxy
from helpers.cluster.java_process import HOST
from helpers.cluster.replicated.own import OwnBroker
from helpers.cluster.replicated.pairs import CONFIG, SEGMENT_BYTES, Broker, Pair
from helpers.cluster.replicated.plan import COUNTS, GENERATIONS, PAIRS, Event, events
from helpers.cluster.replicated.scene import Scene
from helpers.cluster.replicated.senders import QUEUES
from helpers.cluster.replicated.witness import LogWitness
from helpers.cluster.waiting import free_ports
from rmq_store import Message, Store
from rmq_store.replica.take_over.promote import promote


@pytest.mark.parametrize("pair", PAIRS)
def test_a_hundred_kills_are_planned_of_each_pair(pair: str) -> None:
    planned = [event for generation in events(pair, "5.5.0") for event in generation]
    assert len(events(pair, "5.5.0")) == GENERATIONS
    assert len(planned) == len({event.name for event in planned}) == 100
    assert Counter(event.point for event in planned) == COUNTS[pair]
    assert events(pair, "5.5.0") == events(pair, "5.5.0") != events(pair, "4.9.7")


def test_the_witness_reads_whole_records_over_segments_and_stops_at_half_of_one(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        store.create_topic("Orders", 1)
        witness, sent = LogWitness(store.path, SEGMENT_BYTES), [b"%d" % number * 3000 for number in range(200)]
        for body in sent[:100]:
            store.send(Message("Orders", body, queue_id=0))
        limit = store.log_range()[1]
        for body in sent[100:]:
            store.send(Message("Orders", body, queue_id=0))
        end = store.log_range()[1]
        assert end > SEGMENT_BYTES
        assert [requests.body_of(record) for record in witness.new_records(limit)] == sent[:100]
        assert [requests.body_of(record) for record in witness.new_records()] == sent[100:]
        assert witness.end == end
        last = store.send(Message("Orders", b"torn" * 100, queue_id=0))
        assert last.queue_offset == 200
    segment = tmp_path / "store" / "commitlog" / f"{end - end % SEGMENT_BYTES:020d}"
    with segment.open("r+b") as file:
        file.seek(end % SEGMENT_BYTES + 200)
        file.write(b"\0")
    assert list(witness.new_records()) == []


class OursAlone(Pair):
    """A master and a slave of ours. The master is the name server."""

    def _begin(self) -> None:
        with Store.open(self._master_store, create=True, config=CONFIG) as store:
            store.create_topic(self.topic, QUEUES)
        self.slave_store.mkdir()
        ports = free_ports(2)
        port = next(ports)
        self.proxy = self._ends.enter_context(HAProxy(f"{HOST}:{port + 1}"))
        self.master = OwnBroker(
            self._nursery, self._master_store, port, self.directory / "own.log", "--role", "SYNC_MASTER",
            "--ha-listen", f"{HOST}:{port + 1}", "--slave-timeout", "1000",
        )  # fmt: skip
        self._ends.callback(self.master.close)
        self.master.start()
        self.slave = OwnBroker(
            self._nursery, self.slave_store, next(ports), self.directory / "slave.log", "--role", "SLAVE",
            "--master", self.master.address, "--master-ha", self.proxy.address,
        )  # fmt: skip
        self._ends.callback(self.slave.close)
        self.slave.start()

    def take_over(self, *arguments: str) -> Broker:
        self.slave.stop()
        promote(self.slave_store)
        log = self.directory / "promoted.log"
        self.slave = OwnBroker(self._nursery, self.slave_store, self.slave.port, log, "--admin", *arguments)
        self._ends.callback(self.slave.close)
        self.slave.start()
        return self.slave

    @property
    def slave_store(self) -> Path:
        return self.directory / "slave"

    @property
    def _master_store(self) -> Path:
        return self.directory / "master"


@pytest.mark.long
def test_what_was_acknowledged_is_on_the_slave_after_each_kind_of_kill(tmp_path: Path) -> None:
    with Scene(OursAlone("5.5.0", tmp_path, "Killed"), 1) as scene:
        for point in COUNTS[PAIRS[0]]:
            scene.run(Event("ours-ours", "5.5.0", point, 0))
        figures = scene.finish()
    assert figures["acknowledged"]
