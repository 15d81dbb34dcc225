"""What doctor and metrics say of a master's slaves: words of the state page, and nothing of a server that is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import Store, store_metrics
from rmq_store.broker.monitoring.metric_table import SLAVE_METRICS
from rmq_store.cli.checks import OK, WARN
from rmq_store.cli.checks.directory import slaves
from rmq_store.log.broker_role import BrokerRole
from rmq_store.log.slaves_told import slaves_told
from storage.server.ha.conftest import CONFIG, Serve, Slave, acknowledged, eventually, fill

Connect = Callable[..., Slave]
BEHIND = 700


def shown(root: Path) -> dict[str, float]:
    """The samples about slaves, by the name of the metric."""
    with Store.open(root, read_only=True) as store:
        families = {family.metric.name: family.samples for family in store_metrics(store)}
    return {
        metric.name: number for metric in SLAVE_METRICS for _, number in families.get(metric.name, ())
    }


def test_a_store_that_nobody_serves_has_no_slaves(tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert slaves_told(root) is None
    with Store.open(root, create=True, config=CONFIG) as store:
        store.create_topic("Orders", 2)
        fill(store, 3)
        assert slaves(root) == []
        assert shown(root) == {}


def test_the_slaves_of_a_master_and_how_far_they_are(serve: Serve, connect: Connect) -> None:
    server = serve()
    fill(server.store, 20)
    root, end = server.store.path, server.store.log_range()[1]
    assert slaves(root) == []
    assert shown(root) == {"rmq_sync_master": 0, "rmq_slaves": 0}
    for offset in (end, end - BEHIND):
        connect(server, offset)
    acknowledged(server, end - BEHIND, end)
    eventually(lambda: shown(root).get("rmq_slaves") == 2)
    assert shown(root) == {"rmq_sync_master": 0, "rmq_slaves": 2, "rmq_slave_behind_bytes": BEHIND}
    (finding,) = slaves(root)
    assert finding.status == OK
    assert finding.text == (
        f"ASYNC_MASTER: 2 in reach, the slowest one is {BEHIND} bytes behind the end of the log, {end}"
    )


@pytest.mark.parametrize(
    ("in_sync", "says"), [(0, "SLAVE_NOT_AVAILABLE (11)"), (3, "inSyncReplicas=3: 1 in reach")]
)
def test_a_sync_master_without_its_slaves_is_a_warning(
    serve: Serve, connect: Connect, in_sync: int, says: str
) -> None:
    server = serve(BrokerRole.SYNC_MASTER, in_sync_replicas=in_sync, slave_timeout_ms=1)
    fill(server.store, 3)
    root, end = server.store.path, server.store.log_range()[1]
    (finding,) = slaves(root)
    assert finding.status == WARN
    assert "rmq broker run --role SLAVE" in finding.fix
    connect(server, end - BEHIND)
    eventually(lambda: shown(root).get("rmq_slaves") == 1)
    if in_sync:
        (finding,) = slaves(root)
        assert finding.status == WARN
        assert "FLUSH_SLAVE_TIMEOUT (12)" in finding.text
    else:
        assert slaves(root)[0].status == OK
        eventually(lambda: shown(root)["rmq_replicated_behind_bytes"] == BEHIND)
        server.close()
        (finding,) = slaves(root)
        assert (finding.status, shown(root)["rmq_slaves"], shown(root)["rmq_sync_master"]) == (WARN, 0, 1)
        assert "no server" in finding.text
    assert says in finding.text


def test_what_a_server_told_before_it_was_killed_counts_no_more(serve: Serve, connect: Connect) -> None:
    server = serve()
    fill(server.store, 3)
    connect(server, 0)
    page = server.store._log.writing_page
    eventually(lambda: page.slowest_end == 0)
    server.close()
    with Store.open(server.store.path) as store:
        store._log.writing_page.slave_count, store._log.writing_page.slowest_end = 1, 0
        told = slaves_told(store.path)
        assert told is not None
        assert (told.is_served, told.count, told.slowest_end) == (False, 0, -1)
