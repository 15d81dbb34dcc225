"""The replica that a slave serves, open for reading: topics and groups are its master's."""

from __future__ import annotations

from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.format.text.names import validate_group
from rmq_store.server.processors.served_store import ServedStore


class SlaveStore(ServedStore):
    """Makes nothing: a group that is not in the table has default settings until the master tells its own."""

    __slots__ = ()

    def group(self, name: str) -> SubscriptionGroup:
        """The group's settings. UsageError: no name of a group."""
        known = self.known_group(name)
        if known is None:
            validate_group(name)
            known = SubscriptionGroup(name)
        return known

    def make_retry_topic(self, group: SubscriptionGroup) -> None:
        """Nothing: the master makes it."""
