"""The fuzz target of the server: bytes of a client, from its connection to the store and back.

Each request is answered by a code, or held, or the connection is closed; none makes an error that a processor did not
foresee, and when the client has gone nothing of it is left. Now and then the store is verified, and made anew.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmq_store.protocol.wire.command import RemotingCommand, SerializeType
from rmq_store.protocol.wire.frames import FrameDecoder, encode_command
from rmq_store.protocol.wire.request_codes import RequestCode

if TYPE_CHECKING:
    from fuzz.dry_server import DryServer

LIFE: Final = 500
"""Executions of one store: what clients make, topics above all, must not add up for ever."""
PIECES_MAX: Final = 1000
UNFORESEEN: Final = "an error inside the broker"
# Held until a message comes, or until another client answers.
HELD: Final = frozenset((
    RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE,
    RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY, RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
))  # fmt: skip


class ServerFuzz:
    """Servers of one process, one after the other."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._server: DryServer | None = None
        self._executions = 0

    def execute(self, data: bytes) -> None:
        """The first byte says in pieces of how many bytes the rest comes; 0: in one piece.

        Raises:
            RemotingCommandError: the connection was closed for a frame that is none.
        """
        from fuzz.dry_server import DryServer

        self._executions += 1
        if self._server is None or self._executions % LIFE == 0:
            self._verify()
            self._server = DryServer(self._base)
        frames, size = data[1:], max(data[0], len(data) // PIECES_MAX) or len(data)
        expected = FrameDecoder(1 << 16)
        requests = [command for command in expected.feed(frames) if not command.is_response]
        connection, transport = self._server.connect()
        for at in range(0, len(frames), size):
            if not transport.is_closing():
                self._server.read(connection, frames[at : at + size])
                self._server.loop.run()
        connection.connection_lost(None)
        self._server.loop.run()
        _check_answers(requests, transport.answers, is_closed=transport.is_closing())
        listener = self._server.listener
        assert listener.working.count == 0, f"{listener.working.count} bytes are in work after the client has gone"
        assert listener.incomplete.count == 0, f"{listener.incomplete.count} bytes are kept after the client has gone"
        assert not listener.connections
        assert transport.is_closing() == (expected.failure is not None), expected.failure
        if expected.failure is not None:
            raise expected.failure

    def _verify(self) -> None:
        """Close the store, and let the independent checker look at it."""
        from rmq_store.verify import verify_store

        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        report = verify_store(server.root)
        assert report.status == "clean", report.problems[:3]
        server.remove()


def _check_answers(requests: list[RemotingCommand], answers: list[RemotingCommand], *, is_closed: bool) -> None:
    """`is_closed`: what was answered last was perhaps not written any more."""
    wanted: Counter[int] = Counter()
    held: Counter[int] = Counter()
    for request in requests:
        (held if request.code in HELD else wanted)[request.opaque] += not request.is_oneway
    given = Counter(answer.opaque for answer in answers if answer.is_response)
    for opaque in wanted.keys() | held.keys() | given.keys():
        least, most = 0 if is_closed else wanted[opaque], wanted[opaque] + held[opaque]
        assert least <= given[opaque] <= most, f"opaque {opaque}: {given[opaque]} answers, not {least} to {most}"
    for answer in answers:
        assert not (answer.remark or "").startswith(UNFORESEEN), answer


@functools.cache
def _of_process(pid: int, base: Path) -> ServerFuzz:
    return ServerFuzz(base)


def run_server(data: bytes) -> None:
    """An empty input makes no server: a process that has one has threads, and cannot be forked. It makes the directory
    of those to come, which ends with this process.
    """
    from fuzz.targets import scratch

    base = scratch()
    if data:
        _of_process(os.getpid(), base).execute(data)


# -- seeds ------------------------------------------------------------------------------------------------------------

_SEND = {
    "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "KEYS\1k\2TAGS\1t\2",
    "j": "0", "k": "false", "m": "false",
}  # fmt: skip
_USUAL = _SEND | {"i": "UNIQ_KEY\1" + "0" * 32 + "\2KEYS\1k l\2TAGS\1t\2WAIT\1true\2", "l": "16", "n": "b"}
_PULL = {
    "consumerGroup": "cg", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6",
    "commitOffset": "0", "suspendTimeoutMillis": "1000", "subscription": "*", "subVersion": "0",
    "expressionType": "TAG",
}  # fmt: skip
_QUEUE = {"topic": "T", "queueId": "0"}
_OFFSET = {"consumerGroup": "cg", **_QUEUE}
_POP = {
    "consumerGroup": "cg", "topic": "T", "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "60000",
    "pollTime": "1000", "bornTime": "1", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
}  # fmt: skip
_HANDLE = "0 1700000000000 60000 1 0 rmq-embedded 0 0 0"
_TOPIC = {
    "topic": "N", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
_BEAT = (
    b'{"clientID":"c@1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":'
    b'"CONSUME_PASSIVELY","groupName":"cg","messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,'
    b'"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1,"tagsSet":[],"topic":"T"}],"unitMode":false}],'
    b'"producerDataSet":[{"groupName":"pg"}]}'
)
_LOCK = b'{"clientId":"c@1","consumerGroup":"cg","mqSet":[{"brokerName":"rmq-embedded","queueId":0,"topic":"T"}]}'
_GROUP = b'{"groupName":"g2","retryQueueNums":1,"retryMaxTimes":16,"consumeEnable":true,"brokerId":0}'
_MEMBER = bytes.fromhex("0000001b 00000000 00000000 00000000 00000004".replace(" ", "")) + b"body" + bytes(3)
_BROKER = {
    "brokerName": "b", "brokerAddr": "127.0.0.1:2", "clusterName": "c", "haServerAddr": "", "brokerId": "0",
    "compressed": "false", "bodyCrc32": "0",
}  # fmt: skip
_END = {
    "producerGroup": "pg", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8", "msgId": "m",
}  # fmt: skip
_REPLY = _SEND | {"i": "MSG_TYPE\1reply\2REPLY_TO_CLIENT\1c@1\2CORRELATION_ID\1x\2"}
_QUERY = {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}

_Group = list[tuple[int, Mapping[str, str], bytes]]
_GROUPS: Final[list[_Group]] = [
    [(310, _SEND, b"body"), (11, _PULL, b""), (361, _PULL, b""), (320, _SEND | {"m": "true"}, _MEMBER)],
    [(34, {}, _BEAT), (38, {"consumerGroup": "cg"}, b""), (41, {}, _LOCK), (42, {}, _LOCK), (46, {}, _BEAT)],
    [(310, _SEND, b"b"), (200050, _POP, b""), (200051, _OFFSET | {"extraInfo": _HANDLE, "offset": "0"}, b""),
     (200053, _OFFSET | {"extraInfo": _HANDLE, "offset": "0", "invisibleTime": "10"}, b"")],
    [(310, _SEND | {"f": "4", "i": "TRAN_MSG\1true\2PGROUP\1pg\2"}, b"half"), (37, _END, b"")],
    [(310, _SEND, b"b"), (36, {"offset": "0", "group": "cg", "delayLevel": "3"}, b""), (310, _REPLY, b"r")],
    [(15, _OFFSET | {"commitOffset": "1"}, b""), (14, _OFFSET, b""), (30, _QUEUE, b""), (31, _QUEUE, b""),
     (32, _QUEUE, b""), (29, _QUEUE | {"timestamp": "1"}, b""), (202, {"topic": "T"}, b"")],
    [(12, _QUERY, b""), (33, {"offset": "0"}, b""), (300, {"topic": "T"}, b""), (208, {"consumerGroup": "cg"}, b"")],
    [(105, {"topic": "T"}, b""), (106, {}, b""), (206, {}, b""), (224, {"cluster": "DefaultCluster"}, b"")],
    [(103, _BROKER, b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":{}}}'),
     (104, _BROKER, b""), (21, {}, b""), (28, {}, b""), (201, {}, b"")],
    [(17, _TOPIC, b""), (215, {"topic": "N"}, b""), (200, {}, _GROUP), (207, {"groupName": "g2"}, b""),
     (222, {"topic": "T", "group": "cg", "timestamp": "-1", "isForce": "true"}, b"")],
    [(34, {}, _BEAT), (307, {"consumerGroup": "cg", "clientId": "c@1", "jstackEnable": "false"}, b""),
     (325, _REPLY, b"reply"), (35, {"clientID": "c@1", "consumerGroup": "cg", "producerGroup": "pg"}, b"")],
    [(400, {}, b'{"topic":"T","consumerGroup":"cg","clientId":"c@1","strategyName":"AVG"}'),
     (401, {}, b'{"topic":"T","consumerGroup":"cg","mode":"POP","popShareQueueNum":0}'),
     (25, {}, b"a=b"), (999, {}, b"")],
    # In one piece: those of later executions are answered from their bytes.
    [(310, _USUAL, b"body"), (310, _USUAL | {"e": "1"}, b""), (310, _USUAL, bytes(300)), (11, _PULL, b"")],
]  # fmt: skip


def server_seeds() -> list[bytes]:
    """Conversations of clients, as JSON and in the binary form; whole, byte by byte, and in pieces."""
    seeds = [b""]
    for number, group in enumerate(_GROUPS):
        for kind in SerializeType:
            commands = [
                RemotingCommand(code, dict(fields), body, opaque, serialize_type=kind)
                for opaque, (code, fields, body) in enumerate(group)
            ]
            seeds.append(bytes([(0, 1, 50)[number % 3]]) + b"".join(map(encode_command, commands)))
    return seeds
