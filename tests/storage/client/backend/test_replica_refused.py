"""Clients on the local path of a replica: each is refused by the broker's name, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.replicas import FedReplica
from rmq_store import Message, ReadOnlyError, StagingArea, Store, StoreConfig
from rmq_store.client import LitePullConsumer, LocalBackend, Producer, PushConsumer, SimpleConsumer


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FedReplica]:
    with FedReplica(tmp_path_factory.mktemp("fed") / "replica", StoreConfig(1 << 18, 2000, 100, 400)) as made:
        made.add("T", 2)
        yield made


def _sent(root: Path) -> None:
    with Producer("p", str(root)) as producer:
        producer.send(Message("T", b"x"))


WRITERS: dict[str, Callable[[Path], Any]] = {
    "store": Store.open,
    "backend": lambda root: LocalBackend(str(root)),
    "producer": _sent,
    "push consumer": lambda root: PushConsumer("g", str(root)),
    "lite pull consumer": lambda root: LitePullConsumer("g", str(root)),
    "simple consumer": lambda root: SimpleConsumer("g", str(root), {"T": "*"}).start(),
    "sink task": lambda root: StagingArea.for_task(root, "w", 0, 0, topic="T").__enter__(),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_is_refused_by_name_and_changes_nothing(
    replica: FedReplica, name: str, tree_hash: Callable[[Path], str]
) -> None:
    before = tree_hash(replica.root)
    with pytest.raises(ReadOnlyError, match="replica of broker 'broker-a', fed by"):
        WRITERS[name](replica.root)
    assert tree_hash(replica.root) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.send(Message("T", b"x")),
        lambda store: store.create_topic("New", 1),
        lambda store: store.commit_offsets("g", {("T", 0): 1}),
        lambda store: store.lease("g", "T", "somebody"),
        lambda store: store.retention.run(manual=True),
        lambda store: store.retention.configure(file_reserved_time=1),
        lambda store: store.admin.delete_topic("T"),
    ],
)
def test_a_reader_cannot_change_it_either(
    replica: FedReplica, change: Callable[[Store], Any], tree_hash: Callable[[Path], str]
) -> None:
    before = tree_hash(replica.root)
    with Store.open(replica.root, read_only=True) as store:
        assert store.replica is not None
        with pytest.raises(ReadOnlyError):
            change(store)
    assert tree_hash(replica.root) == before
