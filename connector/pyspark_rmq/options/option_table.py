"""Every option of the data source: name, meaning, default, and where it may be used. docs/options.md is generated from
it.

Names and meanings are those of Spark's Kafka source wherever the meaning is the same, RocketMQ's where RocketMQ has
one. Nothing heavy is imported here: every short-lived process that Spark starts for planning and committing parses
options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pyspark_rmq.options import option_values as values
from pyspark_rmq.options.cluster_options import (
    NAME_SERVER,
    address_map,
    broker_names,
    name_servers,
    one_of,
    reference,
)
from pyspark_rmq.position.position import (
    parse_assign,
    parse_timestamps,
)
from pyspark_rmq.position.queue_ids import INT32_MAX

Use = Literal["batch read", "stream read", "batch write", "stream write"]

SKIP_OLDER = "skip"
READ_ALL = "read"

GO_ON = "goOn"
WAIT = "wait"
FAIL = "fail"

READ: frozenset[Use] = frozenset({"batch read", "stream read"})
WRITE: frozenset[Use] = frozenset({"batch write", "stream write"})
BATCH_READ: frozenset[Use] = frozenset({"batch read"})
STREAM_READ: frozenset[Use] = frozenset({"stream read"})
BATCH_WRITE: frozenset[Use] = frozenset({"batch write"})


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `parse(text, name)` returns its value or raises `UsageError`; the other fields are documentation.

    `cluster` says what the option is with `nameServer`: "same", "only" (an option of clusters), or a sentence behind
    "differs: " or "refused: ". The error has the text behind "refused: ".
    """

    name: str
    uses: frozenset[Use]
    parse: Callable[[str, str], Any]
    kind: str
    default: str
    doc: str
    cluster: str = "same"


_MS = "integer, ms since the epoch"
_REFERENCE = "`env:NAME` or `file:/path`"

_WHAT = (
    Option(
        "path",
        READ | WRITE,
        values.local_path,
        "string",
        "required, or `nameServer`",
        "Directory of the store. The argument of `load()` and `save()` is this option. `file:///data/store` and "
        "`~/store` are understood; a relative path begins where Spark was started. Other file systems are refused.",
        cluster="refused: they exclude each other, because messages are in a store or at brokers",
    ),
    Option(
        "subscribe",
        READ,
        values.topic_names,
        "string",
        "none",
        "Topics to read, separated by commas. Exactly one of `subscribe`, `subscribePattern`, `assign` is needed; a "
        "batch may have `dlq` instead.",
    ),
    Option(
        "subscribePattern",
        READ,
        values.topic_pattern,
        "regular expression",
        "none",
        "Reads every topic whose whole name matches; a stream also those created later, from their first message. "
        "System topics are never matched; retry and dead-letter topics (`%RETRY%...`, `%DLQ%...`) only if the pattern "
        "itself begins with `%`.",
    ),
    Option(
        "assign", READ, parse_assign, "JSON", "none", 'Queues to read: `{"OrderTopic":[0,1]}`.',
        cluster='differs: queues have their broker in front, `{"OrderTopic":["broker-a:0"]}`; a plain number stands '
        "for the one queue of this number, if only one broker has it",
    ),
    Option(
        "dlq",
        BATCH_READ,
        values.group_name,
        "string",
        "none",
        "The dead letters of this consumer group, with the topic that they were sent to, where they come from and why "
        "they failed, whether they were moved on (`redriven`), and how often before (`replays`). No rows if the group "
        "has none.",
        cluster="differs: `redriven` is known of letters that `redrive` has moved, by records at their brokers",
    ),
    Option(
        "key",
        BATCH_READ,
        values.word_list,
        "string",
        "none",
        "Only messages with one of these keys (`keys`), which are separated by spaces or line ends: as many as you "
        "like. They are looked up in the store's index; what the index does not cover is read. Only one of `key`, "
        "`uniqKey` and `msgId`; all other options hold as well.",
        cluster="differs: a broker answers with 64 messages for a key at most; a full answer is logged as perhaps cut",
    ),
    Option(
        "uniqKey",
        BATCH_READ,
        values.word_list,
        "string",
        "none",
        "The same for unique keys: the property `UNIQ_KEY`, which clients show as the message id. A message of a batch "
        "is found by its own and by the batch's ([columns.md](columns.md#reading)).",
        cluster="differs: a broker answers with 32 messages for a unique key at most; a full answer is logged as "
        "perhaps cut",
    ),
    Option(
        "msgId",
        BATCH_READ,
        values.word_list,
        "string",
        "none",
        "The same for ids of both kinds: unique keys, as in the column `msgId`, and offset message ids of 32 or 56 hex "
        "digits, as `mqadmin` shows them.",
        cluster="differs: offset message ids are asked at the broker of the address in them, which must be one of "
        "the route",
    ),
    Option(
        "filterPushdown",
        BATCH_READ,
        values.boolean,
        "boolean",
        "false",
        "Take the filters that Spark pushes down, which needs `spark.sql.python.filterPushdown.enabled`: `keys` and "
        "`msgId` that are equal to something are looked up as with `key` and `msgId`, `topic`, `queueId` and "
        "`queueOffset` narrow what is read, and a body is read only where the filters hold. **Each query then needs a "
        "`load()` of its own**: Spark 4.3.0 applies what one query of a DataFrame or view has pushed down to its other "
        "queries, whatever they ask for. Refused on Spark 4.0, which pushes no filters down.",
        cluster="differs: filters are checked before rows go to Spark, but look nothing up, because look-ups of "
        "brokers have limits",
    ),
    Option(
        "tags",
        READ,
        values.tag_expression,
        "string",
        "`*`",
        "Only messages with one of these tags: `TagA || TagB`. Offsets advance over the others. Messages that come "
        "back to a `group` by its retry topic are not filtered again.",
        cluster="differs: the broker compares hashes of tags, and the task compares the texts",
    ),
    Option(
        "sqlFilter",
        READ,
        values.sql92_condition,
        "string",
        "none",
        "Only messages whose properties fulfil this SQL92 condition, `region = 'eu' AND price > 10`, with RocketMQ's "
        "rules ([clients.md](clients.md)); `TAGS` and `KEYS` are properties, too. Not together with `tags`. Offsets "
        "advance over the others. Messages that come back to a `group` by its retry topic are not filtered again.",
        cluster="differs: the broker evaluates it if its enablePropertyFilter is true, and the task evaluates it in "
        "any case",
    ),
    Option(
        "rawBody",
        READ,
        values.boolean,
        "boolean",
        "false",
        "Bodies as they are stored. Otherwise compressed bodies are decompressed.",
    ),
    Option(
        "brokerName",
        READ,
        values.plain_text,
        "string",
        "the store's own",
        "The value of the column `brokerName`. A store that a broker wrote does not hold this name.",
        cluster="refused: each row of a cluster has the name of the broker that holds it",
    ),
    Option(
        "storePathCommitLog",
        READ,
        values.plain_text,
        "string, absolute paths separated by commas",
        "`commitlog` in the store",
        "Where a broker keeps its log, if its broker.conf says so: one directory, or several. Such a store is only "
        "read: a stream with a `group` needs `commitOffsets=false`.",
        cluster="refused: a cluster has no directory",
    ),
)

_CLUSTER = (
    Option(
        NAME_SERVER,
        READ | WRITE,
        name_servers,
        "addresses separated by `;`, or a URL",
        "none",
        "Name servers of a cluster of brokers (4.9.x, 5.x), in place of `path`: `ns1:9876;ns2:9876`, or the "
        "`http://host/path` of an address server (`http://host:port` is a name server). Each task talks to the brokers "
        "itself. Beside the `path` of a replica it says where the `group` of a stream is "
        "([replica.md](replica.md#a-stream-with-a-group)).",
        "only",
    ),
    Option(
        "addressMap",
        READ | WRITE,
        address_map,
        "pairs separated by `;`",
        "none",
        "Addresses to dial in place of those that brokers register: `10.0.0.3:10911=localhost:10911`. For brokers in "
        "containers, or behind a translation of addresses.",
        "only",
    ),
    Option(
        "accessKey",
        READ | WRITE,
        reference,
        _REFERENCE,
        "none",
        "The access key of the ACL, as a reference that each process resolves itself. Never the key: options are "
        "shown in plans and logs. The variable or file must be there on the driver and on each executor.",
        "only",
    ),
    Option("secretKey", READ | WRITE, reference, _REFERENCE, "none", "The same for the secret key.", "only"),
    Option("securityToken", READ | WRITE, reference, _REFERENCE, "none", "The same for a security token.", "only"),
    Option("tls", READ | WRITE, values.boolean, "boolean", "false", "Whether connections use TLS.", "only"),
    Option(
        "tlsCaFile",
        READ | WRITE,
        values.local_path,
        "string",
        "those of the system",
        "Certificates (PEM) of the authorities that the certificates of the servers must come from.",
        "only",
    ),
    Option(
        "tlsCertFile",
        READ | WRITE,
        values.local_path,
        "string",
        "none",
        "Certificate (PEM) that this client shows, for servers that ask for one.",
        "only",
    ),
    Option(
        "tlsKeyFile",
        READ | WRITE,
        values.local_path,
        "string",
        "in `tlsCertFile`",
        "Its private key (PEM), without a password.",
        "only",
    ),
    Option(
        "tlsVerify",
        READ | WRITE,
        values.boolean,
        "boolean",
        "true",
        "Whether the certificates and names of servers are verified. Without that anybody on the way can read and "
        "change messages.",
        "only",
    ),
    Option(
        "tlsServerName",
        READ | WRITE,
        values.plain_text,
        "string",
        "the host that a server registers",
        "The name that the certificates of all servers must have, if it is not the host of their address.",
        "only",
    ),
    Option(
        "namespace",
        READ | WRITE,
        values.plain_text,
        "string",
        "none",
        "Namespace of topics and groups at the brokers (`namespace%topic`). Options, columns and JSON have the names "
        "without it.",
        "only",
    ),
    Option(
        "pullGroup",
        READ | WRITE,
        values.group_name,
        "string",
        "`TOOLS_CONSUMER`",
        "The group under which messages are pulled, where an ACL gives rights to groups. Never the `group` of the "
        "query, and none that has members: each pull ends a reset of offsets that is pending for its group.",
        "only",
    ),
    Option(
        "requiredBrokers",
        READ,
        broker_names,
        "names of brokers, separated by `,`",
        "none",
        "Brokers that must be known to the name servers and answer, or the read fails and names them. A batch fails "
        "before any row comes. A stream plans nothing while one of them is away, at its start and while it runs: with "
        "`onBrokerAway=goOn` it fails after `brokerAwayTimeout`, with `wait` never, with `fail` at once. A broker need "
        "not have the topics; its slave may answer for it. Without this option the rows of a broker that is away are "
        "missing, and a new process cannot know it ([cluster.md](cluster.md#a-broker-that-is-away)).",
        "only",
    ),
    Option(
        "onBrokerAway",
        STREAM_READ,
        one_of(GO_ON, WAIT, FAIL),
        f"`{GO_ON}`, `{WAIT}` or `{FAIL}`",
        f"`{GO_ON}`",
        "While a broker refuses connections, does not answer, has no address, or is busy: read the other brokers, plan "
        "no batch until it is back, or end the query. Positions in its queues stay as they are, whatever "
        "`failOnDataLoss` says. A query with state needs `wait`: going on advances the watermark, and Spark drops the "
        "rows of the broker as late when it is back.",
        "only",
    ),
    Option(
        "brokerAwayTimeout",
        READ | WRITE,
        values.duration_ms,
        "duration: 500ms, 30s, 15m, 1h",
        "3m",
        "How long tasks wait for a broker that goes after their batch was planned, before they fail and name it: its "
        "rows to read, the rows that it may have stored already, rows that only it can take, and the records of the "
        "replay check. A stream also waits so long for a broker of `requiredBrokers`.",
        "only",
    ),
    Option(
        "onLateQueue",
        STREAM_READ,
        one_of(SKIP_OLDER, READ_ALL),
        f"`{SKIP_OLDER}` or `{READ_ALL}`",
        f"`{SKIP_OLDER}`",
        "Of a queue that the query did not see at its start, because its broker was away: skip the messages that are "
        "older than the start (`latest`, or the time of a starting option), with a warning that has their ranges, or "
        "read them. A queue without older messages is read from its first one in any case. The start is kept in the "
        "checkpoint, and compared with the brokers' times of storage.",
        "only",
    ),
)

_WHERE = (
    Option(
        "startingOffsets",
        READ,
        values.starting_position,
        "`earliest`, `latest`, `group` or JSON",
        "batch `earliest`, stream `latest`, stream with `group` see there",
        'Where to start, in one word or for every queue: `{"OrderTopic":{"0":23,"1":-2}}` (-2 earliest, -1 latest). '
        "`group` starts at the offsets that the group has committed. A batch cannot start at `latest`. In a stream "
        "this is for a new query: its checkpoint wins, and so do offsets that its `group` has committed.",
        cluster='differs: queues have their broker in front, `{"OrderTopic":{"broker-a:0":23}}`',
    ),
    Option(
        "startingTimestamp",
        READ,
        values.one_timestamp,
        _MS,
        "none",
        "Start at the first message stored at this time or later; a stream refuses a time that is still to come. Wins "
        "over `startingOffsetsByTimestamp` and `startingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        READ,
        parse_timestamps,
        "JSON",
        "none",
        'The same for every queue: `{"OrderTopic":{"0":1700000000000}}`. Wins over `startingOffsets`.',
        cluster="differs: queues have their broker in front",
    ),
    Option(
        "endingOffsets",
        BATCH_READ,
        values.ending_position,
        "`latest` or JSON",
        "`latest`",
        "Where to end, exclusive; JSON as in `startingOffsets` (-2 is not possible).",
        cluster="differs: queues have their broker in front",
    ),
    Option(
        "endingTimestamp",
        BATCH_READ,
        values.one_timestamp,
        _MS,
        "none",
        "End before the first message stored at this time or later. Wins over `endingOffsetsByTimestamp` and "
        "`endingOffsets`.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        BATCH_READ,
        parse_timestamps,
        "JSON",
        "none",
        "The same for every queue. Wins over `endingOffsets`.",
        cluster="differs: queues have their broker in front",
    ),
    Option(
        "failOnDataLoss",
        READ,
        values.boolean,
        "boolean",
        "true",
        "Fail if messages that should be read are gone, naming the exact ranges. With `false` that is logged and kept "
        "in a report (`dataLoss`), and the query goes on with what is there.",
        cluster="differs: nothing protects planned messages from the retention of a broker; with `false` losses are "
        "logged, range by range, and there is no report",
    ),
    Option(
        "onCorruption",
        READ,
        values.on_corruption,
        "`fail` or `skip`",
        "`fail`",
        "The effect of a message whose bytes contradict the format. With `skip`, which needs `failOnDataLoss=false`, "
        "the query leaves it out, and reports it as lost.",
    ),
    Option(
        "dataLoss",
        BATCH_READ,
        values.boolean,
        "boolean",
        "false",
        "Read, instead of messages, the report of what queries of this store went on without (`failOnDataLoss=false`): "
        "time, group, topic, queueId, startOffset, endOffset, messages, reason, queryId, batchId. The newest 10,000 "
        "ranges. No other option is possible beside it and `path`.",
        cluster="refused: the report is in the directory of a store; for a cluster, losses are in the log of the "
        "query",
    ),
    Option(
        "brokerWaits",
        BATCH_READ,
        values.boolean,
        "boolean",
        "false",
        "Read, instead of messages of topics, what a broker left: timers of its wheel, which only a broker delivers, "
        "and half messages of transactions. kind (`timer`, `half message`), topic, queueId, msgId, tags, keys, "
        "storeTimestamp, dueTimestamp, producerGroup, checkTimes, commitLogOffset. `rmq delayed` lists the same. Only "
        "`path` and `storePathCommitLog` are possible beside it.",
        cluster="refused: a broker does not hand out its timers and half messages",
    ),
)

_GROUP = (
    Option(
        "group",
        READ,
        values.group_name,
        "string",
        "none",
        "Consumer group. A stream starts at the offsets that the group has committed, commits what its sink has "
        "completed, and holds a lease: a second query of the group on the same topic is refused, and so are consumers "
        "of the group ([clients.md](clients.md#beside-a-stream)). A batch looks at the group only with "
        "`startingOffsets=group`, and never commits. A group that the store does not know is then an error; a stream "
        "logs it, and begins a new group.",
        cluster="differs: the query is a member of the group with a lock at the brokers, and is refused while other "
        "members are alive",
    ),
    Option(
        "consumeFromWhere",
        READ,
        values.consume_from_where,
        f"`{values.FROM_LAST}`, `{values.FROM_FIRST}` or `{values.FROM_TIMESTAMP}`",
        f"`{values.FROM_LAST}`",
        "Where a group starts in a queue for which it has committed nothing, if no starting option says it. As on a "
        "broker, a queue that is complete from offset 0 and young (its first message is within 40 % of the machine's "
        "memory from the end of the log) is always read from 0.",
        cluster="differs: the broker says whether a queue is young",
    ),
    Option(
        "consumeTimestamp",
        READ,
        values.local_time_ms,
        "local time as yyyyMMddHHmmss",
        "30 minutes ago",
        f"The time for `consumeFromWhere={values.FROM_TIMESTAMP}`.",
    ),
    Option(
        "commitOffsets",
        STREAM_READ,
        values.boolean,
        "boolean",
        "true",
        "Whether a stream with a `group` commits. With `false` it only starts at the group's offsets, without a lease, "
        "and can read a store that it cannot write. A batch is committed when Spark looks for the next one: with "
        "`Trigger.Once`, and if `query.stop()` comes before that look, the next run commits the last batch.",
        cluster="differs: with `false` the query does not join the group, and starts beside live members",
    ),
    Option(
        "retryTopic",
        STREAM_READ,
        values.boolean,
        "boolean",
        "true",
        "Whether a stream that commits for a `group` also reads `%RETRY%group`, from its first message, where failed "
        "messages come back: with the topic that they were sent to. One query of a group can; set `false` in others, "
        "and where the topic is to be read as it is stored. Due messages are delivered by each stream that commits.",
        cluster="differs: `%RETRY%group` of every broker is read, and brokers deliver what is due",
    ),
    Option(
        "enableLmq",
        READ,
        values.boolean,
        "boolean",
        "none",
        "Whether the store's broker has `enableLmq=true`, and so has the offsets of its groups in "
        "`config/lmqConsumerOffset.json` only. Needed if that file and `consumerOffset.json` say different things of "
        "the `group`. A stream that commits makes it a setting of the store.",
        cluster="refused: a broker keeps the offsets of its groups itself",
    ),
    Option(
        "consumerName",
        STREAM_READ,
        values.plain_text,
        "string",
        "`a Spark stream`",
        "Name of this query in the error that refuses a second query of the `group`, beside host and process.",
    ),
)

_HOW_MUCH = (
    Option(
        "maxOffsetsPerTrigger",
        STREAM_READ,
        values.integer(1),
        "integer",
        "none",
        "At most so many messages in one trigger, shared out in proportion to what waits in each queue. Messages that "
        "`tags` filters out count too. All limits combine.",
    ),
    Option(
        "maxBytesPerTrigger",
        STREAM_READ,
        values.integer(1),
        "integer, bytes",
        "none",
        "At most so many bytes of the log in one trigger, but always one message.",
        cluster="refused: the sizes of messages are not known before they are read; maxOffsetsPerTrigger limits "
        "their number",
    ),
    Option(
        "minOffsetsPerTrigger",
        STREAM_READ,
        values.integer(1),
        "integer",
        "none",
        "Wait until so many messages are there, `maxTriggerDelay` at most. Not with `Trigger.AvailableNow`.",
    ),
    Option(
        "maxTriggerDelay",
        STREAM_READ,
        values.duration_ms,
        "duration: 500ms, 30s, 15m, 1h",
        "15m",
        "The longest wait for `minOffsetsPerTrigger`.",
    ),
    Option(
        "minPartitions",
        READ,
        values.integer(1),
        "integer",
        "one per queue",
        "Cut queues so that there are at least so many tasks.",
    ),
)

_SINK = (
    Option(
        "topic", WRITE, values.topic_name, "string", "the column `topic`", "Topic of all rows. Wins over the column."
    ),
    Option(
        "createStore",
        WRITE,
        values.boolean,
        "boolean",
        "true",
        "Whether a write makes a store at `path` where nothing is, as Parquet and Delta do. The log then names the "
        "absolute path, once. With `false` such a write is refused: `rmq init` makes the store. A stream makes one in "
        "its first batch only: later, a store that is not there is an error, because a disk may not be mounted.",
        cluster="refused: a cluster is never made by a write",
    ),
    Option(
        "txnAppId",
        BATCH_WRITE,
        values.plain_text,
        "string",
        "none",
        "With `txnVersion`: makes a batch write idempotent. The same pair again writes nothing, a smaller version of "
        "the same application is an error, and so are other rows (see `repeatable`). Each value of the option `topic` "
        "counts for itself, and all writes without it as one: use one `txnAppId` for each `df.write` target.",
        cluster="differs: a repetition leaves out the rows that are stored, and sends others; a smaller version is not "
        "refused",
    ),
    Option(
        "txnVersion",
        BATCH_WRITE,
        values.integer(0),
        "integer of 64 bits",
        "none",
        "Number of the write; grows for each `txnAppId`.",
    ),
    Option(
        "repeatable",
        WRITE,
        values.boolean,
        "boolean",
        "true",
        "Whether the query gives the same rows when a batch, or a write with `txnAppId`, is repeated after a crash. "
        "Then other rows for what is already stored are an error: a checkpoint was rewound or copied, or a "
        "`txnVersion` was used twice. Rows are compared by their number and the sum of the checksums of their bodies. "
        "Set `false` for queries with `rand()`, `uuid()` and the like: a repetition is dropped without a look at its "
        "rows. And for one run where a repeated batch has lost messages at its source: see operations.md.",
        cluster="refused: the replay check compares rows one by one",
    ),
    Option(
        "useQueueId",
        WRITE,
        values.boolean,
        "boolean",
        "false",
        "Write each row to the queue that the column `queueId` names. Otherwise `shardingKey` decides, or the queues "
        "are taken in turn.",
        cluster="differs: several brokers may have a queue of this number, and then the column brokerName says which "
        "one is meant; without a wish, rows of one request stay together",
    ),
    Option(
        "compressMsgBodyOverHowmuch",
        WRITE,
        values.integer(1),
        "integer, bytes",
        "no compression",
        "Compress bodies of so many bytes and more.",
    ),
    Option(
        "keepUniqKey",
        WRITE,
        values.boolean,
        "boolean",
        "false",
        "The rows are copies of messages, one to one: keep the ids in `properties` (`UNIQ_KEY`, and with it `msgId`; "
        "`OUTBOX_ID`). Otherwise each row is a new message with an id of its own.",
        cluster="differs: it needs replayCheck=false, because the check knows rows by UNIQ_KEYs that it makes",
    ),
    Option(
        "sendBack",
        WRITE,
        values.group_name,
        "string",
        "none",
        "Consumer group in which these rows failed: nothing new is sent, the messages that the columns "
        "`commitLogOffset` and `msgId` name go to the group's retry topic, or to its dead letters. Column "
        "`delayLevel`: NULL or 0 = the group's next level, -1 = dead letter. Columns `errorClass`, `errorMessage`, "
        "`stackHash` and `lastFailureTime` travel with the message. `path` is the store that the rows were read from. "
        "Two rows of one message in a batch, or in a write, are an error.",
        cluster="differs: the column brokerName is needed as well, because a commit-log offset is one of a broker; a "
        "batch is no unit, and a repetition leaves out what is sent back",
    ),
    Option(
        "maxReconsumeTimes",
        WRITE,
        values.integer(0, INT32_MAX),
        "integer",
        "the group's `retryMaxTimes`",
        "With `sendBack`: a message that has come back so many times becomes a dead letter.",
        cluster="differs: a broker is told it with each message, and the settings of the group stay",
    ),
    Option(
        "replayCheck",
        WRITE,
        values.boolean,
        "boolean",
        "stream `true`, batch `true` with `txnAppId`",
        "Whether a repetition of a batch looks for its rows in the queues first, and leaves out those that are stored. "
        "Rows are known by their content. With `false` a write is at least once.",
        "only",
    ),
    Option(
        "onUnknownOutcome",
        WRITE,
        one_of("check", "resend"),
        "`check` or `resend`",
        "`check` with the replay check",
        "The answer of a send may be lost: then `check` reads the queue before the rows go anywhere again, and "
        "fails the batch if it cannot, or if the queue has become shorter; `resend` sends them again at once, to "
        "another broker if it can: they may be stored twice.",
        "only",
    ),
    Option(
        "markerPath",
        WRITE,
        values.local_path,
        "string",
        "topic `PYRMQ_SINK_RECORDS` of the cluster",
        "Directory for the records of the replay check, which all hosts of the Spark application see.",
        "only",
    ),
    Option(
        "settleTime",
        WRITE,
        values.duration_ms,
        "duration: 500ms, 30s, 15m, 1h",
        "3s",
        "How long the replay check waits before it reads: so long brokers may still store what a dead attempt sent.",
        "only",
    ),
    Option(
        "sendTimeout",
        WRITE,
        values.duration_ms,
        "duration: 500ms, 30s, 15m, 1h",
        "1m",
        "The time for all tries of a request that sends new rows. If a broker is away or busy, and no other one takes "
        "them, brokerAwayTimeout counts where it is longer.",
        "only",
    ),
    Option(
        "createTopic",
        WRITE,
        values.boolean,
        "boolean",
        "true",
        "Whether a topic that no broker has is made, with 4 queues at each master. With `false` such a write is "
        "refused.",
        "only",
    ),
    Option(
        "onStoreStatus",
        WRITE,
        one_of("log", "fail"),
        "`log` or `fail`",
        "`log`",
        "A broker may answer FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE, and the commit of a store "
        "that a SYNC_MASTER serves the last two: such rows are stored, and never sent again. `log` counts and logs "
        "them, `fail` fails the batch. A stream that repeats the batch then waits for the slave again, and adds "
        "nothing.",
    ),
)

OPTIONS: tuple[Option, ...] = _WHAT + _CLUSTER + _WHERE + _GROUP + _HOW_MUCH + _SINK
