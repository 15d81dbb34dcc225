"""Everything that the databases of the kit know of one message, for a person who looks."""

from __future__ import annotations

from functools import partial

import sqlalchemy as sa

from rmq_store.client import MessageIllegalError
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.leases import now_ms
from rmq_store.reliable.database.manual_list import ManualEntry
from rmq_store.reliable.database.raw_rows import fetch_raw, raw_columns, shown
from rmq_store.reliable.database.tables import Tables
from rmq_store.reliable.database.transact import read
from rmq_store.reliable.operator.stub_reason import GroupStatus
from rmq_store.reliable.operator.stub_status import StubStatus, group_statuses, stubs_named
from rmq_store.reliable.outbox.stub import properties_of
from rmq_store.reliable.relay.inboxes import Inboxes

_ENTRIES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class MessageReport:
    """`stub` is None if the senders' database has no such message. `body` and `properties` are None if they cannot be
    read; `unreadable` says why, and what is there instead. `others`: groups that the stub does not name, and that have
    received or done the message.
    """

    message_id: str
    stub: StubStatus | None
    body: bytes | None
    properties: dict[str, str] | None
    unreadable: tuple[str, ...]
    others: tuple[GroupStatus, ...]
    entries: tuple[ManualEntry, ...]

    @property
    def is_empty(self) -> bool:
        """True if no database knows the message."""
        return self.stub is None and not self.others and not self.entries


def report_of(inboxes: Inboxes, tables: Tables, message_id: str) -> MessageReport:
    """Look the message up in every database; reads only."""
    at_ms = now_ms()
    found = stubs_named(inboxes, tables, [message_id], at_ms).get(message_id)
    content = partial(_content, tables=tables, message_id=message_id)
    body, properties, unreadable = read(inboxes.stubs, content) if found is not None else (None, None, ())
    entries: list[ManualEntry] = []
    named = {group.name for group in found.groups} if found is not None else set()
    others: list[GroupStatus] = []
    marks = tables.high_water
    consuming = sa.select(marks.c.group_name).distinct()
    for engine in inboxes.engines():
        own = read(
            engine,
            partial(manual_list.list_entries, tables=tables, limit=_ENTRIES_MAX, message_ids=[message_id]),
        )
        entries += own
        # The key of log and inbox begins with the group; every group that consumes has a mark.
        groups = set(read(engine, lambda connection: connection.scalars(consuming).all()))
        groups |= {entry.group_name for entry in own if entry.group_name}
        wanted = sorted(group for group in groups - named if inboxes.of(group) is engine)
        others += group_statuses(engine, tables, message_id, wanted)
    return MessageReport(message_id, found, body, properties, unreadable, tuple(others), tuple(entries))


def _content(
    connection: sa.Connection, *, tables: Tables, message_id: str
) -> tuple[bytes | None, dict[str, str] | None, tuple[str, ...]]:
    """Body, properties, and what of both cannot be read."""
    body, properties = None, None
    unreadable: list[str] = []
    asked = sa.select(*raw_columns(tables.stub)).where(tables.stub.c.message_id == message_id)
    for row in fetch_raw(connection, asked):
        if isinstance(row.body, bytes | bytearray | memoryview):
            body = bytes(row.body)
        else:
            unreadable.append(f"its body is no bytes: {shown(row.body)}")
        try:
            properties = properties_of(row.properties)
        except MessageIllegalError as error:
            unreadable.append(str(error))
    return body, properties, tuple(unreadable)
