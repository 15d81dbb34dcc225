"""A broker of any version of Kafka, as far as administration asks one: on loopback, by kafka-python's own messages.

    with WireBroker((2, 8)) as broker:
        broker.topics["orders"] = 2
        broker.groups["billing"] = Group(offsets={("orders", 0): 7})
        KafkaConnection((broker.address,))

It takes the versions of requests that a broker of its version takes, by kafka-python's table, and answers in the
version of the request. So a client that relies on a field of later versions fails. `make kafka-versions` tests what
real brokers do.
"""

from __future__ import annotations

import functools
import socketserver
import struct
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka import errors
from kafka.protocol import admin, consumer, metadata, producer
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

CLUSTER_ID = "wire-kafka"
END = 42
"""Of each partition."""


@dataclass
class Group:
    """A group: `kind` is the type that brokers list from 3.8 on. `error`: the answer to a question for its offsets."""

    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)
    kind: str = "Classic"
    protocol: str = "consumer"
    state: str = "Empty"
    error: int = 0


class WireBroker:
    """The broker, for a `with` block. `asked`: (name of the request, version), in their order."""

    def __init__(self, version: tuple[int, ...]) -> None:
        self.versions: Mapping[int, tuple[int, int]] = BROKER_API_VERSIONS[version]
        self.groups: dict[str, Group] = {}
        self.topics: dict[str, int] = {}
        self.asked: list[tuple[str, int]] = []
        self._answers: dict[Any, Callable[[Any, int], Any]] = {
            metadata.ApiVersionsRequest: self._api_versions,
            metadata.MetadataRequest: self._metadata,
            metadata.FindCoordinatorRequest: self._coordinator,
            admin.DescribeClusterRequest: self._cluster,
            admin.ListGroupsRequest: self._list,
            admin.DescribeGroupsRequest: self._describe,
            admin.CreateTopicsRequest: self._make,
            admin.CreatePartitionsRequest: self._grow,
            admin.DescribeConfigsRequest: self._settings,
            consumer.ListOffsetsRequest: self._ends,
            consumer.OffsetFetchRequest: self._offsets,
            consumer.OffsetCommitRequest: self._commit,
            producer.InitProducerIdRequest: self._producer,
            producer.AddPartitionsToTxnRequest: self._add,
            producer.ProduceRequest: self._produce,
            producer.EndTxnRequest: self._end,
        }
        self._by_key = {request.API_KEY: request for request in self._answers}
        owner = self

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while size := self.rfile.read(4):
                    self.wfile.write(owner._answer(self.rfile.read(*struct.unpack(">i", size))))

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=functools.partial(self._server.serve_forever, poll_interval=0.01))

    def __enter__(self) -> WireBroker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        """For `bootstrap_servers`."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def _answer(self, frame: bytes) -> bytes:
        key, version, correlation_id = struct.unpack(">hhi", frame[:8])
        request_class = self._by_key[key]
        lowest, highest = self.versions[key]
        if request_class is metadata.ApiVersionsRequest and version > highest:
            answer, version = self._api_versions(None, version), 0
            answer.error_code = errors.UnsupportedVersionError.errno
        else:
            assert lowest <= version <= highest, f"{request_class.name} {version}: no broker of this version takes it"
            self.asked.append((request_class.name, version))
            request = request_class.decode(frame, version=version, header=True)
            answer = self._answers[request_class](request, version)
        answer.API_VERSION = version
        answer.with_header(correlation_id=correlation_id)
        encoded: bytes = answer.encode(header=True, framed=True)
        return bytes(encoded)

    def _api_versions(self, request: Any, version: int) -> Any:
        response = metadata.ApiVersionsResponse
        keys = [
            response.ApiVersion(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in self.versions.items()
        ]
        return response(error_code=0, api_keys=keys)

    def _metadata(self, request: Any, version: int) -> Any:
        response = metadata.MetadataResponse
        topic_of = response.MetadataResponseTopic
        names = self.topics if request.topics is None else [topic.name for topic in request.topics]
        topics = [
            topic_of(
                name=name, error_code=0 if name in self.topics else errors.UnknownTopicOrPartitionError.errno,
                topic_id=uuid.uuid5(uuid.NAMESPACE_DNS, name), is_internal=False,
                partitions=[
                    topic_of.MetadataResponsePartition(
                        error_code=0, partition_index=number, leader_id=1, leader_epoch=0, replica_nodes=[1],
                        isr_nodes=[1], offline_replicas=[],
                    )
                    for number in range(self.topics.get(name, 0))
                ],
            )
            for name in names
        ]  # fmt: skip
        broker = self._node(response.MetadataResponseBroker)
        return response(brokers=[broker], cluster_id=CLUSTER_ID, controller_id=1, topics=topics)

    def _node(self, broker_of: Any, name: str = "node_id") -> Any:
        host, port = self.address.split(":")
        return broker_of(**{name: 1, "host": host, "port": int(port)})

    def _cluster(self, request: Any, version: int) -> Any:
        response = admin.DescribeClusterResponse
        broker = self._node(response.DescribeClusterBroker, "broker_id")
        return response(error_code=0, cluster_id=CLUSTER_ID, controller_id=1, brokers=[broker])

    def _coordinator(self, request: Any, version: int) -> Any:
        response = metadata.FindCoordinatorResponse
        if version < 4:
            return self._node(response)
        return response(coordinators=[self._node(functools.partial(response.Coordinator, key=key, error_code=0))
                                      for key in request.coordinator_keys])  # fmt: skip

    def _list(self, request: Any, version: int) -> Any:
        response = admin.ListGroupsResponse
        groups = [
            response.ListedGroup(
                group_id=name, protocol_type=group.protocol, group_state=group.state, group_type=group.kind
            )
            for name, group in self.groups.items()
        ]
        return response(error_code=0, groups=groups)

    def _describe(self, request: Any, version: int) -> Any:
        response = admin.DescribeGroupsResponse
        found = [(name, self.groups.get(name, Group(state="Dead"))) for name in request.groups]
        groups = [
            response.DescribedGroup(
                error_code=0, group_id=name, group_state=group.state, protocol_type=group.protocol, protocol_data="",
                members=[],
            )
            for name, group in found
        ]  # fmt: skip
        return response(groups=groups)

    def _offsets(self, request: Any, version: int) -> Any:
        response = consumer.OffsetFetchResponse
        if version < 8:
            group = self.groups.get(request.group_id, Group())
            return response(topics=_topics(response.OffsetFetchResponseTopic, group), error_code=group.error)
        of = response.OffsetFetchResponseGroup
        groups = []
        for asked in request.groups:
            group = self.groups.get(asked.group_id, Group())
            topics = _topics(of.OffsetFetchResponseTopics, group)
            groups.append(of(group_id=asked.group_id, topics=topics, error_code=group.error))
        return response(groups=groups)

    def _commit(self, request: Any, version: int) -> Any:
        response = consumer.OffsetCommitResponse
        topic_of = response.OffsetCommitResponseTopic
        group = self.groups.setdefault(request.group_id, Group())
        group.offsets = {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in request.topics
            for partition in topic.partitions
        }
        topics = [
            topic_of(name=topic.name, partitions=[
                topic_of.OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=0)
                for partition in topic.partitions
            ])
            for topic in request.topics
        ]  # fmt: skip
        return response(topics=topics)

    def _make(self, request: Any, version: int) -> Any:
        response = admin.CreateTopicsResponse
        self.topics.update({topic.name: topic.num_partitions for topic in request.topics})
        return response(topics=[response.CreatableTopicResult(name=topic.name, error_code=0, configs=[])
                                for topic in request.topics])  # fmt: skip

    def _grow(self, request: Any, version: int) -> Any:
        response = admin.CreatePartitionsResponse
        self.topics.update({topic.name: topic.count for topic in request.topics})
        return response(results=[response.CreatePartitionsTopicResult(name=topic.name, error_code=0)
                                 for topic in request.topics])  # fmt: skip

    def _settings(self, request: Any, version: int) -> Any:
        response = admin.DescribeConfigsResponse
        of = response.DescribeConfigsResult
        policy = of.DescribeConfigsResourceResult(
            name="cleanup.policy", value="compact", read_only=False, config_source=5, is_sensitive=False, synonyms=[]
        )
        return response(results=[
            of(error_code=0, resource_type=asked.resource_type, resource_name=asked.resource_name, configs=[policy])
            for asked in request.resources
        ])  # fmt: skip

    def _ends(self, request: Any, version: int) -> Any:
        response = consumer.ListOffsetsResponse
        of = response.ListOffsetsTopicResponse
        return response(topics=[
            of(name=topic.name, partitions=[
                of.ListOffsetsPartitionResponse(
                    partition_index=partition.partition_index, error_code=0, timestamp=-1, offset=END, leader_epoch=0
                )
                for partition in topic.partitions
            ])
            for topic in request.topics
        ])  # fmt: skip

    def _add(self, request: Any, version: int) -> Any:
        response = producer.AddPartitionsToTxnResponse
        of = response.AddPartitionsToTxnTopicResult
        return response(results_by_topic_v3_and_below=[
            of(name=topic.name, results_by_partition=[
                of.AddPartitionsToTxnPartitionResult(partition_index=partition, partition_error_code=0)
                for partition in topic.partitions
            ])
            for topic in request.v3_and_below_topics
        ])  # fmt: skip

    def _produce(self, request: Any, version: int) -> Any:
        response = producer.ProduceResponse
        of = response.TopicProduceResponse
        return response(responses=[
            of(name=topic.name, partition_responses=[
                of.PartitionProduceResponse(index=partition.index, error_code=0, base_offset=END)
                for partition in topic.partition_data
            ])
            for topic in request.topic_data
        ])  # fmt: skip

    def _end(self, request: Any, version: int) -> Any:
        return producer.EndTxnResponse(error_code=0)

    def _producer(self, request: Any, version: int) -> Any:
        return producer.InitProducerIdResponse(error_code=0, producer_id=7, producer_epoch=3)


def _topics(topic_of: Any, group: Group) -> list[Any]:
    partition_of = getattr(topic_of, "OffsetFetchResponsePartition", None) or topic_of.OffsetFetchResponsePartitions
    return [
        topic_of(name=topic, partitions=[
            partition_of(partition_index=partition, committed_offset=offset, metadata="", error_code=0)
        ])
        for (topic, partition), offset in group.offsets.items()
    ]  # fmt: skip
