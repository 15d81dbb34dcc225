"""Delay levels and timers of which one queue cannot be read: the others are delivered, and the bad one is named."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.format.names import SCHEDULE_TOPIC

NOW = 1_700_000_000_000


def make_a_file(queue: Path) -> None:
    shutil.rmtree(queue)
    queue.write_text("no directory")


def cut_its_file(queue: Path) -> None:
    os.truncate(next(queue.iterdir()), 50)


def make_a_link(queue: Path) -> None:
    file = next(queue.iterdir())
    file.rename(queue.parent.parent / "elsewhere")
    file.symlink_to(queue.parent.parent / "elsewhere")


def make_a_directory(queue: Path) -> None:
    file = next(queue.iterdir())
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [make_a_file, cut_its_file, make_a_link, make_a_directory])
def test_an_unreadable_level_does_not_hold_up_the_others_and_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    now = NOW
    config = StoreConfig(mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=200, max_hash_slot_num=16,
                         max_index_num=64)  # fmt: skip
    with Store.open(tmp_path / "store", create=True, config=config, clock=lambda: now) as store:
        store.create_topic("Alpha", 1)
        for level in (1, 2, 3):
            store.send(Message("Alpha", b"level %d" % level, delay_level=level))
        damage(tmp_path / "store" / "consumequeue" / SCHEDULE_TOPIC / "1")
        store._log.files.clear()
        now += 60_000
        with caplog.at_level(logging.ERROR):
            assert store.schedule.deliver_due().delivered == 2
            store.send(Message("Alpha", b"level 3", delay_level=3))
            now += 60_000
            assert store.schedule.deliver_due().delivered == 1
        bodies = [body for batch in store.read("Alpha", 0, 0, 3) for body in batch.column("body").to_pylist()]
        assert bodies == [b"level 1", b"level 3", b"level 3"]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1
    assert "queue 1 of SCHEDULE_TOPIC_XXXX" in said[0]
    assert "rmq repair --queues" in said[0]


def test_names_that_are_no_queues_are_passed_over(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", create=True, clock=lambda: NOW) as store:
        store.create_topic("Alpha", 1)
        store.send(Message("Alpha", b"x"))
    directory = tmp_path / "store" / "consumequeue"
    (directory / "Alpha" / "7").write_text("no directory")
    (directory / "Alpha" / "٣").mkdir()
    (directory / SCHEDULE_TOPIC).mkdir()
    (directory / SCHEDULE_TOPIC / "40").write_text("no directory")
    (directory / "notes").write_text("no topic")
    (tmp_path / "store" / "pyrmq" / "progress").unlink()  # so that all queues are looked at
    with Store.open(tmp_path / "store", clock=lambda: NOW) as store:
        assert store._log.views.keys() == [("Alpha", 0)]
        assert store.schedule.deliver_due().delivered == 0
