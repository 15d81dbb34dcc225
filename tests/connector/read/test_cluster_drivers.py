"""Who may read for a group: streams of several drivers at brokers that forget locks and members as released ones do.

Nothing here names a part of the lease: a driver opens a stream, plans, is killed, stands still, and is started anew.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import pytest

from pyspark_rmq.access import cluster_reader
from pyspark_rmq.options.options import source_options
from pyspark_rmq.position.queue_ids import BrokerQueueId
from pyspark_rmq.read import group as group_module
from pyspark_rmq.read.stream_reader import RmqStreamReader
from pyspark_rmq.schema.schema import SOURCE_SCHEMA
from rmq_store.errors import LeaseHeldError
from rmq_store.protocol.errors import RemotingError

from ...storage.remoting.cluster.fake_cluster import FakeBroker, FakeNet, answer
from ..planned_batches import LIMIT, first_batch, planned, through_spark
from .conftest import Clock

A0, A1, B0 = BrokerQueueId("broker-a", 0), BrokerQueueId("broker-a", 1), BrokerQueueId("broker-b", 0)
LOCK_LASTS_S, MEMBER_LASTS_S, RENEWED_EVERY_S = 60, 120, 20
Position = dict[str, Any]


class Driver:
    """A process with one stream of the group `g`; `position` is what its checkpoint has. It begins with `start`."""

    def __init__(self, world: World, position: Position | None, options: dict[str, str]) -> None:
        given = {"nameServer": "ns:9876", "subscribe": "T", "group": "g", "startingOffsets": "earliest"} | options
        self.reader = RmqStreamReader(source_options(given, "stream read", 1_000_000), SOURCE_SCHEMA)
        self.position = position
        self.lives = True
        self._world = world

    def start(self) -> Self:
        """Plan for the first time; all that is there becomes its first batch."""
        before = self._world.members()
        self._world.now_plans = self
        if self.position is None:
            _, self.position = first_batch(self.reader)
        else:
            self.plan()
        self.ids = self._world.members() - before
        return self

    def plan(self) -> list[tuple[Any, ...]]:
        """Plan the next batch, some seconds later; this completes the batch before it. Returns its slices."""
        self._world.sleep(5)
        self._world.now_plans = self
        assert self.position is not None
        self.reader._idle = None
        start, self.position = self.position, through_spark(self.reader.latestOffset(self.position, LIMIT))
        return planned(self.reader, start, self.position) if self.position != start else []

    def kill(self) -> None:
        """kill -9: brokers that run see that its connections end, and forget the member. Its locks stay."""
        self.lives = False
        for broker in self._world.net.brokers.values():
            if not broker.processes[0].silent:
                for known in broker.members.values():
                    for client_id in self.ids & known.keys():
                        del known[client_id]


class World:
    """Time that brokers and drivers share. Drivers that live renew their leases every 20 s of it."""

    def __init__(self, net: FakeNet, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.net = net
        self.clock = clock
        self.drivers: list[Driver] = []
        self.now_plans: Driver | None = None
        self.at: list[tuple[float, Callable[[], object]]] = []
        self._renewals: list[tuple[Driver, Callable[[], None]]] = []
        self._locked_s: dict[tuple[str, Any], float] = {}
        self._seen_s: dict[tuple[str, str, str], float] = {}
        self._call = net.call
        net.call = self._forgetful  # type: ignore[method-assign]
        # The one place that knows how a stream gets its lease.
        monkeypatch.setattr(cluster_reader, "GroupLease", partial(self._with_time, cluster_reader.GroupLease))

    def driver(self, position: Position | None = None, **options: str) -> Driver:
        self.drivers.append(Driver(self, position, options))
        return self.drivers[-1]

    def now_s(self) -> float:
        return self.clock.now_ms / 1000

    def members(self) -> set[str]:
        return {client_id for broker in self.net.brokers.values() for client_id in broker.members["g"]}

    def sleep(self, duration_s: float) -> None:
        end_s = self.now_s() + duration_s
        while self.now_s() < end_s:
            next_s = min(end_s, self.now_s() + RENEWED_EVERY_S - self.now_s() % RENEWED_EVERY_S)
            next_s = min([next_s, *(at_s for at_s, _ in self.at if at_s > self.now_s())])
            self.clock.now_ms = next_s * 1000
            for at_s, event in list(self.at):
                if at_s <= next_s:
                    self.at.remove((at_s, event))
                    event()
            if next_s % RENEWED_EVERY_S == 0:
                for driver, renew in self._renewals:
                    if driver.lives:
                        renew()

    def goes_on(self, broker: FakeBroker) -> None:
        """A broker that stood still: it carries out what has waited for it."""
        process = broker.processes[0]
        process.silent = False
        waited, process.asked = process.asked, []
        for command in waited:
            answer(process, command)
            self._note(broker, command)

    def beats(self, broker: FakeBroker, driver: Driver) -> None:
        """A heartbeat of the driver that was on its way comes to a broker now."""
        broker.members["g"] |= {client_id: {} for client_id in driver.ids}
        self._seen_s |= {(broker.name, "g", client_id): self.now_s() for client_id in driver.ids}

    def _with_time(self, kind: Callable[..., Any], *given: Any, **named: Any) -> Any:
        made = kind(*given, **named, sleep=self.sleep, timer_s=self.now_s)
        assert self.now_plans is not None
        self._renewals.append((self.now_plans, made.renew))
        return made

    def _forgetful(self, address: str, command: Any, timeout_ms: int) -> Any:
        for broker in self.net.brokers.values():
            for key in list(broker.locks):
                if self.now_s() - self._locked_s.setdefault((broker.name, key), self.now_s()) > LOCK_LASTS_S:
                    del broker.locks[key], self._locked_s[broker.name, key]
            for group, known in broker.members.items():
                for client_id in list(known):
                    seen_s = self._seen_s.setdefault((broker.name, group, client_id), self.now_s())
                    if self.now_s() - seen_s > MEMBER_LASTS_S:
                        del known[client_id]
        process = self.net._process(address)
        if process is not None and not process.silent:
            process.asked = []
        answered = self._call(address, command, timeout_ms)
        if process is not None:
            self._note(process.broker, command)
        return answered

    def _note(self, broker: FakeBroker, command: Any) -> None:
        if command.code == 41:
            client_id = json.loads(command.body)["clientId"]
            held = [key for key, owner in broker.locks.items() if owner == client_id]
            self._locked_s |= dict.fromkeys(((broker.name, key) for key in held), self.now_s())
        elif command.code == 34:
            beat = json.loads(command.body)
            for data in beat["consumerDataSet"]:
                self._seen_s[broker.name, data["groupName"], beat["clientID"]] = self.now_s()


@pytest.fixture
def world(net: FakeNet, clock: Clock, in_memory: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(group_module, "CLAIM_TIMEOUT_S", 0.0)
    made = World(net, clock, monkeypatch)
    yield made
    with contextlib.ExitStack() as stack:
        for driver in made.drivers:
            stack.callback(driver.reader.stop)


@pytest.fixture
def a(net: FakeNet) -> FakeBroker:
    return net.brokers["broker-a"]


@pytest.fixture
def b(net: FakeNet) -> FakeBroker:
    return net.brokers["broker-b"]


def committed(broker: FakeBroker) -> dict[int, int]:
    """By queue id of topic T."""
    return {queue_id: offset for (_, topic, queue_id), offset in broker.offsets.items() if topic == "T"}


def test_a_second_driver_is_refused_by_name_as_long_as_the_first_one_lives(
    world: World, a: FakeBroker, b: FakeBroker
) -> None:
    first = world.driver(consumerName="reports").start()
    for _ in range(3):
        # Longer than brokers remember a lock or a member that is not renewed.
        world.sleep(200)
        with pytest.raises(LeaseHeldError, match=r"topic 'T' is consumed by reports_on_.*two groups") as caught:
            world.driver().start()
        assert caught.value.holder in world.members()
    a.put("T", 0, 5)
    assert first.plan() == [("T", A0, 10, 15)]
    first.plan()
    assert (committed(a), committed(b)) == ({0: 15, 1: 10}, {0: 10})
    first.reader.stop()
    assert world.driver().start().position is not None


def test_a_living_member_of_another_client_is_not_driven_from_its_queues(world: World, a: FakeBroker) -> None:
    a.members["g"]["10.0.0.9@java"] = {}
    with pytest.raises(LeaseHeldError, match=r"10\.0\.0\.9@java.*commitOffsets=false") as caught:
        world.driver().start()
    assert caught.value.holder == "10.0.0.9@java" and not a.locks and list(a.members["g"]) == ["10.0.0.9@java"]
    assert world.driver(commitOffsets="false").start().position is not None


@pytest.mark.parametrize("same_name", [True, False])
def test_a_driver_that_was_killed_is_followed_as_soon_as_brokers_forget_its_locks(
    world: World, a: FakeBroker, b: FakeBroker, same_name: bool
) -> None:
    """The ghost of its own run is no reason to fail, and no reason to read beside it either."""
    first = world.driver(consumerName="reports").start()
    a.put("T", 0, 5)
    first.plan()
    world.sleep(3)
    first.kill()
    killed_s = world.now_s()
    again = world.driver(first.position, consumerName="reports" if same_name else "other").start()
    assert 40 <= world.now_s() - killed_s <= LOCK_LASTS_S + 7, "not before, and not much later"
    a.put("T", 0, 1)
    assert again.plan() == [("T", A0, 15, 16)]
    again.plan()
    assert (committed(a), committed(b)) == ({0: 16, 1: 10}, {0: 10})


def test_a_driver_that_stood_still_is_not_followed_while_brokers_count_it_as_a_member(world: World) -> None:
    """It may go on at any time. After 120 s without a heartbeat it is no member."""
    first = world.driver(consumerName="reports").start()
    first.lives = False
    world.sleep(90)
    with pytest.raises(LeaseHeldError, match="reports_on_"):
        world.driver().start()
    world.sleep(40)
    world.driver().start()


def available_now(driver: Driver) -> None:
    """The trigger of that name: Spark asks for the ends before it tells the position."""
    driver.reader.prepareForTriggerAvailableNow()


@pytest.mark.parametrize("before", [lambda driver: None, available_now])
@pytest.mark.parametrize("after_s", [0, 55, 90])
def test_a_run_that_brokers_still_show_is_waited_for_by_the_next_run_of_its_query(
    world: World, a: FakeBroker, b: FakeBroker, after_s: int, before: Callable[[Driver], None],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Its host died, so that nobody ended its connections: a member for 120 s behind its last heartbeat."""
    first = world.driver().start()
    first.plan()
    first.lives = False
    world.sleep(after_s)
    died_s = world.now_s() - after_s
    a.put("T", 0, 3)
    again = world.driver(first.position)
    before(again)
    again.start()
    assert 100 <= world.now_s() - died_s <= MEMBER_LASTS_S + 10
    assert again.position is not None and again.position["query"] == first.position["query"]
    again.plan()
    assert (committed(a), committed(b)) == ({0: 13, 1: 10}, {0: 10})
    assert set(a.locks.values()) == set(b.locks.values()) == again.ids == world.members()
    assert "is a run of this query, and brokers show it as a member" in caplog.text


def test_a_run_that_lives_is_named_to_the_next_run_of_its_query(world: World, a: FakeBroker) -> None:
    """The same checkpoint in two drivers."""
    first = world.driver(consumerName="reports").start()
    asked_s = world.now_s()
    with pytest.raises(LeaseHeldError, match="reports_on_") as caught:
        world.driver(first.position).start()
    assert caught.value.holder in first.ids and world.now_s() - asked_s <= 140
    a.put("T", 0, 1)
    assert first.plan() == [("T", A0, 10, 11)]
    assert set(a.locks.values()) == first.ids == world.members()


def test_a_run_whose_requests_all_brokers_carry_out_late_is_waited_for(
    world: World, a: FakeBroker, b: FakeBroker
) -> None:
    """The machine of both brokers stood still while the driver was killed and started again."""
    first = world.driver().start()
    first.plan()
    for broker in (a, b):
        broker.processes[0].silent = True
    world.sleep(25)
    first.kill()
    world.sleep(100)
    began_s = world.now_s()

    def go_on() -> None:
        for broker in (a, b):
            world.goes_on(broker)
            world.beats(broker, first)

    world.at.append((began_s + 30, go_on))
    a.put("T", 0, 3)
    again = world.driver(first.position).start()
    assert 90 <= world.now_s() - began_s <= 30 + MEMBER_LASTS_S + 10
    again.plan()
    assert committed(a) == {0: 13, 1: 10} and set(a.locks.values()) == set(b.locks.values()) == again.ids


def test_a_driver_that_stood_still_sets_no_offset_of_its_follower_back(
    world: World, a: FakeBroker, b: FakeBroker
) -> None:
    first = world.driver().start()
    first.plan()
    first.lives = False
    world.sleep(130)
    follower = world.driver(first.position).start()
    a.put("T", 0, 5)
    follower.plan()
    follower.plan()
    follower.reader.stop()
    assert committed(a) == {0: 15, 1: 10} and not a.locks
    a.put("T", 1, 1)
    first.lives = True
    with pytest.raises(LeaseHeldError, match="another client has moved the group on"):
        for _ in range(3):
            first.plan()
    first.reader.stop()
    assert (committed(a), committed(b)) == ({0: 15, 1: 10}, {0: 10})


def test_a_driver_that_stood_still_is_ended_by_the_one_that_reads_now(world: World, a: FakeBroker) -> None:
    first = world.driver().start()
    first.plan()
    first.lives = False
    world.sleep(130)
    follower = world.driver(first.position).start()
    first.lives = True
    with pytest.raises(LeaseHeldError, match="another client has taken the lease of "):
        first.plan()
    a.put("T", 0, 5)
    assert follower.plan() == [("T", A0, 10, 15)]
    assert set(a.locks.values()) == follower.ids


def test_a_driver_that_stood_still_alone_goes_on(world: World, a: FakeBroker, b: FakeBroker) -> None:
    first = world.driver().start()
    first.plan()
    first.lives = False
    world.sleep(600)
    first.lives = True
    a.put("T", 0, 5)
    assert first.plan() == [("T", A0, 10, 15)]
    first.plan()
    assert (committed(a), committed(b)) == ({0: 15, 1: 10}, {0: 10})
    assert set(a.locks.values()) == set(b.locks.values()) == first.ids == world.members()


def test_offsets_of_a_master_that_is_away_are_owed_and_committed_when_it_is_back(
    world: World, a: FakeBroker, b: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    driver = world.driver().start()
    driver.plan()
    b.put("T", 0, 5)
    assert driver.plan() == [("T", B0, 10, 15)]
    b.processes[0].down = True
    b.locks.clear()
    a.put("T", 0, 3)
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            driver.plan()
            world.sleep(20)
    assert (committed(a), committed(b)) == ({0: 13, 1: 10}, {0: 10})
    warning = "group 'g': no master of broker-b answers and grants the lease; its offsets are committed when one does"
    assert caplog.text.count(warning) == 1
    b.processes[0].down = False
    a.put("T", 0, 1)
    driver.plan()
    driver.plan()
    assert (committed(a), committed(b)) == ({0: 14, 1: 10}, {0: 15})
    assert set(b.locks.values()) == driver.ids and driver.ids <= b.members["g"].keys()


def test_owed_offsets_ask_a_master_that_hangs_no_more_than_renewals_do(
    world: World, a: FakeBroker, b: FakeBroker
) -> None:
    """Each batch would wait for its time-out. It is asked as soon as it answers a probe, and tells its ends again."""
    driver = world.driver().start()
    driver.plan()
    b.put("T", 0, 5)
    driver.plan()
    b.processes[0].silent = True
    began = len(world.net.calls)
    for _ in range(40):
        a.put("T", 0, 1)
        driver.plan()
    assert committed(a)[0] == 49
    asked = [command.code for address, command in world.net.calls[began:] if address == b.processes[0].address]
    assert asked.count(202) == 1 and not {15, 14, 34, 203} & set(asked), "the plan that meets the hang asks once"
    assert asked.count(41) <= 200 / RENEWED_EVERY_S + 1
    b.processes[0].silent = False
    world.sleep(30)  # between two probes
    a.put("T", 0, 1)
    driver.plan()
    assert committed(b) == {0: 15} and set(b.locks.values()) == driver.ids


def test_owed_offsets_are_committed_with_the_first_plan_that_a_master_answers(
    world: World, a: FakeBroker, b: FakeBroker
) -> None:
    """A hang of some seconds: no renewal comes in between."""
    world.sleep(1)
    driver = world.driver().start()
    b.put("T", 0, 5)
    driver.plan()
    b.processes[0].silent = True
    a.put("T", 0, 1)
    driver.plan()
    assert (committed(a)[0], committed(b)) == (10, {0: 10})
    b.processes[0].silent = False
    driver.plan()
    assert (committed(a)[0], committed(b)) == (11, {0: 15})


@pytest.mark.parametrize("is_back", [True, False])
def test_what_is_owed_is_committed_or_named_when_the_query_ends(
    world: World, a: FakeBroker, b: FakeBroker, is_back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    driver = world.driver().start()
    driver.plan()
    b.put("T", 0, 5)
    driver.plan()
    b.processes[0].down = True
    driver.plan()
    assert committed(b) == {0: 10}
    stopped_s = world.now_s()
    if is_back:
        world.at.append((stopped_s + 1, lambda: setattr(b.processes[0], "down", False)))
    driver.reader.stop()
    assert world.now_s() - stopped_s <= 3.5, "the next driver of the group waits 6 s"
    assert committed(b) == {0: 15 if is_back else 10}
    assert ("no master has taken these offsets" in caplog.text) is not is_back
    assert not a.locks and not a.members["g"]


def test_nothing_owed_is_committed_where_another_driver_has_the_group_now(
    world: World, a: FakeBroker, b: FakeBroker
) -> None:
    """The partition: `first` reaches no broker any more, its follower reaches both."""
    first = world.driver().start()
    first.plan()
    b.put("T", 0, 5)
    first.plan()
    b.processes[0].down = True
    first.plan()
    first.lives = False
    world.sleep(130)
    b.processes[0].down = False
    follower = world.driver(first.position).start()
    b.put("T", 0, 2)
    follower.plan()
    follower.plan()
    assert committed(b) == {0: 17}
    first.reader.stop()
    assert committed(b) == {0: 17} and set(b.locks.values()) == follower.ids


def test_a_broker_that_goes_on_with_requests_of_a_dead_run_does_not_end_the_new_one(
    world: World, a: FakeBroker, b: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """SIGSTOP of a broker, kill -9 of the driver and its restart, SIGCONT: the ghost has the lock there once more."""
    first = world.driver(consumerName="reports").start()
    first.plan()
    b.processes[0].silent = True
    world.sleep(25)
    first.kill()
    world.sleep(100)
    again = world.driver(first.position, consumerName="reports").start()
    a.put("T", 0, 5)
    assert again.plan() == [("T", A0, 10, 15)]
    world.sleep(20)
    again.plan()
    assert committed(a) == {0: 15, 1: 10}
    world.goes_on(b)
    assert set(b.locks.values()) == first.ids, "b has carried out what the dead run had asked"
    b.put("T", 0, 2)
    back_s = world.now_s()
    read: list[tuple[Any, ...]] = []
    while ("T", B0, 10, 12) not in read:
        began_s, end = world.now_s(), a.queues["T", 0].end
        a.put("T", 0, 1)
        new = again.plan()
        assert ("T", A0, end, end + 1) in new and world.now_s() - began_s == 5, "rows of the others go on meanwhile"
        assert world.now_s() - back_s < 70
        read += new
    again.plan()
    assert committed(b) == {0: 12} and set(b.locks.values()) == again.ids
    assert "broker broker-b is away: another client has the lease of %RETRY%g, T at broker broker-b" in caplog.text


def test_a_query_that_ends_commits_nothing_where_the_lock_of_another_is_not_explained_yet(
    world: World, a: FakeBroker, b: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a ghost, or a driver that lives: a query that ends does not wait until that is known."""
    first = world.driver(consumerName="reports").start()
    first.plan()
    b.processes[0].silent = True
    world.sleep(25)
    first.kill()
    world.sleep(100)
    again = world.driver(first.position, consumerName="reports").start()
    b.put("T", 0, 5)
    assert again.plan() == [("T", B0, 10, 15)], "from its slave"
    again.plan()
    world.goes_on(b)
    stopped_s = world.now_s()
    again.reader.stop()
    assert world.now_s() - stopped_s <= 3.5
    assert committed(b) == {0: 10} and set(b.locks.values()) == first.ids and not a.locks
    assert "no master has taken these offsets" in caplog.text


def test_of_two_drivers_that_each_had_one_broker_just_one_goes_on_when_both_are_back(
    world: World, a: FakeBroker, b: FakeBroker
) -> None:
    """The partition that the lease cannot prevent: the one that finds the other one's lock first ends."""
    b.processes[0].down = True
    first = world.driver(consumerName="first").start()
    first.plan()
    b.processes[0].down, a.processes[0].down = False, True
    # The first one stands still meanwhile: it has not seen b.
    first.lives = False
    world.sleep(1)
    second = world.driver(consumerName="second").start()
    a.processes[0].down, first.lives = False, True
    refused = set()
    for _ in range(30):
        for driver in (first, second):
            try:
                driver.plan()
            except LeaseHeldError:
                refused.add(driver)
    assert len(refused) == 1
    (goes_on,) = {first, second} - refused
    b.put("T", 0, 5)
    goes_on.plan()
    goes_on.plan()
    assert committed(b)[0] == 15 and set(a.locks.values()) == set(b.locks.values()) == goes_on.ids


@pytest.mark.parametrize("same_query", [True, False])
def test_a_driver_watches_for_the_holder_whose_locks_are_at_a_master_that_is_away(
    world: World, a: FakeBroker, b: FakeBroker, same_query: bool
) -> None:
    """The first one began while b was away. Then a went, and b came back: no broker that answers has a lock."""
    b.processes[0].down = True
    first = world.driver(consumerName="first").start()
    first.plan()
    a.processes[0].down, b.processes[0].down = True, False
    assert not b.locks and not b.members["g"]
    began_s, second = world.now_s(), world.driver(first.position)
    if not same_query:
        assert second.position is not None
        second.position = {**second.position, "query": "ffffffff"}
    with pytest.raises(LeaseHeldError) as caught:
        second.start()
        b.put("T", 0, 5)
        for _ in range(40):
            second.plan()
            if same_query:
                first.plan()
    assert not committed(b), "nobody commits who may not be alone"
    if same_query:
        # Two drivers with one checkpoint: the first one may be a ghost, and is watched for longer.
        assert world.now_s() - began_s <= 140
        return
    assert caught.value.holder in first.ids and world.now_s() - began_s <= 25
    second.reader.stop()
    first.plan()
    first.plan()
    assert set(b.locks.values()) == first.ids and committed(b) == {0: 15}


@pytest.mark.parametrize("before", [lambda driver: None, available_now])
@pytest.mark.parametrize("kind", ["silent", "down"])
def test_a_query_that_is_started_again_while_a_master_is_away_plans_at_once(
    world: World, a: FakeBroker, b: FakeBroker, kind: str, before: Callable[[Driver], None]
) -> None:
    """The lease of the master that lives is enough for its queues; those of the other one are held until it is back."""
    del b.processes[1]
    first = world.driver().start()
    first.plan()
    setattr(b.processes[0], kind, True)
    world.sleep(25)
    first.reader.stop()
    a.put("T", 0, 5)
    b.put("T", 0, 5)
    began_s = world.now_s()
    again = world.driver(first.position)
    before(again)
    world.now_plans = again
    start, again.position = first.position, through_spark(again.reader.latestOffset(first.position, LIMIT))
    assert planned(again.reader, start, again.position) == [("T", A0, 10, 15)]
    assert world.now_s() == began_s, "nobody is waited for"
    again.ids = world.members() - first.ids
    if before is available_now:
        return
    for _ in range(5):
        a.put("T", 0, 1)
        assert [part[:2] for part in again.plan()] == [("T", A0)]
    assert (committed(a), committed(b)) == ({0: 19, 1: 10}, {0: 10})
    world.goes_on(b) if kind == "silent" else setattr(b.processes[0], kind, False)
    for _ in range(20):
        if again.position["topics"]["T"]["broker-b:0"] == 15:
            break
        again.plan()
    again.plan()
    assert committed(b) == {0: 15} and set(b.locks.values()) == again.ids


def test_no_driver_starts_without_a_lock_and_one_that_runs_keeps_its_lease(
    world: World, a: FakeBroker, b: FakeBroker
) -> None:
    """Slaves grant no locks."""
    first = world.driver(consumerName="first").start()
    first.plan()
    for broker in (a, b):
        broker.processes[0].down = True
    began_s = world.now_s()
    with pytest.raises(RemotingError, match=r"no master of .* has answered for 60 s.*commitOffsets=false"):
        world.driver(first.position).start()
    assert 60 <= world.now_s() - began_s < 70
    a.put("T", 0, 1)
    b.put("T", 0, 1)
    assert first.plan() == [("T", A0, 10, 11), ("T", B0, 10, 11)], "from slaves"
    first.plan()
    assert (committed(a), committed(b)) == ({0: 10, 1: 10}, {0: 10})
    for broker in (a, b):
        broker.processes[0].down = False
    a.put("T", 0, 1)
    first.plan()
    first.plan()
    assert (committed(a), committed(b)) == ({0: 12, 1: 10}, {0: 11})
    assert set(a.locks.values()) == set(b.locks.values()) == first.ids


def test_the_retry_topic_of_the_group_is_leased_too_and_also_at_a_broker_that_comes_back(
    world: World, a: FakeBroker, b: FakeBroker
) -> None:
    first = world.driver().start()
    assert {topic for _, topic, _ in a.locks} == {"T", "%RETRY%g"}
    b.processes[0].down = True
    world.sleep(100)
    b.processes[0].down = False
    first.plan()
    assert {topic for _, topic, _ in b.locks} == {"T", "%RETRY%g"} and set(b.locks.values()) == first.ids
