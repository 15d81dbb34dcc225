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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_store.broker import failure
    from rmq_store.broker.administration import Administration, Deletion
    from rmq_store.broker.archive import ArchiveReport, DeadLetterArchive
    from rmq_store.broker.archive_restore import RestoreReport
    from rmq_store.broker.archive_schema import ARCHIVE_SCHEMA
    from rmq_store.broker.backup import BackupReport, backup
    from rmq_store.broker.config import StoreConfig
    from rmq_store.broker.encoding import INPUT_SCHEMA
    from rmq_store.broker.groups import SubscriptionGroup
    from rmq_store.broker.leases import Lease, live_leases
    from rmq_store.broker.losses import Loss, record_losses, recorded_losses
    from rmq_store.broker.metrics import store_metrics, write_openmetrics
    from rmq_store.broker.redrive import DeadLetters
    from rmq_store.broker.results import AppendResult, CommitResult, QueueRange, SendResult, SendStatus
    from rmq_store.broker.retention import Retention, RetentionPlan, RetentionReport
    from rmq_store.broker.retry import Retry, SentBack
    from rmq_store.broker.schedule import Delivery, Schedule
    from rmq_store.broker.send_back_area import SendBackArea, SendBackCounts
    from rmq_store.broker.send_back_batch import ANSWER_SCHEMA, SEND_BACK_SCHEMA
    from rmq_store.broker.staged_files import StagedFile, sweep
    from rmq_store.broker.staging import StagingArea
    from rmq_store.broker.store import Store
    from rmq_store.broker.topics import TopicConfig
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
    from rmq_store.files.pin import Pin
    from rmq_store.format.message import Message, StoredMessage
    from rmq_store.format.names import is_system_topic, validate_group, validate_topic
    from rmq_store.format.openmetrics import Metric, MetricFamily, openmetrics_text
    from rmq_store.format.schema import MESSAGE_SCHEMA
    from rmq_store.log.kept import BadRange
    from rmq_store.log.recovery import RecoveryReport

# Module -> the public names that it has, but for the module `failure`. They are imported when they are asked for: the
# `rmq` command, which a shell runs for every TAB, never pays for numpy and pyarrow.
_HOMES = {
    "broker.administration": "Administration Deletion",
    "broker.archive": "ArchiveReport DeadLetterArchive",
    "broker.archive_restore": "RestoreReport",
    "broker.archive_schema": "ARCHIVE_SCHEMA",
    "broker.backup": "BackupReport backup",
    "broker.config": "StoreConfig",
    "broker.encoding": "INPUT_SCHEMA",
    "broker.groups": "SubscriptionGroup",
    "broker.leases": "Lease live_leases",
    "broker.losses": "Loss record_losses recorded_losses",
    "broker.metrics": "store_metrics write_openmetrics",
    "broker.redrive": "DeadLetters",
    "broker.results": "AppendResult CommitResult QueueRange SendResult SendStatus",
    "broker.retention": "Retention RetentionPlan RetentionReport",
    "broker.retry": "Retry SentBack",
    "broker.schedule": "Delivery Schedule",
    "broker.send_back_area": "SendBackArea SendBackCounts",
    "broker.send_back_batch": "ANSWER_SCHEMA SEND_BACK_SCHEMA",
    "broker.staged_files": "StagedFile sweep",
    "broker.staging": "StagingArea",
    "broker.store": "Store",
    "broker.topics": "TopicConfig",
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
    "files.pin": "Pin",
    "format.message": "Message StoredMessage",
    "format.names": "is_system_topic validate_group validate_topic",
    "format.openmetrics": "Metric MetricFamily openmetrics_text",
    "format.schema": "MESSAGE_SCHEMA",
    "log.kept": "BadRange",
    "log.recovery": "RecoveryReport",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()} | {"failure": "broker.failure"}

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
    "is_system_topic",
    "live_leases",
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


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOME_OF[name]}")
    found = module if name == "failure" else getattr(module, name)
    globals()[name] = found  # asked for once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
