"""The processes of a pair, each of which may be killed: forked from a server that has imported everything, as a start
of Python would cost more than a kill.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Final
from unittest import mock

from crash.protections import PROTECTIONS
from helpers.cluster.followed.feeder import aimed, feeding
from rmq_store import Store
from rmq_store.log.broker_role import BrokerRole
from rmq_store.remoting.transport.settings import ClusterSettings
from rmq_store.replica import compare, follow
from rmq_store.replica.master import Master
from rmq_store.replica.take_over.promote import promote
from rmq_store.replica.take_over.rejoin import Rejoined, rejoin
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.ha.settings import HASettings
from rmq_store.server.slave.slave_server import SlaveServer

from . import protections, writers

SLAVE_TIMEOUT_MS: Final = 500
SETTLED_MS: Final = 1500
"""Of a comparison: longer than a send waits, as in the product."""

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__, "rmq_store.verify", "pyarrow"])

Process = multiprocessing.process.BaseProcess


def started(work: Callable[..., None], log: Path, without: str, *given: Any) -> Process:
    """A process that does `work(*given)`. `log`: gets what it says; `without`: the protection that it lacks, or ""."""
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):  # the server imports before it is told
        forkserver.ensure_running()
    process = _CONTEXT.Process(target=_run, args=(work, log, without, given), daemon=True)
    process.start()
    return process


def _run(work: Callable[..., None], log: Path, without: str, given: tuple[Any, ...]) -> None:
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    logging.basicConfig(format=f"{os.getpid()} {work.__name__} %(asctime)s %(message)s", level=logging.INFO)
    assert {"slave-wait", "store-before-report"} <= PROTECTIONS.keys(), protections.__name__
    with PROTECTIONS[without].remove() if without else contextlib.nullcontext():
        work(*given)


def serve_master(root: Path, port: int, aims: Path) -> None:
    """A SYNC_MASTER at `port`, with its HA port behind it."""
    ha = HASettings(port=port + 1, role=BrokerRole.SYNC_MASTER, slave_timeout_ms=SLAVE_TIMEOUT_MS)
    with aimed(aims, root, "serve"), BrokerServer(root, port=port, admin=True, vip_channel=False, ha=ha):
        while True:
            signal.pause()


def serve_slave(root: Path, port: int, ha_address: str, aims: Path) -> None:
    """A slave of the master at `port`. It asks for tables when it connects, and not every 10 s: so that it is known
    which topics it does not know.
    """
    with (
        mock.patch.object(follow, "METADATA_S", 3600.0),
        feeding(aims, root),
        _master(port, ha_address) as master,
        SlaveServer(root, master, should_stop=_sleep) as slave,
    ):
        while True:
            slave.check()
            time.sleep(0.1)


def kill_promotion(root: Path, aims: Path) -> None:
    """Promote, and die at the point."""
    with aimed(aims, root, "promote"):
        promote(root)


def kill_rejoining(root: Path, port: int, aims: Path, file: Path) -> None:
    """Rejoin, and die at the point."""
    with aimed(aims, root, "recovery") as points:
        with contextlib.suppress(Exception):  # a replica already
            Store.open(root).close()
        points.stage = "rejoin"
        rejoined(root, port, file)


def rejoined(root: Path, port: int, file: Path) -> Rejoined:
    """Rejoin the master at `port`."""
    with mock.patch.object(compare, "SETTLED_MS", SETTLED_MS), _master(port) as master:
        return rejoin(root, master, file=file)


def write(work: str, *given: Any) -> None:
    """One of `writers`, for ever."""
    getattr(writers, work)(*given)


def _master(port: int, ha_address: str = "") -> Master:
    address = f"127.0.0.1:{port}"
    return Master(ClusterSettings.of_text(address), address=address, ha_address=ha_address)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
