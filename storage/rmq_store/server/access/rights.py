"""Rights of a user for topics and groups, by patterns (PlainAccessResource.java, AclAuthorizationHandler.java).

A pattern is a name, a beginning of names with `*` behind it, or `*`. The most exact pattern that fits a name decides
alone; what no pattern fits is denied. `%RETRY%group` and `%DLQ%group` belong to their group. A system topic that only a
broker sends to holds messages for every topic, so that no pattern with a `*` opens it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rmq_store.errors import UsageError
from rmq_store.format.text.names import DLQ_PREFIX, RETRY_PREFIX, is_sent_by_broker_only, retry_group
from rmq_store.server.requests.request_needs import Need, Resource, Right

_BY_NAME: Final = {right.name or "DENY": right for right in (Right.DENY, *Right)}
_ANY: Final = "*"
# MixAll.CLIENT_INNER_PRODUCER_GROUP; and AsyncTraceDispatcher: first the prefix alone, now with group, kind and number.
_OWN_PRODUCER: Final = re.compile(
    r"CLIENT_INNER_PRODUCER|_INNER_TRACE_PRODUCER(-[%|a-zA-Z0-9_-]+-(PRODUCE|CONSUME)(-[0-9]+)?)?", re.ASCII
)


def is_clients_own_producer(group: str) -> bool:
    """True for the producer groups that every Java client or its trace dispatcher makes for itself. Everybody may join
    them, so nothing is ever asked of their members.
    """
    return _OWN_PRODUCER.fullmatch(group) is not None


def parse_rights(text: str) -> Right:
    """Read `PUB`, `PUB|SUB`, `ADMIN` or `DENY`. UsageError: it is none of these."""
    found = Right.DENY
    for name in text.split("|"):
        right = _BY_NAME.get(name.strip())
        if right is None:
            raise UsageError(f"{text[:80]!r} is no right; a right is PUB, SUB, ADMIN or DENY, several are PUB|SUB")
        found |= right
    return found


class Patterns:
    """Rights by pattern. UsageError: a `*` that is not the end of its pattern, or an empty pattern."""

    def __init__(self, rights: Mapping[str, Right]) -> None:
        for pattern in rights:
            if not pattern or _ANY in pattern[:-1]:
                raise UsageError(f"{pattern[:80]!r} is no pattern; it is a name, or the beginning of names and a *")
        self._names = {pattern: right for pattern, right in rights.items() if not pattern.endswith(_ANY)}
        beginnings = {pattern[:-1]: right for pattern, right in rights.items() if pattern.endswith(_ANY)}
        self._beginnings = sorted(beginnings.items(), key=lambda one: -len(one[0]))

    def of(self, name: str) -> Right:
        """The rights for a name."""
        named = self._names.get(name)
        if named is not None:
            return named
        return next((right for beginning, right in self._beginnings if name.startswith(beginning)), Right.DENY)

    def of_exactly(self, name: str) -> Right:
        """The rights of the pattern that is the name itself."""
        return self._names.get(name, Right.DENY)


class User:
    """One access key. `is_admin`: may do everything. The secret has no text and is not compared."""

    __slots__ = ("access_key", "groups", "is_admin", "secret_key", "topics")

    def __init__(
        self, access_key: str, secret_key: str, topics: Patterns, groups: Patterns, *, is_admin: bool = False
    ) -> None:
        self.access_key = access_key
        self.secret_key = secret_key
        self.topics = topics
        self.groups = groups
        self.is_admin = is_admin

    def __repr__(self) -> str:
        return "User(***)"

    def may(self, need: Need) -> bool:
        """Whether the user has a right."""
        if self.is_admin:
            return True
        right, resource, name = _of_group(need)
        if resource is Resource.BROKER:
            return False
        if resource is Resource.GROUP and right is Right.PUB and is_clients_own_producer(name):
            return True
        if resource is Resource.GROUP:
            return right in self.groups.of(name)
        return right in (self.topics.of_exactly(name) if is_sent_by_broker_only(name) else self.topics.of(name))


def _of_group(need: Need) -> Need:
    """A need for a topic of retries or dead letters as one for the group: who consumes in it may write there, too."""
    if need.resource is not Resource.TOPIC or not need.name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return need
    right = Right.SUB if need.right is Right.PUB else need.right
    return Need(right, Resource.GROUP, retry_group(need.name.removeprefix(DLQ_PREFIX)))
