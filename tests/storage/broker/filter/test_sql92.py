"""SQL92 selectors against what RocketMQ's own parser answered.

sql92_cases.jsonl: 800 random selectors and the answers of rocketmq-filter 5.5.0 (SelectorParser, evaluate): TRUE,
FALSE, NULL, THROWS while evaluating, ERROR while parsing. Cases in which only our refusal of trailing text differs are
left out.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.broker.filter.sql92 import LENGTH_MAX, compile_selector
from rmq_store.broker.filter.sql92_expression import DEPTH_MAX
from rmq_store.errors import UsageError

CASES = [json.loads(line) for line in Path(__file__).with_name("sql92_cases.jsonl").read_text("utf-8").splitlines()]


def test_every_selector_gets_the_answer_of_rocketmq() -> None:
    wrong = []
    for case in CASES:
        try:
            answer = "TRUE" if compile_selector(case["selector"]).matches(case["properties"]) else "other"
        except UsageError:
            answer = "ERROR"
        expected = case["java"] if case["java"] in ("TRUE", "ERROR") else "other"
        if answer != expected:
            wrong.append((case, answer))
    assert not wrong
    assert {case["java"] for case in CASES} == {"TRUE", "FALSE", "NULL", "THROWS", "ERROR"}


def test_negation_tells_false_from_null_as_rocketmq_does() -> None:
    # NOT of FALSE matches, NOT of NULL and of what throws does not: three-valued logic, over the same cases.
    seen = 0
    for case in CASES:
        if case["java"] in ("TRUE", "FALSE", "NULL", "THROWS"):
            answer = compile_selector(f"NOT {case['selector']}").matches(case["properties"])
            assert answer is (case["java"] == "FALSE"), case
            seen += 1
    assert seen > 600


@pytest.mark.parametrize(
    ("selector", "properties", "matches"),
    [
        # ExpressionTest.java, in short
        ("a=3 and b<>4 And c>5 AND d<=4", {"a": "3", "b": "5", "c": "6", "d": "1"}, True),
        ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "3", "d": "10"}, False),
        ("a is null OR a='hello'", {}, True),
        ("TAGS is not null and TAGS='''''tag'''''", {"TAGS": "''tag''"}, True),
        ("a between 2 and 10", {"a": "10"}, True),
        ("a not between 2 and 10", {"a": "2"}, False),
        ("a > 3.1E10", {"a": "31415000000.0"}, True),
        ("a=TRUE OR b=FALSE", {"a": "false", "b": "true"}, False),
        ("value not contains 'x'", {}, False),
        ("value startswith ''", {"value": "axb"}, False),
        # what the module's docstring warns of
        ("3 <> a", {}, True),
        ("a <> 3", {}, False),
        ("a = b", {}, True),
        ("NOT a = 3", {"a": "4"}, False),
        ("NOT (a = 3)", {"a": "4"}, True),
        ("flag", {"flag": "true"}, False),
        ("flag = TRUE", {"flag": "True"}, True),
        ("a = 3 OR b = 1", {"a": "three", "b": "1"}, False),
        ("b = 1 OR a = 3", {"a": "three", "b": "1"}, True),
        # numbers: an Integer, a Long and a Double take different texts
        ("a = 3", {"a": "3.0"}, False),
        ("a = 3.0", {"a": " 3 "}, True),
        ("a > 5", {"a": "2147483648"}, False),
        ("a > 2147483648", {"a": "2147483649"}, True),
        ("a > 5", {"a": "9" * 20_000}, False),
        ("a = 0L", {"a": "0"}, True),
        ("a > b", {"a": "10", "b": "9"}, True),
        ("A = 1", {"a": "1"}, False),
        ("a = 1 /* one */ AND -- two\nb = 2", {"a": "1", "b": "2"}, True),
        ("KEYS CONTAINS 'k1'", {"KEYS": "k0 k1"}, True),
    ],
)
def test_selectors(selector: str, properties: dict[str, str], matches: bool) -> None:
    assert compile_selector(selector).matches(properties) is matches


@pytest.mark.parametrize(
    ("selector", "position", "reason"),
    [
        ("", 0, "expected a property, a number, a string or (, found the end"),
        ("a > 'x'", 4, "the string 'x' cannot be compared by >"),
        ("a between 10 and 0", 10, "the first is larger than the second"),
        ("a between NULL and 0", 10, "these cannot be compared"),
        ("a = NULL", 4, "write IS NULL"),
        ("TRUE = 3", 0, "cannot be compared with '3'"),
        ("a > (b = 1)", 5, "cannot be compared by >"),
        ("5 AND a = 1", 0, "expected a condition, found '5'"),
        ("a IN (1)", 6, "expected a string in single quotes, found '1'"),
        ("a IN ('x'", 9, "expected ), found the end"),
        ("'x' IN ('x')", 0, "IN needs a property"),
        ("a NOT = 1", 6, "behind NOT"),
        ("NOT a > 1", 4, "write NOT (...)"),
        ("NOT a IN ('x')", 4, "write NOT (...)"),
        ("a IS 3", 5, "expected NULL, found '3'"),
        ("a = 'open", 4, "a string without its closing quote"),
        ("a = 1; b", 5, "is neither name, number nor sign"),
        ("a = 1 b = 2", 6, "expected AND, OR, an operator or the end, found 'b'"),
        ("a = 007", 5, "found '0'"),
        ("a > 9223372036854775808", 4, "is larger than 9223372036854775807"),
        ("a > 1" + "0" * 5000, 4, "is larger than"),
        ("a > 0.0", 4, "zero is written 0"),
        ("a > 1e400", 4, "is larger than 1.79"),
    ],
)
def test_an_error_says_where_and_what_is_expected(selector: str, position: int, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        compile_selector(selector)
    assert f"SQL92 selector, position {position}: " in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize("selector", ["(" * 60 + "a = 1" + ")" * 60, "NOT " * 60 + "a", "a" + " = 1" * 60])
def test_nesting_is_limited(selector: str) -> None:
    with pytest.raises(UsageError, match=f"nested deeper than {DEPTH_MAX}"):
        compile_selector(selector)


def test_a_long_list_of_alternatives_is_not_deep() -> None:
    selector = compile_selector(" OR ".join(f"a = {number}" for number in range(1200)))
    assert selector.matches({"a": "1199"})
    assert not selector.matches({"a": "1200"})


def test_length_and_type_are_checked() -> None:
    with pytest.raises(UsageError, match=f"more than {LENGTH_MAX}"):
        compile_selector("a = 1" + " " * LENGTH_MAX)
    with pytest.raises(UsageError, match="a text, not int"):
        compile_selector(7)  # type: ignore[arg-type]


@given(
    st.text(st.sampled_from("ab'()=<>+-*/ 01.eELnotandorin\n"), max_size=60),
    st.dictionaries(st.sampled_from("ab"), st.text()),
)
def test_any_text_compiles_or_is_refused_and_never_raises_on_a_message(text: str, properties: dict[str, str]) -> None:
    try:
        selector = compile_selector(text)
    except UsageError:
        return
    assert selector.matches(properties) in (True, False)
