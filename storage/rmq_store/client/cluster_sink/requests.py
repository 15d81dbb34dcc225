"""The request for a chunk (data plane for batches)."""

from __future__ import annotations

import struct

from rmq_store.client.cluster_sink.chunks import Chunk
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.sending import batch_request, single_request

_ENTRY = struct.Struct(">5i")


def request_of(chunk: Chunk, queue: MessageQueue, group: str, now_ms: int) -> RemotingCommand:
    """The request that stores a chunk in a queue. Rows without a born time get `now_ms`."""
    born_ms = chunk.shared.born_ms or now_ms
    if not chunk.shared.single:
        return batch_request(queue, chunk.body, group=group, sys_flag=chunk.shared.sys_flag, born_ms=born_ms)
    _, _, _, flag, body_bytes = _ENTRY.unpack_from(chunk.body)
    body = chunk.body[_ENTRY.size : _ENTRY.size + body_bytes]
    properties = chunk.body[_ENTRY.size + body_bytes + 2 :].decode()
    return single_request(
        queue, body, properties, group=group, flag=flag, sys_flag=chunk.shared.sys_flag, born_ms=born_ms
    )
