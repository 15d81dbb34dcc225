"""200, 207 and 215: groups that are made, changed and deleted, and topics that are deleted (AdminBrokerProcessor.java).

As at a broker, members that are online are not asked, and what is not there counts as deleted.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.errors import UnknownTopicError, UsageError
from rmq_store.format.text.names import validate_group
from rmq_store.protocol.attributes import changed_attributes, changes_of_pairs
from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
from rmq_store.protocol.wire.admin_headers import DeleteSubscriptionGroupRequestHeader, DeleteTopicRequestHeader
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.server.processors.committed_offsets import CommittedOffsets
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request

_SHARED: Final = tuple(
    sorted({one.name for one in fields(SubscriptionGroup)} & {one.name for one in fields(SubscriptionGroupConfig)})
)


class Changes:
    """Changes topics and groups of one store; they are durable when they are answered."""

    def __init__(self, served: ServedStore, offsets: CommittedOffsets) -> None:
        self._served = served
        self._offsets = offsets

    def update_group(self, request: Request) -> RemotingCommand:
        """200. A member that the body lacks gets Java's default, except attributes and retry policy, which stay. The
        body's attributes are changes, with + or - before each name (SubscriptionGroupManager#alterCurrentAttributes).
        """
        asked = SubscriptionGroupConfig.decode(request.command.body)
        given: dict[str, Any] = {name: getattr(asked, name) for name in _SHARED if getattr(asked, name) is not None}
        changes = changes_of_pairs(given.pop("attributes", {}))

        def changed(known: SubscriptionGroup) -> SubscriptionGroup:
            return replace(known, **given, attributes=changed_attributes(known.attributes, changes))

        self._served.store.admin.update_group(asked.group_name, changed, default=SubscriptionGroup(asked.group_name))
        return request.answer()

    def delete_group(self, request: Request) -> RemotingCommand:
        """207; with `cleanOffset` also offsets, POP state, retry topic and dead letters of the group."""
        header = request.header(DeleteSubscriptionGroupRequestHeader)
        validate_group(header.group_name)
        self._offsets.write()
        admin = self._served.store.admin
        try:
            admin.plan_group_deletion(header.group_name, remove_offsets=bool(header.clean_offset))
        except UsageError:  # the name is valid: there is nothing to delete
            return request.answer()
        admin.delete_group(header.group_name, remove_offsets=bool(header.clean_offset))
        return request.answer()

    def delete_topic(self, request: Request) -> RemotingCommand:
        """215: the topic, and all offsets and POP state of groups in it."""
        topic = request.header(DeleteTopicRequestHeader).topic
        self._served.refuse_own_topic(topic)
        self._offsets.write()
        try:
            self._served.store.admin.delete_topic(topic)
        except UnknownTopicError:
            return request.answer()
        return request.answer()
