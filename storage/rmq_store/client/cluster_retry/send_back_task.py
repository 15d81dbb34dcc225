"""The rows of one task that send messages of a cluster back, from Arrow batches to their report.

    a row without reasons                        36: the broker copies its own record
    a row with reasons                           310 to %RETRY%group, at the broker of the message (`retry_copies`)
    the same, and the group has push consumers   36 without the reasons: while the group holds locks of queues, a
                                                 broker of 5.x moves what is sent to its retry topic to the dead letters
    its properties leave no room                 36 without the reasons
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from rmq_store.broker.metadata.groups import SubscriptionGroup
from rmq_store.client.cluster_retry.originals import MessageLocation, OriginalReading
from rmq_store.client.cluster_retry.retry_copies import retry_copy
from rmq_store.client.cluster_retry.send_back_check import SendBackCheck
from rmq_store.client.cluster_retry.stored_copies import key_of_next_copy
from rmq_store.client.cluster_sink.record_directory import RecordDirectory
from rmq_store.client.cluster_sink.record_topic import RecordTopic
from rmq_store.client.cluster_sink.records import WritePart
from rmq_store.client.cluster_sink.task import PATIENCE_OPTION, RESEND_OPTION
from rmq_store.client.delivery.deliver import IN_FLIGHT_MAX, REQUEST_TIMEOUT_MS, Delivery, Single
from rmq_store.client.delivery.outcome import WEAK_STATUS_MS
from rmq_store.client.delivery.queue_reading import QueueReading
from rmq_store.client.delivery.request import send_back_request, single_request
from rmq_store.errors import UsageError
from rmq_store.format.frames.frame_check import COMPRESSION_MASK, SysFlag
from rmq_store.format.frames.stored_message import StoredMessage
from rmq_store.format.text.names import retry_topic
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig
from rmq_store.protocol.errors import MQBrokerError, WeakSendError
from rmq_store.protocol.messages import MessageQueue
from rmq_store.protocol.wire.command import RemotingCommand
from rmq_store.remoting.cluster.cluster import Cluster
from rmq_store.remoting.cluster.gather import Question, Value, waiting
from rmq_store.remoting.questions.answer import is_not_told
from rmq_store.remoting.questions.groups import (
    ask_consumer_connections,
    ask_group_configs,
    read_consumer_connections,
    read_group_configs,
)

_log = logging.getLogger(__name__)

_PRODUCER_GROUP: Final = "pyspark_rmq"
_PAUSE_S: Final = 0.2
# A broker takes a random queue of the topic.
_ANY_QUEUE: Final = -1
# The bits of a sysFlag that say how a body is compressed.
_COMPRESSION_BITS: Final = COMPRESSION_MASK | SysFlag.COMPRESSED


@dataclass(frozen=True, slots=True)
class SendBackSettings:
    """The settings of all tasks of a write; plain data. Times in ms.

    `max_reconsume_times`: of the messages of this write; None: the group's. `replay_check`, `record_path`: as
    `SinkSettings`. A message has one broker, which is waited for as long as `send_timeout_ms` or `patience_ms` says,
    whichever is longer.
    """

    group: str
    max_reconsume_times: int | None = None
    replay_check: bool = True
    resend_unknown: bool = False
    settle_ms: int = 3_000
    send_timeout_ms: int = 60_000
    patience_ms: int = 0
    record_path: str = ""
    pull_group: str = ""
    fail_on_weak_status: bool = False


@dataclass(frozen=True, slots=True)
class SendBackReport:
    """The work that a task has done; plain data. `found`: rows that were sent back already, by an earlier attempt or by
    a request of unknown outcome. `without_reasons`: rows whose reasons were left out. `weak`: rows by status.
    """

    rows: int
    found: int
    without_reasons: int
    weak: dict[str, int]


class SendBackTask:
    """Sends the messages back that the rows of one task name. Use as a context manager."""

    def __init__(
        self,
        cluster: Cluster,
        settings: SendBackSettings,
        part: WritePart,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._sleep = sleep
        self._patience_ms = max(settings.send_timeout_ms, settings.patience_ms)
        self._check: SendBackCheck | None = None
        if settings.replay_check:
            reading = QueueReading(
                cluster, self._patience_ms, settings.pull_group, sleep, option=PATIENCE_OPTION,
                resend_lost=settings.resend_unknown, resend_option=RESEND_OPTION,
            )  # fmt: skip
            records = (
                RecordDirectory(settings.record_path)
                if settings.record_path
                else RecordTopic(cluster, reading, group=_PRODUCER_GROUP, pull_group=settings.pull_group, sleep=sleep)
            )
            self._check = SendBackCheck(
                cluster, settings.group, reading, records, part, settings.settle_ms, sleep=sleep
            )
        self._originals = OriginalReading(cluster, self._patience_ms, sleep)
        verifier = None if settings.resend_unknown else self._check
        timeout_ms = WEAK_STATUS_MS if settings.fail_on_weak_status else REQUEST_TIMEOUT_MS
        self._sends = Delivery(cluster, self._patience_ms, verifier, request_timeout_ms=timeout_ms, sleep=sleep)
        self._configs: dict[str, SubscriptionGroupConfig] = {}
        self._has_push_consumers: dict[str, bool] = {}
        self._rows = self._sent = self._found = self._without_reasons = 0
        self._weak: Counter[str] = Counter()

    def write(self, batch: pa.RecordBatch) -> None:
        """Send back the messages of rows. Columns: brokerName, commitLogOffset, msgId; and, if they are there,
        delayLevel and properties as in `SEND_BACK_SCHEMA`. On return they are sent back.

        Raises:
            ResponseError, UsageError: a row names no message that can be sent back; names the row.
            MQBrokerError, MQClientError, SendInDoubtError, RemotingError: as `Delivery.send_all`, and
                `SendBackCheck.prepare`. Rows before stay sent back; a repetition leaves them out.
        """
        for start in range(0, batch.num_rows, IN_FLIGHT_MAX):
            self._write(batch.slice(start, IN_FLIGHT_MAX))

    def finish(self) -> SendBackReport:
        """The report."""
        return SendBackReport(self._sent, self._found, self._without_reasons, dict(self._weak))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to do: `write` leaves nothing under way."""

    def _write(self, rows: pa.RecordBatch) -> None:
        columns = [rows.column(name).to_pylist() for name in ("brokerName", "commitLogOffset", "msgId")]
        locations = [MessageLocation(*values) for values in zip(*columns, strict=True)]
        for at, location in enumerate(locations):
            if location.broker_name is None or location.commit_log_offset is None:
                raise UsageError(f"row {self._rows + at} names no message: brokerName or commitLogOffset is NULL")
        messages = self._originals.read(locations, self._rows)
        were_sent = [False] * len(messages)
        if self._check is not None:
            self._check.prepare({location.broker_name for location in locations})
            were_sent = self._check.were_sent([key_of_next_copy(message) for message in messages])
        sends = []
        for at, (message, (level, reasons)) in enumerate(zip(messages, _wishes(rows), strict=True)):
            if were_sent[at]:
                self._found += 1
                continue
            sends.append(self._single(locations[at], message, level, reasons, self._rows + at))
        for stored in self._sends.send_all(sends):
            self._sent += not stored.was_found
            self._found += stored.was_found
            if stored.weak_status:
                self._weak[stored.weak_status] += 1
                if self._settings.fail_on_weak_status:
                    raise WeakSendError(
                        f"a message is sent back with status {stored.weak_status}: onStoreStatus=fail asks for the end "
                        "of the batch"
                    )
        self._rows += len(locations)

    def _single(
        self,
        location: MessageLocation,
        message: StoredMessage,
        delay_level: int,
        reasons: Mapping[str, str] | None,
        row: int,
    ) -> Single:
        command = None
        if reasons is not None:
            command = self._with_reasons(location.broker_name, message, delay_level, reasons)
            self._without_reasons += command is None
        if command is None:
            command = self._by_number(location.broker_name, message, delay_level)
        subject = f"row {row}: the message {location.msg_id} of broker {location.broker_name!r}"
        return Single(location.broker_name, command, key_of_next_copy(message), subject)

    def _by_number(self, broker_name: str, message: StoredMessage, delay_level: int) -> RemotingCommand:
        return send_back_request(
            broker_name, self._cluster.wire_group(self._settings.group),
            commit_log_offset=message.commit_log_offset, msg_id=message.msg_id, wire_topic=message.topic,
            delay_level=delay_level, max_reconsume_times=self._settings.max_reconsume_times,
        )  # fmt: skip

    def _with_reasons(
        self, broker_name: str, message: StoredMessage, delay_level: int, reasons: Mapping[str, str]
    ) -> RemotingCommand | None:
        config = self._config(broker_name)
        if config.retry_queue_nums < 1 or self._must_leave_reasons_out(broker_name):
            return None
        most = self._settings.max_reconsume_times
        copy = retry_copy(message, reasons, delay_level, config.retry_max_times if most is None else most)
        if copy is None:
            return None
        queue = MessageQueue(retry_topic(self._settings.group), broker_name, _ANY_QUEUE)
        return single_request(
            self._cluster, queue, message.body, copy.properties,
            group=_PRODUCER_GROUP, flag=message.flag, sys_flag=message.sys_flag & _COMPRESSION_BITS,
            born_ms=message.born_timestamp_ms, reconsume_times=copy.reconsume_times,
            max_reconsume_times=copy.max_reconsume_times,
        )  # fmt: skip

    def _config(self, broker_name: str) -> SubscriptionGroupConfig:
        """The group's settings at a broker; those of a new group if it has none yet."""
        if broker_name not in self._configs:
            name = self._cluster.wire_group(self._settings.group)
            default = SubscriptionGroup(name)
            self._configs[broker_name] = self._known_configs(broker_name).get(name) or SubscriptionGroupConfig(
                group_name=name, retry_queue_nums=default.retry_queue_nums, retry_max_times=default.retry_max_times
            )
            if self._configs[broker_name].retry_queue_nums < 1:
                # As a broker: it answers SUCCESS and stores nothing.
                _log.warning(
                    "group %r has retryQueueNums=0 at broker %r: messages that are sent back are dropped there, they "
                    "neither come back nor become dead letters", self._settings.group, broker_name,
                )  # fmt: skip
        return self._configs[broker_name]

    def _known_configs(self, broker_name: str) -> Mapping[str, SubscriptionGroupConfig]:
        try:
            return self._told(Question(broker_name, ask_group_configs(), read_group_configs))
        except MQBrokerError as error:
            if not is_not_told(error):
                raise
            _log.warning(
                "the settings of group %r are not known, because broker %r refuses to tell them (%s): those of a new "
                "group count", self._settings.group, broker_name, error,
            )  # fmt: skip
            return {}

    def _must_leave_reasons_out(self, broker_name: str) -> bool:
        if broker_name not in self._has_push_consumers:
            command = ask_consumer_connections(self._cluster, self._settings.group)
            members = self._told(Question(broker_name, command, read_consumer_connections))
            self._has_push_consumers[broker_name] = members is not None and members.consume_type != "CONSUME_ACTIVELY"
            if self._has_push_consumers[broker_name]:
                _log.warning(
                    "group %r has live push consumers at broker %r, which may hold locks of queues: reasons of "
                    "failures are left out, because a broker of 5.x would move such messages to the dead letters",
                    self._settings.group, broker_name,
                )  # fmt: skip
        return self._has_push_consumers[broker_name]

    def _told(self, question: Question[Value]) -> Value:
        """The answer of a master, which is waited for while it is away. Raises as `gather.Told.required`."""
        until_ms = self._cluster.timer() + self._patience_ms
        asked = {question.broker_name: question}
        told = waiting(self._cluster, asked, until_ms, pause_s=_PAUSE_S, sleep=self._sleep)
        return told.required()[question.broker_name]


def _wishes(rows: pa.RecordBatch) -> Iterator[tuple[int, dict[str, str] | None]]:
    """The delay level and the reasons of each row."""
    count = rows.num_rows
    levels = rows.column("delayLevel").to_pylist() if "delayLevel" in rows.schema.names else [None] * count
    reasons: list[Any] = rows.column("properties").to_pylist() if "properties" in rows.schema.names else [None] * count
    for level, pairs in zip(levels, reasons, strict=True):
        given = None if pairs is None else {name: value for name, value in pairs if value is not None}
        yield level or 0, given
