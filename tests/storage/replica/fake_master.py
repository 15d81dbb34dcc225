"""A master's answers to questions for metadata, in memory: bodies as released brokers send them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_store.protocol.errors import RemotingError
from rmq_store.protocol.wire.command import RemotingCommand, response_to

V4_9_7, V5_5_0 = 395, 513
TOPICS, GROUPS, OFFSETS, DELAYS, CHECK_POINT, METRICS, MODES = 21, 201, 43, 45, 60, 61, 402

Tables = dict[int, bytes]


def topics(*names: str, state: str = '"stateVersion":0,') -> bytes:
    """The answer to 21."""
    entries = ",".join(
        f'"{name}":{{"attributes":{{}},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        f'"topicName":"{name}","topicSysFlag":0,"writeQueueNums":4}}'
        for name in names
    )
    version = f'{{"counter":{len(names)},{state}"timestamp":1700000000000}}'
    return (
        f'{{"dataVersion":{version},"mappingDataVersion":{version},"topicConfigTable":{{{entries}}},'
        '"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}'
    ).encode()


def groups(*names: str) -> bytes:
    """The answer to 201."""
    entries = ",".join(f'"{name}":{{"groupName":"{name}","retryMaxTimes":16}}' for name in names)
    version = '"dataVersion":{"counter":1,"stateVersion":0}'
    return f'{{{version},"forbiddenTable":{{}},"subscriptionGroupTable":{{{entries}}}}}'.encode()


def offsets(**by_group: Mapping[int, int]) -> bytes:
    """The answer to 43: offsets of queues of the topic Orders."""
    rows = ",".join(
        f'"Orders@{group}":{{{",".join(f"{queue}:{offset}" for queue, offset in row.items())}}}'
        for group, row in by_group.items()
    )
    topics_of = ",".join(f'"{group}":["Orders"]' for group in by_group)
    version = '"dataVersion":{"counter":9,"stateVersion":0}'
    return f'{{{version},"groupTopicMap":{{{topics_of}}},"offsetTable":{{{rows}}}}}'.encode()


def check_point(read_ms: int, flushed: int, queue_offset: int, master_queue_offset: int) -> bytes:
    """The answer to 60."""
    return struct.pack(">7q", read_ms, flushed, queue_offset, master_queue_offset, 0, 1, 2)


@dataclass
class FakeMaster:
    """See `replica.metadata.Master`. `refused`: code -> the code and remark of the answer.
    `lost`: codes whose answers are lost.
    """

    bodies: Tables = field(default_factory=dict)
    end: int = 0
    version: int = V5_5_0
    refused: dict[int, tuple[int, str]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    asked: list[int] = field(default_factory=list)
    broker_name: str = "broker-a"

    def ask(self, command: RemotingCommand) -> RemotingCommand | RemotingError:
        self.asked.append(command.code)
        if command.code in self.lost:
            return RemotingError("connection lost")
        code, remark = self.refused.get(command.code, (0, ""))
        if not code and command.code not in self.bodies:
            code, remark = 3, " request type not supported"
        answer = response_to(command, code, remark)
        answer.version = self.version
        if not code:
            answer.body = self.bodies[command.code]
        return answer

    def log_end(self) -> int:
        self.asked.append(28)
        return self.end


def master_of_5() -> FakeMaster:
    """One that has a table of each kind."""
    return FakeMaster(
        {
            TOPICS: topics("Orders", "Bills"),
            GROUPS: groups("billing"),
            OFFSETS: offsets(billing={0: 7, 1: 3}),
            DELAYS: b'{"dataVersion":{"counter":3,"stateVersion":0},"offsetTable":{3:2,4:1}}',
            CHECK_POINT: check_point(1_700_000_000_000, 4096, 11, 12),
            METRICS: b'{"dataVersion":{"counter":3},"timingCount":{"Orders":{"count":2,"timeStamp":5}}}',
            MODES: (
                b'{"messageRequestModeMap":{"Orders":{"billing":{"consumerGroup":"billing","mode":"POP",'
                b'"popShareQueueNum":0,"topic":"Orders"}}}}'
            ),
        },
        end=1000,
    )
