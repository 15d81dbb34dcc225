"""One recipe for each kind of store: the broker's version, its settings, and what is sent beside the standard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import extras
from .brokers import Broker

NEWEST = "5.5.0"
PLAIN_VERSIONS = ("4.4.0", "4.5.2", "4.6.1", "4.7.1", "4.8.0", "4.9.7", "5.1.4", "5.3.3", "5.5.0")
ROCKSDB = {"storeType": "defaultRocksDB"}
# 5.5.0 does not start without the second.
DOUBLE_WRITE = {"rocksdbCQDoubleWriteEnable": "true", "combineCQUseRocksdbForLmq": "true"}
OTHER_LEVELS = "1s 100s 300s 20m 25m 30m 35m 40m 45m 50m 55m 1h 61m 62m 63m 64m 3h 5h"
LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}


@dataclass(frozen=True)
class Recipe:
    """`settings` of broker.conf; {root} in them is the store's parent. `queues`: those that no topic of the table has.

    `client` is the client's version where it is not the broker's.
    """

    kind: str
    version: str
    about: str
    settings: Mapping[str, str] = field(default_factory=dict)
    extra: Callable[[Broker], dict[str, Any]] = extras.nothing
    queues: tuple[tuple[str, int], ...] = ()
    client: str = ""
    name_server: Mapping[str, str] = field(default_factory=dict)
    settle_seconds: int = 0


_ALL = [
    Recipe("rocksdb", NEWEST, "Queues and tables in RocksDB.", ROCKSDB, extras.several_segments),
    Recipe(
        "rocksdb-exported", NEWEST, "The same after the broker was asked to export its tables as JSON.",
        ROCKSDB, extras.exported_tables,
    ),
    Recipe("double-write", NEWEST, "Queues in files and in RocksDB.", DOUBLE_WRITE, extras.several_segments),
    Recipe(
        "double-write-separate", NEWEST, "The same, RocksDB in consumequeue_rocksdb.",
        {**DOUBLE_WRITE, "useSeparateStorePathForRocksdbCQ": "true"},
    ),
    Recipe(
        "delay-levels", NEWEST, "Another messageDelayLevel; messages wait.", {"messageDelayLevel": OTHER_LEVELS},
        extras.waiting_five_minutes,
    ),
    Recipe(
        "delay-levels-4.9.7", "4.9.7", "Another messageDelayLevel; messages wait.", {"messageDelayLevel": OTHER_LEVELS},
        extras.waiting_five_minutes,
    ),
    Recipe("queue-ext", NEWEST, "Extended queue entries; messages wait.", {"enableConsumeQueueExt": "true"}),
    Recipe("queue-ext-4.9.7", "4.9.7", "Extended queue entries; messages wait.", {"enableConsumeQueueExt": "true"}),
    Recipe("lmq", NEWEST, "Light queues.", LIGHT, extras.light_queues, (("%LMQ%a", 0), ("%LMQ%b", 0))),
    Recipe("lmq-4.9.7", "4.9.7", "Light queues.", LIGHT, extras.light_queues, (("%LMQ%a", 0), ("%LMQ%b", 0))),
    Recipe("empty-group", "5.3.3", "A group whose name is empty.", {}, extras.group_without_a_name),
    Recipe("empty-group-4.9.7", "4.9.7", "A group whose name is empty.", {}, extras.group_without_a_name),
    Recipe("newer-client", "4.9.7", "A client of 5.5.0 sends to a 4.9.7 broker.", {}, client=NEWEST),
    Recipe(
        "dledger", "4.9.7", "A log of DLedger.",
        {
            "enableDLegerCommitLog": "true", "dLegerGroup": "fixture-a", "dLegerPeers": "n0-127.0.0.1:40911",
            "dLegerSelfId": "n0", "storePathDLedgerCommitLog": "{root}/store/dledger-n0",
        },
        settle_seconds=20,
    ),
    Recipe("tables-v2", NEWEST, "Tables in RocksDB, queues in files.", {"configManagerVersion": "v2"}),
    Recipe(
        "several-paths", NEWEST, "The log in two directories.",
        {"storePathCommitLog": "{root}/log-a,{root}/log-b"}, extras.several_segments,
    ),
    Recipe(
        "several-paths-4.9.7", "4.9.7", "The log in two directories.",
        {"storePathCommitLog": "{root}/log-a,{root}/log-b"}, extras.several_segments,
    ),
    Recipe("log-elsewhere", NEWEST, "The log in another directory.", {"storePathCommitLog": "{root}/log-a"}),
    Recipe("compaction", NEWEST, "A compaction topic.", {}, extras.compaction),
    Recipe("batch-queues", NEWEST, "A topic of batch queues.", {}, extras.batch_queues),
    Recipe("static-topic", NEWEST, "A static topic.", {}, extras.static_topic),
    Recipe("timers", NEWEST, "Messages that wait in the timer wheel; POP state in kvStore.",
        {"popConsumerKVServiceInit": "true", "popConsumerKVServiceEnable": "true"}, extras.timers_and_pops),
    Recipe("pop-revive", NEWEST, "POP state in the revive topics; timers.", {}, extras.timers_and_pops),
    Recipe(
        "controller", NEWEST, "Controller mode.", {"enableControllerMode": "true", "controllerAddr": "127.0.0.1:9878"},
        name_server={
            "enableControllerInNamesrv": "true", "controllerDLegerGroup": "group",
            "controllerDLegerPeers": "n0-127.0.0.1:9878", "controllerDLegerSelfId": "n0",
            "controllerStorePath": "{root}/work/controller",
        },
        settle_seconds=20,
    ),
    *(Recipe(f"plain-{version}", version, "The common store.") for version in PLAIN_VERSIONS),
    Recipe("index-off", NEWEST, "No index files.", {"indexFileWriteEnable": "false"}),
    Recipe("index-off-4.9.7", "4.9.7", "No index files.", {"messageIndexEnable": "false"}),
    Recipe(
        "rocksdb-services", NEWEST, "Timers, transactions and index in RocksDB beside file queues.",
        {
            "timerRocksDBEnable": "true", "transRocksDBEnable": "true", "indexRocksDBEnable": "true",
            "indexFileWriteEnable": "false", "indexFileReadEnable": "false",
        },
        extras.timers,
    ),
    Recipe(
        "tiered", NEWEST, "Tiered storage.",
        {
            "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
            "tieredBackendServiceProvider": "org.apache.rocketmq.tieredstore.provider.PosixFileSegment",
            "tieredStoreFilePath": "{root}/tiered",
        },
    ),
]  # fmt: skip
RECIPES = {recipe.kind: recipe for recipe in _ALL}
