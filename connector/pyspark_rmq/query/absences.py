"""The brokers that are away from a stream: whether it goes on without them, what it tells of them. Control plane.

    onBrokerAway    a broker                     a broker of requiredBrokers
    goOn            the stream goes on           no batch is planned, brokerAwayTimeout long; then `BrokerAwayError`
    wait            no batch is planned          no batch is planned
    fail            its error (`ClusterReader`)  `BrokerAwayError` (`starting_offsets.require_brokers`)

A batch that Spark has written down is none of this: its tasks wait. The stream commits completed batches in any case.

The log has a warning when a broker goes, and one when it is back, once a minute at most: of a broker that comes and
goes the next warning has the number of times.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark_rmq.access.queue_source import Brokers, QueueSource
from pyspark_rmq.options.option_table import WAIT
from pyspark_rmq.options.options import SourceOptions
from pyspark_rmq.position.position import Queue, StreamPosition
from pyspark_rmq.position.queue_ids import broker_of
from rmq_store.real_time import monotonic

if TYPE_CHECKING:
    from rmq_store.cluster import BrokerAwayError

_log = logging.getLogger(__name__)

WARN_EVERY_S: Final = 60.0
# Queues of a warning.
_NAMED = 8


@dataclass(slots=True)
class _Broker:
    """The last look at a broker, and the last warning. Times are in s, of a clock that never goes back."""

    away_since_s: float | None = None
    # Since the last warning that it is away.
    times_gone: int = 0
    warned_s: float | None = None
    is_told_away: bool = False


class Absences:
    """The brokers that are away from one stream, as its plans have found them."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._brokers: dict[str, _Broker] = {}
        self._missed: BrokerAwayError | None = None
        self.holds = False
        """Whether no batch may be planned, as the last plan has found."""
        self.is_available_now = False
        """Whether this run ends when all that was there at its start is read (Trigger.AvailableNow)."""

    @property
    def names(self) -> list[str]:
        """The brokers that were away when the stream planned last, sorted."""
        return sorted(name for name, broker in self._brokers.items() if broker.away_since_s is not None)

    def seen(self, store: QueueSource, missed: BrokerAwayError | None, position: StreamPosition | None) -> bool:
        """A plan from `position` (None: it is not known yet) has asked the brokers; `missed` names required ones that
        are not there. Returns whether no batch may be planned now.

        Raises:
            BrokerAwayError: a required broker was away for brokerAwayTimeout, and onBrokerAway is goOn.
        """
        away = _away(store, missed)
        now_s = monotonic()
        self._note(away, now_s, position)
        awaited = self._awaited(away)
        self.holds = bool(awaited)
        if awaited and self._options.on_broker_away != WAIT:
            self._fail_after_the_bound(awaited, away, now_s)
        return self.holds

    def hold(self, store: QueueSource, missed: BrokerAwayError | None, untold: Iterable[Queue]) -> bool:
        """As `seen`, without a bound, and without a word; also for brokers of queues that are `untold`."""
        brokers = {name for queue in untold if (name := broker_of(queue.queue_id)) is not None}
        return bool(self._awaited(_away(store, missed).keys() | brokers))

    def _awaited(self, away: Collection[str]) -> set[str]:
        return set(away) if self._options.on_broker_away == WAIT else set(away) & set(self._options.required_brokers)

    def _fail_after_the_bound(self, required: set[str], away: Mapping[str, Exception], now_s: float) -> None:
        from rmq_store.cluster import BrokerAwayError

        late = {name: now_s - (self._brokers[name].away_since_s or now_s) for name in sorted(required)}
        bound_s = self._bound_s
        if max(late.values()) < bound_s:
            return
        why = "; ".join(f"{name}, for {late[name]:.1f} s: {away[name]}" for name in late)
        raise BrokerAwayError(
            f"required brokers are away for longer than brokerAwayTimeout, {bound_s:g} s; nothing was planned: {why}",
            tuple(late),
        )

    @property
    def _bound_s(self) -> float:
        cluster = self._options.cluster
        return 0.0 if cluster is None else cluster.broker_away_timeout_ms / 1000

    # -- warnings -----------------------------------------------------------------------------------------------------

    def _note(self, away: Mapping[str, Exception], now_s: float, position: StreamPosition | None) -> None:
        for name in sorted(self._brokers):
            broker = self._brokers[name]
            if name in away or broker.away_since_s is None:
                continue
            away_s, broker.away_since_s = now_s - broker.away_since_s, None
            level, broker.is_told_away = logging.WARNING if broker.is_told_away else logging.INFO, False
            _log.log(
                level, "broker %s is back after %.1f s; the stream goes on in its queues at %s",
                name, away_s, _places(position, name),
            )  # fmt: skip
        for name in sorted(away):
            broker = self._brokers.setdefault(name, _Broker())
            if broker.away_since_s is None:
                broker.away_since_s = now_s
                broker.times_gone += 1
            if broker.is_told_away or (broker.warned_s is not None and now_s - broker.warned_s < WARN_EVERY_S):
                continue
            often = "" if broker.warned_s is None or broker.times_gone < 2 else (
                f" (it went {broker.times_gone} times in {now_s - broker.warned_s:.0f} s)"
            )  # fmt: skip
            broker.warned_s, broker.times_gone, broker.is_told_away = now_s, 0, True
            _log.warning(
                "broker %s is away%s: %s. %s; its queues stay at %s",
                name, often, away[name], self._what_follows(name), _places(position, name),
            )  # fmt: skip

    def _what_follows(self, name: str) -> str:
        if self._options.on_broker_away == WAIT:
            return "The stream plans nothing until it is back (onBrokerAway)"
        if name in self._options.required_brokers:
            return (
                f"The stream plans nothing until it is back, and fails after {self._bound_s:g} s (requiredBrokers, "
                "brokerAwayTimeout)"
            )
        if self.is_available_now:
            return "This run (AvailableNow) ends without its rows, and the next one reads them (onBrokerAway)"
        return "The stream goes on without it (onBrokerAway)"


def _away(store: QueueSource, missed: BrokerAwayError | None) -> dict[str, Exception]:
    told = dict(store.away()) if isinstance(store, Brokers) else {}
    return told if missed is None else {**dict.fromkeys(missed.broker_names, missed), **told}


def _places(position: StreamPosition | None, broker_name: str) -> str:
    """The next offsets of a stream in the queues of a broker, for people."""
    offsets = {} if position is None else position.next
    queues = sorted(queue for queue in offsets if broker_of(queue.queue_id) == broker_name)
    some = ", ".join(f"{queue} {offsets[queue]}" for queue in queues[:_NAMED])
    more = f" and {len(queues) - _NAMED} more" if len(queues) > _NAMED else ""
    return f"{some}{more}" if queues else "no position yet"
