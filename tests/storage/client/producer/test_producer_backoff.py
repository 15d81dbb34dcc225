"""Flow control: the documents ask for exponential back-off by an algorithm that they print, with named constants.

The source of the algorithm is gRPC's connection-backoff.md; message sends use it without MIN_CONNECT_TIMEOUT.
"""

from __future__ import annotations

import random

import pytest

from rmq_store import Message, UsageError
from rmq_store.backoff import Uniform
from rmq_store.client.producer import flow_control
from rmq_store.client.producer.flow_control import SERVER_POLICY, BackoffPolicy, FlowControlWait
from rmq_store.client.producer.producer import Producer
from rmq_store.client.producer.producer_config import RETRY_RESPONSE_CODES_4X, ProducerConfig
from rmq_store.protocol.errors import MQBrokerError, MQClientError, RemotingTimeoutError, ResponseCode

from ..conftest import FakeBackend, FakeClock


def no_jitter(low: float, high: float) -> float:
    assert low == -high
    return 0.0


def most_jitter(low: float, high: float) -> float:
    return high


def connect(
    clock: FakeClock,
    failures: int,
    *,
    policy: BackoffPolicy | None = None,
    uniform: Uniform = no_jitter,
    try_takes_ms: float = 0,
) -> list[tuple[float, float]]:
    """Connect after so many failures; (when, until when) of each try, from the start in ms."""
    start = clock.now_ms
    tries: list[tuple[float, float]] = []
    waits = FlowControlWait(policy or BackoffPolicy(), clock.exact(), uniform)
    while True:
        tries.append((clock.now_ms - start, waits.try_until_ms(clock.exact()) - start))
        clock.advance(try_takes_ms)
        if len(tries) > failures:
            return tries
        clock.sleep(waits.wait_ms(clock.exact()))
        waits.advance(clock.exact())


@pytest.mark.statement("A06")
def test_the_constants_are_those_of_the_documents() -> None:
    assert flow_control.INITIAL_BACKOFF == 1_000
    assert flow_control.MULTIPLIER == 1.6
    assert flow_control.JITTER == 0.2
    assert flow_control.MAX_BACKOFF == 120_000
    assert flow_control.MIN_CONNECT_TIMEOUT == 20_000
    assert BackoffPolicy() == BackoffPolicy(1_000, 1.6, 0.2, 120_000, 20_000)


@pytest.mark.statement("A06")
def test_the_waits_grow_by_1_6_from_one_second_to_two_minutes(clock: FakeClock) -> None:
    connect(clock, 14)
    assert clock.slept[:5] == pytest.approx([1000, 1600, 2560, 4096, 6553.6])
    assert clock.slept[9:] == pytest.approx([1000 * 1.6**9, 1000 * 1.6**10, 120_000, 120_000, 120_000])


@pytest.mark.statement("A06")
def test_the_first_wait_has_no_jitter_and_jitter_may_exceed_the_maximum(clock: FakeClock) -> None:
    connect(clock, 14, uniform=most_jitter)
    assert clock.slept[0] == 1000
    assert clock.slept[1] == pytest.approx(1600 * 1.2)
    assert clock.slept[-1] == pytest.approx(144_000)


@pytest.mark.statement("A06")
def test_jitter_is_uniform_over_a_fifth_both_ways(clock: FakeClock) -> None:
    connect(clock, 400, uniform=random.Random(7).uniform)
    longest = clock.slept[20:]
    assert all(96_000 <= wait <= 144_000 for wait in longest)
    assert min(longest) < 98_000
    assert max(longest) > 142_000


@pytest.mark.statement("A06")
def test_a_try_that_outlasts_its_deadline_is_followed_by_the_next_at_once(clock: FakeClock) -> None:
    tries = connect(clock, 3, try_takes_ms=5_000)
    assert [wait for wait in clock.slept if wait] == []
    assert [at for at, _ in tries] == [0, 5_000, 10_000, 15_000]


@pytest.mark.statement("A06")
def test_a_try_may_take_until_its_deadline_but_at_least_the_minimum(clock: FakeClock) -> None:
    tries = connect(clock, 9)
    assert [until - at for at, until in tries[:3]] == [20_000, 20_000, 20_000]
    # From the eighth on the deadline itself lies further away.
    assert tries[9][1] - tries[9][0] == pytest.approx(1000 * 1.6**9)


def test_a_policy_of_the_server_replaces_the_constants(clock: FakeClock) -> None:
    connect(clock, 9, policy=SERVER_POLICY)
    assert clock.slept == pytest.approx([10, 20, 40, 80, 160, 320, 640, 1000, 1000])


@pytest.mark.parametrize(
    "values", [(-1, 1.6, 0.2, 1, 0), (1, 0.5, 0.2, 1, 0), (1, 1.6, 1.5, 1, 0), (1, 1.6, 0.2, -1, 0), (1, 2, 0, 1, -1)]
)
def test_a_policy_that_makes_no_sense_is_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(UsageError):
        BackoffPolicy(*values)


def test_the_deadline_counts_from_the_first_try_on() -> None:
    state = FlowControlWait(BackoffPolicy(), 500, no_jitter)
    assert state.wait_ms(700) == 800
    assert state.wait_ms(9_999) == 0


# -- in the producer ---------------------------------------------------------------------------------------------------


def producer(cluster: FakeBackend, **settings: object) -> Producer:
    made = Producer(
        "pg",
        cluster,
        ProducerConfig(**settings),  # type: ignore[arg-type]
        timer=cluster.clock.exact,
        sleep=cluster.clock.sleep,
        rng=random.Random(3),
    )
    made.start()
    return made


def busy(code: int = ResponseCode.SYSTEM_BUSY) -> MQBrokerError:
    return MQBrokerError(code, "[TIMEOUT_CLEAN_QUEUE]broker busy")


@pytest.mark.statement("A06")
@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.TOO_MANY_REQUESTS])
def test_a_busy_broker_is_followed_by_a_wait_and_another_broker(cluster: FakeBackend, code: int) -> None:
    for name in "abc":
        cluster[name].fail_always(busy(code))
    with pytest.raises(MQClientError) as caught:
        producer(cluster, send_msg_timeout=10_000).send(Message("T", b"x"))
    assert caught.value.response_code == code
    first, second, third = cluster.sent
    assert second.at_ms - first.at_ms == 1_000
    assert 1_600 * 0.8 <= third.at_ms - second.at_ms <= 1_600 * 1.2
    assert first.broker_name != second.broker_name != third.broker_name


@pytest.mark.statement("A05")
def test_other_failures_are_followed_by_the_next_try_at_once(cluster: FakeBackend) -> None:
    for name in "abc":
        cluster[name].fail_always(RemotingTimeoutError("no answer"))
    with pytest.raises(MQClientError):
        producer(cluster).send(Message("T", b"x"))
    assert len(cluster.sent) == 3
    assert cluster.clock.slept == []
    assert len({sent.at_ms for sent in cluster.sent}) == 1


def test_a_wait_that_the_time_budget_does_not_allow_is_not_begun(cluster: FakeBackend) -> None:
    for name in "abc":
        cluster[name].fail_always(busy())
    with pytest.raises(MQClientError) as caught:
        producer(cluster, send_msg_timeout=1_000).send(Message("T", b"x"))
    assert caught.value.response_code == ResponseCode.SYSTEM_BUSY
    assert cluster.clock.slept == []
    assert len(cluster.sent) == 1


def test_the_wait_can_be_set(cluster: FakeBackend) -> None:
    for name in "abc":
        cluster[name].fail_always(busy())
    with pytest.raises(MQClientError):
        producer(cluster, backoff=SERVER_POLICY).send(Message("T", b"x"))
    assert cluster.clock.slept == [10, 20]


def test_as_in_4x_a_busy_broker_is_an_error_at_once(cluster: FakeBackend) -> None:
    """DefaultMQProducer, retryResponseCodes: SYSTEM_BUSY is not among the codes that 4.x retries."""
    cluster["a"].fail_always(busy())
    cluster["b"].fail_always(busy())
    cluster["c"].fail_always(busy())
    with pytest.raises(MQBrokerError):
        producer(cluster, retry_response_codes=RETRY_RESPONSE_CODES_4X).send(Message("T", b"x"))
    assert len(cluster.sent) == 1


@pytest.mark.statement("A06")
def test_asynchronous_sends_wait_for_a_busy_broker_too(cluster: FakeBackend) -> None:
    for name in "abc":
        cluster[name].fail(busy())
    with producer_context(cluster) as made:
        result = made.send_async(Message("T", b"x")).result(timeout=30)
    assert result.broker_name == cluster.sent[0].broker_name
    assert cluster.clock.slept == [1_000]


def producer_context(cluster: FakeBackend) -> Producer:
    return Producer("pg", cluster, timer=cluster.clock.exact, sleep=cluster.clock.sleep, rng=random.Random(3))
