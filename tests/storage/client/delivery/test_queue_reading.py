"""The ends of queues, as the sink asks for them: a broker that does not tell one leaves rows in doubt, by name."""

from __future__ import annotations

import pytest

from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.errors import CorruptRecordError
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.errors import QueueHoleError, RemotingCommandError, RemotingTimeoutError, SendInDoubtError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.results import QueueRange
from rmq_store.protocol.wire.command import RemotingCommand, response_to

from ...remoting.cluster.fake_cluster import FakeNet

A0 = MessageQueue("Orders", "broker-a", 0)


class Time:
    now_ms = 1_000_000.0

    def __call__(self) -> float:
        return self.now_ms

    def sleep(self, duration_s: float) -> None:
        self.now_ms += duration_s * 1000


@pytest.fixture
def now() -> Time:
    return Time()


@pytest.fixture
def net() -> FakeNet:
    made = FakeNet()
    made.add_broker().put("Orders", 0, 4)
    return made


@pytest.fixture
def reading(net: FakeNet, now: Time) -> QueueReading:
    return QueueReading(net.cluster(timer=now), 1000, sleep=now.sleep)


@pytest.mark.parametrize("code", [1, 2, 14, 215])
def test_a_busy_broker_is_asked_again(net: FakeNet, reading: QueueReading, code: int) -> None:
    def busy(command: RemotingCommand) -> RemotingCommand:
        return response_to(command, code, "busy")

    net.brokers["broker-a"].processes[0].answers += [busy, busy]
    assert reading.ends([A0]) == {A0: 4}
    net.brokers["broker-a"].refused[30] = code, "busy"
    with pytest.raises(SendInDoubtError, match=rf"queues of broker-a are read.*does not answer: CODE: {code}"):
        reading.ends([A0])


@pytest.mark.parametrize("code", [16, 29])
def test_a_refusal_leaves_rows_in_doubt(net: FakeNet, reading: QueueReading, now: Time, code: int) -> None:
    net.brokers["broker-a"].refused[30] = code, "no rights"
    began_ms = now.now_ms
    with pytest.raises(SendInDoubtError, match=rf"queues of broker-a are read.*refuses: CODE: {code}.*no rights"):
        reading.ends([A0])
    assert now.now_ms == began_ms


def test_a_beginning_is_that_of_the_master_since_a_slave_may_have_come_later(now: Time) -> None:
    net = FakeNet()
    broker = net.add_broker(slaves=1)
    broker.put("Orders", 0, 9)
    broker.processes[1].begin = 6
    cluster = net.cluster(timer=now)
    reading = QueueReading(cluster, 1000, sleep=now.sleep)
    broker.processes[0].answers += [RemotingTimeoutError("slow"), RemotingTimeoutError("slow")]
    assert reading.begins([A0]) == {A0: 0}
    broker.processes[0].answers += [RemotingTimeoutError("slow"), RemotingTimeoutError("slow")]
    assert reading.ranges([A0]) == {A0: QueueRange(0, 9)}
    broker.processes[0].down = True
    with pytest.raises(SendInDoubtError, match=r"broker-a.*does not answer"):
        reading.begins([A0])
    assert reading.ranges([A0]) == {A0: QueueRange(0, 9)}
    broker.processes[0].down = False
    broker.queues["Orders", 0].min_offset = 2
    assert reading.begins([A0]) == {A0: 2} and reading.ranges([A0]) == {A0: QueueRange(2, 9)}


def test_a_topic_that_is_not_there_begins_at_0(net: FakeNet, reading: QueueReading) -> None:
    net.brokers["broker-a"].refused[31] = 17, "no topic"
    assert reading.begins([A0]) == {A0: 0}


def test_a_topic_that_is_not_there_ends_at_0(net: FakeNet, reading: QueueReading) -> None:
    net.brokers["broker-a"].refused[30] = 17, "not exist"
    assert reading.ends([A0]) == {A0: 0}


def test_a_queue_that_has_become_shorter_leaves_rows_in_doubt(reading: QueueReading) -> None:
    """It is another one, or has lost messages: nothing in it says whether rows were stored."""
    with pytest.raises(SendInDoubtError, match=r"ends at 4, and ended at 5 before: the broker has lost messages"):
        list(reading.frames({A0: (5, 4)}))


def test_a_queue_that_becomes_shorter_before_it_is_read_leaves_doubt(net: FakeNet, reading: QueueReading) -> None:
    """A master that starts again without its last messages, after it has told its end."""
    ends = reading.ends([A0])
    for offset in (2, 3):
        del net.brokers["broker-a"].queues["Orders", 0].frames[offset]
    for start in (0, 3):
        with pytest.raises(SendInDoubtError, match=r"ends at 2, and ended at 4 before: .*lost messages"):
            list(reading.frames({A0: (start, ends[A0])}))


def test_what_a_shorter_queue_has_lost_is_sent_again_if_the_user_says_so(
    net: FakeNet, now: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """Without that nobody can go on with the batch: the queue stays shorter."""
    option, cluster = "onUnknownOutcome=resend", net.cluster(timer=now)
    with pytest.raises(SendInDoubtError, match=rf"With {option} it is sent again, perhaps twice\. See"):
        list(QueueReading(cluster, 1000, resend_option=option).frames({A0: (5, 4)}))
    reading = QueueReading(cluster, 1000, resend_lost=True, resend_option=option)
    assert list(reading.frames({A0: (5, 4)})) == []
    ends = reading.ends([A0])
    for offset in (2, 3):
        del net.brokers["broker-a"].queues["Orders", 0].frames[offset]
    assert list(reading.frames({A0: (3, ends[A0])})) == []
    told = [record.getMessage() for record in caplog.records]
    assert ["ends at 4, and ended at 5" in told[0], "ends at 2, and ended at 4" in told[1]] == [True, True]


@pytest.mark.parametrize("damage", [QueueHoleError, CorruptRecordError, RemotingCommandError])
def test_damage_in_a_queue_leaves_rows_in_doubt_and_is_named(
    net: FakeNet, reading: QueueReading, damage: type[Exception]
) -> None:
    frames = net.brokers["broker-a"].queues["Orders", 0].frames
    if damage is QueueHoleError:
        del frames[1]
    elif damage is CorruptRecordError:
        frames[1] = frames[1][:4] + bytes(4) + frames[1][8:]
    else:
        frames[1] = frames[0]
    with pytest.raises(SendInDoubtError, match="whether messages are stored is unknown") as caught:
        list(reading.frames({A0: (0, 4)}))
    assert type(caught.value.__cause__) is damage
    assert str(caught.value.__cause__) in str(caught.value)
    assert caught.value.retryable


def test_messages_that_retention_has_deleted_are_left_out_and_named(
    net: FakeNet, reading: QueueReading, caplog: pytest.LogCaptureFixture
) -> None:
    net.brokers["broker-a"].queues["Orders", 0].min_offset = 2
    assert sum(len(frames_of_answer(frames)[0]) for frames in reading.frames({A0: (0, 4)})) == 2
    assert "messages [0, 2) are deleted, so what a repetition sends of them is stored once more" in caplog.text


def test_settled_ends_are_those_behind_the_settle_time(net: FakeNet, reading: QueueReading, now: Time) -> None:
    def late(duration_s: float) -> None:
        now.sleep(duration_s)
        net.brokers["broker-a"].put("Orders", 0, 1)

    reading._sleep = late
    assert reading.settled_ends([A0], 3_000) == {A0: 5}
    assert now.now_ms == 1_003_000.0
