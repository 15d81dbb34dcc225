"""Java's maps with integer keys are no JSON. What a broker wrote must be read, kept and written back as it was."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.format.tables import config_json
from rmq_store.format.tables.config_json import ConfigJsonError, Shadowed, Verbatim, dumps, loads, remove
from rmq_store.format.tables.fastjson import DEPTH_MAX

FILE_OF_4X = """{
	"dataVersion":{
		"counter":0,
		"stateVersion":0,
		"timestamp":1795195694995
	},
	"groupTopicMap":{
		"gg":["tt"]
	},
	"offsetTable":{
		"topicTest@rocket_test_consumer_group":{0:33,1:32,2:32,3:33
		},
		"%RETRY%rocket_test_consumer_group@rocket_test_consumer_group":{0:6
		}
	}
}"""

int64 = st.integers(-(2**63), 2**63 - 1)
scalars = st.none() | st.booleans() | int64 | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | int64, inner, max_size=3)
    ),
    max_leaves=12,
)  # fmt: skip
documents = st.dictionaries(st.text(max_size=5) | int64, values, max_size=4)


def config_files(store: Path) -> list[Path]:
    files = [file for file in (store / "config").iterdir() if file.name != "timercheck" and file.stat().st_size]
    assert len(files) > 8
    return files


@pytest.mark.statement("G05")
def test_every_file_of_a_broker_comes_back_byte_for_byte(golden: Path, golden_crash: Path) -> None:
    for store in (golden / "store", golden_crash / "store", golden_crash / "store-torn"):
        for file in config_files(store):
            raw = file.read_bytes()
            style = "compact" if "etrics" in file.name else "5.x"
            assert dumps(loads(raw), style).encode() == raw, file  # type: ignore[arg-type]


def test_file_of_a_4_x_broker_comes_back_byte_for_byte() -> None:
    loaded = loads(FILE_OF_4X)
    assert loaded["offsetTable"]["topicTest@rocket_test_consumer_group"] == {0: 33, 1: 32, 2: 32, 3: 33}
    assert dumps(loaded, "4.x") == FILE_OF_4X


def test_integer_keys_may_be_quoted_but_are_told_apart() -> None:
    assert loads('{"a":{0:1,"1":2, -3 : 4}}') == {"a": {0: 1, "1": 2, -3: 4}}


def test_text_that_looks_like_a_key_inside_a_string_stays_text() -> None:
    text = '{"a":"{0:1,2:3}","b{1:":",5:","c":"\\"},1:{"}'
    assert loads(text) == {"a": "{0:1,2:3}", "b{1:": ",5:", "c": '"},1:{'}
    assert dumps(loads(text), "compact") == text


@given(documents, st.sampled_from(["4.x", "5.x", "compact"]))
def test_any_document_comes_back_in_any_style(document: dict[object, object], style: str) -> None:
    text = dumps(document, style)  # type: ignore[arg-type]
    text.encode()
    loaded = loads(text)
    assert loaded == document
    assert dumps(loaded, style) == text  # type: ignore[arg-type]


@given(st.dictionaries(st.text(max_size=5), values.filter(lambda value: "{" not in repr(value)), max_size=4))
def test_documents_without_integer_keys_are_plain_json(document: dict[str, object]) -> None:
    assert json.loads(dumps(document)) == document
    assert loads(json.dumps(document)) == document


@given(documents, st.sampled_from(["4.x", "5.x", "compact"]))
def test_the_fast_way_gives_what_the_slow_one_gives(document: dict[object, object], style: str) -> None:
    text = dumps(document, style)  # type: ignore[arg-type]
    fast = config_json._plain(text)
    assert fast is None or repr(fast) == repr(config_json._Reader(text).document())


@given(documents, st.sampled_from(["4.x", "5.x"]))
def test_the_fast_way_writes_what_the_slow_one_writes(document: dict[object, object], style: str) -> None:
    fast = dumps(document, style)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as slow:
        slow.setattr(config_json, "_flat", lambda value, inner: "")
        assert dumps(document, style) == fast  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["\ud800", 2**63, 1.5, (1,), {1: 2}, {"b": 1}])
def test_what_the_fast_way_cannot_write_is_left_to_the_slow_one(value: object) -> None:
    assert config_json._flat({"a": value}, "\n") == ""
    assert config_json._flat({"a": [], "b": {}, "c": "ü", "d": None}, "\n") == '{"a":[],\n"b":{},\n"c":"ü",\n"d":null}'


def test_a_table_without_integer_keys_is_read_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is read and written for every topic that is made: 2,000 topics took minutes."""
    monkeypatch.setattr(config_json, "_Reader", None)
    assert loads('{"topicConfigTable":{"T":{"perm":6,"order":false}}}')["topicConfigTable"]["T"]["perm"] == 6
    with pytest.raises(TypeError):
        loads('{"offsetTable":{"T@g":{0:1}}}')


NO_DOCUMENTS = [
    *("", " ", "null", "[]", "1", '"a"', "{", "}", '{"a"}', '{"a":}', '{"a":1,}', "{,}", '{"a":1 "b":2}', '{"a":1}}'),
    *('{"a":1}x', '{"a":[1,]}', '{"a":[1 2]}', '{"a":[,]}', "{1:2", '{"a":{1}}', '{"a":"b"c}', '{"a":truex}'),
    *("{'a':1}", "{a:1}", "{01:1}", "{1.0:1}", "{true:1}", "{1e3:1}"),
    *('{"a":01}', '{"a":+1}', '{"a":1.}', '{"a":.5}', '{"a":0x1}', '{"a":١}', '{"a":1_0}'),
    *('{"a":NaN}', '{"a":Infinity}', '{"a":-Infinity}'),
    *('{"a":"\n"}', '{"a":"\\x"}', '{"a":"\\u12"}', '{"a":"', "\ufeff{}"),
]


@pytest.mark.parametrize("text", NO_DOCUMENTS)
def test_the_fast_way_takes_nothing_that_is_refused(text: str) -> None:
    assert config_json._plain(text) is None


@pytest.mark.parametrize("text", NO_DOCUMENTS)
def test_what_no_broker_writes_is_refused(text: str) -> None:
    with pytest.raises(ConfigJsonError, match="at character"):
        loads(text)


def test_bytes_that_are_no_utf8_are_refused() -> None:
    with pytest.raises(ConfigJsonError, match="at byte 2"):
        loads(b'{"\xff":1}')


def test_hostile_text_is_refused_quickly_and_without_recursion_errors() -> None:
    """Depth, long integers and strings without an end are where JSON readers take quadratic time or all the stack."""
    for text in (
        '{"a":' * 10**5,
        '{"a":' + "[" * 10**5,
        '{"a":' + "9" * 10**6,
        '{"' + "\\\\" * 10**6,
        '{"' + "a" * 10**6,
    ):
        with pytest.raises(ConfigJsonError):
            loads(text)


def test_depth_has_the_same_limit_in_both_directions() -> None:
    nested: object = 1
    for _ in range(DEPTH_MAX - 1):
        nested = [nested]
    fits = {"a": nested}
    assert loads(dumps(fits)) == loads(dumps(fits, "compact")) == fits
    with pytest.raises(ConfigJsonError, match="deeper"):
        loads('{"a":' + dumps(fits, "compact") + "}")
    too_deep: object = {"b": 1}
    for _ in range(DEPTH_MAX):
        too_deep = {"a": too_deep}
    for style in ("4.x", "5.x", "compact"):
        for document in ({"a": [nested]}, too_deep):
            with pytest.raises(ConfigJsonError, match="deeper"):
                dumps(document, style)  # type: ignore[arg-type]


def test_size_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[loads.__module__], "SIZE_MAX", 10)
    assert loads('{"a":1234}') == {"a": 1234}
    with pytest.raises(ConfigJsonError, match="more than 10"):
        loads('{"a":12345}')


def test_duplicate_keys_are_read_as_java_reads_them() -> None:
    for text in ('{"a":1,"b":3,"a":2}', '{"a":1,"b":{0:3},"a":2}'):
        loaded = loads(text)
        assert loaded["a"] == 2
        assert [key for key in loaded if not isinstance(key, Shadowed)] == ["b", "a"]


ODD_MEMBERS = [
    '"a":9223372036854775808', '"a":-9223372036854775809', '"a":' + "9" * 10**5, '"a":1e999', '"a":1e5', '"a":1.50',
    '"a":-0', '"a":0.1e0', '"a":1.' + "0" * 1000, "9223372036854775808:1", "-0:1", '"a":1,"a":2', '"a":{"b":1,"b":2}',
    '"a":{0:1,0:2,"0":3}', '"a":"\\u0041\\/"', '"\\u0041":1', '"a":"\\ud800"', '"\\u0061":1,"a":2',
]  # fmt: skip


@pytest.mark.parametrize("member", ODD_MEMBERS, ids=lambda member: member[:30])
@pytest.mark.parametrize("other", ['"other":1', '"other":{0:1}'], ids=["fast", "slow"])
def test_what_has_no_value_of_ours_comes_back_byte_for_byte_and_costs_no_other(member: str, other: str) -> None:
    for text in ("{" + f"{member},{other}" + "}", "{" + f"{other},{member}" + "}"):
        loaded = loads(text)
        assert loaded["other"] in (1, {0: 1})
        assert dumps(loaded, "compact") == text


def test_a_number_that_has_no_value_is_no_number() -> None:
    assert loads('{"a":9223372036854775808}') == {"a": Verbatim("9223372036854775808")}
    assert loads('{"a":9223372036854775807,"b":1.5}') == {"a": 2**63 - 1, "b": 1.5}


def test_with_a_member_go_those_that_it_shadows() -> None:
    loaded = loads('{"a":1,"b":3,"a":2,"a":4}')
    assert remove(loaded, "a")
    assert loaded == {"b": 3}
    assert not remove(loaded, "a")


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, float("nan"), float("inf"), b"x", {1, 2}, {True: 1}, {1.5: 1}, {None: 1}]
)
def test_value_that_a_file_cannot_hold_is_refused(value: object) -> None:
    for style in ("4.x", "5.x", "compact"):
        with pytest.raises(ConfigJsonError, match="cannot hold"):
            dumps({"a": value}, style)  # type: ignore[arg-type]


def test_empty_containers_are_closed_at_once() -> None:
    assert dumps({"a": {}, "b": []}) == '{\n\t"a":{},\n\t"b":[]\n}'
    assert dumps({}) == "{}"


def test_text_is_not_escaped_more_than_needed() -> None:
    assert dumps({"a": '中/"\t'}, "compact") == '{"a":"中/\\"\\t"}'
