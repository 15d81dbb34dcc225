"""A sink whose store a SYNC_MASTER serves: what a batch without a slave is, and what happens when it comes again."""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_rmq.access import store_writer
from pyspark_rmq.access.store_writer import Marker, append_staged
from pyspark_rmq.options.options import sink_options
from rmq_store import StagedFile, StagingArea, StoreConfig, StoreFailedError
from rmq_store.log.broker_role import BrokerRole
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.ha.settings import HASettings

CONFIG = StoreConfig(mapped_file_size_commit_log=1 << 18, mapped_file_size_consume_queue=20 * 100)
MARKER = Marker("sink", "query", 7, True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BrokerServer]:
    ha = HASettings(role=BrokerRole.SYNC_MASTER, slave_timeout_ms=60_000)
    with BrokerServer(tmp_path / "store", config=CONFIG, create=True, ha=ha, vip_channel=False) as server:
        server.store.create_topic("Orders", 1)
        yield server


def staged(root: Path) -> list[StagedFile]:
    with StagingArea.for_task(root, "w1", 0, 0, topic="Orders") as area:
        area.write(pa.RecordBatch.from_pydict({"body": pa.array([b"1", b"2"], pa.binary())}))
        return [area.finish()]


def commit(root: Path, files: list[StagedFile], **options: str) -> bool:
    asked = sink_options({"path": str(root), "topic": "Orders"} | options, "stream write")
    return append_staged(asked, files, MARKER, lambda: None, stays_open=False)


def test_a_batch_without_a_slave_is_logged(server: BrokerServer, caplog: pytest.LogCaptureFixture) -> None:
    root = server.store.path
    with caplog.at_level(logging.WARNING, store_writer.__name__):
        assert commit(root, staged(root)) is True
    assert "SLAVE_NOT_AVAILABLE" in caplog.text
    assert server.store.queue_range("Orders", 0).max_offset == 2


def test_a_batch_without_a_slave_fails_if_asked_and_waits_for_the_slave_when_it_comes_again(
    server: BrokerServer,
) -> None:
    root = server.store.path
    files = staged(root)
    for _ in range(2):
        with pytest.raises(StoreFailedError, match=r"SLAVE_NOT_AVAILABLE.*onStoreStatus=fail"):
            commit(root, files, onStoreStatus="fail")
    host, port = server.ha_address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as slave:
        slave.sendall(struct.pack(">q", 0))
        end = server.store.log_range()[1]
        have = 0
        while have < end:
            have, size = struct.unpack(">qi", slave.recv(12, socket.MSG_WAITALL))
            have += len(slave.recv(size, socket.MSG_WAITALL))
        slave.sendall(struct.pack(">q", have))
        page = server.store._log.writing_page
        deadline = time.monotonic() + 20
        while page.replicated_end < end:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert commit(root, files, onStoreStatus="fail") is False
    assert server.store.queue_range("Orders", 0).max_offset == 2


def test_a_store_that_nobody_serves_has_no_weak_status(tmp_path: Path) -> None:
    with BrokerServer(tmp_path / "store", config=CONFIG, create=True, vip_channel=False) as server:
        root = server.store.path
        assert commit(root, staged(root), onStoreStatus="fail") is True
