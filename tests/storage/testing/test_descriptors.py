"""What was closed has no file open any more; nobody waits for the garbage collection."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.patient import PATIENT
from rmq_store import Message, Store
from rmq_store.client import LitePullConsumer, Producer
from rmq_store.files.mapping import map_file
from rmq_store.server.broker_server import BrokerServer
from rmq_store.server.name_server.name_server import NameServer
from rmq_store.testing import RmqTestBroker


def open_files() -> dict[str, str]:
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[link.name] = str(link.readlink())
        except FileNotFoundError:  # that of the directory itself
            continue
    return found


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def a_store(path: Path) -> None:
    with Store.open(path, create=True) as store:
        store.create_topic("Orders", 1)
        for number in range(3):
            store.send(Message("Orders", b"%d" % number, keys="k"))
        assert sum(batch.num_rows for batch in store.read("Orders", 0, 0, 3)) == 3
        assert len(list(store.query.by_key("Orders", "k"))) == 3
        store.commit_offsets("cg", {("Orders", 0): 1})
    with Store.open(path, read_only=True) as store:
        assert sum(batch.num_rows for batch in store.read("Orders", 0, 0, 3)) == 3


def a_served_store(path: Path) -> None:
    with BrokerServer(path, create=True) as server, Producer("pg", f"rmq://{server.address}", config=PATIENT) as sender:
        sender.send(Message("Orders", b"x", keys="k"))
        consumer = LitePullConsumer("cg", f"rmq://{server.address}")
        consumer.subscribe("Orders")
        consumer.start()
        consumer.poll(100)
        consumer.shutdown()


def a_store_that_is_served(path: Path) -> None:
    with Store.open(path, create=True) as store, BrokerServer(store):
        store.send(Message("Orders", b"x"))


def a_test_broker(path: Path) -> None:
    with RmqTestBroker(path) as broker:
        broker.send("Orders", ["x"])
        broker.clock.advance(hours=1)


def a_name_server(path: Path) -> None:
    with NameServer():
        pass


@pytest.mark.parametrize("use", [a_store, a_served_store, a_store_that_is_served, a_test_broker, a_name_server])
def test_what_is_closed_leaves_no_descriptor(scratch: Path, use: Callable[[Path], None]) -> None:
    """A map of Python's keeps a copy of its descriptor: an RmqTestBroker left five."""
    use(scratch / "first")  # what is opened once in a process: threads' pipes, modules
    with no_garbage_collection():
        before = open_files()
        use(scratch / "second")
        left = {name: path for name, path in open_files().items() if before.get(name) != path}
    assert left == {}


def test_a_map_has_no_descriptor_and_is_that_of_the_file(scratch: Path) -> None:
    path = scratch / "file"
    path.write_bytes(b"before" + bytes(8186))
    with path.open("r+b") as file:
        read_only = map_file(file.fileno(), 8192, writable=False)
        writable = map_file(file.fileno(), 8192, writable=True)
    assert str(path) not in open_files().values()
    writable[:6] = b"behind"
    assert read_only[:6] == path.read_bytes()[:6] == b"behind"
    with pytest.raises(TypeError):
        read_only[:1] = b"x"
    writable.flush()
    for mapped in (read_only, writable):
        mapped.close()


def test_what_cannot_be_mapped_is_an_error_of_the_system(scratch: Path) -> None:
    path = scratch / "file"
    path.write_bytes(bytes(8192))
    fd = os.open(path, os.O_WRONLY)
    try:
        with pytest.raises(PermissionError):
            map_file(fd, 8192, writable=True)
    finally:
        os.close(fd)
