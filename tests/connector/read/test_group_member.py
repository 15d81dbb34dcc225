"""A stream as a member of its group, over leases that fail."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_rmq.read.group import GroupMember
from rmq_store.protocol.errors import MQBrokerError


class Lease:
    def __init__(self, error: Exception | None) -> None:
        self.is_released = False
        self._error = error

    def release(self) -> None:
        self.is_released = True
        if self._error is not None:
            raise self._error


class Leases:
    """A store that gives leases, of which the first cannot be given back."""

    def __init__(self) -> None:
        self.given: list[Lease] = []

    def lease(self, group: str, topic: str, owner: str) -> Lease:
        self.given.append(Lease(None if self.given else MQBrokerError(2, "[OVERLOAD]", "broker-b")))
        return self.given[-1]


def test_a_lease_that_cannot_be_given_back_keeps_no_other() -> None:
    store: Any = Leases()
    member = GroupMember(store, "g", "reports")
    member.claim(["A", "B", "%RETRY%g"])
    with pytest.raises(MQBrokerError, match="OVERLOAD"):
        member.leave()
    assert [lease.is_released for lease in store.given] == [True, True, True]
    member.leave()
