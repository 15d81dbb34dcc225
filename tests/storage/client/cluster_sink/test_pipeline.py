"""Chunks to brokers that fail: what is sent again, where, in which order, and what is never sent twice."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt
import pytest

from rmq_store.client.cluster_sink.chunks import Chunk, Shared, TargetQueue
from rmq_store.client.cluster_sink.pipeline import Pipeline, PipelineSettings
from rmq_store.client.cluster_sink.queue_choice import TRIES_IN_ORDER
from rmq_store.client.delivery.outcome import SendOutcome, verdict_of
from rmq_store.protocol.errors import (
    MQBrokerError,
    MQClientError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeoutError,
    SendInDoubtError,
    WeakSendError,
)
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand

QUEUES = [MessageQueue("Orders", broker, number) for broker in ("a", "b") for number in range(2)]
ANY = TargetQueue("Orders", None)
FIXED = TargetQueue("Orders", QUEUES[0])

Answer = int | BaseException


class Fake:
    """Brokers that answer with what is due next, or 0, and a clock that only sleeps move. Offsets count per queue."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[str, bytes]] = []
        self.timeouts_ms: list[int] = []
        self.now = 0.0
        self.held: list[Callable[[], None]] | None = None
        self._offsets = itertools.count()

    def wire_topic(self, topic: str) -> str:
        return topic

    def not_reached(self, broker_name: str) -> None:
        pass

    def submit_broker(self, broker_name: str, request: RemotingCommand, timeout_ms: int) -> Future[RemotingCommand]:
        self.sent.append((f"{broker_name}:{request.ext_fields['e']}", bytes(request.body)))
        self.timeouts_ms.append(timeout_ms)
        answer = self.answers.pop(0) if self.answers else 0
        future: Future[RemotingCommand] = Future()

        def done() -> None:
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                ext = {"msgId": "", "queueId": "0", "queueOffset": str(next(self._offsets))}
                future.set_result(RemotingCommand(answer, ext if answer in (0, 10, 11, 12) else {}, remark="why"))

        if self.held is None:
            done()
        else:
            self.held.append(done)
        return future

    def sleep(self, ms: float) -> None:
        self.now += max(ms, 1)


class Verifier:
    """Says of each chunk in doubt how many of its rows are stored."""

    def __init__(self, *stored: int | BaseException) -> None:
        self.stored_counts = list(stored)
        self.asked: list[tuple[MessageQueue, int | None]] = []

    def stored(self, chunk: Chunk, queue: MessageQueue, start: int | None, reason: str) -> npt.NDArray[np.bool_]:
        self.asked.append((queue, start))
        count = self.stored_counts.pop(0)
        if isinstance(count, BaseException):
            raise count
        return np.arange(chunk.row_count) < count


def chunk(text: bytes, target: TargetQueue = ANY) -> Chunk:
    """A row for each byte."""
    count = len(text)
    keys, checks = np.zeros(16 * count, np.uint8), np.zeros(count, np.uint64)
    return Chunk(target, Shared(0, 0, False), text, np.arange(1, count + 1), keys, checks, 0)


def pipeline(fake: Fake, verifier: Verifier | None = None, start: int = -1, **settings: object) -> Pipeline:
    return Pipeline(
        fake, lambda topic: QUEUES, PipelineSettings(**settings), verifier,  # type: ignore[arg-type]
        timer=lambda: fake.now, now_ms=lambda: 1, sleep=fake.sleep, random_start=lambda: start,
    )  # fmt: skip


@pytest.mark.parametrize("answer", [2, 14, 16, 17, 204, 205, 215, 1500, RemotingConnectError("refused")])
def test_what_is_not_stored_goes_to_another_broker(answer: Answer) -> None:
    fake = Fake(answer)
    verifier = Verifier()
    sender = pipeline(fake, verifier)
    sender.send(chunk(b"x"))
    counts = sender.finish()
    assert [place[0] for place, _ in fake.sent] == ["a", "b"]
    assert (counts.rows, counts.retries, verifier.asked) == (1, 1, [])


@pytest.mark.parametrize("answer", [13, 29, 501, 10_000])
def test_what_would_be_refused_again_fails_the_task_at_once(answer: int) -> None:
    fake = Fake(answer)
    sender = pipeline(fake)
    sender.send(chunk(b"x"))
    with pytest.raises(MQBrokerError, match=rf"CODE: {answer} .*why TOPIC: Orders BROKER: a"):
        sender.finish()
    assert len(fake.sent) == 1


WEAK = [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")]


@pytest.mark.parametrize(("answer", "status"), WEAK)
def test_a_weak_status_is_counted_logged_and_never_sent_again(
    answer: int, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake = Fake(answer)
    sender = pipeline(fake)
    sender.send(chunk(b"xyz"))
    assert sender.finish().weak == {status: 3}
    assert len(fake.sent) == 1
    assert status in caplog.text
    sender = pipeline(Fake(answer), fail_on_weak_status=True)
    sender.send(chunk(b"x"))
    with pytest.raises(WeakSendError, match=status):
        sender.finish()


UNKNOWN = [1, RemotingTimeoutError("late"), RemotingError("lost")]


@pytest.mark.parametrize("answer", UNKNOWN)
def test_a_send_of_unknown_outcome_is_not_repeated_before_its_queue_was_read(answer: Answer) -> None:
    fake, verifier = Fake(answer), Verifier(3)
    sender = pipeline(fake, verifier)
    sender.send(chunk(b"xyz"))
    counts = sender.finish()
    assert len(fake.sent) == 1
    assert (counts.found, counts.doubts) == (3, 1)
    # Of three rows the first one is stored.
    fake, verifier = Fake(answer), Verifier(1)
    sender = pipeline(fake, verifier)
    sender.send(chunk(b"xyz"))
    sender.finish()
    assert [body for _, body in fake.sent] == [b"xyz", b"yz"]


@pytest.mark.parametrize("answer", UNKNOWN)
def test_a_queue_that_cannot_be_read_fails_the_task_and_nothing_is_sent_again(answer: Answer) -> None:
    fake = Fake(answer)
    sender = pipeline(fake, Verifier(SendInDoubtError("away")))
    sender.send(chunk(b"x"))
    with pytest.raises(SendInDoubtError):
        sender.finish()
    assert len(fake.sent) == 1


@pytest.mark.parametrize("answer", UNKNOWN)
def test_without_a_verifier_an_unknown_outcome_is_sent_again(answer: Answer) -> None:
    fake = Fake(answer)
    sender = pipeline(fake)
    sender.send(chunk(b"x"))
    sender.finish()
    assert [place[0] for place, _ in fake.sent] == ["a", "b"]


def test_rows_with_a_queue_of_their_own_go_to_no_other() -> None:
    fake = Fake(14, 2, RemotingConnectError("refused"))
    sender = pipeline(fake)
    sender.send(chunk(b"1", FIXED))
    sender.send(chunk(b"2", FIXED))
    sender.finish()
    assert fake.sent == [("a:0", b"1")] * 4 + [("a:0", b"2")]


def test_one_request_is_in_flight_for_a_queue_and_several_queues_work_at_once() -> None:
    fake = Fake()
    fake.held = []
    sender = pipeline(fake)
    for text in (b"1", b"2"):
        sender.send(chunk(text, FIXED))
    for text in (b"3", b"4"):
        sender.send(chunk(text, TargetQueue("Orders", QUEUES[2])))
    assert fake.sent == [("a:0", b"1"), ("b:0", b"3")]
    fake.held[1]()
    fake.held[0]()
    fake.held = None
    assert sender.finish().rows == 4
    assert fake.sent[2:] == [("b:0", b"4"), ("a:0", b"2")]


def test_an_answer_that_is_there_makes_room_before_the_buffer_is_full() -> None:
    fake = Fake()
    fake.held = []
    sender = pipeline(fake)
    sender.send(chunk(b"1", FIXED))
    sender.send(chunk(b"2", FIXED))
    fake.held[0]()
    sender.send(chunk(b"3", FIXED))
    assert fake.sent == [("a:0", b"1"), ("a:0", b"2")]
    fake.held[1]()
    fake.held = None
    assert sender.finish().rows == 3


def test_the_budget_ends_the_tries() -> None:
    fake = Fake(*[14] * 1000)
    sender = pipeline(fake, send_timeout_ms=5_000)
    sender.send(chunk(b"x"))
    with pytest.raises(MQClientError, match=r"could not be stored in 5000 ms and \d+ tries, last at broker .*why"):
        sender.finish()
    assert 5 <= len(fake.sent) < 40  # it backs off
    assert fake.now < 7_000


@pytest.mark.parametrize("answer", [2, 14, 1500, RemotingConnectError("refused"), RemotingTimeoutError("no answer")])
@pytest.mark.parametrize("target", [FIXED, ANY])
def test_rows_that_only_brokers_that_are_away_can_take_wait_longer(answer: Answer, target: TargetQueue) -> None:
    """A restart of a minute ended the batch."""
    fake = Fake(*[answer] * 1000)
    sender = pipeline(fake, Verifier(*[0] * 1000), send_timeout_ms=5_000, away_timeout_ms=60_000)
    sender.send(chunk(b"x", target))
    with pytest.raises(MQClientError, match=r"could not be stored in 60000 ms"):
        sender.finish()
    assert 60_000 <= fake.now < 63_000
    back = Fake(*[answer] * 15)
    sender = pipeline(back, Verifier(*[0] * 1000), send_timeout_ms=5_000, away_timeout_ms=60_000)
    sender.send(chunk(b"x", target))
    assert sender.finish().rows == 1
    assert back.now > 5_000


@pytest.mark.parametrize("answer", [16, 17, 204, 205])
def test_what_does_not_pass_by_itself_has_the_time_of_new_rows(answer: int) -> None:
    fake = Fake(*[answer] * 1000)
    sender = pipeline(fake, send_timeout_ms=5_000, away_timeout_ms=60_000)
    sender.send(chunk(b"x"))
    with pytest.raises(MQClientError, match=r"could not be stored in 5000 ms"):
        sender.finish()
    assert fake.now < 7_000


def test_who_wants_to_know_weak_statuses_waits_for_them() -> None:
    """A broker answers with 10 or 12 after 5 s; a request ended after 3 s, and its rows were found without a status."""
    fake = Fake(0, 0)
    for fails, timeout_ms in ((True, 7_000), (False, 3_000)):
        sender = pipeline(fake, fail_on_weak_status=fails)
        sender.send(chunk(b"x"))
        sender.finish()
        assert fake.timeouts_ms.pop() == timeout_ms


def test_an_answer_that_does_not_say_where_rows_are_is_of_stored_rows(caplog: pytest.LogCaptureFixture) -> None:
    fake = Fake(0, 0)
    real = fake.submit_broker

    def submit_broker(broker_name: str, request: RemotingCommand, timeout_ms: int) -> Future[RemotingCommand]:
        real(broker_name, request, timeout_ms)
        future: Future[RemotingCommand] = Future()
        future.set_result(RemotingCommand(0, {}))
        return future

    fake.submit_broker = submit_broker  # type: ignore[method-assign]
    sender = pipeline(fake)
    sender.send(chunk(b"x"))
    counts = sender.finish()
    assert (counts.rows, counts.last_offsets) == (1, {})
    assert "does not say where" in caplog.text


@pytest.mark.parametrize("last", [14, RemotingConnectError("refused"), 13])
def test_rows_that_an_earlier_try_may_have_stored_are_in_doubt_whatever_the_last_one_says(last: Answer) -> None:
    """Nobody looks without a verifier; with one, it has looked."""
    def outcome(verifier: Verifier | None, *answers: Answer) -> SendOutcome:
        sender = pipeline(Fake(*answers, *[last] * 1000), verifier, send_timeout_ms=5_000)
        sender.send(chunk(b"x"))
        with pytest.raises((MQClientError, MQBrokerError)) as caught:
            sender.finish()
        return verdict_of(caught.value).outcome

    is_refused = last == 13
    assert outcome(None, RemotingTimeoutError("no answer")) is SendOutcome.UNKNOWN
    surely_not = SendOutcome.REFUSED if is_refused else SendOutcome.NOT_STORED
    assert outcome(Verifier(0), RemotingTimeoutError("no answer")) is surely_not
    assert outcome(None) is surely_not


def test_a_busy_broker_gets_less_at_once() -> None:
    fake = Fake(*[2] * 6)
    sender = pipeline(fake)
    sender.send(chunk(b"x", FIXED))
    sender.finish()
    window = sender._choice.window("a")
    assert window.limit_bytes < 1 << 20
    assert fake.now > 100


def test_the_offset_of_a_delayed_row_says_nothing_about_its_queue() -> None:
    # A broker answers the offset in SCHEDULE_TOPIC_XXXX. Rows in doubt before it would be looked for behind it.
    fake, verifier = Fake(0, 1), Verifier(3)
    sender = pipeline(fake, verifier)
    entry = struct.pack(">5i", 24, 0, 0, 0, 1) + b"d" + struct.pack(">h", 0)
    delayed = chunk(entry, FIXED)
    delayed.shared, delayed.ends = Shared(0, 0, True), np.array([len(entry)])
    sender.send(delayed)
    sender.send(chunk(b"xyz", FIXED))
    counts = sender.finish()
    assert verifier.asked == [(QUEUES[0], None)]
    assert (counts.first_offsets, counts.last_offsets) == ({}, {})


def held_back(count: int, *answers: Answer) -> tuple[Fake, Pipeline]:
    """Chunks 0 .. `count` are in flight, one in each queue from a:0 on, and will be answered with `answers`."""
    fake = Fake(*answers)
    fake.held = []
    sender = pipeline(fake)
    for number in range(count):
        sender.send(chunk(b"%d" % number))
    return fake, sender


def answer_in_turn(fake: Fake) -> None:
    held, fake.held = fake.held, None
    assert held is not None
    for done in held:
        done()


def in_queue(fake: Fake, refused: int) -> dict[str, list[bytes]]:
    """What queues have got, when the first `refused` requests were refused."""
    found: dict[str, list[bytes]] = {}
    for place, body in fake.sent[refused:]:
        found.setdefault(place, []).append(body)
    return found


@pytest.mark.parametrize("start", [2, 3])
def test_a_refused_chunk_goes_where_it_comes_behind_older_rows(start: int) -> None:
    # One queue of the other broker has nothing yet. The order of the task holds in each queue.
    fake = Fake(14, 0, 0)
    fake.held = []
    sender = pipeline(fake, start=start)
    for number in range(3):
        sender.send(chunk(b"%d" % number))
    (free,) = {f"{one.broker_name}:{one.queue_id}" for one in QUEUES} - {place for place, _ in fake.sent}
    refused, *others = fake.held
    fake.held = None
    for done in (*others, refused):
        done()
    for _ in range(3):
        sender._step()
    sender._start()
    assert fake.sent[3] == (free, b"0")
    for number in range(3, 9):
        sender.send(chunk(b"%d" % number))
    counts = sender.finish()
    assert counts.rows == 9
    assert all(texts == sorted(texts) for texts in in_queue(fake, 1).values())
    assert counts.displaced == 0


def test_two_refused_chunks_keep_their_order() -> None:
    fake, sender = held_back(2, 14, 14)
    for flight in sender._flights.values():
        flight.chunk.tries = 2  # both wait a while now
    answer_in_turn(fake)
    sender._step()
    sender._step()
    sender.send(chunk(b"2"))
    sender.finish()
    assert [body for _, body in fake.sent[2:]] == [b"0", b"1", b"2"]


def test_a_busy_broker_is_asked_again_before_rows_change_places() -> None:
    # Each queue of the other broker has newer rows.
    fake, sender = held_back(4, 2, 0, 0, 0, 2)
    answer_in_turn(fake)
    counts = sender.finish()
    assert fake.sent[4:] == [("a:0", b"0"), ("a:0", b"0")]
    assert counts.displaced == 0


def test_rows_come_behind_newer_ones_where_brokers_leave_no_choice(caplog: pytest.LogCaptureFixture) -> None:
    for answers in ([14, 0, 0, 0], [2, 0, 0, 0, *[2] * (TRIES_IN_ORDER - 1)]):
        fake, sender = held_back(4, *answers)
        answer_in_turn(fake)
        counts = sender.finish()
        assert fake.sent[-1][0][0] == "b"
        assert (counts.rows, counts.displaced) == (4, 1)
        assert "behind newer rows of their task" in caplog.text
        caplog.clear()


def test_a_chunk_has_its_whole_time_when_it_is_sent() -> None:
    # A verification takes longer than the budget, and other chunks wait for it: sent, refused, and not yet sent.
    fake = Fake(RemotingTimeoutError("late"), 14, 14)
    verifier = Verifier(0)

    def takes_long(chunk: Chunk, queue: MessageQueue, start: int | None, reason: str) -> npt.NDArray[np.bool_]:
        fake.now += 120_000
        return np.ones(chunk.row_count, np.bool_)

    verifier.stored = takes_long  # type: ignore[method-assign]
    fake.held = []
    sender = pipeline(fake, verifier, send_timeout_ms=60_000)
    for number in range(6):
        sender.send(chunk(b"%d" % number))
    held, fake.held = fake.held, None
    held[0]()
    sender._step()
    for done in held[1:]:
        done()
    assert sender.finish().rows == 5
    assert min(fake.timeouts_ms) == 3_000


def test_an_answer_that_waits_for_a_verification_makes_no_slow_broker() -> None:
    fake = Fake(RemotingTimeoutError("late"), 0, 0, 0)
    verifier = Verifier()

    def takes_long(chunk: Chunk, queue: MessageQueue, start: int | None, reason: str) -> npt.NDArray[np.bool_]:
        fake.now += 120_000
        return np.ones(chunk.row_count, np.bool_)

    verifier.stored = takes_long  # type: ignore[method-assign]
    fake.held = []
    sender = pipeline(fake, verifier)
    latencies: dict[str, list[float]] = {}
    note = sender._choice.note_answer
    sender._choice.note_answer = lambda name, ms, *, is_stored: (  # type: ignore[method-assign]
        latencies.setdefault(name, []).append(ms),
        note(name, ms, is_stored=is_stored),
    )
    for number in range(4):
        sender.send(chunk(b"%d" % number))
    answer_in_turn(fake)
    sender.finish()
    assert latencies == {"a": [0.0, 0.0], "b": [0.0, 0.0]}


def test_a_chunk_whose_queue_could_be_read_late_is_tried_again() -> None:
    # The broker was away for longer than the budget, and is back.
    fake = Fake(RemotingTimeoutError("late"))
    verifier = Verifier()

    def takes_long(chunk: Chunk, queue: MessageQueue, start: int | None, reason: str) -> npt.NDArray[np.bool_]:
        fake.now += 120_000
        return np.arange(chunk.row_count) < 1

    verifier.stored = takes_long  # type: ignore[method-assign]
    sender = pipeline(fake, verifier, send_timeout_ms=60_000)
    sender.send(chunk(b"xyz"))
    assert sender.finish().rows == 2
    assert [body for _, body in fake.sent] == [b"xyz", b"yz"]
