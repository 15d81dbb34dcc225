"""222: a group is set to a time or to an offset, and its members are told (AdminBrokerProcessor#resetOffset).

The offsets are in the store when the request is answered, whether members are online or not. Each connected member gets
them by a request 220: it drops its queues, and begins at the new offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from rmq_store.protocol.bodies.groups import ResetOffsetBody
from rmq_store.protocol.errors import ResponseCode
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import ONEWAY_FLAG, LanguageCode, RemotingCommand
from rmq_store.protocol.wire.group_headers import InvokeBrokerToResetOffsetRequestHeader, ResetOffsetRequestHeader
from rmq_store.protocol.wire.header_fields import request as request_of
from rmq_store.server.processors.committed_offsets import CommittedOffsets, refuse_group_of_store
from rmq_store.server.processors.members import Members
from rmq_store.server.processors.served_store import ServedStore
from rmq_store.server.requests.request import Request, refusal

_END: Final = -1


class Resets:
    """Resets groups of one store."""

    def __init__(self, served: ServedStore, members: Members, offsets: CommittedOffsets) -> None:
        self._served = served
        self._members = members
        self._offsets = offsets

    def reset(self, request: Request) -> RemotingCommand:
        """222.

        Raises:
            MQBrokerError: 16, the group is the store's own; 17 or 26, no such topic or group; 29, no such queue; 1, no
                such offset, or members in other processes of the directory, which cannot be told.
        """
        header = request.header(InvokeBrokerToResetOffsetRequestHeader)
        refuse_group_of_store(header.group)
        topic = self._served.topic(header.topic)
        self._offsets.write()
        committed = self._served.store.committed_offsets(header.group)
        self._check_members(header.group, is_known=bool(committed))
        queue_ids = range(topic.read_queue_nums)
        if header.queue_id is not None and header.queue_id >= 0:
            self._served.topic_with_queue(header.topic, header.queue_id)
            queue_ids = range(header.queue_id, header.queue_id + 1)
        wanted = {(header.topic, queue_id): self._offset(header, queue_id) for queue_id in queue_ids}
        if not header.is_force:
            wanted = {place: min(offset, committed.get(place, offset)) for place, offset in wanted.items()}
        self._served.store.commit_offsets(header.group, wanted)
        table = {MessageQueue(header.topic, self._served.name, queue_id): wanted[header.topic, queue_id]
                 for queue_id in queue_ids}  # fmt: skip
        self._tell_members(header, table)
        return request.answer(body=ResetOffsetBody(offset_table=table).encode())

    def _check_members(self, group: str, *, is_known: bool) -> None:
        online = set(self._served.broker.consumer_ids(group))
        if not is_known and not online and group not in self._served.store.groups():
            raise refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist")
        others = online - {one.client_id for one in self._members.members(group)}
        if others:
            remark = f"{len(others)} members of {group} are in other processes, and would go on: stop them first"
            raise refusal(ResponseCode.SYSTEM_ERROR, remark)

    def _offset(self, header: InvokeBrokerToResetOffsetRequestHeader, queue_id: int) -> int:
        store = self._served.store
        first, last = store.queue_range(header.topic, queue_id)
        if header.queue_id == queue_id and header.offset is not None and header.offset != _END:
            if not first <= header.offset <= last:
                remark = f"Target offset {header.offset} not in consume queue range [{first}-{last}]"
                raise refusal(ResponseCode.SYSTEM_ERROR, remark)
            return header.offset
        return last if header.timestamp < 0 else store.offset_by_time(header.topic, queue_id, header.timestamp)

    def _tell_members(self, header: InvokeBrokerToResetOffsetRequestHeader, table: Mapping[MessageQueue, int]) -> None:
        notice = ResetOffsetRequestHeader(
            topic=header.topic, group=header.group, timestamp=header.timestamp, is_force=header.is_force
        )
        for member in self._members.members(header.group):
            is_cpp = member.language == LanguageCode.CPP
            command = request_of(notice, _cpp_body(table) if is_cpp else ResetOffsetBody(offset_table=table).encode())
            command.flag = ONEWAY_FLAG
            member.peer.send(command)


def _cpp_body(table: Mapping[MessageQueue, int]) -> bytes:
    """The offsets as C++ clients read them: a list, because their JSON has no objects as keys (ResetOffsetBodyForC)."""
    rows = [
        {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
        for queue, offset in table.items()
    ]
    return json.dumps({"offsetTable": rows}).encode()
