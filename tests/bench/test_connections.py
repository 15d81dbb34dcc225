"""Small crowds of connections: the server answers every client. The bench measures the memory that they take."""

from __future__ import annotations

from pathlib import Path

from bench.connections import bare_server, busy, idle, only_connected
from bench.crew import Crew
from rmq_store import StoreConfig
from rmq_store.server.broker_server import BrokerServer

IDLE, BUSY = 400, 20
SMALL = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=1000, max_index_num=10_000)


def test_busy_connections_go_on_beside_many_idle_ones(tmp_path: Path) -> None:
    with BrokerServer(tmp_path / "store", config=SMALL, create=True) as server:
        server.store.create_topic("T", queue_count=4)
        with Crew(1, idle, server.address, IDLE) as idlers, Crew(1, busy, server.address, "T", BUSY) as busy_ones:
            (turn,) = busy_ones.run(0.5)
            assert len(turn.answer) == BUSY and min(turn.answer) >= 1
            assert idlers.run()[0].answer == IDLE
            assert len(server._listener.connections) >= IDLE
        stored = sum(end - start for start, end in server.store.queue_ranges("T").values())
        assert stored == sum(turn.answer)


def test_the_yardstick_of_idle_connections_takes_them() -> None:
    with Crew(1, bare_server) as bare:
        port = bare.run()[0].answer
        with Crew(1, only_connected, f"127.0.0.1:{port}", 10) as idlers:
            assert idlers.run()[0].answer == 10
