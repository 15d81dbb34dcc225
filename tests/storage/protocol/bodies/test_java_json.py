"""fastjson's JSON: keys that are integers or objects, and text that is none."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.client import RemotingCommandError
from rmq_store.format.tables.fastjson import DEPTH_MAX
from rmq_store.protocol.bodies import java_json
from rmq_store.protocol.bodies.java_json import ObjectKey, dumps, loads

SCALARS = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)  # fmt: skip
KEYS = (
    st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text(max_size=5)
    | st.lists(st.tuples(st.text(max_size=3), st.integers(0, 9) | st.text(max_size=3)), unique_by=lambda pair: pair[0],
               max_size=3).map(ObjectKey)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return type(one) is type(other) and bool(one == other)


@given(VALUES)
def test_what_is_written_is_read(value: Any) -> None:
    assert same(loads(dumps(value)), value)
    assert same(loads(dumps(value).encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")), value)


@given(VALUES)
def test_the_fast_ways_read_what_the_reader_reads(value: Any) -> None:
    for text in (dumps(value), dumps(value, quoted_keys=True)):
        assert same(loads(text), java_json._Reader(text).document())


QUEUE = '{"brokerName":"broker-a","queueId":0,"topic":"Orders"}'
QUEUE_KEY = ObjectKey((("brokerName", "broker-a"), ("queueId", 0), ("topic", "Orders")))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"10.0.0.3:10911",1:"b"}', {0: "10.0.0.3:10911", 1: "b"}),
        ('{"0":"a"}', {"0": "a"}),
        ('{-1:{2:[3]}}', {-1: {2: [3]}}),
        (f'{{"offsetTable":{{{QUEUE}:{{"maxOffset":7}}}}}}', {"offsetTable": {QUEUE_KEY: {"maxOffset": 7}}}),
        (f" {{ {QUEUE} : 1 , {QUEUE.replace('0', '1')}:2 }} ",
         {QUEUE_KEY: 1, ObjectKey((("brokerName", "broker-a"), ("queueId", 1), ("topic", "Orders"))): 2}),
        ('{{"a":"}:{"}:1}', {ObjectKey((("a", "}:{"),)): 1}),
        ('{{"a":"\\"}:"}:1,"b":"\\u0001"}', {ObjectKey((("a", '"}:'),)): 1, "b": "\x01"}),
        ('{{"a":{"b":[1,2]}}:1}', {ObjectKey((("a", ObjectKey((("b", (1, 2)),))),)): 1}),
        ("{{}:1}", {ObjectKey(): 1}),
        ('{true:1,null:2}', {"true": 1, "null": 2}),
        ('{"a":1,"a":2}', {"a": 2}),
        ("1.0E10", 1e10),
        ("9223372036854775807", (1 << 63) - 1),
    ],
)  # fmt: skip
def test_keys_of_java(text: str, value: Any) -> None:
    assert same(loads(text), value)
    assert same(loads(text.encode()), value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a":"\xff"}', "not UTF-8 at byte 6"),
        ("", "at character 0: a value is expected"),
        ("{", "at character 1: a key is expected"),
        ("{1.5:1}", "a key is expected: a text, an integer or an object"),
        ("{[1]:1}", "a key is expected"),
        ("{1 2}", "a colon is expected"),
        ("{1:2 3}", "a comma or the end is expected"),
        ("[1 2]", "a comma or the end is expected"),
        ("[1,]", "a value is expected"),
        ("{1:2,}", "a key is expected"),
        ("{}{}", "at character 2: text after the end of the value"),
        ("{1:2}]", "text after the end"),
        ("NaN", "not a token of JSON"),
        ("{1:1e999}", "a number beyond double"),
        ("{1:01}", "not a token"),
        ('{1:"a}', "not a token"),
        ('{1:"\\x"}', "not a token"),
        ('{1:"\\u12"}', "a broken escape in a string"),
        ('{1:"\x01"}', "not a token"),
        ("{1:" + "9" * 5000 + "}", "at character 3: Exceeds the limit"),
        ("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1), "nested deeper than 64"),
        ("{1:" * (DEPTH_MAX + 1), "nested deeper than 64"),
        ("{" * 100_000, "nested deeper than 64"),
        ('{"]":' * 100_000, "nested deeper than 64"),
        (b" " * (java_json.SIZE_MAX + 1), "JSON body: 16777217 bytes, more than 16777216"),
    ],
)
def test_what_is_no_such_json_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(RemotingCommandError, match=message):
        loads(text)


def test_the_deepest_value_is_read_and_written() -> None:
    text = "[" * DEPTH_MAX + "]" * DEPTH_MAX
    assert dumps(loads(text)) == text
    assert dumps(loads("{1:" * DEPTH_MAX + "2" + "}" * DEPTH_MAX)) == "{1:" * DEPTH_MAX + "2" + "}" * DEPTH_MAX


def test_text_is_written_as_fastjson_1_2_83_writes_it() -> None:
    """The expected text was printed by JSON.toJSONString."""
    value = {QUEUE_KEY: 1, 3: "x", 4: 1.5, "k": 1e10, "z": 0.0, "y": 1e-5, "f": [True, False]}
    expected = (
        '{"brokerName":"broker-a","queueId":0,"topic":"Orders"}:1,3:"x",4:1.5,"k":1.0E10,"z":0.0,"y":1.0E-5,'
        '"f":[true,false]'
    )
    assert dumps(value) == f"{{{expected}}}"
    assert dumps({3: {0: None}}, quoted_keys=True) == '{"3":{"0":null}}'
    assert dumps('\0\b\t\n\v\f\r\x1f"\\/\x7f\x9f\u2028\u2029€') == (
        r'"\u0000\b\t\n\u000B\f\r\u001F\"\\/\u007F\u009F\u2028\u2029€"'
    )


@pytest.mark.parametrize("number", [0.0, -0.0, 1e-3, 9999999.0, 1e7, 123456789.125, -2.5e300, 5e-324, 9.99e-4])
def test_a_double_is_written_as_java_writes_it(number: float) -> None:
    text = dumps(number)
    assert same(loads(text), number)
    assert ("E" in text) == (number != 0 and not 1e-3 <= abs(number) < 1e7)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1 << 63, {1.5: 1}, {None: 1}, {True: 1}, b"x", {"a": {1, 2}}])
def test_what_java_has_no_value_for_is_not_written(value: object) -> None:
    with pytest.raises(RemotingCommandError, match="it cannot hold a"):
        dumps(value)
    deep: Any = 1
    for _ in range(DEPTH_MAX + 1):
        deep = [deep]
    with pytest.raises(RemotingCommandError, match="nested deeper than 64"):
        dumps(deep)


def test_standard_json_is_read_as_the_standard_reader_reads_it() -> None:
    text = json.dumps({"a": [1, 2.5, None, True, "ü\n"], "b": {"c": {}}})
    assert loads(text) == json.loads(text)
