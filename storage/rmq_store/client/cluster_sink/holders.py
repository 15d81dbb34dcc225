"""The list of brokers that may hold records of a cluster's sinks (`records`); only a command makes it shorter. Pure.

A name server drops a broker that is killed at once, so a route never says where a record may be. The list is in the
topic of the records itself, as a message of its own and in each record:

    {"version": 1, "holders": {"number": 2, "brokers": ["broker-a", "broker-b"], "copies": 1, "listedMs": 17...}}

    another master has the topic   the next list has one name more; it counts when so many brokers of it have it that no
                                   reader of an earlier list misses it, and only then records go there
    a broker never returns         a command writes the next list, without it
    two lists                      the greater number counts; of equal numbers both, since two tasks saw other brokers
    the list is some hours old     it is written again: retention deletes the old message

`copies`: so many of these brokers have a record at least, also one that was made under an earlier list. With two
masters a record may have one copy, which a third master does not change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, Self

from rmq_store.lazy.dataclasses import dataclass

COPIES: Final = 2
"""So many copies a record has where brokers take them."""

REFRESH_AFTER_MS: Final = 6 * 3_600_000

_VERSION: Final = 1


def copies_needed(broker_count: int) -> int:
    """How many copies a record must have among so many brokers: with three or more one of them may be away."""
    return 1 if broker_count <= COPIES else COPIES


@dataclass(frozen=True, slots=True)
class Holders:
    """The list. `brokers` is sorted. `listed_ms`: when it was written, by the clock of its writer."""

    number: int
    brokers: tuple[str, ...]
    copies: int
    listed_ms: int

    @classmethod
    def first(cls, brokers: Iterable[str], now_ms: int) -> Self:
        """The list of a cluster that has none."""
        names = tuple(sorted(set(brokers)))
        return cls(1, names, copies_needed(len(names)), now_ms)

    def with_brokers(self, brokers: Iterable[str], now_ms: int) -> Holders:
        """The next list, if one of these brokers is new; this one otherwise."""
        names = tuple(sorted({*self.brokers, *brokers}))
        if names == self.brokers:
            return self
        return Holders(self.number + 1, names, min(self.copies, copies_needed(len(names))), now_ms)

    def replaced(self, brokers: Iterable[str], now_ms: int) -> Holders:
        """The next list, after the records of a broker are lost: of two copies one may be gone."""
        return Holders(self.number + 1, tuple(sorted(set(brokers))), 1, now_ms)

    def merged(self, other: Holders | None) -> Holders:
        """The list that counts of two that were found."""
        if other is None or other.number < self.number:
            return self
        if other.number > self.number:
            return other
        brokers = tuple(sorted({*self.brokers, *other.brokers}))
        return Holders(
            self.number, brokers, min(self.copies, other.copies), max(self.listed_ms, other.listed_ms)
        )

    def is_due(self, now_ms: int) -> bool:
        """Whether it is to be written again."""
        return now_ms - self.listed_ms >= REFRESH_AFTER_MS

    def renewed(self, now_ms: int) -> Holders:
        """The same list, written now."""
        return replace(self, listed_ms=now_ms)

    def brokers_that_must_have(self, before: Holders | None) -> int:
        """How many of its brokers must have this list before it counts. A reader that knows the list `before`, and
        leaves out as many as it may, then meets one of them.
        """
        known = self if before is None else before
        return len(self.brokers) - (copies_needed(len(known.brokers)) - 1)

    def to_value(self) -> dict[str, Any]:
        """The value of `holders` in JSON."""
        return {
            "number": self.number, "brokers": list(self.brokers), "copies": self.copies, "listedMs": self.listed_ms
        }  # fmt: skip

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Read the value of `holders`. Raises ValueError, KeyError, TypeError or AttributeError: it is none."""
        return cls(
            int(value["number"]), tuple(sorted(map(str, value["brokers"]))), int(value["copies"]),
            int(value["listedMs"]),
        )  # fmt: skip

    def to_json(self) -> bytes:
        """The text of a message that has the list alone."""
        return json.dumps({"version": _VERSION, "holders": self.to_value()}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self | None:
        """The list in a message of its own, or in a record; None: the text has none."""
        try:
            found = json.loads(text)
            return cls.from_value(found["holders"]) if found["version"] == _VERSION else None
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
