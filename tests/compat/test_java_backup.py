"""RocketMQ opens what `rmq backup` made, as it opens the store itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_store import Message, Store, StoreConfig, backup
from rmq_store.verify import verify_store

from .test_java_agrees import FILLED, GEOMETRY, assert_java_sees_what_we_see, copy, fill, java_conf, orders

if TYPE_CHECKING:
    from .conftest import RocketMQ


@pytest.fixture
def root(scratch: Path) -> Path:
    return scratch / "store"


def test_java_reads_a_copy_of_a_store_that_was_open(rocketmq: RocketMQ, root: Path, tmp_path: Path) -> None:
    config = StoreConfig(**GEOMETRY)
    fill(root, config)
    with Store.open(root) as store:
        store.append(orders(300, 20_000))
        backup(root, root.with_name("copy"))
        store.append(orders(300, 30_000))
    answers = rocketmq.run("dump", copy(root.with_name("copy"), "java"), java_conf(tmp_path, config))
    assert len(assert_java_sees_what_we_see(answers, root.with_name("copy"))) == FILLED + 300


def test_java_gives_the_next_offsets_in_a_copy_whose_beginning_was_deleted(
    rocketmq: RocketMQ, root: Path, tmp_path: Path
) -> None:
    config = StoreConfig(**GEOMETRY)
    with Store.open(root, create=True, config=config) as store:
        store.create_topic("Early", 1)
        for number in range(30):
            store.send(Message("Early", b"%d" % number))
        store.create_topic("Orders", 2)
        store.create_topic("Events", 2)
        store.append(orders(12_000))
        store.commit_staged([], key="query", value=0)
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    backup(root, root.with_name("copy"))
    conf = java_conf(tmp_path, config)
    rocketmq.run("append", root.with_name("copy"), conf, 2, "Early", "Orders")
    queues = rocketmq.run("dump", copy(root.with_name("copy"), "java"), conf)
    ranges = {(a["topic"], a["queueId"]): (a["minOffset"], a["maxOffset"]) for a in queues if a["kind"] == "queue"}
    assert ranges["Early", 0][0] == 30 < ranges["Early", 0][1]
    assert verify_store(root.with_name("copy")).status != "damaged"


def test_a_store_that_java_wrote_last_is_copied_as_it_is(rocketmq: RocketMQ, root: Path, tmp_path: Path) -> None:
    config = StoreConfig(**GEOMETRY)
    fill(root, config)
    conf = java_conf(tmp_path, config)
    rocketmq.run("append", root, conf, 26, "Orders", "Events")
    backup(root, root.with_name("copy"))
    answers = rocketmq.run("dump", copy(root.with_name("copy"), "java"), conf)
    assert_java_sees_what_we_see(answers, root)
