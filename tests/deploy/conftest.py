"""What the recipes of docs/deploy.md need: a packed environment, a standalone cluster of Spark, a served store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store import Message
from rmq_store.client import Producer
from rmq_store.server.broker_server import BrokerServer

from .page import ROOT, command
from .standalone import Standalone, outside

SHIPPED = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "storage", "connector")
ORDERS = 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The recipes share what is expensive, and each process would make it again."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xdist_group("deploy"))


def shell(script: str, directory: Path, environment: dict[str, str]) -> str:
    """Run a block of the page in a directory; its output. A command that fails is a failed test."""
    done = subprocess.run(
        ["bash", "-euc", script], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout[-6000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `wheels`, `environment` and `environment.tar.gz`, made as on the page. Needs a package index."""
    clone = tmp_path_factory.mktemp("clone")
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc", "*.so", "build")
    for name in SHIPPED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, clone / name, ignore=skip)
        else:
            shutil.copy(source, clone / name)
    environment = outside() | {"PATH": f"{Path(sys.executable).parent}:{outside()['PATH']}"}
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "1"}
    shell(command("wheel"), clone, environment)
    shell(command("pack"), clone, environment)
    return clone


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")).running() as cluster:
        yield cluster


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """The address of a served store in which the topic Orders has messages."""
    with BrokerServer(tmp_path / "store", create=True) as server:
        with Producer("pg_orders", f"rmq://{server.address}") as producer:
            for number in range(ORDERS):
                producer.send(Message("Orders", b"order %d" % number, keys=f"ORD-{number}"))
        yield server.address
