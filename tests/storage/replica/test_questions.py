"""Questions to a master beside the feed: a slow answer delays nothing, an end does not wait for all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_store.protocol.errors import MQBrokerError, RemotingError
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.replica.metadata import MetadataCopy
from rmq_store.replica.questions import Questions

from .fake_master import TOPICS, FakeMaster, master_of_5

WAIT_S = 30


class SlowMaster:
    """One that answers when it is let."""

    broker_name = "broker-a"

    def __init__(self) -> None:
        self.inner: FakeMaster = master_of_5()
        self.may_answer = threading.Event()
        self.is_asked = threading.Event()

    def ask(self, command: RemotingCommand) -> RemotingCommand | RemotingError:
        self.is_asked.set()
        assert self.may_answer.wait(WAIT_S)
        return self.inner.ask(command)

    def log_end(self) -> int:
        return self.inner.log_end()


@pytest.fixture
def master() -> SlowMaster:
    return SlowMaster()


@pytest.fixture
def questions(master: SlowMaster, tmp_path: Path) -> Iterator[Questions]:
    made = Questions(MetadataCopy(tmp_path, master))
    yield made
    master.may_answer.set()
    made.close()


def test_nobody_waits_for_a_slow_answer(questions: Questions, master: SlowMaster) -> None:
    assert questions.answer(wait=True) is None, "nothing was asked"
    questions.begin()
    assert master.is_asked.wait(WAIT_S)
    assert questions.answer() is None
    assert questions.are_asked
    questions.begin()
    master.may_answer.set()
    tables = questions.answer(wait=True)
    assert tables is not None and tables.log_end == 1000
    assert not questions.are_asked
    assert master.inner.asked.count(TOPICS) == 1, "one round at a time"


def test_an_error_is_raised_once_with_its_type(questions: Questions, master: SlowMaster) -> None:
    master.inner.refused = {TOPICS: (16, "no rights")}
    master.may_answer.set()
    questions.begin()
    with pytest.raises(MQBrokerError, match="no rights"):
        questions.answer(wait=True)
    assert questions.answer() is None
    master.inner.refused = {}
    questions.begin()
    assert questions.answer(wait=True) is not None


def test_an_end_waits_for_the_answer_under_way_alone(questions: Questions, master: SlowMaster) -> None:
    questions.begin()
    assert master.is_asked.wait(WAIT_S)
    ending = threading.Thread(target=questions.close)
    ending.start()
    while not questions._ended.is_set():
        pass
    master.may_answer.set()
    ending.join(WAIT_S)
    assert not ending.is_alive()
    assert master.inner.asked == [TOPICS]
    with pytest.raises(RemotingError, match="not asked any more"):
        questions.answer(wait=True)
