"""Who is in a group, and who has locked a queue: leases on files, so that the dead hold nothing.

Sources: docs/design.md on leases; ConsumerManager.java, RebalanceLockManager.java.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rmq_store
from rmq_store import LeaseHeldError, UsageError
from rmq_store.broker.processor.local_broker import LocalBroker
from rmq_store.client.backend.local import LocalBackend
from rmq_store.files.locks.lock import OfdLock
from rmq_store.protocol.messages import MessageQueue

from ..conftest import QUEUE, advance


def test_members_join_by_heartbeat_and_leave(broker: LocalBroker) -> None:
    broker.heartbeat("g", "10.0.0.1@2#b")
    broker.heartbeat("g", "10.0.0.1@1#a")
    broker.heartbeat("other", "x")
    assert broker.consumer_ids("g") == ["10.0.0.1@1#a", "10.0.0.1@2#b"]
    broker.unregister("g", "10.0.0.1@2#b")
    broker.unregister("g", "never was here")
    assert broker.consumer_ids("g") == ["10.0.0.1@1#a"]


def test_all_processes_see_the_same_members(broker: LocalBroker) -> None:
    broker.heartbeat("g", "here")
    with LocalBackend(broker.store.path) as elsewhere:
        other = elsewhere.brokers()["rmq-embedded"]
        other.heartbeat("g", "there")
        assert broker.consumer_ids("g") == other.consumer_ids("g") == ["here", "there"]
        with pytest.raises(LeaseHeldError):
            other.heartbeat("g", "here")
    assert broker.consumer_ids("g") == ["here"]


def test_a_member_without_a_heartbeat_for_two_minutes_is_not_counted(broker: LocalBroker) -> None:
    """ConsumerManager: CHANNEL_EXPIRED_TIMEOUT 120 s."""
    broker.heartbeat("g", "slow")
    broker.heartbeat("g", "fast")
    advance(broker, 120_000)
    broker.heartbeat("g", "fast")
    assert broker.consumer_ids("g") == ["fast", "slow"]
    advance(broker, 1)
    assert broker.consumer_ids("g") == ["fast"]
    broker.heartbeat("g", "slow")
    assert broker.consumer_ids("g") == ["fast", "slow"]


def test_a_member_whose_lease_is_just_being_written_is_not_counted(broker: LocalBroker) -> None:
    """It holds the lock, and no text says yet who it is; the others would leave it queues that nobody consumes."""
    broker.heartbeat("g", "known")
    lock = OfdLock(broker.store.path / "pyrmq" / "groups" / "g" / "%MEMBER%beginning.lease")
    assert lock.try_exclusive()
    assert broker.consumer_ids("g") == ["known"]
    lock.close()


def test_the_lease_of_a_stream_is_no_member(broker: LocalBroker) -> None:
    lease = broker.store.lease("g", "T", "a stream")
    assert broker.consumer_ids("g") == []
    lease.release()


@pytest.mark.parametrize("client_id", ["", "x" * 257])
def test_a_client_id_is_neither_empty_nor_longer_than_a_lease_can_say(broker: LocalBroker, client_id: str) -> None:
    with pytest.raises(UsageError, match="client id"):
        broker.heartbeat("g", client_id)


def test_a_queue_is_locked_by_one_client(broker: LocalBroker) -> None:
    other = MessageQueue("T", "broker-a", 1)
    assert broker.lock_queues("g", "me", [QUEUE]) == {QUEUE}
    assert broker.lock_queues("g", "you", [QUEUE, other]) == {other}
    assert broker.lock_queues("g", "me", [QUEUE, other]) == {QUEUE}  # asking again renews
    assert broker.lock_queues("g2", "you", [QUEUE]) == {QUEUE}  # groups have locks of their own
    broker.unlock_queues("g", "you", [QUEUE, other])  # what is not its own stays
    assert broker.lock_queues("g", "you", [QUEUE, other]) == {other}
    broker.unregister("g", "me")
    assert broker.lock_queues("g", "you", [QUEUE]) == {QUEUE}


def test_a_lock_holds_between_processes_and_for_long_names(broker: LocalBroker) -> None:
    long_queues = [MessageQueue("%RETRY%" + "x" * 120 + end, "broker-a", 0) for end in "ab"]
    assert broker.lock_queues("g", "me", [QUEUE, *long_queues]) == {QUEUE, *long_queues}
    with LocalBackend(broker.store.path) as elsewhere:
        other = elsewhere.brokers()["rmq-embedded"]
        assert other.lock_queues("g", "you", [QUEUE, *long_queues]) == set()
        advance(broker, 3_600_000)  # a broker would have given it away; a live process keeps it
        assert other.lock_queues("g", "you", [QUEUE]) == set()
        broker.unlock_queues("g", "me", [QUEUE])
        assert other.lock_queues("g", "you", [QUEUE]) == {QUEUE}


KILLED = """
import os, signal, sys
from rmq_store.client.backend.backend import MessageQueue
from rmq_store.client.backend.local import LocalBackend
broker = LocalBackend(sys.argv[1]).brokers()["rmq-embedded"]
broker.heartbeat("g", "killed")
assert broker.lock_queues("g", "killed", [MessageQueue("T", "broker-a", 0)])
print(broker.consumer_ids("g"))
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_is_no_member_and_holds_no_lock(broker: LocalBroker) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(rmq_store.__file__).parents[1])}
    answer = subprocess.run(
        [sys.executable, "-c", KILLED, str(broker.store.path)], env=environment, capture_output=True, timeout=60
    )
    assert (answer.returncode, answer.stdout) == (-9, b"['killed']\n"), answer.stderr
    assert broker.consumer_ids("g") == []
    assert broker.lock_queues("g", "me", [MessageQueue("T", "broker-a", 0)])
