"""Columns: what a user's schema may ask for, and what the sink takes."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    CharType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    VarcharType,
)

from pyspark_rmq.access.spark_api import arrow_schema
from pyspark_rmq.schema.schema import (
    SOURCE_SCHEMA,
    SinkColumns,
    send_back_columns,
    sink_columns,
    source_columns,
)
from rmq_store.errors import UsageError

BODY = StructField("body", BinaryType())
TOPIC = StructField("topic", StringType())


def struct(*fields: StructField) -> StructType:
    return StructType(list(fields))


def test_the_source_has_the_columns_of_the_engine_with_exactly_its_types() -> None:
    from rmq_store import MESSAGE_SCHEMA

    assert arrow_schema(SOURCE_SCHEMA).equals(MESSAGE_SCHEMA)


def test_a_schema_selects_columns_in_its_own_order() -> None:
    assert source_columns(struct(BODY, TOPIC)) == ["body", "topic"]
    assert source_columns(SOURCE_SCHEMA) == SOURCE_SCHEMA.fieldNames()
    assert source_columns(struct(StructField("topic", StringType(), nullable=False))) == ["topic"]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("queueid", IntegerType()), r"'queueid' \(did you mean 'queueId'\?\); it has topic string"),
        (StructField("payload", BinaryType()), "no column 'payload'; it has"),
        (StructField("queueId", LongType()), "'queueId' of the source is int, not bigint; the source has topic string"),
        (StructField("body", StringType()), "'body' of the source is binary, not string"),
        (StructField("storeTimestamp", TimestampNTZType()), "is timestamp, not timestamp_ntz"),
        (StructField("tags", StringType(), nullable=False), "may be NULL"),
    ],
)
def test_a_wrong_column_is_refused_and_the_right_ones_are_listed(field: StructField, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        source_columns(struct(field))


def test_the_sink_takes_the_whole_source_and_ignores_what_the_store_assigns() -> None:
    columns = sink_columns(SOURCE_SCHEMA, topic_given=False, use_queue_id=False)
    assert columns == SinkColumns("body", ("topic", "tags", "keys", "properties", "flag", "bornTimestamp"))
    assert sink_columns(SOURCE_SCHEMA, topic_given=True, use_queue_id=True).used == (
        "queueId",
        "tags",
        "keys",
        "properties",
        "flag",
        "bornTimestamp",
    )


def test_a_body_may_be_called_value_and_be_text() -> None:
    rows = struct(StructField("value", StringType()), StructField("shardingKey", StringType()))
    assert sink_columns(rows, topic_given=True, use_queue_id=False) == SinkColumns("value", ("shardingKey",))


def test_an_untyped_null_column_is_as_good_as_none() -> None:
    rows = struct(BODY, TOPIC, StructField("tags", NullType()), StructField("delayLevel", NullType()))
    assert sink_columns(rows, topic_given=False, use_queue_id=False).used == ("topic",)


@pytest.mark.parametrize(
    ("fields", "given", "message"),
    [
        ([TOPIC], {}, "one column named body or value"),
        ([TOPIC, BODY, StructField("value", BinaryType())], {}, "only one"),
        ([BODY], {}, "column topic or the option topic"),
        ([BODY, TOPIC], {"use_queue_id": True}, "useQueueId needs a column queueId"),
        ([BODY, TOPIC, StructField("customer", StringType())], {}, "no column 'customer'; it takes topic, body, value"),
        ([BODY, TOPIC, StructField("sharding_key", StringType())], {}, "did you mean 'shardingKey'"),
        ([BODY, TOPIC, StructField("tag", StringType())], {}, "did you mean 'tags'"),
        ([BODY, StructField("topic", IntegerType())], {}, "'topic' of the sink must be string, not int"),
        ([TOPIC, StructField("body", IntegerType())], {}, "must be binary or string, not int"),
        (
            [TOPIC, BODY, StructField("properties", MapType(StringType(), IntegerType()))],
            {},
            "must be map<string,string>",
        ),
        ([TOPIC, BODY, StructField("flag", LongType())], {}, "must be int, not bigint"),
        ([TOPIC, BODY, StructField("deliverTimestamp", StringType())], {}, "must be timestamp, not string"),
        ([TOPIC, BODY, BODY], {}, "named twice: body"),
    ],
)
def test_rows_that_the_sink_cannot_take_are_refused(
    fields: list[StructField], given: dict[str, bool], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        sink_columns(StructType(fields), **({"topic_given": False, "use_queue_id": False} | given))


def test_map_values_may_be_declared_not_null() -> None:
    properties = StructField("properties", MapType(StringType(), StringType(), valueContainsNull=False))
    assert source_columns(struct(properties)) == ["properties"]
    assert "properties" in sink_columns(struct(BODY, TOPIC, properties), topic_given=False, use_queue_id=False).used


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(UsageError, match="without columns cannot be read; the source has topic string"):
        source_columns(StructType([]))


def test_a_row_is_a_new_message_unless_it_is_a_copy() -> None:
    from rmq_store import new_message

    given = struct(BODY, TOPIC, StructField("keys", StringType()))
    columns = sink_columns(given, topic_given=False, use_queue_id=False)
    dropped = columns.dropped_properties(keep_uniq_key=False)
    never = new_message.ADDED_ON_THE_WAY | new_message.REQUESTS | {"KEYS"}
    assert dropped == never | new_message.IDENTITIES
    assert columns.dropped_properties(keep_uniq_key=True) == never


def test_strings_with_a_collation_or_a_length_are_strings() -> None:
    collated, varchar, char = StringType("UNICODE_CI"), VarcharType(10), CharType(3)
    schema = struct(
        StructField("topic", collated),
        StructField("body", varchar),
        StructField("tags", collated),
        StructField("keys", char),
        StructField("properties", MapType(collated, varchar)),
    )
    assert sink_columns(schema, topic_given=False, use_queue_id=False).used == ("topic", "tags", "keys", "properties")
    assert source_columns(struct(StructField("tags", collated), StructField("keys", varchar))) == ["tags", "keys"]
    back = struct(StructField("commitLogOffset", LongType()), StructField("msgId", varchar))
    assert send_back_columns(back) == ("commitLogOffset", "msgId")
    with pytest.raises(UsageError, match=r"must be map<string,string>, not map<"):
        sink_columns(
            struct(TOPIC, BODY, StructField("properties", MapType(collated, IntegerType()))),
            topic_given=False,
            use_queue_id=False,
        )
