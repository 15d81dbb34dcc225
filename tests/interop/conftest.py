"""Each test is a column of the matrix (`@pytest.mark.column`), and runs for each row that can have it: `make interop`.

A row has one client program and one broker with a virtual clock for all of its tests; each test has its own topic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import servers
from helpers.interop.afterwards import check_store
from helpers.interop.clients import STARTS, MissingClientError, Place
from helpers.interop.matrix import CANNOT_BE, COLUMNS, ROWS, Cell, record
from helpers.interop.program import Program
from rmq_store.testing import RmqTestBroker

HERE = Path(__file__).parent


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
    """Write each result down."""
    outcome = yield
    if (column := _column(pyfuncitem)) is not None:
        record(pyfuncitem.callspec.params["row"], column, Cell("works"))
    return outcome


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
    with RmqTestBroker(path, grpc_port=0) as broker:
        yield broker
    check_store(path)


@pytest.fixture(scope="session")
def client(row: str, broker: RmqTestBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with start_client(row, Place(broker.address, broker.grpc_address), tmp_path_factory.mktemp("client")) as program:
        yield program


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
