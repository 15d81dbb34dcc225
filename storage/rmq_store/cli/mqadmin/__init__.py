"""RocketMQ's own commands for a directory: mqadmin's names and flags, its columns and labels.

One module per kind; each lists its commands in COMMANDS. Differences to mqadmin: --store (or RMQ_STORE) names a
directory where mqadmin has -n, --json is added, and an error is one line and an exit code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ABSENT = {
    "no name server": (
        "wipeWritePerm", "addWritePerm", "updateKvConfig", "deleteKvConfig", "getNamesrvConfig", "updateNamesrvConfig",
        "updateOrderConf",
    ),
    "no connections of producers: who writes is gone after each call (`rmq consumerConnection` shows consumers)": (
        "producerConnection", "producer",
    ),
    "no way into a client (`rmq consumerConnection`, `rmq lag` and `rmq checkpoint` show it from outside)": (
        "consumer", "consumerStatus", "getConsumerStatus", "setConsumeMode", "startMonitoring", "allocateMQ",
    ),
    "no broker to ask for its speed (`rmq top`, `rmq statsAll` and `rmq metrics` count)": (
        "brokerConsumeStats", "sendMsgStatus", "checkMsgSendRT", "clusterRT", "exportMetrics",
    ),
    "no other brokers, replicas or controllers": (
        "haStatus", "getSyncStateSet", "getBrokerEpoch", "resetMasterFlushOffset", "electMaster", "getControllerConfig",
        "getControllerMetaData", "updateControllerConfig", "cleanBrokerMetadata", "addBroker", "removeBroker",
        "updateStaticTopic", "remappingStaticTopic",
    ),
    "no users or rights but those of the file system": (
        "createUser", "updateUser", "deleteUser", "getUser", "listUser", "copyUser", "createAcl", "updateAcl",
        "deleteAcl", "getAcl", "listAcl", "copyAcl", "updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion",
        "updateGlobalWhiteAddr", "getAccessConfigSubCommand",
    ),
    "no cold data control or read-ahead of a broker": (
        "getColdDataFlowCtrInfo", "updateColdDataFlowCtrGroupConfig", "removeColdDataFlowCtrGroupConfig",
        "setCommitLogReadAheadMode",
    ),
    "no RocksDB": (
        "checkRocksdbCqWriteProgress", "exportPopRecord", "exportMetadataInRocksDB", "rocksDBConfigToJson",
    ),
}  # fmt: skip
_ELSEWHERE = {
    "updateTopicList": "call `rmq updateTopic` for each",
    "updateSubGroupList": "call `rmq updateSubGroup` for each",
    "resetOffsetByTimeOld": "`rmq resetOffsetByTime` is what came after it",
}

ABSENT: Final[Mapping[str, str]] = {
    **{name: f"a directory has {reason}" for reason, names in _ABSENT.items() for name in names},
    **_ELSEWHERE,
}
"""The names of mqadmin that are not here: why, or what to use."""

NOT_HERE = (
    "\b\nThese commands of mqadmin do not exist here, because a store directory has nothing for them:\n"
    "  name servers (wipeWritePerm, updateKvConfig, updateOrderConf, ...), producers' connections\n"
    "  (producerConnection), state of clients (consumerStatus, setConsumeMode, startMonitoring),\n"
    "  other brokers and their controllers (haStatus, getBrokerEpoch, electMaster, updateStaticTopic),\n"
    "  users and rights (createUser, createAcl, ...), cold data control, RocksDB"
)
"""The end of the help of `rmq`."""
