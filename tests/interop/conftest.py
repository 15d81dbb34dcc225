"""Each test is a column of the matrix (`@pytest.mark.column`), and runs for each row that can have it: `make interop`.

A row has one client program and one broker with a virtual clock for all of its tests; each test has its own topic.
A test without these has a store of its own: `own_store`. `rmq verify` looks at a store after each test. A cell is
written down when all tests of its store have ended, and the store has passed the check of `afterwards`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from helpers import servers
from helpers.cluster.java_process import VERSIONS
from helpers.interop.afterwards import verify
from helpers.interop.clients import STARTS, MissingClientError, Place
from helpers.interop.matrix import CANNOT_BE, COLUMNS, ROWS, Cell
from helpers.interop.program import Program
from helpers.interop.results import RESULTS
from rmq_store.server.scratch_store import SCRATCH_CONFIG
from rmq_store.testing import RmqTestBroker

HERE = Path(__file__).parent
LARGEST_BODY_BYTES: Final = 1 << 20
"""The server's limit; another one than the default, so that a client that knows it was told by the server."""
CELL: Final = pytest.StashKey[Cell]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "row" in metafunc.fixturenames:
        column = _column(metafunc.definition)
        rows = [row for row in ROWS if (row, column) not in CANNOT_BE]
        metafunc.parametrize("row", rows, scope="session")


def _column(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("column")
    if marker is None:
        return None
    (name,) = marker.args
    assert name in COLUMNS, name
    return str(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.is_relative_to(HERE)]
    for item in mine:
        item.add_marker(pytest.mark.interop)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Keep each result of a test that leaves a sound store."""
    if (place := _place(pyfuncitem)) is None:
        return (yield)
    row, column, path = place
    RESULTS.begin(row, column)
    outcome = yield
    verify(path)
    RESULTS.add(path, row, column, pyfuncitem.stash.get(CELL, Cell("works")))
    return outcome


def _place(test: pytest.Function) -> tuple[str, str, Path] | None:
    """The row and the column of what the test finds, and the store that it uses. None: it has no cell."""
    used: Mapping[str, Any] = test.funcargs
    if (column := _column(test)) is not None:
        return used["row"], column, used["own_store"] if "own_store" in used else used["broker"].path
    if (admin := used.get("admin")) is None:
        return None
    return admin.row, used["line"].split()[0], admin.path


def start_client(row: str, place: Place, home: Path) -> Program:
    """The client of a row. Without it the test is skipped, or fails in CI."""
    try:
        return STARTS[row](place, home)
    except MissingClientError as error:
        if servers.REQUIRED:
            pytest.fail(f"RMQ_TEST_SERVERS=required, but {row}: {error}", pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def broker(row: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RmqTestBroker]:
    path = tmp_path_factory.mktemp("served") / "store"
    config = dataclasses.replace(SCRATCH_CONFIG, max_message_size=LARGEST_BODY_BYTES)
    with RmqTestBroker(path, config, grpc_port=0) as broker:
        yield broker
    RESULTS.finish(path)


@pytest.fixture(scope="session")
def client(row: str, broker: RmqTestBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with start_client(row, Place(broker.address, broker.grpc_address), tmp_path_factory.mktemp("client")) as program:
        yield program


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[Path]:
    """The path of a store that the test makes and closes. Of the released brokers only the newest opens it."""
    path = tmp_path / "store"
    yield path
    RESULTS.finish(path, VERSIONS[-1:])


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[Cell], None]:
    """Tell the cell of a feature that does not simply work."""
    return lambda cell: request.node.stash.__setitem__(CELL, cell)


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: RmqTestBroker) -> str:
    """A topic of the test's own, with two queues."""
    name = re.sub(r"\W", "-", request.node.originalname)[:60]
    broker.store.create_topic(name, queue_count=2)
    return name


@pytest.fixture
def group(topic: str) -> str:
    """A group of the test's own."""
    return f"cg-{topic}"
