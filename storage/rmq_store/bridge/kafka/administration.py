"""Topics, settings and groups of a Kafka cluster, by kafka-python's administration client."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeVar

from kafka import KafkaAdminClient, TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.structs import OffsetAndMetadata

from rmq_store import real_time
from rmq_store.bridge.kafka.client import KafkaTopic, Partition
from rmq_store.bridge.kafka.connection import KafkaConnection
from rmq_store.bridge.kafka.failures import closed_unless_made, connecting, translated
from rmq_store.errors import GroupInUseError, KafkaRefusedError, KafkaUnavailableError, UsageError

# A topic that was made is known to all brokers soon, and an offset of a transaction settled when that ends.
_WAIT_S: Final = 30.0
_POLL_S: Final = 0.1

# A mirror that is to stop while brokers hang waits so long, at most.
_REQUEST_MS: Final = 15_000

# The first version of OffsetFetch that knows `require_stable`. Kafka 2.5 has it.
_STABLE_OFFSETS: Final = 7

_SHARE: Final = "share"
# States of a group that nobody is in (org.apache.kafka.common.GroupState).
_WITHOUT_MEMBERS: Final = ("Empty", "Dead")
# Codes of a coordinator that knows another member than us.
_OTHERS_AT_WORK: Final = (
    errors.UnknownMemberIdError, errors.IllegalGenerationError, errors.RebalanceInProgressError,
    errors.FencedInstanceIdError, errors.FencedMemberEpochError, errors.StaleMemberEpochError,
)  # fmt: skip

Answer = TypeVar("Answer")


class _Client(KafkaAdminClient):  # type: ignore[misc]
    """Asks for committed offsets as a consumer of committed records does; kafka-python's own client does not. If its
    construction fails, its thread ends.
    """

    def __init__(self, **settings: Any) -> None:
        with closed_unless_made(self):
            super().__init__(**settings)

    def _list_group_offsets_requests(self, group_specs: Any) -> Iterator[tuple[Any, Any]]:
        if self._manager.broker_version_data.api_version(OffsetFetchRequest) < _STABLE_OFFSETS:
            raise errors.IncompatibleBrokerVersion("OffsetFetch does not tell stable offsets from others (KIP-447)")
        for group, request in super()._list_group_offsets_requests(group_specs):
            request.require_stable = True
            yield group, request

    @staticmethod
    def _process_create_partitions_input(topic_partitions: Any) -> Any:
        topics = KafkaAdminClient._process_create_partitions_input(topic_partitions)
        for topic in topics:
            # kafka-python 3.0.0 to 3.0.8 send an empty list, which a broker takes for partitions without brokers.
            topic.assignments = topic.assignments or None
        return topics


class KafkaPythonAdministration:
    """`KafkaAdministration` by kafka-python. Not safe for threads.

    Raises (when constructed):
        KafkaUnavailableError: no broker answers.
        UsageError: a setting of the connection is wrong.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        with connecting(connection):
            self._client = _Client(**{"request_timeout_ms": _REQUEST_MS, **connection.administration_settings()})
        self._group_types: dict[str, str] = {}

    def cluster_id(self) -> str:
        """The cluster id that Kafka generated."""
        # `describe_cluster` does not understand the answer of Kafka 2.8 to 3.6. All versions have it here.
        with translated("asking for the cluster's id"):
            return str(self._client._manager.run(self._client._get_cluster_metadata, [])["cluster_id"])

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, KafkaTopic]:
        """Topics by name, without Kafka's internal ones: all, or those of `names` that exist."""
        with translated("asking for topics"):
            described = self._client.describe_topics(None if names is None else sorted(names))
        found = {}
        for topic in described:
            name, code = topic["name"], topic["error_code"]
            if code in (errors.UnknownTopicOrPartitionError.errno, errors.UnknownTopicIdError.errno):
                continue
            if code and code != errors.LeaderNotAvailableError.errno:
                with translated(f"asking for topic {name!r}"):
                    raise errors.for_code(code)
            if not topic["is_internal"]:
                identity = uuid.UUID(str(topic["topic_id"])) if topic.get("topic_id") else uuid.UUID(int=0)
                found[name] = KafkaTopic(name, identity, len(topic["partitions"]))
        return found

    def create_topic(
        self, name: str, partition_count: int, settings: Mapping[str, str], replication_factor: int = -1
    ) -> KafkaTopic:
        """Create a topic and wait until it can be used; an existing topic is returned unchanged."""
        wanted = {
            "num_partitions": partition_count, "replication_factor": replication_factor, "configs": dict(settings),
        }  # fmt: skip
        with translated(f"making topic {name!r}"):
            try:
                self._client.create_topics({name: wanted})
            except errors.TopicAlreadyExistsError:
                pass
            self._client.wait_for_topics([name], timeout_ms=int(_WAIT_S * 1000))
        return self.topics([name])[name]

    def grow_topic(self, name: str, partition_count: int) -> None:
        """Add partitions to a topic, and wait until they can be used. Does nothing if it has as many."""
        if self._partition_count(name) < partition_count:
            with translated(f"giving topic {name!r} {partition_count} partitions"):
                self._client.create_partitions({name: partition_count})
        end_s = real_time.monotonic() + _WAIT_S
        while self._partition_count(name) < partition_count:
            if real_time.monotonic() > end_s:
                raise KafkaUnavailableError(f"Kafka: topic {name!r} still does not have {partition_count} partitions")
            time.sleep(_POLL_S)
        with translated(f"waiting for topic {name!r}"):
            self._client.wait_for_topics([name], timeout_ms=int(_WAIT_S * 1000))

    def topic_settings(self, name: str) -> Mapping[str, str]:
        """Settings by name: `max.message.bytes`, `retention.ms`, `message.timestamp.type` ..."""
        with translated(f"asking for the settings of topic {name!r}"):
            resource = ConfigResource(ConfigResourceType.TOPIC, name)
            described = self._client.describe_configs([resource], config_filter="all")
        found = described.get("topic", {}).get(name, {})
        if not found:
            raise KafkaRefusedError(
                f"Kafka returned no settings of topic {name!r}: does it exist, and may this user see its configuration?"
            )
        return {setting: "" if field["value"] is None else str(field["value"]) for setting, field in found.items()}

    def groups(self) -> Collection[str]:
        """All groups that the cluster knows, of whatever type and protocol: classic ones, those of the new protocols of
        consumers and of Kafka Streams, share groups, Connect's workers. Not all of them have offsets.
        """
        return list(self._listed())

    def group_offsets(self, group: str) -> Mapping[Partition, int]:
        """Committed offsets, stable ones only: while a transaction that commits some is open, this waits for its end.

        Raises:
            KafkaRefusedError: the transaction does not end in time, or it is a share group.
        """
        self._refuse_share_group(group)
        what = f"asking for the offsets of group {group!r}"
        try:
            found = _patiently(what, lambda: self._client.list_group_offsets({group: None})[group])
        except KafkaUnavailableError as error:
            if not isinstance(error.__cause__, errors.UnstableOffsetCommitError):
                raise
            raise KafkaRefusedError(
                f"group {group!r} has a transaction open that commits offsets: try again when it has ended"
            ) from error
        # -1: no offset (any more).
        return {Partition(place.topic, place.partition): at.offset for place, at in found.items() if at.offset >= 0}

    def group_member_count(self, group: str) -> int:
        """The number of members now; 1 if there are some that the broker does not list to this client: those of the new
        protocols of consumers and of Kafka Streams (KIP-848, KIP-1071).
        """
        state = self._listed().get(group, "Dead")
        if state in _WITHOUT_MEMBERS:
            return 0
        what = f"asking for group {group!r}"
        described = _patiently(what, lambda: self._client.describe_groups([group])[group])
        # Before 2.6 the list has no states.
        if not state and described["group_state"] in _WITHOUT_MEMBERS:
            return 0
        return max(len(described["members"]), 1)

    def commit_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets of a group without members.

        Raises:
            GroupInUseError: it has members.
            KafkaRefusedError: Kafka refuses one of the offsets; others may have been committed.
        """
        if not group or any(offset < 0 for offset in offsets.values()):
            raise UsageError("a group's name and offsets from 0 on are needed")
        self._refuse_share_group(group)
        if self.group_member_count(group):
            raise GroupInUseError(f"group {group!r} has running members: stop them first")
        wanted = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}

        def commit() -> None:
            for place, answer in self._client.alter_group_offsets(group, wanted).items():
                if answer in _OTHERS_AT_WORK:
                    raise GroupInUseError(f"group {group!r} has running members: stop them first")
                if answer is not errors.NoError:
                    raise answer(f"{place.topic}/{place.partition}")

        _patiently(f"committing offsets of group {group!r}", commit)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _listed(self) -> Mapping[str, str]:
        """The state of each group; "" if the brokers do not tell it. Their types are known afterwards."""
        listed = _patiently("asking for groups", self._client.list_groups)
        self._group_types = {found["group_id"]: found.get("group_type", "").lower() for found in listed}
        return {found["group_id"]: found.get("group_state", "") for found in listed}

    def _refuse_share_group(self, group: str) -> None:
        if group not in self._group_types:
            self._listed()
        if self._group_types.get(group) == _SHARE:
            raise KafkaRefusedError(
                f"group {group!r} is a share group (KIP-932): Kafka keeps a state of each record for it, and no "
                "offsets that could be moved"
            )

    def _partition_count(self, name: str) -> int:
        topic = self.topics([name]).get(name)
        if topic is None:
            raise KafkaRefusedError(f"Kafka has no topic {name!r}")
        return topic.partition_count


def _patiently(what: str, ask: Callable[[], Answer]) -> Answer:
    """The answer of a coordinator, which may still be loading, or be made with the first group of a cluster."""
    end_s = real_time.monotonic() + _WAIT_S
    while True:
        try:
            with translated(what):
                return ask()
        except KafkaUnavailableError:
            if real_time.monotonic() > end_s:
                raise
            time.sleep(_POLL_S)
