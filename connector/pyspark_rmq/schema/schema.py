"""The columns of the source, and what the sink takes. Control plane; Spark types only, no Arrow.

column             type                   in the source           in the sink
topic              STRING                 always                  used, unless option topic is given
queueId            INT                    always                  used with useQueueId=true
queueOffset        BIGINT                 always                  ignored: assigned by the store
msgId              STRING                 UNIQ_KEY, else by place ignored (see keepUniqKey)
body               BINARY                 always                  used; BINARY or STRING
tags               STRING                 NULL if none            used
keys               STRING                 NULL if none            used; separated by spaces
properties         MAP<STRING,STRING>     all stored ones         used, without those of the broker, and why it failed
reconsumeTimes     INT                    always                  ignored
flag               INT                    always                  used
sysFlag            INT                    always                  ignored
bornTimestamp      TIMESTAMP              always                  used
bornHost           STRING                 always                  ignored
storeTimestamp     TIMESTAMP              always                  ignored
storeHost          STRING                 always                  ignored
commitLogOffset    BIGINT                 always                  ignored
brokerName         STRING                 always                  ignored
javaMsgId          STRING                 only in a user's schema ignored
originTopic        STRING                 where the message was   ignored
originQueueId      INT                    first stored; NULL if   ignored
originQueueOffset  BIGINT                 nobody kept it          ignored
originMsgId        STRING                 offset id of that place ignored
storeTopic         STRING                 whose queue holds it    ignored
errorClass         STRING                 why it failed last,     with sendBack
errorMessage       STRING                 and when first and      with sendBack
stackHash          STRING                 last; NULL if it never  with sendBack
firstFailureTime   TIMESTAMP              failed, or nobody       ignored: the first one stays
lastFailureTime    TIMESTAMP              kept it                 with sendBack
redriven           BOOLEAN                moved on already; NULL  ignored
                                          if it is no dead letter
replays            INT                    how often it was moved  ignored
value              -                      -                       another name for body
shardingKey        STRING                 -                       used: same key, same queue
delayLevel         INT                    -                       used: waits for this level's delay
deliverTimestamp   TIMESTAMP              -                       used: waits until then

Without a schema of the user's, the origin columns (originTopic to storeTopic) are there with the options `group` and
`dlq`, the reasons (errorClass to lastFailureTime), redriven and replays with `dlq`. A user's schema may name all of
them at any time. How they are made: `origin_columns.py`. With the option sendBack the sink takes other columns:
`send_back_columns`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from pyspark_rmq.position.position import refuse
from rmq_store.errors import nearest

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT_MAP = MapType(StringType(), StringType(), valueContainsNull=True)

SOURCE_SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("queueId", IntegerType()),
        StructField("queueOffset", LongType()),
        StructField("msgId", StringType()),
        StructField("body", BinaryType()),
        StructField("tags", StringType()),
        StructField("keys", StringType()),
        StructField("properties", _TEXT_MAP),
        StructField("reconsumeTimes", IntegerType()),
        StructField("flag", IntegerType()),
        StructField("sysFlag", IntegerType()),
        StructField("bornTimestamp", TimestampType()),
        StructField("bornHost", StringType()),
        StructField("storeTimestamp", TimestampType()),
        StructField("storeHost", StringType()),
        StructField("commitLogOffset", LongType()),
        StructField("brokerName", StringType()),
    ]
)

# The value of getMsgId() of the Java client; there only if a user's schema names it.
JAVA_ID_FIELD = StructField("javaMsgId", StringType())

ORIGIN_FIELDS = (
    StructField("originTopic", StringType()),
    StructField("originQueueId", IntegerType()),
    StructField("originQueueOffset", LongType()),
    StructField("originMsgId", StringType()),
    StructField("storeTopic", StringType()),
)

REASON_FIELDS = (
    StructField("errorClass", StringType()),
    StructField("errorMessage", StringType()),
    StructField("stackHash", StringType()),
    StructField("firstFailureTime", TimestampType()),
    StructField("lastFailureTime", TimestampType()),
)

REDRIVE_FIELDS = (
    StructField("redriven", BooleanType()),
    StructField("replays", IntegerType()),
)

_WITH_DLQ = StructType([*SOURCE_SCHEMA, *ORIGIN_FIELDS, *REASON_FIELDS, *REDRIVE_FIELDS])

# All columns that a read can give.
READABLE = StructType([*_WITH_DLQ, JAVA_ID_FIELD])

_NULLABLE = frozenset(
    {"tags", "keys", "originQueueId", "originQueueOffset", "redriven", *(field.name for field in REASON_FIELDS)}
)

# The columns that the sink uses with the option sendBack; the required ones come first.
_SEND_BACK_FIELDS = (
    StructField("commitLogOffset", LongType(), nullable=False),
    StructField("msgId", StringType(), nullable=False),
    StructField("delayLevel", IntegerType()),
    StructField("errorClass", StringType()),
    StructField("errorMessage", StringType()),
    StructField("stackHash", StringType()),
    StructField("lastFailureTime", TimestampType()),
)

# A commit-log offset is one of a broker.
_OF_CLUSTER = (StructField("brokerName", StringType(), nullable=False),)

# The columns that the sink uses; the first type of each is the one that errors name.
_SINK_TYPES: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "body": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "tags": (StringType(),),
    "keys": (StringType(),),
    "properties": (_TEXT_MAP,),
    "flag": (IntegerType(),),
    "bornTimestamp": (TimestampType(),),
    "shardingKey": (StringType(),),
    "queueId": (IntegerType(),),
    "delayLevel": (IntegerType(),),
    "deliverTimestamp": (TimestampType(),),
}

# A column of the sink and the property in which its value is stored; the column wins, also with NULL.
_COLUMN_PROPERTIES = {"tags": "TAGS", "keys": "KEYS", "shardingKey": "__SHARDINGKEY"}


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of the input that the sink uses: `body` is the name of the body column, `used` has all other names.
    """

    body: str
    used: tuple[str, ...]

    def dropped_properties(self, *, keep_uniq_key: bool) -> frozenset[str]:
        """The properties of the input that are not passed on. Rows that were read carry what belongs to their messages,
        and requests that brokers have carried out; for new requests the sink has columns.
        """
        from rmq_store import new_message

        of_columns = {name for column, name in _COLUMN_PROPERTIES.items() if column in self.used}
        identities = frozenset() if keep_uniq_key else new_message.IDENTITIES
        return new_message.ADDED_ON_THE_WAY | new_message.REQUESTS | identities | of_columns

    def input_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of Spark's rows that the engine takes, under its names."""
        import pyarrow as pa

        arrays = [rows.column(self.body), *(rows.column(name) for name in self.used)]
        return pa.RecordBatch.from_arrays(arrays, names=["body", *self.used])


def source_schema(option_names: Iterable[str]) -> StructType:
    """Return the columns of a read with these options, whose names are compared without case."""
    given = {name.lower() for name in option_names}
    if "dlq" in given:
        return _WITH_DLQ
    return StructType([*SOURCE_SCHEMA, *ORIGIN_FIELDS]) if "group" in given else SOURCE_SCHEMA


def source_columns(schema: StructType) -> list[str]:
    """Return the names of a user's schema, in its order, after checking it.

    Raises:
        UsageError: no column at all, a name that the source does not have, a wrong type, a name twice, or NOT NULL on
            a column that may be NULL. The message lists the right ones.
    """
    if not schema.fields:
        refuse(f"a schema without columns cannot be read; the source has {_listed()}")
    right = {field.name: field for field in READABLE}
    for field in schema:
        if field.name not in right:
            refuse(f"the source has no column {field.name!r}{_nearest(field.name, right)}; it has {_listed()}")
        expected = right[field.name].dataType
        if _plain(field.dataType) != _plain(expected):
            refuse(
                f"column {field.name!r} of the source is {expected.simpleString()}, "
                f"not {field.dataType.simpleString()}; the source has {_listed()}"
            )
        if not field.nullable and field.name in _NULLABLE:
            refuse(f"column {field.name!r} of the source may be NULL and cannot be read as NOT NULL")
    names = schema.fieldNames()
    _refuse_twice(names)
    return names


def sink_columns(schema: StructType, *, topic_given: bool, use_queue_id: bool) -> SinkColumns:
    """Check the schema of the rows to be written, and return the columns that the sink uses.

    Raises:
        UsageError: no body, two bodies, no topic although option topic is not given (`topic_given`), no queueId
            although `use_queue_id` asks for it, an unknown column, a wrong type, or a name twice.
    """
    names = schema.fieldNames()
    _refuse_twice(names)
    known = dict.fromkeys([*_SINK_TYPES, *READABLE.fieldNames()])
    # `lit(None)` without a type: as if the column were not there.
    untyped = {field.name for field in schema if field.dataType.typeName() == "void"} - {"topic", "body", "value"}
    for field in schema:
        if field.name not in known:
            refuse(f"the sink has no column {field.name!r}{_nearest(field.name, known)}; it takes {', '.join(known)}")
        types = _SINK_TYPES.get(field.name)
        if types is None or field.name in untyped:
            continue
        if _plain(field.dataType) not in [_plain(expected) for expected in types]:
            expected_text = " or ".join(expected.simpleString() for expected in types)
            refuse(f"column {field.name!r} of the sink must be {expected_text}, not {field.dataType.simpleString()}")
    bodies = [name for name in ("body", "value") if name in names]
    if len(bodies) != 1:
        refuse(f"the sink needs one column named body or value, and only one; given: {', '.join(names)}")
    if "topic" not in names and not topic_given:
        refuse("the sink needs a column topic or the option topic")
    if "queueId" not in set(names) - untyped and use_queue_id:
        refuse("option useQueueId needs a column queueId")
    skipped = untyped | {bodies[0]} | ({"topic"} if topic_given else set()) | (set() if use_queue_id else {"queueId"})
    return SinkColumns(bodies[0], tuple(name for name in names if name in _SINK_TYPES and name not in skipped))


def send_back_columns(schema: StructType, *, of_cluster: bool = False) -> tuple[str, ...]:
    """Check the schema of rows that are to be sent back, and return the columns that the sink uses, in a fixed order.
    Rows `of_cluster` also name the broker that holds the message.

    Raises:
        UsageError: a column that names the message is missing, an unknown column, a wrong type, or a name twice.
    """
    names = schema.fieldNames()
    _refuse_twice(names)
    fields = (*_OF_CLUSTER, *_SEND_BACK_FIELDS) if of_cluster else _SEND_BACK_FIELDS
    known = dict.fromkeys([*(field.name for field in fields), *_SINK_TYPES, *READABLE.fieldNames()])
    given = {field.name: field.dataType for field in schema if field.dataType.typeName() != "void"}
    for name in names:
        if name not in known:
            refuse(
                f"the sink has no column {name!r}{_nearest(name, known)}; with sendBack it takes "
                f"{', '.join(field.name for field in fields)}, and ignores the other columns of the source"
            )
    used = []
    for field in fields:
        if field.name in given:
            if _plain(given[field.name]) != _plain(field.dataType):
                refuse(
                    f"column {field.name!r} of the sink must be {field.dataType.simpleString()} with sendBack, "
                    f"not {given[field.name].simpleString()}"
                )
            used.append(field.name)
        elif not field.nullable:
            refuse(
                f"sendBack needs the column {field.name} as it was read: it says which message failed; "
                f"given: {', '.join(names)}"
            )
    return tuple(used)


def _plain(data_type: DataType) -> str:
    """The name of a type without the parts that do not change its values in Arrow: nullability of map values, collation
    of a string, length of CHAR and VARCHAR.
    """
    if isinstance(data_type, MapType):
        return f"map<{_plain(data_type.keyType)},{_plain(data_type.valueType)}>"
    if isinstance(data_type, (StringType, CharType, VarcharType)):
        return "string"
    return data_type.simpleString()


def _listed() -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in READABLE)


def _nearest(name: str, names: Iterable[str]) -> str:
    meant = nearest(name, names)
    return "" if meant is None else f" (did you mean {meant!r}?)"


def _refuse_twice(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        refuse(f"column named twice: {', '.join(twice)}")
