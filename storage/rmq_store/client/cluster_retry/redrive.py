"""Dead letters of a cluster, moved on: each of them once, whatever is repeated.

The steps for the letters of one broker, 500 or 32 MiB at a time:

    1  a lock of the ledger's queue at this broker: nobody else moves letters of the group there
    2  the ledger is read on; for an attempt that has died, its copies are looked for, and recorded as moved
    3  the letters are read and judged (`dead_letter_reading`)
    4  they are sent between two records of the ledger (`dead_letter_moves`)

After a crash in step 4 step 2 of the next call finds what was sent. A broker forgets the lock of a dead process after
60 s, so the next call waits that long.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa

from rmq_store.broker.dlq.redrive_batch import PARKED, REDRIVEN, Policy
from rmq_store.broker.dlq.redrive_ledger import OffsetRanges
from rmq_store.broker.rules.input_rows import as_schema
from rmq_store.client.cluster_retry.dead_letter_moves import LetterMoves
from rmq_store.client.cluster_retry.dead_letter_reading import LetterReading
from rmq_store.client.cluster_retry.dead_letters import CLUSTER_ROWS_SCHEMA, Letter, letters_by_broker, result_of
from rmq_store.client.cluster_retry.redrive_ledger import BrokerLedger, RedriveLedger, queue_of
from rmq_store.client.cluster_retry.redrive_lock import RedriveLock, no_lock
from rmq_store.errors import UnknownTopicError, UsageError
from rmq_store.format.text import names
from rmq_store.protocol.messages import MessageQueue
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.topics import refuse_to_write_topic

_CHUNK_LETTERS: Final = 500
_PLANNED: Final = {REDRIVEN: "WOULD_REDRIVE", PARKED: "WOULD_PARK"}


class ClusterDeadLetters:
    """The dead letters of the groups of a cluster; not thread-safe. `settle_ms`, `send_timeout_ms`, `pull_group`: as
    the options settleTime, sendTimeout and pullGroup.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        settle_ms: int = 3_000,
        send_timeout_ms: int = 20_000,
        pull_group: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._sleep = sleep
        self._ledger = RedriveLedger(cluster, send_timeout_ms, pull_group, sleep=sleep)
        self._letters = LetterReading(cluster, pull_group, sleep)
        self._moves = LetterMoves(
            cluster, self._ledger, settle_ms=settle_ms, send_timeout_ms=send_timeout_ms, pull_group=pull_group,
            sleep=sleep,
        )  # fmt: skip
        self._client_id = f"pyspark_rmq#redrive#{secrets.token_hex(6)}"

    def redriven(self, group: str, broker_name: str) -> Mapping[int, OffsetRanges]:
        """The offsets of moved dead letters by queue of `%DLQ%group`, as the broker has recorded them.

        Raises:
            RemotingError, MQBrokerError, SlaveBehindError: they cannot be read.
        """
        ledger = BrokerLedger(group, broker_name)
        self._ledger.read_on(ledger, at_master=False)
        return ledger.moved()

    def plan(
        self,
        group: str,
        rows: pa.RecordBatch,
        *,
        to_topic: str | None = None,
        max_replays: int | None = None,
        parking_topic: str | None = None,
        limit: int | None = None,
    ) -> pa.RecordBatch:
        """The outcomes of a `redrive` with these arguments (CLUSTER_RESULT_SCHEMA); sends nothing. Raises as it."""
        return self._run(
            group, rows, writes=False, to_topic=to_topic, max_replays=max_replays, parking_topic=parking_topic,
            limit=limit,
        )  # fmt: skip

    def redrive(
        self,
        group: str,
        rows: pa.RecordBatch,
        *,
        to_topic: str | None = None,
        max_replays: int | None = None,
        parking_topic: str | None = None,
        limit: int | None = None,
    ) -> pa.RecordBatch:
        """Send dead letters (CLUSTER_ROWS_SCHEMA) to a topic where they are consumed again, each once, however often
        this is called. The arguments are those of `DeadLetters.redrive`. Returns
        CLUSTER_RESULT_SCHEMA in the order of the rows. On return the letters are moved, as durably as brokers store.

        Raises:
            UsageError: a row is no dead letter of the group; a target that cannot be written or would be a loop; the
                group holds locks of queues, so a broker of 5.x moves what it gets straight to the dead letters.
            LeaseHeldError: another process moves letters of this group.
            MQBrokerError, MQClientError, SendInDoubtError, RemotingError: a broker refuses or does not answer. Letters
                that were moved before stay moved, and the next call knows them.
        """
        return self._run(
            group, rows, writes=True, to_topic=to_topic, max_replays=max_replays, parking_topic=parking_topic,
            limit=limit,
        )  # fmt: skip

    def _run(
        self,
        group: str,
        rows: pa.RecordBatch,
        *,
        writes: bool,
        to_topic: str | None,
        max_replays: int | None,
        parking_topic: str | None,
        limit: int | None,
    ) -> pa.RecordBatch:
        policy = self._policy(group, to_topic, max_replays, parking_topic)
        rows = as_schema(
            rows, CLUSTER_ROWS_SCHEMA, ("brokerName", "queueId", "queueOffset"), "a dead letter is named by its place"
        )
        done: dict[int, tuple[str, int, Letter]] = {}
        left = limit
        for broker_name, by_queue in letters_by_broker(rows).items():
            if left == 0:
                break
            with self._lock(group, broker_name) if writes else no_lock() as renew:
                ledger = BrokerLedger(group, broker_name)
                for queue_id, letters in by_queue.items():
                    at = 0
                    while at < len(letters) and left != 0:
                        renew()
                        chunk = letters[at : at + _CHUNK_LETTERS]
                        count, moved = self._chunk(ledger, queue_id, chunk, policy, left, renew if writes else None)
                        for one in chunk[:count]:
                            one.forget_message()
                        done |= {one.row: (broker_name, queue_id, one) for one in chunk if one.judgement is not None}
                        at += count
                        left = None if left is None else left - moved
        return result_of(done, {} if writes else _PLANNED)

    def _lock(self, group: str, broker_name: str) -> RedriveLock:
        return RedriveLock(self._cluster, group, queue_of(broker_name), self._client_id, self._sleep)

    # -- targets ------------------------------------------------------------------------------------------------------

    def _policy(
        self, group: str, to_topic: str | None, max_replays: int | None, parking_topic: str | None
    ) -> Policy:
        names.validate_group(group)
        if max_replays is not None and (type(max_replays) is not int or max_replays < 0):
            raise UsageError(f"max_replays={max_replays!r}: must be 0 or more")
        if parking_topic is not None and max_replays is None:
            raise UsageError("parking_topic needs max_replays: it gets the messages that were redriven so often")
        target = names.retry_topic(group) if to_topic is None else to_topic
        for what, topic in (("to_topic", target), ("parking_topic", parking_topic)):
            if topic is not None and topic != names.retry_topic(group):
                self._check_target(what, topic)
        return Policy(target, max_replays, parking_topic)

    def _check_target(self, what: str, topic: str) -> None:
        names.validate_topic(topic)
        if topic.startswith((names.DLQ_PREFIX, names.RETRY_PREFIX)):
            raise UsageError(f"{what}={topic!r}: dead letters go to the retry topic of their own group, or to no group")
        if self._cluster.route(topic) is None:
            raise UnknownTopicError(f"{what}={topic!r}: no broker of the cluster has this topic")
        refuse_to_write_topic(self._cluster, topic)

    # -- one chunk ----------------------------------------------------------------------------------------------------

    def _chunk(
        self,
        ledger: BrokerLedger,
        queue_id: int,
        letters: list[Letter],
        policy: Policy,
        limit: int | None,
        renew: Callable[[], None] | None,
    ) -> tuple[int, int]:
        """Decide letters of one queue, up to the last one that may move, and move them; without `renew` nothing is
        moved. Returns how many letters are done with, and how many of them move.
        """
        self._ledger.read_on(ledger, at_master=renew is not None)
        if renew is not None and ledger.open:
            for record in list(ledger.open.values()):
                self._moves.finish(ledger.broker_name, record, renew)
            self._ledger.read_on(ledger, at_master=True)
        dlq = MessageQueue(names.dlq_topic(ledger.group), ledger.broker_name, queue_id)
        count = self._letters.judge(dlq, letters, ledger.moved_of(queue_id), policy)
        moving = [one for one in letters if one.judgement is not None and one.judgement.target is not None]
        if limit is not None and len(moving) > limit:
            # The rows after the last moved one are left out of the result.
            kept = letters.index(moving[limit - 1]) + 1
            for one in letters[kept:]:
                one.judgement = None
            moving = moving[:limit]
        if renew is not None and moving:
            self._moves.move(ledger.group, dlq, moving, renew)
        return count, len(moving)
