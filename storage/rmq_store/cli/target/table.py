"""Each command of `rmq` over a cluster: the same as for a store, different, refused, or only there.

The command line is made from this table (`commands.py`), and so is the table in docs/cluster.md; a test fails if a
command has no row. The sentence of a refused command is its error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class Verdict(StrEnum):
    """A command over a cluster, compared with the one for a store."""

    SAME = "same"
    DIFFERS = "differs"
    REFUSED = "refused"
    ONLY = "only"


class Row(NamedTuple):
    """`home`: the place of the command over a cluster, `module:name`; a module in `rmq_store.cli`, or a full name
    behind `/`. "": the command for a store needs neither a store nor a cluster, and is used as it is.
    """

    verdict: Verdict
    sentence: str
    home: str


def same(home: str = "", sentence: str = "") -> Row:
    """The same output for the same messages."""
    return Row(Verdict.SAME, sentence, home)


def differs(home: str, sentence: str) -> Row:
    """The sentence says what is different."""
    return Row(Verdict.DIFFERS, sentence, home)


def refused(sentence: str) -> Row:
    """The sentence is the error: why, and what to do instead."""
    return Row(Verdict.REFUSED, sentence, "")


def only(home: str, sentence: str) -> Row:
    """A command that a store does not have."""
    return Row(Verdict.ONLY, sentence, home)


_BROKERS: Final = "A queue has its broker in front, `broker-a:0`, and in JSON beside it, `brokerName`"
_WAITING: Final = "WAITING is `-`, because a broker does not tell what waits for its delay"
_ORDER: Final = "the order is that of store times, because brokers have no common log"
_RESET: Final = "refused while members of the group are online; a reset that is pending at a broker stays"
_FILES: Final = "The files of a broker are on its host, and the broker owns them"
_NO_TARGET: Final = "It reads neither a store nor a cluster"
_NOT_YET: Final = "Not over a cluster yet"

COMMANDS: Final[Mapping[str, Row]] = MappingProxyType({
    "topics": differs("cluster.topics:topics", _BROKERS),
    "top": refused(_NOT_YET),
    "read": differs("cluster.read:read", f"{_BROKERS}; each queue in its order, one broker after the other"),
    "trace": refused(_NOT_YET),
    "tail": differs("cluster.tail:tail", f"{_BROKERS}; {_ORDER}. -n with an address is the cluster"),
    "send": refused(_NOT_YET),
    "consume": refused(_NOT_YET),
    "groups": differs("cluster.groups:groups", f"{_BROKERS}; {_WAITING}; filters are not shown"),
    "lag": differs("cluster.lag:lag", f"{_BROKERS}; {_WAITING}; of a queue with a lag one message is read"),
    "delayed": refused("A broker does not hand out its timers and half messages"),
    "offsets show": differs("cluster.offsets:show", f"{_BROKERS}; brokers of 4.x show 0 for a queue without an offset"),
    "offsets export": differs("cluster.offsets:export", f"{_BROKERS}; nothing is printed if a broker does not answer"),
    "offsets reset": differs("cluster.offsets:reset", f"{_BROKERS}; {_RESET}"),
    "checkpoint show": same(sentence=_NO_TARGET),
    "checkpoint diff": refused(_NOT_YET),
    "checkpoint rewind": refused(_NOT_YET),
    # -- dead letters
    "dlq list": refused(_NOT_YET),
    "dlq show": refused(_NOT_YET),
    "dlq redrive": refused(_NOT_YET),
    "dlq export": refused(_NOT_YET),
    "dlq archive": refused(_NOT_YET),
    "dlq restore": refused(_NOT_YET),
    # -- outbox and Kafka
    "resend clear": same(sentence=_NO_TARGET),
    "resend list": same(sentence=_NO_TARGET),
    "resend retry": same(sentence=_NO_TARGET),
    "resend run": refused("The relay sends to a store"),
    "resend schema": same(sentence=_NO_TARGET),
    "resend show": same(sentence=_NO_TARGET),
    "resend void": same(sentence=_NO_TARGET),
    "mirror dead-letters": refused("Mirrors of Kafka have a store on their other side"),
    "mirror kafka-to-rmq": refused("Mirrors of Kafka have a store on their other side"),
    "mirror offsets": refused("Mirrors of Kafka have a store on their other side"),
    "mirror redrive": refused("Mirrors of Kafka have a store on their other side"),
    "mirror retry": refused("Mirrors of Kafka have a store on their other side"),
    "mirror rmq-to-kafka": refused("Mirrors of Kafka have a store on their other side"),
    # -- care
    "init": refused("A cluster is started with its brokers; `rmq updateTopic` makes topics"),
    "verify": refused(f"{_FILES}; copy its store, and check the copy"),
    "repair": refused(f"{_FILES}; stop it, and repair its store there"),
    "backup": refused(f"{_FILES}; run the command there"),
    "retention run": refused("A broker deletes old messages itself (fileReservedTime, deleteWhen)"),
    "retention status": refused("A broker deletes old messages itself (fileReservedTime, deleteWhen)"),
    "broker run": refused("The brokers of a cluster deliver delayed messages and delete old ones themselves"),
    "doctor": refused(_NOT_YET),
    "metrics": refused(_NOT_YET),
    # -- mqadmin: messages
    "queryMsgById": refused(_NOT_YET),
    "queryMsgByKey": refused(_NOT_YET),
    "queryMsgByUniqueKey": refused(_NOT_YET),
    "queryMsgByOffset": refused(_NOT_YET),
    "DecodeMessageId": same(sentence=_NO_TARGET),
    "printMsg": refused(_NOT_YET),
    "printMsgByQueue": refused(_NOT_YET),
    "sendMessage": refused(_NOT_YET),
    "consumeMessage": refused(_NOT_YET),
    "queryMsgTraceById": refused(_NOT_YET),
    "dumpCompactionLog": refused(f"{_FILES}; run the command there"),
    # -- mqadmin: topics
    "topicList": refused(_NOT_YET),
    "topicStatus": refused(_NOT_YET),
    "topicRoute": refused(_NOT_YET),
    "topicClusterList": refused(_NOT_YET),
    "updateTopic": refused(_NOT_YET),
    "updateTopicPerm": refused(_NOT_YET),
    "deleteTopic": refused(_NOT_YET),
    # -- mqadmin: consumers
    "consumerProgress": refused(_NOT_YET),
    "updateSubGroup": refused(_NOT_YET),
    "deleteSubGroup": refused(_NOT_YET),
    "getConsumerConfig": refused(_NOT_YET),
    "consumerConnection": refused(_NOT_YET),
    # -- mqadmin: offsets
    "resetOffsetByTime": refused(_NOT_YET),
    "skipAccumulatedMessage": refused(_NOT_YET),
    "cloneGroupOffset": refused(_NOT_YET),
    # -- mqadmin: broker
    "clusterList": refused(_NOT_YET),
    "brokerStatus": refused(_NOT_YET),
    "getBrokerConfig": refused(_NOT_YET),
    "updateBrokerConfig": refused(_NOT_YET),
    "statsAll": refused(_NOT_YET),
    "queryCq": refused(_NOT_YET),
    # -- mqadmin: cleaning
    "cleanExpiredCQ": refused(_NOT_YET),
    "deleteExpiredCommitLog": refused(_NOT_YET),
    "cleanUnusedTopic": refused(_NOT_YET),
    # -- mqadmin: export
    "exportMetadata": refused(_NOT_YET),
    "exportConfigs": refused(_NOT_YET),
})  # fmt: skip
"""The path of each command, as `offsets show` -> what it is over a cluster."""
