"""Sends requests to Kafka's brokers over kafka-python's connections, with a limit on the wait for an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from kafka import errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from rmq_store import real_time
from rmq_store.backoff import Backoff
from rmq_store.bridge.kafka.client import Partition
from rmq_store.bridge.kafka.failures import VERSION_NEEDED
from rmq_store.errors import KafkaRefusedError, KafkaUnavailableError, StoreError

_PAUSES: Final = Backoff(first_ms=10, max_ms=1_000)
# A topic that was made a moment ago is not known everywhere.
_NEW_TOPIC_S: Final = 5.0
_LATEST: Final = -1
_READ_UNCOMMITTED: Final = 0
# The producer of a transaction is not known any more, or not in this transaction: only `initialise` says why.
_OVER: Final = (
    errors.InvalidProducerEpochError,
    errors.InvalidProducerIdMappingError,
    errors.InvalidTxnStateError,
    errors.OutOfOrderSequenceNumberError,
    errors.ProducerFencedError,
    errors.TransactionAbortableError,
    errors.UnknownProducerIdError,
)


class BrokerLink:
    """Connections to the brokers for any number of writers, served by a thread of their own.

    `options` are kafka-python's for connections (addresses, SASL, TLS); others are ignored. A call waits at most
    `patience_ms` for brokers that move, start or do not answer, then it raises `KafkaUnavailableError`. Once
    `is_stopping()`, which the link's thread calls, it gives up after one attempt. Not safe for threads, and only one
    writer may write at a time.
    """

    def __init__(
        self, options: Mapping[str, Any], *, patience_ms: int, is_stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.patience_ms = patience_ms
        self._is_stopping = is_stopping
        self.leaders: dict[Partition, int] = {}
        self.loop = NetworkSelector(**options)
        self.manager = KafkaConnectionManager(self.loop, **options)
        self.loop.start()
        try:
            self.run("the addresses of its brokers", self._bootstrap)
        except BaseException:
            self.close()
            raise

    def high_watermark(self, partition: Partition) -> int:
        """The offset up to which all in-sync replicas have a partition, open transactions included."""
        end: int = self.run(f"the end of topic {partition.topic!r}", self._high_watermark, partition)
        return end

    def run(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Run a coroutine on the link's thread, and return its result. `what` names the work in an error."""
        try:
            return self.manager.run(call, *arguments)
        except errors.KafkaError as error:
            raise ours(error, what) from error

    def close(self) -> None:
        """Close the connections. Kafka aborts open transactions when their timeout expires."""
        self.manager.close()
        self.loop.stop()
        self.loop.close()

    async def send(self, request: Any, node_id: int | None) -> Any:
        """Send a request, and return the answer of broker `node_id`, or of any broker."""
        return await self.manager.send(request, node_id=node_id, request_timeout_ms=self.patience_ms)

    async def patiently(self, what: str, ask: Callable[[], Awaitable[Any]], forget: Callable[[Exception], None]) -> Any:
        """Repeat `ask` until a broker answers. Only for requests that may be repeated. After an error, `forget` drops
        the broker that was asked.
        """
        deadline_s = real_time.monotonic() + self.patience_ms / 1000
        unknown_s = real_time.monotonic() + _NEW_TOPIC_S
        failures = 0
        while True:
            try:
                return await ask()
            except errors.KafkaError as error:
                failures += 1
                pause_s = _PAUSES.wait_s(failures)
                end_s = unknown_s if isinstance(error, errors.UnknownTopicOrPartitionError) else deadline_s
                if not passes(error) or real_time.monotonic() + pause_s > end_s or self._is_stopping():
                    raise ours(error, what) from error
                forget(error)
            await self.loop.sleep(pause_s)

    async def find_leaders(self, partitions: Collection[Partition]) -> None:
        """Make sure that `leaders` has all of these partitions."""

        async def ask() -> None:
            missing = [partition for partition in partitions if partition not in self.leaders]
            if missing:
                await self._ask_leaders({partition.topic for partition in missing})
            for partition in missing:
                if partition not in self.leaders:
                    raise errors.LeaderNotAvailableError(
                        f"partition {partition.partition} of topic {partition.topic!r}"
                    )

        await self.patiently("the leaders of partitions", ask, lambda error: None)

    async def know_broker(self, node_id: int) -> None:
        """Learn the address of a broker that joined lately."""
        if self.manager.cluster.broker_metadata(node_id) is None:
            await self.manager.cluster.refresh_metadata()

    async def _bootstrap(self) -> None:
        await self.manager.bootstrap_async(self.patience_ms)

    async def _ask_leaders(self, topics: Collection[str]) -> None:
        """Kafka makes no topic here."""
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(topics)]
        response = await self.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), None)
        for topic in response.topics:
            if topic.error_code:
                raise errors.for_code(topic.error_code)(f"topic {topic.name!r}")
            for partition in topic.partitions:
                if partition.leader_id >= 0:
                    await self.know_broker(partition.leader_id)
                    self.leaders[Partition(topic.name, partition.partition_index)] = partition.leader_id

    async def _high_watermark(self, partition: Partition) -> int:
        topic_of = ListOffsetsRequest.ListOffsetsTopic

        async def ask() -> int:
            await self.find_leaders([partition])
            asked = topic_of.ListOffsetsPartition(partition_index=partition.partition, timestamp=_LATEST)
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=_READ_UNCOMMITTED,
                topics=[topic_of(name=partition.topic, partitions=[asked])],
                min_version=2,
                max_version=7,
            )
            response = await self.send(request, self.leaders[partition])
            answer = response.topics[0].partitions[0]
            if answer.error_code:
                raise errors.for_code(answer.error_code)()
            end: int = answer.offset
            return end

        def forget(error: Exception) -> None:
            self.leaders.pop(partition, None)

        end: int = await self.patiently(f"the end of topic {partition.topic!r}", ask, forget)
        return end


def passes(error: errors.KafkaError) -> bool:
    """True if the error may be gone soon."""
    return error.retriable or isinstance(error, errors.UnknownBrokerIdError)


def ours(error: errors.KafkaError, what: str) -> StoreError:
    """The bridge's error for an error of kafka-python; `what` names the work."""
    detail = f"{what}: {error}"
    if isinstance(error, _OVER):
        return KafkaUnavailableError(
            f"Kafka has ended the transaction before it was committed ({detail}). It took too long, or another writer "
            "has taken its transactional id."
        )
    if isinstance(error, errors.UnsupportedVersionError):
        return KafkaRefusedError(f"Kafka is too old for the transactions of a mirror ({detail}). {VERSION_NEEDED}")
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        return KafkaRefusedError(f"Kafka does not have {detail}. Make the topic, or give the user the right to see it.")
    if passes(error):
        return KafkaUnavailableError(f"Kafka does not answer for {detail}. Is it running, and can it be reached?")
    return KafkaRefusedError(f"Kafka refuses {detail}. Look at the rights of the user and the settings of the topic.")
