"""The kinds of stores that brokers make, each with its effect on a process that opens it. docs/stores.md has the same
sentences.

Sources: StorePathConfigHelper.java, MessageStoreConfig.java, DLedgerCommitLog.java, RocksDBConsumeQueueStore.java,
RocksDBTopicConfigManager.java and its siblings, ConfigStorage.java, PopConsumerService.java, CompactionStore.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Effect(Enum):
    """How far a store of a kind can be used here."""

    NOT_OPENED = "refused: neither read nor written"
    NOT_WRITTEN = "read; writing is refused"
    TOPIC_NOT_READ = "read and written, but for these topics"
    TOPIC_NOT_WRITTEN = "read; written, but for these topics"
    NONE = "read and written"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind.

    name        as `rmq doctor` calls it
    sign        how it is recognised
    what        the meaning of the sign, printed after the name of the file that was seen
    advice      what its user can do, or has to know
    unchecked   the parts that `rmq verify` does not check; "" if it checks all
    """

    name: str
    effect: Effect
    sign: str
    what: str
    advice: str
    unchecked: str = ""


_ROCKSDB_FILES = "files of RocksDB (`CURRENT`, `MANIFEST-*`, `*.sst`) in `consumequeue/`, or `consumequeue_rocksdb/`"
_READ_ONLY = "Send with its broker, or open it with read_only=True."

COMMON = Kind(
    "files",
    Effect.NONE,
    "none of the signs below; `rocksdbstore/`, `compaction/position-checkpoint` and `timerlog/` are no signs",
    "queues and tables in files, as a broker makes them unless it is told otherwise",
    "Nothing is needed.",
)
ROCKSDB_QUEUES = Kind(
    "RocksDB queues",
    Effect.NOT_WRITTEN,
    f"{_ROCKSDB_FILES}, and no directory of a queue in `consumequeue/`",
    "the broker keeps its queues in RocksDB (storeType=defaultRocksDB)",
    "A message that is written here breaks its queue for the broker. Send with its broker, or open it with "
    "read_only=True: then its queues are made from the log, beside the store.",
    "the queues, which are in RocksDB",
)
DOUBLE_WRITE = Kind(
    "double write",
    Effect.NOT_WRITTEN,
    f"{_ROCKSDB_FILES}, and directories of queues in `consumequeue/`",
    "the broker keeps its queues in files and in RocksDB (rocksdbCQDoubleWriteEnable)",
    f"A message that is written here is missing from the queues in RocksDB. {_READ_ONLY}",
    "the queues in RocksDB; those in files are checked",
)
ROCKSDB_TABLES = Kind(
    "RocksDB tables",
    Effect.NOT_WRITTEN,
    "a directory `config/topics`, `config/subscriptionGroups`, `config/consumerOffsets`, `config/metadata` or "
    "`config/rdb`",
    "the broker keeps topics, groups and offsets in RocksDB, and the JSON files are an export at best",
    f"The broker does not see what is changed in the JSON files. {_READ_ONLY}",
    "topics, groups and offsets in RocksDB",
)
DLEDGER = Kind(
    "DLedger log",
    Effect.NOT_OPENED,
    "a directory `dledger-*` in the store, or in `commitlog/`",
    "the broker keeps its log in DLedger (enableDLegerCommitLog=true), whose records have another header",
    "Such a log can be neither read nor written here. Copy the messages with a consumer of the broker.",
    "the log, which is DLedger's",
)
CONTROLLER = Kind(
    "controller mode",
    Effect.NOT_WRITTEN,
    "`epochFileCheckpoint` or `brokerIdentity`",
    "the broker is a replica that a controller can exchange (enableControllerMode=true)",
    "The other replicas do not get what is written here, and can then differ from this one. Send with the master, or "
    "open it with read_only=True. If the broker left that mode for good, move these two files away.",
)
LOG_ELSEWHERE = Kind(
    "log elsewhere",
    Effect.NOT_OPENED,
    "no `commitlog/`, although queues, tables, or our own `pyrmq/store.json` are there",
    "its disk is not mounted, a copy is not complete, or the broker keeps its log elsewhere (storePathCommitLog)",
    "Nothing was changed; put the directory back, or mount the log's directory there. To read a log that is elsewhere, "
    "or in several directories, name them: commit_log_paths of Store.open, storePathCommitLog in Spark, the "
    "environment variable RMQ_STORE_PATH_COMMIT_LOG for commands of rmq that only read.",
    "the log, which is not there",
)
STATIC_TOPICS = Kind(
    "static topics",
    Effect.TOPIC_NOT_WRITTEN,
    "entries of `topicQueueMappingInfoMap` in `config/topicQueueMapping.json`",
    "queues of these topics are mapped to queues of several brokers, so clients see other queue ids and offsets",
    "Queue ids and offsets are those of this broker. Writing to such a topic is refused.",
    "the parts of static topics that other brokers have",
)
BATCH_QUEUES = Kind(
    "batch queues",
    Effect.TOPIC_NOT_READ,
    "the attribute `queue.type=BatchCQ` of a topic, or its directory in `batchconsumequeue/`",
    "queues of these topics hold batches, in a format of their own",
    "These topics can be neither read nor written here; all others can.",
    "the queues in batchconsumequeue/",
)
COMPACTION = Kind(
    "compaction topics",
    Effect.TOPIC_NOT_READ,
    "the attribute `cleanup.policy=COMPACTION` of a topic, or its directory in `compaction/compactionLog/`",
    "the broker keeps the last message of each key of these topics in a log of their own",
    "These topics can be neither read nor written here; all others can.",
    "the logs in compaction/",
)
TIERED = Kind(
    "tiered storage",
    Effect.NONE,
    "`config/tieredStoreMetadata.json`",
    "the broker copies messages to another storage (TieredMessageStore), which keeps them for longer",
    "Messages that are only there cannot be read here.",
    "the tiered storage",
)
POP_STATE = Kind(
    "POP state in RocksDB",
    Effect.NONE,
    "files in `kvStore/`",
    "the broker keeps in RocksDB which messages POP consumers hold (popConsumerKVServiceEnable)",
    "Messages that they hold are not seen here: they are not in the lag of their groups, and only the broker gives "
    "them out again.",
    "kvStore/, with the messages that POP consumers hold",
)
QUEUE_EXTENSION = Kind(
    "queue extension",
    Effect.NONE,
    "directories in `consumequeue_ext/`",
    "the broker keeps tags and filters of messages beside its queues (enableConsumeQueueExt)",
    "The files stay as they are; entries that are made here have no extension.",
    "consumequeue_ext/",
)
FOREIGN = Kind(
    "foreign entries",
    Effect.NOT_WRITTEN,
    "something in `commitlog/`, `consumequeue/`, `consumequeue_ext/` or `index/` that neither a broker nor this engine "
    "makes there, or a directory `consumequeue_*` that is not named here; `lost+found` is none",
    "it belongs to a kind of store that is not known here, or it was put there by mistake",
    f"If it is no part of the store, move it away. {_READ_ONLY}",
)

KINDS = (
    COMMON, ROCKSDB_QUEUES, DOUBLE_WRITE, ROCKSDB_TABLES, DLEDGER, LOG_ELSEWHERE, CONTROLLER,
    STATIC_TOPICS, BATCH_QUEUES, COMPACTION, TIERED, POP_STATE, QUEUE_EXTENSION, FOREIGN,
)  # fmt: skip
