"""From Spark's text options to typed, checked values. Control plane, no I/O.

Spark compares option names without case and passes them in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspark_rmq.options.cluster_options import (
    CONNECTION,
    NAME_SERVER,
    ClusterOptions,
    ClusterSinkOptions,
    cluster_options,
    cluster_sink_options,
)
from pyspark_rmq.options.option_table import FAIL, GO_ON, OPTIONS, SKIP_OLDER, WRITE, Use
from pyspark_rmq.options.option_values import FROM_LAST, FROM_TIMESTAMP, SKIP
from pyspark_rmq.position.planning import Limits
from pyspark_rmq.position.position import LATEST, Position, refuse
from pyspark_rmq.position.queue_ids import QueueId, broker_of
from rmq_store.errors import nearest

# Spark's own options of a streaming query arrive among those of its sink.
_OF_SPARK = frozenset({"checkpointlocation", "queryname", "outputmode"})
_OF_SPARK_PREFIX = "asyncprogresstracking"

# MixAll.java
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"

# DefaultMQPushConsumer.consumeTimestamp
_CONSUME_TIMESTAMP_AGO_MS = 30 * 60 * 1000

# Names of the same thing in other connectors and in RocketMQ; the spelling alone would suggest something else.
_CALLED_ELSEWHERE = {
    "consumergroup": "group",
    "kafka.group.id": "group",
    "bootstrap.servers": NAME_SERVER,
    "kafka.bootstrap.servers": NAME_SERVER,
    "location": "path",
    "namesrvaddr": NAME_SERVER,
    "storepath": "path",
    "storepathrootdir": "path",
    "topics": "subscribe",
}

# Options that ask for a report, and what may be given beside them and `path`.
REPORTS: Mapping[str, frozenset[str]] = {
    "dataLoss": frozenset(),
    "brokerWaits": frozenset({"storePathCommitLog"}),
}

# Options that name messages, and by what.
_LOOKUPS: Mapping[str, Literal["key", "unique key", "id"]] = {"key": "key", "uniqKey": "unique key", "msgId": "id"}

_BY_NAME = {option.name.lower(): option for option in OPTIONS}

_PLACE = CONNECTION | {"path", "brokerName", "enableLmq", "namespace"}

# Options that Spark's catalog adds when it makes a table: TableCatalog.PROP_PROVIDER and OPTION_PREFIX.
_OF_CATALOG, _OF_CATALOG_PREFIX = "provider", "option."

NO_TABLES = (
    "data source rmq cannot be a table of Spark's catalog, because Spark does not hand a table's options on to a data "
    "source in Python; name the store with CREATE TEMPORARY VIEW name USING rmq OPTIONS (path '...', ...), with load() "
    "or with save()"
)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The queues to read. At most one of the first three fields is given. `assign` has sorted queue ids per topic.

    `of_group` is a retry or dead-letter topic that is read in addition, as soon as it exists. Its rows show the topic
    to which they were first sent (DefaultMQPushConsumerImpl.resetRetryTopic).
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assign: Mapping[str, tuple[QueueId, ...]] | None = None
    of_group: str | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """The messages that a batch asks for: those that have one of `texts` as a key, unique key or id."""

    by: Literal["key", "unique key", "id"]
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a read; `starting` is None if no starting option was given. The messages are at `path`, or with an
    empty one in `cluster`.
    """

    path: str
    subscription: Subscription
    broker_name: str | None = None
    commit_log_paths: str = ""
    starting: Position | None = None
    ending: Position | None = None
    group: str | None = None
    consume_from_where: str = FROM_LAST
    consume_timestamp_ms: int = 0
    commit_offsets: bool = True
    enable_lmq: bool | None = None
    consumer_name: str | None = None
    lookup: Lookup | None = None
    filter_pushdown: bool = False
    tags: str | None = None
    sql92: str | None = None
    raw_body: bool = False
    fail_on_data_loss: bool = True
    skip_corruption: bool = False
    min_partitions: int | None = None
    limits: Limits = field(default_factory=Limits)
    cluster: ClusterOptions | None = None
    group_at: ClusterOptions | None = None
    """Of a stream on a replica: the cluster that has the group."""
    required_brokers: tuple[str, ...] = ()
    skip_older: bool = True
    """Of queues that a stream of a cluster did not see at its start: onLateQueue."""
    on_broker_away: str = FAIL
    chose_on_broker_away: bool = False
    """Of a stream of a cluster GO_ON, WAIT or FAIL. All other reads fail."""

    @property
    def place(self) -> str:
        """The place of the messages, for people."""
        return self.path if self.cluster is None else self.cluster.name_server


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a write; `transaction` is (txnAppId, txnVersion) of an idempotent batch write.

    `send_back` is the group to which rows are sent back: then no new message is written. Rows go to `path`, or with an
    empty one to `cluster`. `fail_on_weak_status`: onStoreStatus=fail.
    """

    path: str
    topic: str | None = None
    transaction: tuple[str, int] | None = None
    repeatable: bool = True
    use_queue_id: bool = False
    keep_uniq_key: bool = False
    compress_over_bytes: int | None = None
    send_back: str | None = None
    max_reconsume_times: int | None = None
    create_store: bool = True
    fail_on_weak_status: bool = False
    cluster: ClusterOptions | None = None
    cluster_sink: ClusterSinkOptions | None = None


_LOG_PATHS = "storePathCommitLog"


def check_names(names: Iterable[str]) -> None:
    """Raise `UsageError` for an option that the data source does not have; the message suggests the nearest name."""
    names = list(names)
    if not names:
        refuse(f"no options are given: path is needed, and what to read or write. {NO_TABLES}")
    if any(name.lower() == _OF_CATALOG or name.lower().startswith(_OF_CATALOG_PREFIX) for name in names):
        refuse(NO_TABLES)
    for name in names:
        if name.lower() in _BY_NAME or _is_of_spark(name):
            continue
        meant = _CALLED_ELSEWHERE.get(name.lower())
        near = meant.lower() if meant else nearest(name, _BY_NAME, 0.5)
        known = ", ".join(option.name for option in OPTIONS)
        hint = f"did you mean {_BY_NAME[near].name!r}?" if near else f"known options: {known}"
        refuse(f"unknown option {name!r} of data source rmq; {hint}")


def check_options(options: Mapping[str, str], uses: Sequence[Use], now_ms: int) -> None:
    """Refuse options that fit none of `uses`: at `load()` Spark does not say whether a batch or a stream is wanted.

    Raises:
        UsageError: as `source_options` and `sink_options`; or two options have no use in common.
    """
    check_names(options)
    given = [_BY_NAME[name.lower()] for name in options if name.lower() in _BY_NAME]
    for option in given:
        if option.uses.isdisjoint(uses):
            refuse(f"option {option.name} is not possible for a read, only for a {_or(option.uses)}")
    possible = [use for use in uses if all(use in option.uses for option in given)]
    if not possible:
        first, second = next((a, b) for a in given for b in given if a.uses.isdisjoint(b.uses))
        refuse(
            f"the options {first.name} and {second.name} are not possible together: the first one is for a "
            f"{_or(first.uses)}, the second one for a {_or(second.uses)}"
        )
    refusals = []
    for use in possible:
        try:
            _check(options, use, now_ms)
            return
        except ValueError as error:  # UsageError is one
            refusals.append(error)
    raise refusals[0]


def _check(options: Mapping[str, str], use: Use, now_ms: int) -> None:
    if use in WRITE:
        sink_options(options, use)
    elif use != "batch read" or report_options(options) is None:
        source_options(options, use, now_ms)


def source_options(options: Mapping[str, str], use: Use, now_ms: int) -> SourceOptions:
    """Parse the options of a read. `now_ms` is the present time, from which the default of `consumeTimestamp` is
    counted.

    Raises:
        UsageError: an option is unknown, misplaced, missing, malformed, or contradicts another one.
    """
    values = _parse(options, use)
    ways = ("subscribe", "subscribePattern", "assign", *(("dlq",) if use == "batch read" else ()))
    subscribed = [name for name in ways if name in values]
    if len(subscribed) != 1:
        given = " and ".join(subscribed) or "none of them"
        refuse(f"exactly one of the options {', '.join(ways)} is needed; given: {given}")
    starting = _first(values, "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
    if use == "batch read":
        _check_batch_start(starting)
    _check_group_options(values, starting)
    if use == "stream read" and "group" in values and values.get("commitOffsets", True) and _LOG_PATHS in values:
        refuse(f"option {_LOG_PATHS}: such a store is only read, and no group can commit; set commitOffsets=false")
    if values.get("tags") is not None and "sqlFilter" in values:
        refuse("the options tags and sqlFilter exclude each other; in the condition of sqlFilter the tag is TAGS")
    if values.get("onCorruption") == SKIP and values.get("failOnDataLoss", True):
        refuse("option onCorruption=skip leaves messages out: it needs failOnDataLoss=false")
    return SourceOptions(
        path=values.get("path", ""),
        cluster=cluster_options(values) if NAME_SERVER in values and "path" not in values else None,
        group_at=cluster_options(values) if NAME_SERVER in values and "path" in values else None,
        subscription=_subscription(values, use),
        broker_name=values.get("brokerName"),
        commit_log_paths=values.get("storePathCommitLog", ""),
        starting=starting,
        ending=_first(values, "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"),
        group=values.get("group"),
        consume_from_where=values.get("consumeFromWhere", FROM_LAST),
        consume_timestamp_ms=values.get("consumeTimestamp", now_ms - _CONSUME_TIMESTAMP_AGO_MS),
        commit_offsets=values.get("commitOffsets", True),
        enable_lmq=values.get("enableLmq"),
        consumer_name=values.get("consumerName"),
        lookup=_lookup(values),
        filter_pushdown=values.get("filterPushdown", False),
        tags=values.get("tags"),
        sql92=values.get("sqlFilter"),
        raw_body=values.get("rawBody", False),
        fail_on_data_loss=values.get("failOnDataLoss", True),
        skip_corruption=values.get("onCorruption") == SKIP,
        min_partitions=values.get("minPartitions"),
        limits=_limits(values),
        required_brokers=values.get("requiredBrokers", ()),
        skip_older=values.get("onLateQueue", SKIP_OLDER) == SKIP_OLDER,
        on_broker_away=values.get("onBrokerAway", GO_ON if use == "stream read" else FAIL),
        chose_on_broker_away="onBrokerAway" in values,
    )


def commit_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a stream that say where its messages are, and, if it commits for a group, which one. Their values
    are as they were given (secrets are references), but that of `path`.
    """
    given = {_BY_NAME[name.lower()].name: text for name, text in options.items() if name.lower() in _BY_NAME}
    found = {name: text for name, text in sorted(given.items()) if name in _PLACE}
    if "path" in found:
        found["path"] = _BY_NAME["path"].parse(found["path"], "path")
    if "group" in given and _BY_NAME["commitoffsets"].parse(given.get("commitOffsets", "true"), "commitOffsets"):
        found["group"] = given["group"]
    return found


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of a batch read that returns a report instead of messages; `name` is the option that asks for the report.
    """

    name: str
    path: str
    commit_log_paths: str


def report_options(options: Mapping[str, str]) -> ReportOptions | None:
    """The report that a batch read asks for; None if it asks for messages.

    Raises:
        UsageError: as `source_options`; or the options ask for messages and a report, or for two reports.
    """
    if not {name.lower() for name in REPORTS} & {name.lower() for name in options}:
        return None
    values = _parse(options, "batch read")
    asked = [name for name in REPORTS if values.get(name)]
    if not asked:
        return None
    name = asked[0]
    if others := sorted(values.keys() - {"path", name} - REPORTS[name]):
        refuse(f"option {name} reads a report, not messages: {', '.join(others)} cannot be used with it")
    return ReportOptions(name, str(values["path"]), values.get("storePathCommitLog", ""))


def sink_options(options: Mapping[str, str], use: Use) -> SinkOptions:
    """Parse the options of a write. Raises `UsageError` as `source_options` does."""
    values = _parse(options, use)
    if ("txnAppId" in values) != ("txnVersion" in values):
        refuse("the options txnAppId and txnVersion are only possible together")
    if use == "batch write" and "repeatable" in values and "txnAppId" not in values:
        refuse("option repeatable needs txnAppId in a batch write: without it, each write is a new one")
    if "sendBack" in values:
        for name in ("topic", "useQueueId", "keepUniqKey", "compressMsgBodyOverHowmuch"):
            if name in values:
                refuse(f"option {name} is not possible with sendBack: failed messages keep their bytes")
        if values.get("createStore"):
            refuse("option createStore is not possible with sendBack: the failed messages are in a store")
    elif "maxReconsumeTimes" in values:
        refuse("option maxReconsumeTimes needs sendBack")
    return SinkOptions(
        path=values.get("path", ""),
        cluster=cluster_options(values) if NAME_SERVER in values else None,
        topic=values.get("topic"),
        transaction=(values["txnAppId"], values["txnVersion"]) if "txnAppId" in values else None,
        repeatable=values.get("repeatable", True),
        use_queue_id=values.get("useQueueId", False),
        keep_uniq_key=values.get("keepUniqKey", False),
        compress_over_bytes=values.get("compressMsgBodyOverHowmuch"),
        send_back=values.get("sendBack"),
        max_reconsume_times=values.get("maxReconsumeTimes"),
        create_store=values.get("createStore", True),
        fail_on_weak_status=values.get("onStoreStatus") == "fail",
        cluster_sink=cluster_sink_options(values, is_stream=use == "stream write") if NAME_SERVER in values else None,
    )


def _parse(options: Mapping[str, str], use: Use) -> dict[str, Any]:
    check_names(options)
    values: dict[str, Any] = {}
    for name, text in options.items():
        option = _BY_NAME.get(name.lower())
        if option is None:
            continue
        if use not in option.uses:
            refuse(f"option {option.name} is not possible for a {use}, only for a {_or(option.uses)}")
        values[option.name] = option.parse(text, option.name)
    if NAME_SERVER not in values:
        _check_with_store(values)
    elif "path" in values and use == "stream read" and "group" in values:
        _check_with_replica(values)
    else:
        _check_with_cluster(values)
    return values


def _check_with_replica(values: Mapping[str, Any]) -> None:
    """Refuse what a stream with a group on a replica cannot have: messages are in a store, the group is at brokers."""
    if not values.get("commitOffsets", True):
        refuse(f"option {NAME_SERVER} beside path is for a group that commits; leave it out with commitOffsets=false")
    for name in values:
        if name in ("storePathCommitLog", "enableLmq"):
            refuse(f"option {name} is not possible with path and {NAME_SERVER}: the store is a replica")
        if _BY_NAME[name.lower()].cluster == "only" and name not in CONNECTION:
            refuse(f"option {name} is not possible with path and {NAME_SERVER}: the messages are read from the store")
    _check_with_store({name: value for name, value in values.items() if name not in CONNECTION})


def _check_with_cluster(values: Mapping[str, Any]) -> None:
    """Refuse what no cluster can do."""
    for name in values:
        kind, _, reason = _BY_NAME[name.lower()].cluster.partition(": ")
        if kind == "refused":
            refuse(f"option {name} is not possible with {NAME_SERVER}: {reason}")


def _check_with_store(values: Mapping[str, Any]) -> None:
    """Refuse what only a cluster has."""
    for name in values:
        if _BY_NAME[name.lower()].cluster == "only":
            refuse(f"option {name} needs the option {NAME_SERVER}")
    if "path" not in values:
        refuse(f"option path is missing: the directory of the store; {NAME_SERVER} names a cluster in its place")
    for name in ("startingOffsets", "startingOffsetsByTimestamp", "endingOffsets", "endingOffsetsByTimestamp"):
        queues = values[name].values if name in values else ()
        if named := [queue for queue in queues if broker_of(queue.queue_id) is not None]:
            refuse(f"option {name}: queues of a store have numbers, {str(named[0].queue_id)!r} is one of a cluster")
    for queue_ids in values.get("assign", {}).values():
        if named := [queue_id for queue_id in queue_ids if broker_of(queue_id) is not None]:
            refuse(f"option assign: queues of a store have numbers, {str(named[0])!r} is one of a cluster")


def _subscription(values: Mapping[str, Any], use: Use) -> Subscription:
    of_group = DLQ_PREFIX + values["dlq"] if "dlq" in values else None
    commits = use == "stream read" and "group" in values and values.get("commitOffsets", True)
    if commits and values.get("retryTopic", True):
        of_group = RETRY_PREFIX + values["group"]
    return Subscription(values.get("subscribe", ()), values.get("subscribePattern"), values.get("assign"), of_group)


def _lookup(values: Mapping[str, Any]) -> Lookup | None:
    given = [name for name in _LOOKUPS if name in values]
    if len(given) > 1:
        refuse(f"the options {' and '.join(given)} are not possible together: each names the messages to find")
    return Lookup(_LOOKUPS[given[0]], values[given[0]]) if given else None


def _check_batch_start(starting: Position | None) -> None:
    if starting is None:
        return
    latest = starting.kind == "offsets" and LATEST in starting.values.values()
    if starting.kind == "latest" or latest:
        refuse("option startingOffsets: latest (-1) is not possible for a batch, which would read nothing")


def _check_group_options(values: Mapping[str, Any], starting: Position | None) -> None:
    if "group" not in values:
        if starting is not None and starting.kind == "group":
            refuse("option startingOffsets: 'group' needs the option group")
        names = "consumeFromWhere", "consumeTimestamp", "commitOffsets", "retryTopic", "enableLmq", "consumerName"
        for name in names:
            if name in values:
                refuse(f"option {name} needs the option group")
    if values.get("retryTopic") and values.get("commitOffsets") is False:
        refuse("option retryTopic needs commitOffsets: what comes back is taken by whoever commits")
    if "consumeTimestamp" in values and values.get("consumeFromWhere") != FROM_TIMESTAMP:
        refuse(f"option consumeTimestamp needs consumeFromWhere={FROM_TIMESTAMP}")


def _limits(values: Mapping[str, Any]) -> Limits:
    min_rows, max_rows = values.get("minOffsetsPerTrigger"), values.get("maxOffsetsPerTrigger")
    if min_rows is not None and max_rows is not None and min_rows > max_rows:
        refuse(f"minOffsetsPerTrigger ({min_rows}) is larger than maxOffsetsPerTrigger ({max_rows})")
    if "maxTriggerDelay" in values and min_rows is None:
        refuse("option maxTriggerDelay needs minOffsetsPerTrigger")
    return Limits(
        max_rows=max_rows,
        min_rows=min_rows,
        max_bytes=values.get("maxBytesPerTrigger"),
        max_delay_ms=values.get("maxTriggerDelay", Limits().max_delay_ms),
    )


def _is_of_spark(name: str) -> bool:
    return name.lower() in _OF_SPARK or name.lower().startswith(_OF_SPARK_PREFIX)


def _or(uses: Iterable[Use]) -> str:
    return " or a ".join(sorted(uses))


def _first(values: Mapping[str, Any], *names: str) -> Position | None:
    return next((values[name] for name in names if name in values), None)
