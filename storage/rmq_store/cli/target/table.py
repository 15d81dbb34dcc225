"""Each command of `rmq` over a cluster: the same as for a store, different, refused, or only there.

The command line is made from this table (`commands.py`), and so is the table in docs/cluster.md; a test fails if a
command has no row. The sentence of a refused command is its error.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class Support(StrEnum):
    """A command over a cluster, compared with the one for a store."""

    SAME = "same"
    DIFFERS = "differs"
    REFUSED = "refused"
    ONLY = "only"


class Row(NamedTuple):
    """`home`: the place of a command over a cluster that is not the one for a store (`target_command`), `module:name`;
    a module in `rmq_store.cli`, or a full name behind `/`.
    """

    support: Support
    sentence: str
    home: str = ""


def same(sentence: str = "", home: str = "") -> Row:
    """The same output for the same messages; or it needs neither a store nor a cluster."""
    return Row(Support.SAME, sentence, home)


def differs(sentence: str, home: str = "") -> Row:
    """The sentence says what is different."""
    return Row(Support.DIFFERS, sentence, home)


def refused(sentence: str) -> Row:
    """The sentence is the error: why, and what to do instead."""
    return Row(Support.REFUSED, sentence)


def only(sentence: str, home: str) -> Row:
    """A command that a store does not have."""
    return Row(Support.ONLY, sentence, home)


_BROKERS: Final = "A queue has its broker in front, `broker-a:0`, and in JSON beside it, `brokerName`"
_WAITING: Final = "WAITING is `-`, because a broker does not tell what waits for its delay"
_ORDER: Final = "the order is that of store times, because brokers have no common log"
_RESET: Final = "refused while members of the group are online; a reset that is pending at a broker stays"
_FILES: Final = "The files of a broker are on its host, and the broker owns them"
_NO_TARGET: Final = "It reads neither a store nor a cluster"
_LETTERS: Final = (
    "It works on a store, where records and marks are one append, which brokers do not have; mirror into a store, or "
    "consume and send with clients"
)

_TRANSACTIONS: Final = (
    "A broker does not hand out its half messages; it asks their producers itself. On the machine of a served "
    "store, name its directory with `--store`"
)

COMMANDS: Final[Mapping[str, Row]] = MappingProxyType({
    "topics": differs(_BROKERS),
    "top": differs("Figures of all brokers; no figures of disks"),
    "read": differs(f"{_BROKERS}; each queue in its order, one broker after the other"),
    "trace": differs(
        "A history for each broker that has copies; --uniq-key needs -t, rollbacks are not looked for, no --archive",
    ),
    "tail": differs(f"{_BROKERS}; {_ORDER}. -n with an address is the cluster"),
    "send": differs(
        f"{_BROKERS}; an empty body is refused, and a send whose answer is lost is repeated: at least once",
    ),
    "consume": differs(
        f"{_BROKERS}; --until-empty waits two seconds for more messages"),
    "groups": differs(f"{_BROKERS}; {_WAITING}; filters are not shown"),
    "lag": differs(f"{_BROKERS}; {_WAITING}; of a queue with a lag one message is read"),
    "delayed": refused("A broker does not hand out its timers and half messages"),
    "transactions list": refused(_TRANSACTIONS),
    "transactions explain": refused(_TRANSACTIONS),
    "transactions resume": refused(_TRANSACTIONS),
    "offsets show": differs(
        f"{_BROKERS}; brokers of 4.x show 0 for a queue without an offset"),
    "offsets export": differs(
        f"{_BROKERS}; nothing is printed if a broker does not answer"),
    "offsets reset": differs(f"{_BROKERS}; {_RESET}"),
    "checkpoint show": same(_NO_TARGET),
    "checkpoint commit-group": same("The checkpoint, or an option, names the store or the cluster of the group"),
    "checkpoint diff": refused("Not over a cluster yet; compare `rmq checkpoint show` with `rmq topics --queues`"),
    "checkpoint rewind": refused("Not over a cluster yet; start a new checkpoint with `startingOffsets`"),
    "checkpoint forget-broker": differs(
        "A store has no brokers: there the command says that a cluster is missing",
        home="/pyspark_rmq.checkpoint.command:forget_broker",
    ),
    # -- dead letters
    "dlq list": differs("ARCHIVED is `-`, because brokers have no archive; `redriven` is "
                        "known by records at the brokers of the dead letters"),
    "dlq show": differs(f"{_BROKERS}; {_ORDER}"),
    "dlq redrive": differs("Effectively once, by records in the topic PYRMQ_REDRIVEN; "
                           "refused if a broker of the dead letters does not answer"),
    "dlq export": differs("No file is written if a broker of the dead letters does not "
                          "answer"),
    "dlq archive": refused("An archive names its files by queue and offsets, which several brokers have alike; `rmq "
                           "dlq export` writes dead letters to a file"),
    "dlq restore": refused("It appends records to a store, with marks beside them, which brokers do not have; `rmq "
                           "send --jsonl` sends the lines of `rmq dlq export` to a topic"),
    # -- outbox and Kafka
    "resend clear": same(_NO_TARGET),
    "resend list": same(_NO_TARGET),
    "resend retry": same(_NO_TARGET),
    "resend run": same(home="outbox.resend_run_cluster:run"),
    "resend schema": same(_NO_TARGET),
    "resend show": same(_NO_TARGET),
    "resend void": same(_NO_TARGET),
    "mirror dead-letters": refused(_LETTERS),
    "mirror kafka-to-rmq": refused(
        "A mirror into RocketMQ writes records and their position by one append, which brokers do not have; let Spark "
        "copy: format(\"kafka\") into format(\"rmq\") with nameServer, effectively once by the replay check"
    ),
    "mirror offsets": refused("It works on the offsets of a store; `rmq resetOffsetByTime` moves a group of a cluster"),
    "mirror redrive": refused(_LETTERS),
    "mirror retry": refused(_LETTERS),
    "mirror rmq-to-kafka": differs(
        "It copies the queues of one broker (--broker), because queue q goes to partition q; nothing is flushed",
        home="mirror.mirror_from_cluster:rmq_to_kafka",
    ),
    # -- care
    "follow": differs(
        "`--broker` names the master by its name; a store has no broker, and needs `--master`",
        home="replica.follow:follow_cluster",
    ),
    "init": refused("A cluster is started with its brokers; `rmq updateTopic` makes topics"),
    "verify": refused(f"{_FILES}; copy its store, and check the copy"),
    "repair": refused(f"{_FILES}; stop it, and repair its store there"),
    "backup": refused(f"{_FILES}; run the command there"),
    "retention run": refused("A broker deletes old messages itself (fileReservedTime, deleteWhen)"),
    "retention status": refused("A broker deletes old messages itself (fileReservedTime, deleteWhen)"),
    "broker run": refused("The brokers of a cluster deliver delayed messages and delete old ones themselves"),
    "broker clock advance": same(_NO_TARGET),
    "broker rejoin": refused(f"{_FILES}; run the command where the store of the old master is"),
    "broker promote": refused(f"{_FILES}; run the command where the replica is"),
    "namesrv run": same(_NO_TARGET),
    "doctor": differs("It checks name servers, brokers, addresses and rights, and "
                      "neither this machine nor Spark"),
    "metrics": differs("`node_id` is the broker; brokers do not tell how old an unread "
                       "message is, so there are no latencies, and no figures of POP, delays and files"),
    # -- mqadmin: messages
    "queryMsgById": differs(
        "Only an address that a broker of the cluster has registered is asked; -g, -d and -s of mqadmin "
        "are refused, -u is ignored",
    ),
    "queryMsgByKey": differs(
        "Up to 64 messages of each broker; stderr says so if one has perhaps more",
    ),
    "queryMsgByUniqueKey": differs(
        "Up to 32 messages of each broker; -g and -d of mqadmin are refused",
    ),
    "queryMsgByOffset": differs(
        "-b names the broker, if several have a queue of this number",
    ),
    "DecodeMessageId": same(_NO_TARGET),
    "printMsg": same(),
    "printMsgByQueue": differs(
        "-a names the broker, if several have a queue of this number",
    ),
    "sendMessage": differs(
        "-i needs -b; an empty body is refused; the broker makes a missing topic, if brokers allow that; "
        "-m of mqadmin is ignored",
    ),
    "consumeMessage": differs("-i needs -b, as with mqadmin"),
    "queryMsgTraceById": same(),
    "dumpCompactionLog": refused(f"{_FILES}; run the command there"),
    # -- mqadmin: topics
    "topicList": same(),
    "topicStatus": differs(
        "The queues of each master, and the topic's rate of messages (5.x)",
    ),
    "topicRoute": same(),
    "topicClusterList": same(),
    "updateTopic": differs(
        "At the master of -b, or at each master of -c; with `-o true` the name servers get the queues, "
        "too. Settings without an option stay as each broker has them",
    ),
    "updateTopicPerm": differs(
        "At the master of -b, or at each master of -c that has the topic",
    ),
    "deleteTopic": differs(
        "Messages are deleted at once, at each master and then at the name servers; consumers that run "
        "are named and do not prevent it",
    ),
    # -- mqadmin: consumers
    "consumerProgress": differs(
        "All masters are asked; -s asks the members, by way of the brokers",
    ),
    "updateSubGroup": differs(
        "At the master of -b, or at each master of -c. Settings without an option stay as each broker has "
        "them",
    ),
    "deleteSubGroup": differs(
        "At the master of -b, or at each master of -c; the %RETRY% and %DLQ% topics go with `-r true` and "
        "without -b only; members that run are named and do not prevent it",
    ),
    "getConsumerConfig": differs(
        "The settings at each broker that has some",
    ),
    "consumerConnection": differs(
        "Connected members as all masters know them, with type, model and start; mqadmin asks one broker",
    ),
    # -- mqadmin: offsets
    "resetOffsetByTime": differs(
        "Each master is told (222), so that members may run; a 4.x broker without members gets the "
        "offsets (15). -q needs -b",
    ),
    "skipAccumulatedMessage": differs("As `resetOffsetByTime`"),
    "cloneGroupOffset": differs(
        "A reset that is pending at a broker stays: stderr names the queue, exit code 1; queues in which a 4.x broker "
        "perhaps has no offset are left out, and named; -o of mqadmin is ignored",
    ),
    # -- mqadmin: broker
    "clusterList": differs(
        "Every process, slaves too, with its rates; -m shows the messages of today and yesterday",
    ),
    "brokerStatus": differs(
        "All figures of the process of -b, or of each master of -c",
    ),
    "getBrokerConfig": differs(
        "All settings of the process of -b, or of all processes of -c, with *** in place of credentials",
    ),
    "updateBrokerConfig": differs(
        "Any setting that the process of -b, or each master of -c (-a: slaves, too), has: looked up at all of them "
        "before the first change, because brokers answer success for unknown names",
    ),
    "statsAll": differs(
        "As the brokers have counted since their start, with what groups got",
    ),
    "queryCq": differs(
        "-b names the broker, if several have the queue; -g of mqadmin is ignored",
    ),
    # -- mqadmin: cleaning
    "cleanExpiredCQ": differs(
        "The process of -b, or each master, also deletes the last file of a queue without messages",
    ),
    "deleteExpiredCommitLog": differs(
        "The process of -b, or each master, decides which files are old; --dry-run names the brokers, not "
        "the files",
    ),
    "cleanUnusedTopic": differs(
        "The process of -b, or each master, deletes queues of topics that it does not have; --dry-run "
        "names the brokers",
    ),
    # -- mqadmin: export
    "exportMetadata": differs(
        "Of the master of -b, or of all masters of -c, with the sums of their queues",
    ),
    "exportConfigs": differs(
        "The settings of each master, and the numbers of name servers, masters and slaves",
    ),
})  # fmt: skip
"""The path of each command, as `offsets show` -> what it is over a cluster."""
