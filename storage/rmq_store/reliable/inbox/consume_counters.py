"""Counts of a group's messages: done, recognised as duplicates, postponed, or failed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.inbox.redis_filter import Known


@dataclass(frozen=True, slots=True)
class ConsumeCounts:
    """Messages since the `Idempotency` was made.

    `done`: with their effect. `duplicates_by_redis`, `duplicates_by_inbox`: done before, as Redis or only the database
    knew. `void`: voided by a person. `later`: another worker had them. `failed`: the handler or the database failed.
    `refused`: without an id of their own. `in_doubt`: put on the manual list. `redis_outages`: how often Redis began to
    fail. `database_outages`: how often messages began to be held because the database could not be written. `listed`:
    not done, and put on the manual list, because another message with the id is done.
    """

    done: int = 0
    duplicates_by_redis: int = 0
    duplicates_by_inbox: int = 0
    void: int = 0
    later: int = 0
    failed: int = 0
    refused: int = 0
    in_doubt: int = 0
    redis_outages: int = 0
    database_outages: int = 0
    listed: int = 0


class Counters:
    """Counters that any thread may increment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = ConsumeCounts()

    def snapshot(self) -> ConsumeCounts:
        """The counts now."""
        return self._counts

    def count(self, outcomes: Mapping[str, str], known: Mapping[str, Known]) -> None:
        """Add the outcomes (`exactly_once.HandlerOutcome`) of messages, of which Redis knew what `known` says. One
        whose id is another message's is counted when it is done under its own, or is listed.
        """
        added: dict[str, int] = {}
        for message_id, outcome in outcomes.items():
            name = str(outcome)
            if name == "other":
                continue
            if name == "duplicate":
                by_redis = known.get(message_id) is Known.DONE
                name = "duplicates_by_redis" if by_redis else "duplicates_by_inbox"
            added[name] = added.get(name, 0) + 1
        self._add(added)

    def doubt(self, count: int) -> None:
        """Count messages that were put on the manual list."""
        self._add({"in_doubt": count})

    def list_one(self) -> None:
        """Count a message that was listed because its id is another message's."""
        self._add({"listed": 1})

    def refuse(self, count: int) -> None:
        """Count messages without an id."""
        self._add({"refused": count})

    def outage(self) -> None:
        """Count that Redis began to fail."""
        self._add({"redis_outages": 1})

    def _add(self, added: Mapping[str, int]) -> None:
        with self._lock:
            now = self._counts
            self._counts = replace(now, **{name: getattr(now, name) + more for name, more in added.items()})
