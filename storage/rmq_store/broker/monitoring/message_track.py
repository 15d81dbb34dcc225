"""The groups that have consumed one message: the lines that mqadmin prints below a message.

mqadmin asks the connected clients; a store directory has offsets and leases. So the offset decides first, and only a
group that has not consumed the message is NOT_ONLINE. Broadcasting and pull consumers keep no offset
here, so CONSUME_BROADCASTING and PULL do not occur. Source: DefaultMQAdminExtImpl.java (messageTrackDetail, consumed),
MessageTrack.java.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from rmq_store.broker.filter.sql92 import compile_selector
from rmq_store.broker.filter.tags import TagFilter
from rmq_store.broker.metadata.groups import FilterTable
from rmq_store.broker.monitoring.active_consumers import active_groups
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.lazy.dataclasses import dataclass

if TYPE_CHECKING:
    from rmq_store.broker.store.store import Store

# ResponseCode.CONSUMER_NOT_ONLINE
_NOT_ONLINE = 206


class TrackType(StrEnum):
    """TrackType.java. A store directory shows the first four; the others need brokers."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    PULL = "PULL"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """The state of a message in one group; `str()` is the line that mqadmin prints."""

    consumer_group: str
    track_type: TrackType
    exception_desc: str | None = None

    def __str__(self) -> str:
        return (
            f"MessageTrack [consumerGroup={self.consumer_group}, trackType={self.track_type}, "
            f"exceptionDesc={'null' if self.exception_desc is None else self.exception_desc}]"
        )


def not_online(group: str) -> MessageTrack:
    """The track of a group that has not consumed a message, and has no member."""
    return MessageTrack(
        group, TrackType.NOT_ONLINE, f"CODE:{_NOT_ONLINE} DESC:the consumer group[{group}] not online"
    )


class Tracker:
    """Finds the tracks of many messages of one store: offsets and filters are read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.committed = store.all_committed_offsets()
        self._filters = {(entry.group, entry.topic): entry for entry in FilterTable(store.path).all()}
        self._live: dict[str, list[str]] = {}

    def groups(self, topic: str) -> list[str]:
        """The groups that committed an offset on the topic, sorted (ConsumerOffsetManager#whichGroupByTopic)."""
        return sorted(group for group, offsets in self.committed.items() if any(name == topic for name, _ in offsets))

    def track(self, message: StoredMessage) -> list[MessageTrack]:
        """One track for each group of the message's topic. CorruptConfigError."""
        return [self._track(message, group) for group in self.groups(message.topic)]

    def track_type(self, group: str, message: StoredMessage) -> TrackType:
        """The track of one message in one group. CONSUMED: the group's offset in that queue is above the message's."""
        offset = self.committed.get(group, {}).get((message.topic, message.queue_id), 0)
        if offset > message.queue_offset:
            return TrackType.CONSUMED if self._selects(group, message) else TrackType.CONSUMED_BUT_FILTERED
        if message.topic not in self._live:
            self._live[message.topic] = active_groups(self._store, message.topic)
        return TrackType.NOT_CONSUME_YET if group in self._live[message.topic] else TrackType.NOT_ONLINE

    def _track(self, message: StoredMessage, group: str) -> MessageTrack:
        found = self.track_type(group, message)
        if found is TrackType.NOT_ONLINE:
            return not_online(group)
        return MessageTrack(group, found)

    def _selects(self, group: str, message: StoredMessage) -> bool:
        """True if the message passes the filter that a broker recorded for the group, or there is none."""
        entry = self._filters.get((group, message.topic))
        if entry is None:
            return True
        return matches(entry.expression_type, entry.expression, message.properties, message.tags)


def matches(expression_type: str, expression: str, properties: Mapping[str, str], tags: str | None) -> bool:
    """Whether an expression, of tags or SQL92, takes a message."""
    if expression_type == "SQL92":
        return compile_selector(expression).matches(properties)
    tag_filter = TagFilter.parse(expression)
    return tag_filter is None or tags in tag_filter.tags
