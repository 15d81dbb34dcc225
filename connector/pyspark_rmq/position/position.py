"""Positions: where a query starts, where it ends, and what a stream writes to its checkpoint. Control plane, no I/O.

Users write positions with the words of Spark's Kafka source: `earliest`, `latest`, `group`, or JSON per topic and
queue, `{"OrderTopic":{"0":23,"1":-2}}`, in which -2 stands for earliest and -1 for latest. Queues of a cluster have
their broker in front: `{"OrderTopic":{"broker-a:0":23}}`.

A stream's own position is this JSON object (Spark keeps it in the checkpoint and compares it as text, so keys are
sorted):

    version   1, 2 if there is `closed`, 3 if there is `since`, 4 if there is `blind`; greater ones are refused
    store     identity of the store, "" for a store that a broker wrote; "cluster:<names>" with the clusters, with
              commas, whose brokers have the topics
    topics    {topic: {queue: next queue offset}}: the first one that was not yet read
    after     {topic: {queue: commit-log offset of the message before the position}}: if another message is there now,
              the store was replaced or rolled back; queues whose message before is unknown are left out
    stored    {topic: {queue: storeTimestamp of that message, ms}}: tells it from another one at the same offset. Left
              out if retention took the message at that moment
    began     {topic: {queue: queue offset}}: where queues were started that this batch saw for the first time, or again
              after they were closed; and those that went back, because the store was rolled back
    closed    {topic: {queue: queue offset}}: queues that are not read, because readQueueNums was lowered or `assign`
              leaves them out of their topic, and where they go on when they are read again
    since     {topic: ms since the epoch}, "*" for all topics of a pattern; only of a cluster. The start of the query:
              in a queue that turns up later, because its broker was away, messages stored before are not this query's.
              Left out if the query began at the first messages
    query     the id of the query over all of its runs; only if it commits for a group of a cluster. Its runs are
              members of the group by names with this id, so that one waits for the end of another
    blind     1 if Spark had told no start (`pyspark_rmq.older_spark.untold_reader`), so perhaps the query was a new
              one. Its `began` has all queues, and counts only if the batch is the first one
    source    {"path" or "nameServer": ..., "group": ...}: the options that say what is read here, and for which group
              the query commits (`options.commit_options`); only of a Spark that asks no source for its progress

`began` is there because Spark does not write the initial position down: after a restart it asks for it again, and
"latest" is another place by then. The batch that was planned with the first answer must be repeated with it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

from pyspark_rmq.position.fingerprint import Fingerprint
from pyspark_rmq.position.queue_ids import INT32_MAX, QueueId, parse_queue_id

_CLUSTER = "cluster:"
_VERSION = 1
_VERSION_WITH_CLOSED = 2
_VERSION_WITH_SINCE = 3
_VERSION_WITH_BLIND = 4

ANY_TOPIC = "*"
"""In `since`: all topics that are not named. No topic has this name."""

EARLIEST = -2
LATEST = -1

_QUERY_ID = re.compile("[0-9a-f]{8}")

# A queue offset and a time in ms are signed 64-bit integers in RocketMQ.
_INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1

# The end of the year 9999, ms since the epoch. Today's time in microseconds is later than that.
_TIME_MAX_MS = 253_402_300_799_999


class Queue(NamedTuple):
    """One queue of one topic; equal to the plain tuple `(topic, queue_id)` that the store uses as a key."""

    topic: str
    queue_id: QueueId

    def __str__(self) -> str:
        return f"{self.topic}-{self.queue_id}"


QueueOffsets = Mapping[Queue, int]


@dataclass(frozen=True, slots=True)
class Position:
    """A position as the user wrote it.

    `kind` is one of: "earliest", "latest" or "group" (one word for all queues); "offsets" (`values` has a queue offset,
    -2 or -1 for each queue); "timestamps" (`values` has ms since the epoch for each queue); "timestamp" (`timestamp_ms`
    for all queues).
    """

    kind: Literal["earliest", "latest", "group", "offsets", "timestamp", "timestamps"]
    values: QueueOffsets = field(default_factory=dict)
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position of a stream: the fields of the JSON object in the docstring of this module. `next` is the JSON's
    `topics`; `after` combines the JSON's `after` and `stored`.
    """

    store: str
    next: QueueOffsets
    after: Mapping[Queue, Fingerprint] = field(default_factory=dict)
    began: QueueOffsets = field(default_factory=dict)
    closed: QueueOffsets = field(default_factory=dict)
    since: Mapping[str, int] = field(default_factory=dict)
    query: str = ""
    blind: bool = False
    source: Mapping[str, str] = field(default_factory=dict)

    def began_behind(self, before: StreamPosition | None) -> QueueOffsets:
        """Where queues began in the batch that ends here, instead of at `before`, the position at which Spark began it;
        None: it is the first batch of the query.
        """
        if not self.blind or before is None:
            return self.began
        return {queue: at for queue, at in self.began.items() if queue not in before.next.keys() | before.closed.keys()}

    def since_ms(self, topic: str) -> int | None:
        """Messages of queues that turn up later in the topic are read if they were stored at this time (ms since the
        epoch) or later; None: all of them.
        """
        return self.since.get(topic, self.since.get(ANY_TOPIC))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object. Empty fields are left out, except `topics`."""
        version = _VERSION_WITH_SINCE if self.since else _VERSION_WITH_CLOSED if self.closed else _VERSION
        version = _VERSION_WITH_BLIND if self.blind else version
        value: dict[str, Any] = {"version": version, "store": self.store, "topics": _nested(self.next)}
        more = {
            "after": {queue: fingerprint.commit_log_offset for queue, fingerprint in self.after.items()},
            "stored": {
                queue: fingerprint.store_timestamp_ms
                for queue, fingerprint in self.after.items()
                if fingerprint.store_timestamp_ms is not None
            },
            "began": self.began,
            "closed": self.closed,
        }
        value |= {name: _nested(values) for name, values in more.items() if values}
        value |= {"since": dict(sorted(self.since.items()))} if self.since else {}
        value |= {"query": self.query} if self.query else {}
        value |= {"blind": 1} if self.blind else {}
        return value | ({"source": dict(sorted(self.source.items()))} if self.source else {})

    @classmethod
    def from_json(cls, value: object) -> StreamPosition:
        """Read the JSON object back. Raises `UsageError` if this version cannot have written it."""
        where = "the stream's checkpoint"
        if not isinstance(value, dict) or "version" not in value:
            refuse(f"{where} holds a position that is not of this data source: {_shorten(value)}")
        blind = value["version"] == _VERSION_WITH_BLIND and value.get("blind") == 1
        has_since = (value["version"] == _VERSION_WITH_SINCE or blind) and bool(value.get("since"))
        if value["version"] not in (_VERSION, _VERSION_WITH_CLOSED) and not has_since and not blind:
            refuse(f"{where} was written by a newer version of this data source (position version {value['version']})")
        store, query = value.get("store"), value.get("query", "")
        if not isinstance(store, str):
            refuse(f"{where}: `store` is not a string: {_shorten(value)}")
        if not isinstance(query, str) or (query and not _QUERY_ID.fullmatch(query)):
            refuse(f"{where}: `query` is no id of a query: {_shorten(value)}")
        stored = _flat(value.get("stored", {}), where, _INT64_MIN, INT64_MAX)
        after = _flat(value.get("after", {}), where, 0, INT64_MAX)
        since = _times(value.get("since", {}), f"{where}: `since`")
        if since and not has_since:
            refuse(f"{where}: only version {_VERSION_WITH_SINCE} of a position has `since`: {_shorten(value)}")
        return cls(
            store,
            _flat(value.get("topics"), where, 0, INT64_MAX),
            {queue: Fingerprint(log_offset, stored.get(queue)) for queue, log_offset in after.items()},
            _flat(value.get("began", {}), where, 0, INT64_MAX),
            _flat(value.get("closed", {}), where, 0, INT64_MAX),
            since,
            query,
            blind,
            _texts(value.get("source", {}), f"{where}: `source`"),
        )


def new_query_id() -> str:
    """An id that no other query has: `StreamPosition.query`."""
    return secrets.token_hex(4)


def parse_offsets(text: str, option: str, words: tuple[str, ...]) -> Position:
    """Parse `startingOffsets` or `endingOffsets`: one of `words`, or JSON per topic and queue.

    -2 is refused if `words` lacks "earliest", -1 if it lacks "latest". Raises `UsageError` naming the option.
    """
    word = text.strip().lower()
    if word in words:
        return Position(word)  # type: ignore[arg-type]  # the words are a subset of the kinds
    if not word.startswith("{"):
        refuse(f'option {option}: {text!r} is neither {_or(words)} nor JSON such as {{"OrderTopic":{{"0":23,"1":-2}}}}')
    values = _flat(_load(text, option), f"option {option}", EARLIEST, INT64_MAX)
    for queue, offset in values.items():
        if (offset == EARLIEST and "earliest" not in words) or (offset == LATEST and "latest" not in words):
            refuse(f"option {option}: {offset} ({_NAMES[offset]}) for queue {queue} is not possible here")
    return Position("offsets", values)


def parse_timestamps(text: str, option: str) -> Position:
    """Parse JSON `{topic: {queue: ms since the epoch}}`. Raises `UsageError` naming the option."""
    values = _flat(_load(text, option), f"option {option}", 0, INT64_MAX)
    for queue, time_ms in values.items():
        check_time_ms(time_ms, f"option {option}: queue {queue}")
    return Position("timestamps", values)


def check_time_ms(value: int, where: str) -> int:
    """Return a time in ms since the epoch. A time that can only be in a smaller unit raises `UsageError` with a hint.
    The largest integer is accepted, because users write it for "no end".
    """
    if _TIME_MAX_MS < value < INT64_MAX:
        unit, factor = ("microseconds", 1000) if value // 1000 <= _TIME_MAX_MS else ("nanoseconds", 1_000_000)
        refuse(f"{where}: {value} is a time in {unit}; give it in milliseconds: {value // factor}")
    return value


def parse_assign(text: str, option: str = "assign") -> dict[str, tuple[QueueId, ...]]:
    """Parse JSON `{"OrderTopic":[0,1]}`, or `{"OrderTopic":["broker-a:0"]}`, into sorted queue ids per topic.

    Raises `UsageError` naming the option.
    """
    value = _load(text, option)
    if not isinstance(value, dict) or not value:
        refuse(f'option {option}: expected JSON such as {{"OrderTopic":[0,1]}}, got {_shorten(text)}')
    result: dict[str, tuple[QueueId, ...]] = {}
    for topic, queue_ids in value.items():
        if not isinstance(queue_ids, list) or not queue_ids:
            refuse(f"option {option}: topic {topic!r} needs a list of queue ids, got {_shorten(queue_ids)}")
        ids = [_assigned(queue_id, f"option {option}: a queue id of {topic!r}") for queue_id in queue_ids]
        if len(set(ids)) != len(ids):
            refuse(f"option {option}: topic {topic!r} names a queue twice")
        # Plain numbers first: which brokers they are at is not known yet.
        result[topic] = tuple(sorted(ids, key=lambda queue_id: (isinstance(queue_id, tuple), queue_id)))
    return result


def is_same_store(one: str, other: str) -> bool:
    """Whether two identities of positions may be of one store. Clusters are the same if they have a name in common:
    topics move from one cluster to another one behind the same name servers, and are at both in between.
    """
    if one.startswith(_CLUSTER) and other.startswith(_CLUSTER):
        names = set(one.removeprefix(_CLUSTER).split(","))
        return not names.isdisjoint(other.removeprefix(_CLUSTER).split(","))
    return not one or not other or one == other


def describe(ranges: list[tuple[str, QueueId, int, int]]) -> str:
    """Return ranges `(topic, queue_id, start, end)` as text: `OrderTopic-0 [12, 40), OrderTopic-1 [0, 7)`."""
    return ", ".join(f"{topic}-{queue_id} [{start}, {end})" for topic, queue_id, start, end in sorted(ranges))


def refuse(message: str) -> NoReturn:
    """Raise `rmq_store.UsageError`. The import is inside, because parsing options must not import the engine."""
    from rmq_store.errors import UsageError

    raise UsageError(message)


_NAMES = {EARLIEST: "earliest", LATEST: "latest"}


def _nested(values: QueueOffsets) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for queue in sorted(values):
        nested.setdefault(queue.topic, {})[str(queue.queue_id)] = values[queue]
    return nested


def _flat(value: object, where: str, lowest: int, highest: int) -> dict[Queue, int]:
    if not isinstance(value, dict):
        refuse(f'{where}: expected JSON such as {{"OrderTopic":{{"0":23}}}}, got {_shorten(value)}')
    flat: dict[Queue, int] = {}
    for topic, queues in value.items():
        if not isinstance(queues, dict):
            refuse(f"{where}: topic {topic!r} needs an object from queue id to number, got {_shorten(queues)}")
        for key, number in queues.items():
            queue_id = parse_queue_id(key)
            if queue_id is None:
                refuse(f"{where}: {_shorten(key)} is not a queue id of topic {_shorten(topic)}")
            flat[Queue(topic, queue_id)] = _integer(number, f"{where}: queue {topic}-{key}", lowest, highest)
    return flat


def _times(value: object, where: str) -> dict[str, int]:
    if not isinstance(value, dict):
        refuse(f"{where} is no object from topic to time: {_shorten(value)}")
    return {topic: _integer(time_ms, f"{where}: topic {topic}", 0, INT64_MAX) for topic, time_ms in value.items()}


def _texts(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        refuse(f"{where} is no object of strings: {_shorten(value)}")
    return value


def _assigned(value: object, where: str) -> QueueId:
    if not isinstance(value, str):
        return _integer(value, where, 0, INT32_MAX)
    queue_id = parse_queue_id(value)
    if not isinstance(queue_id, tuple):
        refuse(f"{where}: {_shorten(value)} is neither an integer nor a broker and a number such as \"broker-a:0\"")
    return queue_id


def _integer(value: object, where: str, lowest: int, highest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        refuse(f"{where}: {_shorten(value)} is not an integer of at least {lowest}")
    if value > highest:
        refuse(f"{where}: {_shorten(value)} is more than {highest}, the largest value")
    return value


def _load(text: str, option: str) -> object:
    try:
        # Cut numbers are still far beyond every limit; int() refuses thousands of digits with an error of its own.
        return json.loads(text, object_pairs_hook=_unique_keys(option), parse_int=lambda digits: int(digits[:40]))
    except json.JSONDecodeError as error:
        refuse(f"option {option} is not JSON: {error} in {_shorten(text)}")
    except RecursionError:
        refuse(f"option {option} is nested too deeply")


def _unique_keys(option: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            refuse(f"option {option} names a topic or queue twice: {', '.join(name for name, _ in pairs)}")
        return value

    return build


def _or(words: tuple[str, ...]) -> str:
    return " or ".join(repr(word) for word in words) if words else "a known word"


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
