"""A consumer's membership in its group: it joins, sends heartbeats, polls for changes of members, and leaves.

    heartbeat     every 30 s, and at once when the subscriptions change
    poll          every second: if members or queues differ from those of the last rebalance, one follows at once
    rebalance     every 20 s, and one second after one that could not complete

Java's brokers notify the members of a change. Here no broker process can, so every member polls. Sources:
MQClientInstance.java, RebalanceService.java.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rmq_store.client.backend.backend import Backend, Broker, brokers_for
from rmq_store.client.group.rebalance import Rebalance
from rmq_store.client.group.timers import SteadyClock, Timer
from rmq_store.errors import LeaseHeldError, UsageError
from rmq_store.files.locks.guard import Guard
from rmq_store.protocol.errors import ClientError

HEARTBEAT_MS = 30_000
POLL_MS = 1000
REBALANCE_MS = 20_000
UNBALANCED_MS = 1000

_log = logging.getLogger(__name__)


class Membership:
    """The member `client_id` of a group; `topics` are its subscribed topics now, if possible with the subscription of
    each. Safe for threads.

    `shares`: whether it shares their queues with the group, so that no stream of the group can read them. All work
    holds `guard`, so that a caller can exclude it. `join`, `change_topics` and `run_due` raise UsageError if a signal
    handler calls them while one of them runs on its own thread; nothing was done then.
    """

    def __init__(
        self,
        backend: Backend,
        group: str,
        client_id: str,
        rebalance: Rebalance[Any],
        topics: Callable[[], Collection[str]],
        *,
        shares: bool,
        guard: Guard | None = None,
    ) -> None:
        self._backend = backend
        self._group = group
        self._client_id = client_id
        self._rebalance = rebalance
        self._topics = topics
        self._shares = shares
        self._registered_topics: set[str] = set()
        self._caller_guard = guard or contextlib.nullcontext()
        self._guard = Guard()
        self._clock = SteadyClock(backend.clock)
        now_ms = self._clock()
        self._rebalance_timer = Timer(self._rebalance_now, REBALANCE_MS, now_ms)
        self._heartbeat_timer = Timer(self._heartbeat, HEARTBEAT_MS, now_ms)
        self._timers = [
            self._heartbeat_timer,
            Timer(self._poll_changes, POLL_MS, now_ms),
            self._rebalance_timer,
        ]

    def join(self) -> None:
        """Become a member and acquire queues.

        Raises:
            LeaseHeldError: another live member has this client id, or a stream of the group reads one of the topics.
            ClientError: a broker cannot be reached; the consumer is a member at no broker.
        """
        joined: list[Broker] = []
        with self._caller_guard, self._guard.entered():
            self._registered_topics = set(self._topics())
            try:
                for broker in self._brokers():
                    self._send_heartbeat(broker, self._registered_topics, joins=True)
                    joined.append(broker)
            except LeaseHeldError:
                # There the id, or a topic, is another one's.
                self._leave(joined)
                raise
            except BaseException:
                self.leave()
                raise
            self._rebalance_now()

    def leave(self) -> None:
        """Leave the group and release its queue locks. A broker that cannot be reached detects this by itself."""
        self._leave(self._brokers())

    def _leave(self, brokers: Iterable[Broker]) -> None:
        for broker in brokers:
            try:
                broker.unregister(self._group, self._client_id)
            except ClientError as error:
                _log.warning("group %s: %s does not know that we left: %s", self._group, broker.name, error)

    def every(self, interval_ms: int, work: Callable[[], None], *, first_ms: int | None = None) -> None:
        """Add other periodic work."""
        self._timers.append(Timer(work, interval_ms, self._clock(), first_ms=first_ms))

    def change_topics(self, topics: Collection[str], change: Callable[[], None]) -> None:
        """Register the new topics at every broker, then call `change` to change the subscriptions; a rebalance follows.

        Raises:
            LeaseHeldError: a stream of the group reads one of them; nothing was changed.
            ClientError: a broker cannot be reached; nothing was changed.
        """
        with self._caller_guard, self._guard.entered():
            try:
                for broker in self._brokers():
                    self._send_heartbeat(broker, {*topics, *self._topics_in_use()})
            except BaseException:
                self._heartbeat()
                raise
            change()
            self.hurry()

    def hurry(self) -> None:
        """At the next `run_due`, send the subscriptions to the brokers, and rebalance."""
        self._heartbeat_timer.hurry(0)
        self._rebalance_timer.hurry(0)

    def run_due(self) -> None:
        """Do the work that is due now."""
        with self._caller_guard, self._guard.entered():
            now_ms = self._clock()
            for timer in self._timers:
                timer.fire_if_due(now_ms)

    def _heartbeat(self) -> None:
        self._registered_topics = self._topics_in_use()
        for broker in self._brokers():
            try:
                self._send_heartbeat(broker, self._registered_topics)
            except ClientError as error:
                _log.warning("group %s: no heartbeat to %s: %s", self._group, broker.name, error)

    def _poll_changes(self) -> None:
        try:
            if self._rebalance.changed(self._topics()):
                self._rebalance_timer.hurry(0)
        except ClientError as error:
            _log.warning("group %s: members or queues are unknown: %s", self._group, error)

    def _rebalance_now(self) -> None:
        try:
            is_balanced = self._rebalance.rebalance(self._topics())
        except ClientError as error:
            _log.warning("group %s: no rebalance: %s", self._group, error)
            is_balanced = False
        if self._topics_in_use() != self._registered_topics:
            self._heartbeat_timer.hurry(0)
        if not is_balanced:
            self._rebalance_timer.hurry(self._clock() + UNBALANCED_MS)

    def _topics_in_use(self) -> set[str]:
        """The subscribed topics, and earlier ones whose queues this member still has: a stream would read them, too."""
        return {*self._topics(), *(queue.topic for queue in self._rebalance.queues())}

    def _send_heartbeat(self, broker: Broker, topics: Collection[str], *, joins: bool = False) -> None:
        known = self._topics()
        if isinstance(known, Mapping):
            topics = {topic: known.get(topic) for topic in topics}
        broker.heartbeat(self._group, self._client_id, joins=joins, topics=topics, shares=self._shares)

    def _brokers(self) -> list[Broker]:
        return brokers_for(self._backend, self._topics())


def report_never_started(group: str, set_up_by: str, error: BaseException | None) -> None:
    """Report a consumer that was set up, and whose `with` block ended before somebody started it.

    Raises:
        UsageError: unless the block ends with `error`; then the log has the text.
    """
    text = f"consumer group {group!r}: it was never started, so it got no messages; call start() behind {set_up_by}"
    if error is None:
        raise UsageError(text)
    _log.warning("%s", text)
