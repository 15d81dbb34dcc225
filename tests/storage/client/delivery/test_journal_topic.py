"""A journal's one bound, and what its errors name."""

from __future__ import annotations

import pytest

from rmq_store.client.delivery.journal_topic import JournalTopic
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.protocol.errors import RemotingCommandError, SendInDoubtError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import response_to

from ...remoting.cluster.fake_cluster import FakeNet

QUEUE = MessageQueue("Journal", "broker-a", 0)
BOUND_MS = 1_000


class Time:
    """A clock that only waits move. At `down_at_ms` the broker goes away."""

    def __init__(self, net: FakeNet, down_at_ms: float = 1e9) -> None:
        self.now_ms = 0.0
        self._process = net.brokers["broker-a"].processes[0]
        self._down_at_ms = down_at_ms

    def __call__(self) -> float:
        return self.now_ms

    def sleep(self, duration_s: float) -> None:
        self.now_ms += duration_s * 1000
        self._process.down = self.now_ms >= self._down_at_ms


@pytest.fixture
def net() -> FakeNet:
    made = FakeNet()
    made.add_broker().put("Journal", 0, 4)
    return made


def journal(net: FakeNet, now: Time) -> JournalTopic:
    cluster = net.cluster(timer=now)
    cluster.known_route("Journal")
    reading = QueueReading(cluster, BOUND_MS, sleep=now.sleep)
    return JournalTopic(cluster, "Journal", "the record of a test", reading, group="g", sleep=now.sleep)


@pytest.mark.parametrize("down_at_ms", [0, 900])
def test_a_broker_that_goes_away_while_a_text_is_to_be_shown_is_waited_for_within_the_bound(
    net: FakeNet, down_at_ms: int
) -> None:
    now = Time(net, down_at_ms)
    waits = journal(net, now)
    now.sleep(0)
    with pytest.raises(
        SendInDoubtError, match=r"whether broker .broker-a. shows message 4 of topic 'Journal' is unknown.*not answer"
    ):
        waits.await_shown(QUEUE, 5)
    assert BOUND_MS <= now.now_ms < BOUND_MS + 200 + 10


def test_a_text_that_is_never_shown_is_waited_for_within_the_bound(net: FakeNet) -> None:
    now = Time(net)
    with pytest.raises(SendInDoubtError, match=r"'broker-a' has stored message 4 of topic 'Journal', and does not"):
        journal(net, now).await_shown(QUEUE, 5)
    assert BOUND_MS <= now.now_ms < BOUND_MS + 10


def test_a_text_that_is_stored_at_an_unknown_place_names_its_broker(net: FakeNet) -> None:
    appends = journal(net, Time(net))
    net.brokers["broker-a"].processes[0].answers.append(lambda command: response_to(command, 0, ext_fields={}))
    with pytest.raises(RemotingCommandError, match=r"'broker-a' has stored the record of a test into topic 'Journal'"):
        appends.append([QUEUE], "owner", "key", b"text")
