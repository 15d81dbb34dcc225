"""Apache RocketMQ's message store, embedded: byte-compatible, many processes, no daemon.

>>> import tempfile
>>> from rmq_store import Message, Store
>>> directory = tempfile.TemporaryDirectory()
>>> with Store.open(directory.name + "/store", create=True) as store:
...     _ = store.create_topic("Orders", queue_count=1)
...     result = store.send(Message("Orders", b"tea for two", tags="TagA", keys="ORD-1"))
...     batch = next(store.read("Orders", 0, 0, 1, columns=["body", "tags"]))
...     store.commit_offsets("cg_orders", {("Orders", 0): 1})
...     (result.queue_offset, batch.to_pylist(), store.committed_offsets("cg_orders"))
(0, [{'body': b'tea for two', 'tags': 'TagA'}], {('Orders', 0): 1})
>>> directory.cleanup()
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

# The one place that has the version of both packages: setup.py reads it here, `pyspark_rmq.__version__` asks for it.
__version__ = "0.1.0"

if TYPE_CHECKING:
    from rmq_store.broker.backup.backup import BackupReport, backup
    from rmq_store.broker.delay.scheduler import Delivery, Schedule
    from rmq_store.broker.dlq.archive import ArchiveReport, DeadLetterArchive
    from rmq_store.broker.dlq.archive_restore import RestoreReport
    from rmq_store.broker.dlq.archive_schema import ARCHIVE_SCHEMA
    from rmq_store.broker.dlq.redrive import DeadLetters
    from rmq_store.broker.metadata.groups import SubscriptionGroup
    from rmq_store.broker.metadata.leases import Lease, live_leases
    from rmq_store.broker.metadata.store_config import StoreConfig
    from rmq_store.broker.metadata.topics import TopicConfig
    from rmq_store.broker.monitoring.losses import Loss, record_losses, recorded_losses
    from rmq_store.broker.monitoring.metrics import store_metrics, write_openmetrics
    from rmq_store.broker.retry.retry import Retry, SentBack
    from rmq_store.broker.retry.send_back_batch import ANSWER_SCHEMA, SEND_BACK_SCHEMA
    from rmq_store.broker.retry.send_back_tasks import SendBackArea, SendBackCounts
    from rmq_store.broker.rules import failure
    from rmq_store.broker.rules.hot_queue import is_hot
    from rmq_store.broker.store.administration import Administration, Deletion
    from rmq_store.broker.store.retention import Retention
    from rmq_store.broker.store.retention_plan import RetentionPlan, RetentionReport
    from rmq_store.broker.store.store import Store
    from rmq_store.broker.write.encoder import INPUT_SCHEMA
    from rmq_store.broker.write.staged_files import StagedFile, sweep
    from rmq_store.broker.write.staging import StagingArea
    from rmq_store.clock import ClockFile, store_clock
    from rmq_store.errors import (
        CorruptBatchError,
        CorruptConfigError,
        CorruptIndexError,
        CorruptionError,
        CorruptQueueError,
        CorruptRecordError,
        DataLossError,
        GroupInUseError,
        HandlerTransactionError,
        InvalidReceiptHandleError,
        KafkaOffsetError,
        KafkaRefusedError,
        KafkaUnavailableError,
        LeaseHeldError,
        MarkerError,
        MirrorConflictError,
        MirrorLettersError,
        MirrorSourceError,
        MirrorTargetError,
        NoMessageIdError,
        NotAStoreError,
        OffsetOutOfRangeError,
        ReadOnlyError,
        RecordRefusedError,
        RecordTooLargeError,
        ResponseError,
        SchemaMismatchError,
        StagingError,
        StoreError,
        StoreFailedError,
        StoreFullError,
        StoreKindError,
        StoreLockedError,
        StoreReplacedError,
        TopicKindError,
        UnknownTopicError,
        UsageError,
    )
    from rmq_store.files.segments.pin import Pin
    from rmq_store.format.frames.message import Message
    from rmq_store.format.frames.stored_message import StoredMessage
    from rmq_store.format.properties import new_message
    from rmq_store.format.tables.schema import MESSAGE_SCHEMA
    from rmq_store.format.text.names import is_system_topic, validate_group, validate_topic
    from rmq_store.format.text.openmetrics import Metric, MetricFamily, openmetrics_text
    from rmq_store.log.core.accepted_damage import BadRange
    from rmq_store.log.recovery.recovery import RecoveryReport
    from rmq_store.protocol.results import AppendResult, CommitResult, QueueRange, SendResult, SendStatus

# Module -> the public names that it has, but for the modules `failure` and `new_message`. They are imported when they
# are asked for: the `rmq` command, which a shell runs for every TAB, never pays for numpy and pyarrow.
_HOMES = {
    "broker.store.administration": "Administration Deletion",
    "broker.dlq.archive": "ArchiveReport DeadLetterArchive",
    "broker.dlq.archive_restore": "RestoreReport",
    "broker.dlq.archive_schema": "ARCHIVE_SCHEMA",
    "broker.backup.backup": "BackupReport backup",
    "broker.metadata.store_config": "StoreConfig",
    "broker.write.encoder": "INPUT_SCHEMA",
    "broker.metadata.groups": "SubscriptionGroup",
    "broker.metadata.leases": "Lease live_leases",
    "broker.monitoring.losses": "Loss record_losses recorded_losses",
    "broker.monitoring.metrics": "store_metrics write_openmetrics",
    "broker.dlq.redrive": "DeadLetters",
    "protocol.results": "AppendResult CommitResult QueueRange SendResult SendStatus",
    "broker.store.retention": "Retention",
    "broker.store.retention_plan": "RetentionPlan RetentionReport",
    "broker.rules.hot_queue": "is_hot",
    "broker.retry.retry": "Retry SentBack",
    "broker.delay.scheduler": "Delivery Schedule",
    "broker.retry.send_back_tasks": "SendBackArea SendBackCounts",
    "broker.retry.send_back_batch": "ANSWER_SCHEMA SEND_BACK_SCHEMA",
    "broker.write.staged_files": "StagedFile sweep",
    "broker.write.staging": "StagingArea",
    "broker.store.store": "Store",
    "broker.metadata.topics": "TopicConfig",
    "clock": "ClockFile store_clock",
    "errors": (
        "CorruptBatchError CorruptConfigError CorruptIndexError CorruptQueueError CorruptRecordError "
        "CorruptionError DataLossError GroupInUseError HandlerTransactionError InvalidReceiptHandleError "
        "KafkaOffsetError KafkaRefusedError KafkaUnavailableError LeaseHeldError MarkerError MirrorConflictError "
        "MirrorLettersError MirrorSourceError MirrorTargetError NoMessageIdError NotAStoreError "
        "OffsetOutOfRangeError ReadOnlyError RecordRefusedError RecordTooLargeError ResponseError "
        "SchemaMismatchError StagingError StoreError StoreFailedError StoreFullError StoreKindError "
        "StoreLockedError StoreReplacedError TopicKindError UnknownTopicError UsageError"
    ),
    "files.segments.pin": "Pin",
    "format.frames.message": "Message",
    "format.frames.stored_message": "StoredMessage",
    "format.text.names": "is_system_topic validate_group validate_topic",
    "format.text.openmetrics": "Metric MetricFamily openmetrics_text",
    "format.tables.schema": "MESSAGE_SCHEMA",
    "log.core.accepted_damage": "BadRange",
    "log.recovery.recovery": "RecoveryReport",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()} | {
    "failure": "broker.rules.failure",
    "new_message": "format.properties.new_message",
}

_MODULES = ("failure", "new_message")

__all__ = [
    "ANSWER_SCHEMA",
    "ARCHIVE_SCHEMA",
    "INPUT_SCHEMA",
    "MESSAGE_SCHEMA",
    "SEND_BACK_SCHEMA",
    "Administration",
    "AppendResult",
    "ArchiveReport",
    "BackupReport",
    "BadRange",
    "ClockFile",
    "CommitResult",
    "CorruptBatchError",
    "CorruptConfigError",
    "CorruptIndexError",
    "CorruptQueueError",
    "CorruptRecordError",
    "CorruptionError",
    "DataLossError",
    "DeadLetterArchive",
    "DeadLetters",
    "Deletion",
    "Delivery",
    "GroupInUseError",
    "HandlerTransactionError",
    "InvalidReceiptHandleError",
    "KafkaOffsetError",
    "KafkaRefusedError",
    "KafkaUnavailableError",
    "Lease",
    "LeaseHeldError",
    "Loss",
    "MarkerError",
    "Message",
    "Metric",
    "MetricFamily",
    "MirrorConflictError",
    "MirrorLettersError",
    "MirrorSourceError",
    "MirrorTargetError",
    "NoMessageIdError",
    "NotAStoreError",
    "OffsetOutOfRangeError",
    "Pin",
    "QueueRange",
    "ReadOnlyError",
    "RecordRefusedError",
    "RecordTooLargeError",
    "RecoveryReport",
    "ResponseError",
    "RestoreReport",
    "Retention",
    "RetentionPlan",
    "RetentionReport",
    "Retry",
    "Schedule",
    "SchemaMismatchError",
    "SendBackArea",
    "SendBackCounts",
    "SendResult",
    "SendStatus",
    "SentBack",
    "StagedFile",
    "StagingArea",
    "StagingError",
    "Store",
    "StoreConfig",
    "StoreError",
    "StoreFailedError",
    "StoreFullError",
    "StoreKindError",
    "StoreLockedError",
    "StoreReplacedError",
    "StoredMessage",
    "SubscriptionGroup",
    "TopicConfig",
    "TopicKindError",
    "UnknownTopicError",
    "UsageError",
    "backup",
    "failure",
    "is_hot",
    "is_system_topic",
    "live_leases",
    "new_message",
    "openmetrics_text",
    "record_losses",
    "recorded_losses",
    "store_clock",
    "store_metrics",
    "sweep",
    "validate_group",
    "validate_topic",
    "write_openmetrics",
]

if "freezegun" in sys.modules:
    from rmq_store.real_time import load_if_time_is_frozen

    load_if_time_is_frozen()


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOME_OF[name]}")
    found = module if name in _MODULES else getattr(module, name)
    globals()[name] = found  # asked for once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
