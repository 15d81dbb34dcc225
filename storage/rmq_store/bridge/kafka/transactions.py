"""Kafka's transaction protocol (KIP-98, KIP-360) for one transactional id, request by request.

It uses kafka-python's connections and requests, but not its producer, which has four faults. It reports a commit as
done that did not happen: an error of a sequence number during the commit bumps the epoch, which aborts the transaction,
and then "no partition was added" lets the commit succeed. A batch that reaches its delivery timeout fails only its own
future. A commit waits without a limit. And each new producer of an id fences the others, so that two mirrors of one
name would fence each other in turn.

Here no request is repeated that Kafka might have carried out already, except those that have the same effect twice. Any
other error ends the transaction. `initialise` then settles it, with a new epoch each time, so that a request which is
still under way can never become part of a later transaction (KIP-890).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from kafka import errors
from kafka.future import Future
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, ProduceRequest

from rmq_store import real_time
from rmq_store.bridge.kafka.broker_link import BrokerLink, ours
from rmq_store.bridge.kafka.client import Partition
from rmq_store.errors import (
    KafkaUnavailableError,
    MirrorConflictError,
    RecordRefusedError,
    StoreError,
)
from rmq_store.lazy.dataclasses import dataclass

_ALL_REPLICAS: Final = -1
# A topic that was made a moment ago has leaders that do not know it yet.
_NEW_LEADER_S: Final = 5.0
_AGAIN_S: Final = 0.05
_NOT_WRITTEN: Final = (
    errors.LeaderNotAvailableError,
    errors.NotLeaderForPartitionError,
    errors.UnknownTopicOrPartitionError,
)
# Kafka judges records by them, and would judge them so again.
_VERDICTS: Final = (
    errors.InvalidRecordError,
    errors.InvalidTimestampError,
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
)


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer id and epoch that Kafka assigned to the writer of a transactional id."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The bytes of one record batch, made for this producer, its epoch and the partition's next sequence number, and
    the places of its records among all records of the partition in this transaction.
    """

    partition: Partition
    records: bytes
    rows: range


class TransactionLink:
    """The requests of the transactional id `transactional_id`."""

    def __init__(self, brokers: BrokerLink, transactional_id: str, *, transaction_timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._brokers = brokers
        self._coordinator: int | None = None

    def initialise(self, predecessor: Producer | None) -> Producer:
        """End the id's last transaction, and fence its last writer. Returns the producer for all later writes.

        `predecessor`: the producer of this writer until now. Raises `MirrorConflictError` if Kafka knows that it was
        fenced. None takes the id from any other writer.
        """
        self._brokers.leaders.clear()
        self._coordinator = None
        producer: Producer = self._brokers.run(self.transactional_id, self._initialise, predecessor)
        return producer

    def start_producing(self, producer: Producer, added: Collection[Partition], batches: Sequence[Batch]) -> Future:
        """Start to add partitions, and then to write batches, each partition's in their order. `finish` waits for the
        end. Nothing is sent again: after an error the transaction has to be ended.
        """
        return self._brokers.manager.call_soon(self._produce, producer, added, batches)

    def finish(self, started: Future) -> Mapping[Partition, int]:
        """Wait until all batches of `start_producing` are on all replicas in sync, or raise its error. Returns the
        offset after the last record of each partition.
        """
        ends: Mapping[Partition, int] = self._brokers.run("records", lambda: started)
        return ends

    def end(self, producer: Producer, *, commit: bool) -> None:
        """Commit or abort. After an error it is unknown whether that was done: `initialise` settles it."""
        self._brokers.run("the end of a transaction", self._end, producer, commit)

    async def _initialise(self, predecessor: Producer | None) -> Producer:
        async def ask(coordinator: int) -> Producer:
            response = await self._send(
                InitProducerIdRequest(
                    transactional_id=self.transactional_id,
                    transaction_timeout_ms=self._transaction_timeout_ms,
                    producer_id=-1 if predecessor is None else predecessor.producer_id,
                    producer_epoch=-1 if predecessor is None else predecessor.epoch,
                    min_version=4,
                    max_version=4,
                ),
                coordinator,
            )
            error = errors.for_code(response.error_code)
            if error in (errors.ProducerFencedError, errors.InvalidProducerEpochError):
                raise MirrorConflictError(
                    f"Another writer has taken the transactional id {self.transactional_id!r} in Kafka. This one ends, "
                    "and its open transaction was aborted. Run only one mirror with a name."
                )
            if error is not errors.NoError:
                raise error()
            return Producer(response.producer_id, response.producer_epoch)

        producer: Producer = await self._at_coordinator(ask, f"the transactional id {self.transactional_id!r}")
        return producer

    async def _add_partitions(self, producer: Producer, partitions: Collection[Partition]) -> None:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in partitions:
            by_topic[topic].append(partition)
        topic_of = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic

        async def ask(coordinator: int) -> None:
            response = await self._send(
                AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id=self.transactional_id,
                    v3_and_below_producer_id=producer.producer_id,
                    v3_and_below_producer_epoch=producer.epoch,
                    v3_and_below_topics=[topic_of(name=name, partitions=those) for name, those in by_topic.items()],
                    max_version=3,
                ),
                coordinator,
            )
            # Kafka fails the others beside a bad one with OPERATION_NOT_ATTEMPTED.
            failed = {
                errors.for_code(code): Partition(topic, partition)
                for topic, results in response.results_by_topic_v3_and_below
                for partition, code in results
                if code
            }
            failed.pop(errors.OperationNotAttemptedError, None)
            for error, partition in failed.items():
                raise error(f"partition {partition.partition} of topic {partition.topic!r}")

        await self._at_coordinator(ask, "a partition of a transaction")

    async def _end(self, producer: Producer, commit: bool) -> None:
        async def ask(coordinator: int) -> None:
            response = await self._send(
                EndTxnRequest(
                    transactional_id=self.transactional_id,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    committed=commit,
                    max_version=3,
                ),
                coordinator,
            )
            if response.error_code:
                raise errors.for_code(response.error_code)()

        await self._at_coordinator(ask, "the end of a transaction")

    async def _at_coordinator(self, ask: Callable[[int], Awaitable[Any]], what: str) -> Any:
        async def once() -> Any:
            return await ask(await self._coordinator_id())

        def forget(error: Exception) -> None:
            # The markers of the last transaction are still written: that takes a moment, and nobody has moved.
            if not isinstance(error, errors.ConcurrentTransactionsError):
                self._coordinator = None

        return await self._brokers.patiently(what, once, forget)

    async def _coordinator_id(self) -> int:
        if self._coordinator is None:
            key = self.transactional_id
            kind = CoordinatorType.TRANSACTION.value
            response = await self._send(FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key]), None)
            found = response.coordinators[0] if response.coordinators else response
            if found.error_code:
                raise errors.for_code(found.error_code)()
            await self._brokers.know_broker(found.node_id)
            self._coordinator = found.node_id
        return self._coordinator

    async def _produce(
        self, producer: Producer, added: Collection[Partition], batches: Sequence[Batch]
    ) -> dict[Partition, int]:
        if added:
            await self._add_partitions(producer, added)
        await self._brokers.find_leaders({batch.partition for batch in batches})
        by_leader: dict[int, list[Batch]] = defaultdict(list)
        for batch in batches:
            by_leader[self._brokers.leaders[batch.partition]].append(batch)
        call_soon = self._brokers.manager.call_soon
        sending = [call_soon(self._produce_to, leader, those) for leader, those in by_leader.items()]
        # All are waited for, also if one fails: nothing may be under way when the transaction is ended.
        failed = [error for future in sending if (error := await _outcome(future)) is not None]
        if failed:
            raise failed[0]
        return {partition: end for future in sending for partition, end in future.value.items()}

    async def _produce_to(self, leader: int, batches: Sequence[Batch]) -> dict[Partition, int]:
        """One request at a time: kafka-python refuses more while it still writes one."""
        ends: dict[Partition, int] = {}
        left = list(batches)
        while left:
            # Kafka takes one batch of a partition per request.
            now: dict[Partition, Batch] = {}
            later: list[Batch] = []
            for batch in left:
                if batch.partition in now:
                    later.append(batch)
                else:
                    now[batch.partition] = batch
            left = later
            ends |= await self._produce_once(leader, now)
        return ends

    async def _produce_once(
        self, leader: int, batches: Mapping[Partition, Batch], until_s: float | None = None
    ) -> dict[Partition, int]:
        """Send a batch of each partition. A broker that does not lead it yet has written nothing: it is asked again."""
        topic_of = ProduceRequest.TopicProduceData
        by_topic: dict[str, list[Any]] = defaultdict(list)
        for (topic, partition), batch in batches.items():
            by_topic[topic].append(topic_of.PartitionProduceData(index=partition, records=batch.records))
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=_ALL_REPLICAS,
            timeout_ms=self._brokers.patience_ms,
            topic_data=[topic_of(name=topic, partition_data=those) for topic, those in by_topic.items()],
            min_version=3,
            max_version=9,
        )
        response = await self._send(request, leader)
        ends, again = {}, []
        until_s = real_time.monotonic() + _NEW_LEADER_S if until_s is None else until_s
        for topic_answer in response.responses:
            for answer in topic_answer.partition_responses:
                place = Partition(topic_answer.name, answer.index)
                if not answer.error_code:
                    ends[place] = answer.base_offset + len(batches[place].rows)
                elif errors.for_code(answer.error_code) in _NOT_WRITTEN and real_time.monotonic() < until_s:
                    again.append(place)
                else:
                    raise _of_batch(batches[place], answer)
        if len(ends) + len(again) != len(batches):
            raise KafkaUnavailableError(f"Kafka answered for {len(ends)} of {len(batches)} partitions of a request.")
        if again:
            await self._brokers.loop.sleep(_AGAIN_S)
            for place in again:
                self._brokers.leaders.pop(place, None)
            await self._brokers.find_leaders(again)
            for place in again:
                ends |= await self._produce_once(self._brokers.leaders[place], {place: batches[place]}, until_s)
        return ends

    async def _send(self, request: Any, node_id: int | None) -> Any:
        return await self._brokers.send(request, node_id)


async def _outcome(future: Future) -> BaseException | None:
    try:
        await future
    except (errors.KafkaError, StoreError) as error:
        return error
    return None


def _of_batch(batch: Batch, answer: Any) -> StoreError:
    error = errors.for_code(answer.error_code)()
    what = f"records for partition {batch.partition.partition} of topic {batch.partition.topic!r}"
    if not isinstance(error, _VERDICTS):
        return ours(error, what)
    named = sorted({batch.rows[bad.batch_index] for bad in answer.record_errors or ()})
    reason = f"{type(error).__name__}: {answer.error_message or error.description}"
    return RecordRefusedError(f"Kafka refuses {what}: {reason}", batch.partition, named, reason)
