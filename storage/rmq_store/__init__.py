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

# For type checkers, and for tools that look for the modules of a frozen program: imports in code are all that they see.
if TYPE_CHECKING:
    from rmq_store.broker.backup.backup import BackupReport as BackupReport
    from rmq_store.broker.backup.backup import backup as backup
    from rmq_store.broker.delay.scheduler import Delivery as Delivery
    from rmq_store.broker.delay.scheduler import Schedule as Schedule
    from rmq_store.broker.dlq.archive import ArchiveReport as ArchiveReport
    from rmq_store.broker.dlq.archive import DeadLetterArchive as DeadLetterArchive
    from rmq_store.broker.dlq.archive_restore import RestoreReport as RestoreReport
    from rmq_store.broker.dlq.archive_schema import ARCHIVE_SCHEMA as ARCHIVE_SCHEMA
    from rmq_store.broker.dlq.redrive import DeadLetters as DeadLetters
    from rmq_store.broker.metadata.groups import SubscriptionGroup as SubscriptionGroup
    from rmq_store.broker.metadata.leases import Lease as Lease
    from rmq_store.broker.metadata.leases import live_leases as live_leases
    from rmq_store.broker.metadata.store_config import StoreConfig as StoreConfig
    from rmq_store.broker.metadata.topics import TopicConfig as TopicConfig
    from rmq_store.broker.monitoring.losses import Loss as Loss
    from rmq_store.broker.monitoring.losses import record_losses as record_losses
    from rmq_store.broker.monitoring.losses import recorded_losses as recorded_losses
    from rmq_store.broker.monitoring.metrics import store_metrics as store_metrics
    from rmq_store.broker.monitoring.metrics import write_openmetrics as write_openmetrics
    from rmq_store.broker.retry.retry import Retry as Retry
    from rmq_store.broker.retry.retry import SentBack as SentBack
    from rmq_store.broker.retry.send_back_batch import ANSWER_SCHEMA as ANSWER_SCHEMA
    from rmq_store.broker.retry.send_back_batch import SEND_BACK_SCHEMA as SEND_BACK_SCHEMA
    from rmq_store.broker.retry.send_back_tasks import SendBackArea as SendBackArea
    from rmq_store.broker.retry.send_back_tasks import SendBackCounts as SendBackCounts
    from rmq_store.broker.rules import failure as failure
    from rmq_store.broker.rules.hot_queue import starts_at_first_message as starts_at_first_message
    from rmq_store.broker.store.administration import Administration as Administration
    from rmq_store.broker.store.administration import Deletion as Deletion
    from rmq_store.broker.store.retention import Retention as Retention
    from rmq_store.broker.store.retention_plan import RetentionPlan as RetentionPlan
    from rmq_store.broker.store.retention_plan import RetentionReport as RetentionReport
    from rmq_store.broker.store.store import Store as Store
    from rmq_store.broker.write.encoder import INPUT_SCHEMA as INPUT_SCHEMA
    from rmq_store.broker.write.staged_files import StagedFile as StagedFile
    from rmq_store.broker.write.staged_files import sweep as sweep
    from rmq_store.broker.write.staging import StagingArea as StagingArea
    from rmq_store.clock import ClockFile as ClockFile
    from rmq_store.clock import store_clock as store_clock
    from rmq_store.errors import CorruptBatchError as CorruptBatchError
    from rmq_store.errors import CorruptConfigError as CorruptConfigError
    from rmq_store.errors import CorruptIndexError as CorruptIndexError
    from rmq_store.errors import CorruptionError as CorruptionError
    from rmq_store.errors import CorruptQueueError as CorruptQueueError
    from rmq_store.errors import CorruptRecordError as CorruptRecordError
    from rmq_store.errors import DataLossError as DataLossError
    from rmq_store.errors import GroupInUseError as GroupInUseError
    from rmq_store.errors import HandlerTransactionError as HandlerTransactionError
    from rmq_store.errors import InvalidReceiptHandleError as InvalidReceiptHandleError
    from rmq_store.errors import KafkaOffsetError as KafkaOffsetError
    from rmq_store.errors import KafkaRefusedError as KafkaRefusedError
    from rmq_store.errors import KafkaUnavailableError as KafkaUnavailableError
    from rmq_store.errors import LeaseHeldError as LeaseHeldError
    from rmq_store.errors import MarkerError as MarkerError
    from rmq_store.errors import MasterTransferError as MasterTransferError
    from rmq_store.errors import MirrorConflictError as MirrorConflictError
    from rmq_store.errors import MirrorLettersError as MirrorLettersError
    from rmq_store.errors import MirrorSourceError as MirrorSourceError
    from rmq_store.errors import MirrorTargetError as MirrorTargetError
    from rmq_store.errors import NoMessageIdError as NoMessageIdError
    from rmq_store.errors import NotAStoreError as NotAStoreError
    from rmq_store.errors import OffsetOutOfRangeError as OffsetOutOfRangeError
    from rmq_store.errors import ReadOnlyError as ReadOnlyError
    from rmq_store.errors import RecordRefusedError as RecordRefusedError
    from rmq_store.errors import RecordTooLargeError as RecordTooLargeError
    from rmq_store.errors import ReplicaDivergedError as ReplicaDivergedError
    from rmq_store.errors import ResponseError as ResponseError
    from rmq_store.errors import SchemaMismatchError as SchemaMismatchError
    from rmq_store.errors import StagingError as StagingError
    from rmq_store.errors import StoreError as StoreError
    from rmq_store.errors import StoreFailedError as StoreFailedError
    from rmq_store.errors import StoreFullError as StoreFullError
    from rmq_store.errors import StoreKindError as StoreKindError
    from rmq_store.errors import StoreLockedError as StoreLockedError
    from rmq_store.errors import StoreReplacedError as StoreReplacedError
    from rmq_store.errors import TopicKindError as TopicKindError
    from rmq_store.errors import UnknownTopicError as UnknownTopicError
    from rmq_store.errors import UsageError as UsageError
    from rmq_store.files.segments.pin import Pin as Pin
    from rmq_store.format.frames.message import Message as Message
    from rmq_store.format.frames.stored_message import StoredMessage as StoredMessage
    from rmq_store.format.properties import new_message as new_message
    from rmq_store.format.tables.schema import MESSAGE_SCHEMA as MESSAGE_SCHEMA
    from rmq_store.format.text.names import is_system_topic as is_system_topic
    from rmq_store.format.text.names import validate_group as validate_group
    from rmq_store.format.text.names import validate_topic as validate_topic
    from rmq_store.format.text.openmetrics import Metric as Metric
    from rmq_store.format.text.openmetrics import MetricFamily as MetricFamily
    from rmq_store.format.text.openmetrics import openmetrics_text as openmetrics_text
    from rmq_store.log.core.accepted_damage import BadRange as BadRange
    from rmq_store.log.recovery.recovery import RecoveryReport as RecoveryReport
    from rmq_store.protocol.results import AppendResult as AppendResult
    from rmq_store.protocol.results import CommitResult as CommitResult
    from rmq_store.protocol.results import QueueRange as QueueRange
    from rmq_store.protocol.results import SendResult as SendResult
    from rmq_store.protocol.results import SendStatus as SendStatus

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
    "broker.rules.hot_queue": "starts_at_first_message",
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
        "KafkaOffsetError KafkaRefusedError KafkaUnavailableError LeaseHeldError MarkerError "
        "MasterTransferError MirrorConflictError MirrorLettersError MirrorSourceError MirrorTargetError "
        "NoMessageIdError NotAStoreError OffsetOutOfRangeError ReadOnlyError RecordRefusedError "
        "RecordTooLargeError ReplicaDivergedError ResponseError "
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

if not TYPE_CHECKING:  # a checker has the imports above, and cannot read this
    __all__ = list(_HOME_OF)

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
    return sorted({*globals(), *_HOME_OF})
