"""Ranges read in lanes: whole, in order, without a gap, and bounded; what each kind of answer means."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rmq_store.errors import CorruptRecordError, OffsetOutOfRangeError
from rmq_store.format.bytes.gather import gather_fields
from rmq_store.format.frames.frame_check import HEADER
from rmq_store.format.frames.frame_walk import frames_of_answer
from rmq_store.protocol.errors import (
    MQBrokerError,
    QueueHoleError,
    RemotingCommandError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
    SlaveBehindError,
)
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand, response_to
from rmq_store.remoting.cluster import pulling
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.pull_request import PullFilter, pull
from rmq_store.remoting.cluster.pulling import read_range
from rmq_store.remoting.cluster.pulls.lanes import Lane
from rmq_store.remoting.transport.calls import Arrivals, Call

from .conftest import Timer
from .fake_cluster import FakeBroker, FakeNet, frame
from .fake_cluster import answer as answer_of_fake

QUEUE = MessageQueue("Orders", "broker-a", 0)


def offsets_of(frames: bytes) -> list[int]:
    positions, _ = frames_of_answer(frames)
    headers = gather_fields(np.frombuffer(frames, np.uint8), positions, HEADER)
    return headers["queue_offset"].astype(int).tolist()  # type: ignore[no-any-return]


class Reading:
    """A broker with messages, and reads of them by a timer that only pauses move."""

    def __init__(self, net: FakeNet, timer: Timer, count: int = 1000, slaves: int = 1, **messages: Any) -> None:
        self.net, self.timer = net, timer
        self.broker: FakeBroker = net.add_broker(slaves=slaves)
        self.broker.put("Orders", 0, count, **messages)
        self.cluster: Cluster = net.cluster(timer=timer)

    def offsets(self, start: int, end: int, *given: Any, **more: Any) -> list[int]:
        blocks = read_range(self.cluster, QUEUE, start, end, *given, sleep=self.timer.sleep, **more)
        return list(itertools.chain.from_iterable(map(offsets_of, blocks)))

    def pulls(self, broker_id: int = 0) -> list[tuple[int, int]]:
        asked = self.broker.processes[broker_id].asked
        return [
            (int(command.ext_fields["queueOffset"]), int(command.ext_fields["maxMsgNums"]))
            for command in asked
            if command.code == 11
        ]


@pytest.fixture
def reading(net: FakeNet, timer: Timer) -> Reading:
    return Reading(net, timer)


# -- what comes out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 2, 8, 50])
@pytest.mark.parametrize(("start", "end"), [(0, 1000), (17, 18), (33, 700), (999, 1000), (5, 5), (9, 3)])
def test_a_range_comes_whole_and_in_order(reading: Reading, start: int, end: int, lanes: int) -> None:
    assert reading.offsets(start, end, lanes=lanes) == list(range(start, end))


@pytest.mark.parametrize("per_pull", [1, 3, 8, 31, 200])
def test_lanes_take_the_size_that_the_broker_gives(reading: Reading, per_pull: int) -> None:
    reading.broker.per_pull = per_pull
    assert reading.offsets(0, 1000, lanes=4) == list(range(1000))
    needed = -(-1000 // per_pull)
    assert len(reading.pulls()) <= needed * 1.1 + 4 * 12


def test_what_a_broker_gives_is_known_to_the_next_range(reading: Reading) -> None:
    reading.broker.per_pull = 8
    reading.offsets(0, 200)
    before = len(reading.pulls())
    reading.offsets(200, 400)
    assert max(count for _, count in reading.pulls()[before:]) <= 10


def test_answers_that_are_cut_by_their_size_are_completed(net: FakeNet, timer: Timer) -> None:
    reading = Reading(net, timer, count=200, body=bytes(40_000))
    assert reading.offsets(0, 200) == list(range(200))
    assert len(reading.pulls()) < 60


def test_messages_of_all_sizes_come_whole(net: FakeNet, timer: Timer) -> None:
    reading = Reading(net, timer, count=0)
    for number in range(300):
        reading.broker.put("Orders", 0, 1, body=bytes(300_000 if number % 50 == 7 else 50 * (number % 90)))
    assert reading.offsets(0, 300, lanes=3) == list(range(300))


def test_answers_may_come_in_any_order(reading: Reading) -> None:
    reading.net.held = []
    blocks = read_range(reading.cluster, QUEUE, 0, 320, sleep=reading.timer.sleep)
    order = np.random.default_rng(5)

    def wait(_: Arrivals, call: Call) -> None:
        while call.outcome is None:
            held = reading.net.held
            assert held
            reading.net.release(int(order.integers(len(held))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arrivals, "wait", wait)
        assert list(itertools.chain.from_iterable(map(offsets_of, blocks))) == list(range(320))


@pytest.mark.parametrize(("body_bytes", "lanes_min", "lanes_max"), [(8_000, 0, 6), (1_000, 30, 44), (100, 40, 48)])
def test_no_more_pulls_than_lanes_are_in_flight_and_an_early_end_leaves_no_more(
    net: FakeNet, timer: Timer, body_bytes: int, lanes_min: int, lanes_max: int
) -> None:
    """Six lanes have room for six answers of 256 KiB, and for eight times as many of small messages."""
    reading = Reading(net, timer, count=20_000, body=bytes(body_bytes))
    blocks = read_range(reading.cluster, QUEUE, 0, 20_000, lanes=6, sleep=timer.sleep)
    first = offsets_of(next(blocks))
    blocks.close()  # type: ignore[attr-defined]
    assert 0 < len(first) * body_bytes < 3 * pulling.YIELD_BYTES
    # What was pulled is what came out, and the lanes.
    assert lanes_min <= sum(offset >= len(first) for offset, _ in reading.pulls()) <= lanes_max + 1


def test_lanes_wait_while_answers_before_them_are_missing(net: FakeNet, timer: Timer) -> None:
    """The bound of the memory: parts of later lanes do not grow while the first one is not there."""
    reading = Reading(net, timer, count=4000, body=bytes(60_000))
    sizes: list[int] = []
    original = pulling._RangeReader._open_lanes

    def watched(reader: Any) -> None:
        original(reader)
        sizes.append(sum(lane.parts_bytes for lane in reader._lanes if isinstance(lane, Lane)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulling._RangeReader, "_open_lanes", watched)
        blocks = read_range(reading.cluster, QUEUE, 0, 400, lanes=4, sleep=timer.sleep)
        assert sum(len(offsets_of(block)) for block in blocks) == 400
    assert max(sizes) <= 5 * (256 << 10)


# -- filters -----------------------------------------------------------------------------------------------------------


def test_with_tags_only_those_come_that_the_broker_finds_up_to_the_end(net: FakeNet, timer: Timer) -> None:
    reading = Reading(net, timer, count=0)
    wanted = []
    for number in range(3000):
        tag = "TagA" if number % 97 == 5 or 1200 < number < 1300 else "TagB"
        wanted += [number] if tag == "TagA" else []
        reading.broker.put("Orders", 0, 1, tags=tag)
    got = reading.offsets(10, 2900, PullFilter(subscription="TagA || TagC"))
    assert got == [number for number in wanted if 10 <= number < 2900]
    assert reading.offsets(0, 100, PullFilter(subscription="TagZ")) == []
    assert reading.offsets(0, 50, PullFilter(subscription=" ")) == list(range(50))


def test_a_filter_costs_few_pulls_where_nothing_matches(net: FakeNet, timer: Timer) -> None:
    reading = Reading(net, timer, count=16_000, tags="TagB")
    assert reading.offsets(0, 16_000, PullFilter(subscription="TagA")) == []
    assert len(reading.pulls()) <= 16_000 // 800 + 2 * pulling.LANES


def test_pulls_change_nothing_at_the_broker(reading: Reading) -> None:
    reading.offsets(0, 100, PullFilter(group="cg_tools"))
    for command in reading.broker.processes[0].asked:
        if command.code == 11:
            fields = command.ext_fields
            assert (fields["sysFlag"], fields["suspendTimeoutMillis"], fields["commitOffset"]) == ("4", "0", "0")
            assert fields["consumerGroup"] == "cg_tools"


# -- what is gone, and what is missing ---------------------------------------------------------------------------------


def test_messages_that_retention_took_are_out_of_range(reading: Reading) -> None:
    reading.broker.queues["Orders", 0].min_offset = 60
    with pytest.raises(OffsetOutOfRangeError, match="no longer has the message 40") as raised:
        reading.offsets(40, 100)
    error = raised.value
    assert (error.requested, error.minimum, error.maximum) == (40, 60, 1000)


def test_an_end_before_the_planned_one_is_out_of_range_at_a_master(reading: Reading) -> None:
    with pytest.raises(OffsetOutOfRangeError) as raised:
        reading.offsets(990, 1010)
    assert (raised.value.requested, raised.value.maximum) == (1000, 1000)
    with pytest.raises(OffsetOutOfRangeError) as raised:
        reading.offsets(1200, 1210)
    assert raised.value.requested == 1200


@pytest.mark.parametrize("missing", [(100, 101), (130, 170), (500, 501), (64, 96)])
def test_a_hole_is_an_error_with_its_range_and_never_skipped(reading: Reading, missing: tuple[int, int]) -> None:
    for offset in range(*missing):
        del reading.broker.queues["Orders", 0].frames[offset]
    with pytest.raises(QueueHoleError) as raised:
        reading.offsets(0, 1000)
    error = raised.value
    assert error.queue == ("Orders", "broker-a", 0)
    assert missing[0] <= error.start < error.end <= missing[1]
    assert reading.offsets(0, missing[0]) == list(range(missing[0]))


def test_a_hole_that_no_answer_shows_is_an_error_as_well(reading: Reading) -> None:
    """The broker goes on by as many offsets as it was asked for, and leaves one message out."""

    def without_one(command: RemotingCommand) -> RemotingCommand:
        body = b"".join(frame("Orders", 0, offset) for offset in (0, 1, 3))
        return response_to(command, 0, "FOUND", {
            "nextBeginOffset": "4", "minOffset": "0", "maxOffset": "1000", "suggestWhichBrokerId": "0",
        }, body)  # fmt: skip

    reading.broker.processes[0].answers.append(without_one)
    with pytest.raises(QueueHoleError) as raised:
        reading.offsets(0, 4)
    assert (raised.value.start, raised.value.end) == (2, 3)


@pytest.mark.parametrize(
    ("frames", "error"),
    [
        ([frame("Orders", 0, 1), frame("Orders", 0, 0)], RemotingCommandError),
        ([frame("Orders", 0, 0), frame("Orders", 0, 0)], RemotingCommandError),
        ([frame("Orders", 1, 0), frame("Orders", 1, 1)], RemotingCommandError),
        ([frame("Orders", 0, 0), frame("Orders", 0, 1)[:-1]], CorruptRecordError),
        ([frame("Orders", 0, 0), b"\xff" * 200], CorruptRecordError),
    ],
)
def test_answers_that_are_wrong_are_refused(
    reading: Reading, frames: list[bytes], error: type[Exception]
) -> None:
    def wrong(command: RemotingCommand) -> RemotingCommand:
        return response_to(command, 0, "FOUND", {
            "nextBeginOffset": "2", "minOffset": "0", "maxOffset": "1000", "suggestWhichBrokerId": "0",
        }, b"".join(frames))  # fmt: skip

    reading.broker.processes[0].answers.append(wrong)
    with pytest.raises(error):
        reading.offsets(0, 2)


def test_an_answer_without_its_fields_is_refused(reading: Reading) -> None:
    reading.broker.processes[0].answers.append(lambda command: response_to(command, 0, "FOUND"))
    with pytest.raises(RemotingCommandError, match="missing"):
        reading.offsets(0, 2)


# -- busy brokers ------------------------------------------------------------------------------------------------------


Answering = Callable[[RemotingCommand], RemotingCommand]


def refusing(code: int, remark: str = "[TIMEOUT_CLEAN_QUEUE]broker busy") -> Answering:
    return lambda command: response_to(command, code, remark)


@pytest.mark.parametrize("code", [2, 14, 215, 1500, 42900])
def test_a_busy_broker_is_asked_again_after_a_pause(reading: Reading, code: int) -> None:
    reading.broker.processes[0].answers += [refusing(code)] * 20
    assert reading.offsets(0, 1000) == list(range(1000))
    assert reading.timer.slept
    assert all(later >= before for before, later in itertools.pairwise(np.array(reading.timer.slept[:3]) * 1.7))


def test_a_busy_broker_gets_fewer_pulls_at_once_and_more_again_bit_by_bit(reading: Reading) -> None:
    """What is asked at once after each pause, for a broker that refuses 17 of the first 24 pulls."""
    answers = reading.broker.processes[0].answers
    answers += [refusing(2)] * 8
    burst: list[int] = []

    def sleep(duration_s: float) -> None:
        burst.append(len(reading.pulls()))
        if len(burst) < 3:
            answers.extend([refusing(215)] * 4)

    reader = pulling._RangeReader(reading.cluster, QUEUE, 0, 1000, PullFilter(), 8, pulling.PATIENCE_MS, sleep)
    lanes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        original = pulling._RangeReader._learn

        def learn(self: Any, lane: Any, answer: Any) -> None:
            original(self, lane, answer)
            lanes.append(self._lanes_now)

        patch.setattr(pulling._RangeReader, "_learn", learn)
        assert sum(len(block.positions) for block in reader.frames()) == 1000
    assert burst[0] == 8
    assert lanes[0] == 1
    assert lanes == sorted(lanes) and lanes[-1] in (2, 3)


def test_a_broker_that_stays_busy_ends_the_read_with_its_answer(reading: Reading) -> None:
    reading.broker.refused[11] = (215, "cold data flow control")
    with pytest.raises(MQBrokerError, match="cold data") as raised:
        reading.offsets(0, 1000)
    assert raised.value.retryable
    assert 30_000 <= sum(reading.timer.slept) < 40_000


@pytest.mark.parametrize("code", [16, 17, 1, 29])
def test_a_refusal_ends_the_read_at_once(reading: Reading, code: int) -> None:
    reading.broker.refused[11] = (code, "no")
    with pytest.raises(MQBrokerError) as raised:
        reading.offsets(0, 1000)
    assert raised.value.response_code == code
    assert reading.timer.slept == []


# -- masters and slaves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["down", "silent"])
def test_the_slave_is_read_while_the_master_does_not_answer(reading: Reading, failure: str) -> None:
    setattr(reading.broker.processes[0], failure, True)
    assert reading.offsets(0, 1000) == list(range(1000))
    assert reading.pulls(1)
    # Other ranges know it at once.
    reading.net.calls.clear()
    assert reading.offsets(0, 100) == list(range(100))
    assert {address for address, _ in reading.net.calls} <= {"broker-a-1:10911", "ns:9876"}


def test_the_slave_is_read_when_the_route_has_no_master(reading: Reading) -> None:
    del reading.broker.processes[0]
    assert reading.offsets(0, 1000) == list(range(1000))


def test_a_read_goes_on_from_the_slave_when_the_master_dies_on_the_way_and_back(net: FakeNet, timer: Timer) -> None:
    reading = Reading(net, timer, count=20_000, body=bytes(1000))
    blocks = read_range(reading.cluster, QUEUE, 0, 20_000, sleep=timer.sleep)
    got = offsets_of(next(blocks))
    reading.broker.processes[0].down = True
    got += offsets_of(next(blocks))
    assert reading.pulls(1)
    reading.broker.processes[0].down = False
    timer.now_ms += 60_000
    before = len(reading.pulls(0))
    got += itertools.chain.from_iterable(map(offsets_of, blocks))
    assert got == list(range(20_000))
    assert len(reading.pulls(0)) > before


def test_a_master_that_asks_for_it_is_relieved_by_its_slave(reading: Reading) -> None:
    reading.broker.processes[0].suggest = 1
    reading.broker.processes[1].suggest = 1
    assert reading.offsets(0, 1000, lanes=8) == list(range(1000))
    assert len(reading.pulls(1)) > len(reading.pulls(0))


def test_a_suggested_slave_that_is_not_there_is_ignored(reading: Reading) -> None:
    reading.broker.processes[0].suggest = 5
    assert reading.offsets(0, 1000) == list(range(1000))


@pytest.mark.parametrize("version", [405, 500])
def test_what_a_slave_does_not_have_is_read_from_the_master(reading: Reading, version: int) -> None:
    reading.broker.processes[0].suggest = 1
    reading.broker.processes[1].end = 500
    reading.broker.processes[1].version = version
    assert reading.offsets(0, 1000) == list(range(1000))


@pytest.mark.parametrize("answer", ["behind", "no such topic", "silent"])
def test_answers_of_a_slave_are_no_answers_of_the_master_that_is_asked_by_now(reading: Reading, answer: str) -> None:
    """Pulls are in flight at the slave when one of its answers sends the reads back to the master."""
    master, slave = reading.broker.processes[0], reading.broker.processes[1]
    master.suggest, slave.suggest = 1, 0
    given = {
        "behind": response_to(RemotingCommand(11), 21, "OFFSET_OVERFLOW_BADLY", {
            "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1", "suggestWhichBrokerId": "0",
        }),
        "no such topic": response_to(RemotingCommand(11), 17, "topic[Orders] not exist"),
        "silent": RemotingTimeoutError("no answer"),
    }[answer]  # fmt: skip

    def late(command: RemotingCommand) -> RemotingCommand:
        if isinstance(given, Exception):
            raise given
        return given

    slave.answers += [lambda command: answer_of_fake(slave, command), late, late, late]
    assert reading.offsets(0, 1000) == list(range(1000))
    assert ("broker-a", 0) not in reading.cluster.held_off, "the master has answered whatever it was asked"
    assert len(slave.asked) >= 4


@pytest.mark.parametrize("version", [405, 500])
def test_what_a_slave_does_not_have_is_waited_for_and_is_no_loss(reading: Reading, version: int) -> None:
    reading.broker.processes[0].down = True
    slave = reading.broker.processes[1]
    slave.end, slave.version = 500, version
    with pytest.raises(SlaveBehindError, match=r"\[500, 1000\) are not at slave 1.*slaveReadEnable=true") as raised:
        reading.offsets(0, 1000)
    assert raised.value.retryable
    assert (raised.value.queue, raised.value.start, raised.value.end) == (("Orders", "broker-a", 0), 500, 1000)
    assert sum(reading.timer.slept) >= 30_000


def test_a_slave_that_gets_the_messages_meanwhile_is_read_on(reading: Reading) -> None:
    reading.broker.processes[0].down = True
    slave = reading.broker.processes[1]
    slave.end = 500

    def sleep(duration_s: float) -> None:
        reading.timer.sleep(duration_s)
        slave.end = min(int(slave.end or 0) + 100, 1000)

    blocks = read_range(reading.cluster, QUEUE, 0, 1000, sleep=sleep)
    assert list(itertools.chain.from_iterable(map(offsets_of, blocks))) == list(range(1000))


def test_a_slave_that_does_not_know_the_topic_yet_is_waited_for(reading: Reading) -> None:
    reading.broker.processes[0].down = True
    reading.broker.processes[1].answers += [refusing(17, "topic[Orders] not exist")] * 9
    assert reading.offsets(0, 1000) == list(range(1000))


def test_a_slave_of_5_that_answers_no_pulls_is_named_with_the_setting(reading: Reading) -> None:
    reading.broker.processes[0].down = True
    reading.broker.refused[11] = (2, "[REJECTREQUEST]system busy")
    with pytest.raises(SlaveBehindError, match=r"REJECTREQUEST.*slaveReadEnable=true"):
        reading.offsets(0, 1000)


def test_the_end_of_an_acting_master_is_no_loss(reading: Reading) -> None:
    reading.broker.acting = True
    del reading.broker.processes[0]
    reading.broker.processes[1].end = 500
    reading.cluster.route("Orders")
    with pytest.raises(SlaveBehindError, match="acting master"):
        reading.offsets(0, 1000)


def test_when_nobody_answers_the_last_error_is_raised(reading: Reading) -> None:
    for process in reading.broker.processes.values():
        process.down = True
    with pytest.raises(RemotingConnectError):
        reading.offsets(0, 1000)
    assert sum(reading.timer.slept) >= 30_000


def test_too_many_requests_of_this_process_are_no_fault_of_the_broker(reading: Reading) -> None:
    reading.broker.processes[0].answers.append(RemotingTooMuchRequestError("8 MiB wait already"))
    assert reading.offsets(0, 1000) == list(range(1000))
    assert reading.timer.slept and not reading.pulls(1)
    assert reading.cluster.held_off == {}


def test_a_lost_connection_is_no_end(reading: Reading) -> None:
    reading.broker.processes[0].answers += [RemotingError("connection lost"), RemotingTimeoutError("no answer")]
    assert reading.offsets(0, 1000, lanes=2) == list(range(1000))


# -- one pull ----------------------------------------------------------------------------------------------------------


def test_one_pull_says_what_it_found_and_the_range(reading: Reading) -> None:
    answer = pull(reading.cluster, QUEUE, 990, 20)
    assert (answer.code, answer.next_offset, answer.min_offset, answer.max_offset) == (0, 1000, 0, 1000)
    assert offsets_of(answer.frames) == list(range(990, 1000))
    assert pull(reading.cluster, QUEUE, 1000).code == 19
    assert pull(reading.cluster, QUEUE, 2000).code == 21
    with pytest.raises(MQBrokerError) as raised:
        pull(reading.cluster, MessageQueue("Orders", "broker-a", 7), 0)
    assert raised.value.response_code == 17


# -- brokers that stay away for a while --------------------------------------------------------------------------------


class Waiting:
    """A read that waits 180 s for a broker that is away; `at_ms` of the timer something happens, once."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.happens: list[tuple[float, Callable[[], object]]] = []
        self.slept_ms: list[float] = []

    def at(self, after_ms: float, happens: Callable[[], object]) -> None:
        self.happens.append((self.reading.timer.now_ms + after_ms, happens))

    def sleep(self, duration_s: float) -> None:
        self.slept_ms.append(duration_s * 1000)
        self.reading.timer.sleep(duration_s)
        due = [one for one in self.happens if one[0] <= self.reading.timer.now_ms]
        self.happens = [one for one in self.happens if one not in due]
        for _, happens in due:
            happens()

    def offsets(self, end: int = 1000) -> list[int]:
        blocks = pulling.walk_range(self.reading.cluster, QUEUE, 0, end, away_ms=180_000, sleep=self.sleep)
        return [offset for block in blocks for offset in offsets_of(block.data)]


@pytest.fixture
def waiting(reading: Reading) -> Waiting:
    del reading.broker.processes[1]
    return Waiting(reading)


def back(process: Any) -> Callable[[], None]:
    def come_back() -> None:
        process.down = process.silent = False
        process.broker.refused.clear()

    return come_back


@pytest.mark.parametrize("kind", ["down", "silent", 2, 14, 215, 1500])
def test_a_broker_that_is_back_within_the_bound_is_read_whole(waiting: Waiting, kind: str | int) -> None:
    process = waiting.reading.broker.processes[0]
    if isinstance(kind, int):
        waiting.reading.broker.refused[11] = kind, "not now"
    else:
        setattr(process, kind, True)
    waiting.at(170_000, back(process))
    assert waiting.offsets() == list(range(1000))
    assert max(waiting.slept_ms) <= 2_500
    assert len(waiting.reading.pulls()) < 2_000, "it is asked every 2 s, not all the time"


@pytest.mark.parametrize("kind", ["down", "silent", 2, 14, 215, 1500])
def test_a_broker_that_stays_away_ends_the_read_after_the_bound_of_all_lanes(waiting: Waiting, kind: str | int) -> None:
    if isinstance(kind, int):
        waiting.reading.broker.refused[11] = kind, "not now"
    else:
        setattr(waiting.reading.broker.processes[0], kind, True)
    with pytest.raises((RemotingError, MQBrokerError)) as raised:
        waiting.offsets()
    assert raised.value.retryable
    assert 180_000 <= sum(waiting.slept_ms) < 185_000


def test_each_absence_has_its_own_bound(waiting: Waiting) -> None:
    process = waiting.reading.broker.processes[0]
    waiting.reading.broker.pull_bytes = 1_000
    process.down = True
    blocks = pulling.walk_range(
        waiting.reading.cluster, QUEUE, 0, 1000, lanes=1, away_ms=180_000, sleep=waiting.sleep
    )
    waiting.at(100_000, back(process))
    process.answers += [RemotingTimeoutError("no answer")] * 3
    assert sum(len(offsets_of(block.data)) for block in blocks) == 1000
    process.down = True
    waiting.at(170_000, back(process))
    assert waiting.offsets() == list(range(1000))


@pytest.mark.parametrize("where", ["another address", "forgotten, then another address"])
def test_a_broker_that_moves_is_found(waiting: Waiting, where: str) -> None:
    broker, net = waiting.reading.broker, waiting.reading.net
    waiting.reading.cluster.route("Orders")
    process = broker.processes[0]
    process.down = True

    def move() -> None:
        process.port, process.down = 10921, False
        net.brokers["broker-a"] = broker

    if where.startswith("forgotten"):
        del net.brokers["broker-a"]
    waiting.at(60_000, move)
    assert waiting.offsets() == list(range(1000))
    assert sum(waiting.slept_ms) < 65_000


@pytest.mark.parametrize("answer", ["not ready", "empty"])
def test_name_servers_that_have_just_begun_are_waited_for(net: FakeNet, timer: Timer, answer: str) -> None:
    waiting = Waiting(Reading(net, timer, slaves=0))
    name_server = net.name_servers["ns:9876"]

    def refuse(command: RemotingCommand) -> RemotingCommand:
        if answer == "not ready":
            return response_to(command, 1, "name server not ready")
        return response_to(command, 0, body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}')

    name_server.answers += [refuse] * 100_000
    waiting.at(60_000, name_server.answers.clear)
    assert waiting.offsets() == list(range(1000))


@pytest.mark.parametrize("fault", ["no rights", "lost", "moved"])
def test_what_is_no_absence_is_not_waited_for_that_long(waiting: Waiting, fault: str) -> None:
    broker = waiting.reading.broker
    moved = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "1000", "suggestWhichBrokerId": "0"}
    if fault == "no rights":
        broker.refused[11] = 16, "no"
    elif fault == "lost":
        broker.queues["Orders", 0].min_offset = 60
    else:
        broker.processes[0].answers += [lambda command: response_to(command, 21, "OFFSET_RESET", moved)] * 100_000
    with pytest.raises((MQBrokerError, OffsetOutOfRangeError)):
        waiting.offsets()
    waited_ms = sum(waiting.slept_ms)
    assert pulling.PATIENCE_MS <= waited_ms < 35_000 if fault == "moved" else waited_ms == 0


def test_a_long_wait_is_told_once_and_its_end_too(waiting: Waiting, caplog: pytest.LogCaptureFixture) -> None:
    process = waiting.reading.broker.processes[0]
    process.down = True
    waiting.at(60_000, back(process))
    waiting.offsets()
    told = [one.getMessage() for one in caplog.records if one.name == pulling.__name__]
    assert len(told) == 2, told
    assert "queue 0 of topic Orders at broker broker-a" in told[0] and "up to 180.0 s" in told[0]
    assert "is read on after 6" in told[1]
