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
from rmq_store.broker.redrive import DeadLetters
from rmq_store.broker.results import AppendResult, CommitResult, QueueRange, SendResult, SendStatus
from rmq_store.broker.retention import Retention, RetentionPlan, RetentionReport
from rmq_store.broker.retry import Retry, SentBack
from rmq_store.broker.schedule import Delivery, Schedule
from rmq_store.broker.send_back_area import SendBackArea, SendBackCounts
from rmq_store.broker.send_back_batch import ANSWER_SCHEMA, SEND_BACK_SCHEMA
from rmq_store.broker.staging import StagedFile, StagingArea, sweep
from rmq_store.broker.store import Store
from rmq_store.broker.topics import TopicConfig
from rmq_store.clock import ClockFile, store_clock
from rmq_store.errors import (
    CorruptConfigError,
    CorruptIndexError,
    CorruptionError,
    CorruptQueueError,
    CorruptRecordError,
    DataLossError,
    InvalidReceiptHandleError,
    LeaseHeldError,
    MarkerError,
    NotAStoreError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    ResponseError,
    StagingError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreLockedError,
    UnknownTopicError,
    UsageError,
)
from rmq_store.files.pin import Pin
from rmq_store.format.message import Message, StoredMessage
from rmq_store.format.names import is_system_topic
from rmq_store.format.schema import MESSAGE_SCHEMA
from rmq_store.log.kept import BadRange
from rmq_store.log.recovery import RecoveryReport

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
    "InvalidReceiptHandleError",
    "Lease",
    "LeaseHeldError",
    "Loss",
    "MarkerError",
    "Message",
    "NotAStoreError",
    "OffsetOutOfRangeError",
    "Pin",
    "QueueRange",
    "ReadOnlyError",
    "RecoveryReport",
    "ResponseError",
    "RestoreReport",
    "Retention",
    "RetentionPlan",
    "RetentionReport",
    "Retry",
    "Schedule",
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
    "StoreLockedError",
    "StoredMessage",
    "SubscriptionGroup",
    "TopicConfig",
    "UnknownTopicError",
    "UsageError",
    "backup",
    "failure",
    "is_system_topic",
    "live_leases",
    "record_losses",
    "recorded_losses",
    "store_clock",
    "sweep",
]
