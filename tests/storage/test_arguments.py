"""Arguments are what the annotations say, before a function is called."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from click.testing import CliRunner

from rmq_store import Store, UsageError
from rmq_store.arguments import check_fields, checked, checked_methods, local_path
from rmq_store.cli import commands
from rmq_store.client import Producer


class Colour(StrEnum):
    RED = "RED"


@checked
def called(
    number: int = 0,
    rate: float = 0.0,
    flag: bool = False,
    text: str | None = None,
    path: str | Path = "p",
    mapping: Mapping[tuple[str, int], int] | None = None,
    texts: Sequence[str] = (),
    numbers: Iterable[int] = (),
    colour: Colour = Colour.RED,
    word: Literal["a", "b"] = "a",
    function: Callable[[], int] | None = None,
    anything: Any = None,
) -> Any:
    """Says what it got."""
    return locals()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"number": True}, "number=True: an integer is expected"),
        ({"number": "0"}, "number='0': an integer is expected"),
        ({"number": 1.0}, "number=1.0: an integer is expected"),
        ({"number": np.bool_(True)}, "number: an integer is expected, got bool"),
        ({"number": int}, "number: an integer is expected, got type"),
        ({"number": 1 << 63}, "number=9223372036854775808: an integer of 64 bits is expected"),
        ({"rate": True}, "rate=True: a number is expected"),
        ({"flag": 1}, "flag=1: True or False is expected"),
        ({"text": b"x"}, "text=b'x': text or None is expected"),
        ({"text": "\ud800"}, "text='\\ud800': text without lone surrogates or None is expected"),
        ({"path": Path("a\0b")}, "path='a\\x00b': a path without NUL is expected"),
        ({"mapping": {("T", "0"): 1}}, "an integer in it in it or None is expected"),
        ({"texts": "x"}, "texts='x': a list is expected"),
        ({"texts": [b"x"]}, "texts=[b'x']: text in it is expected"),
        ({"texts": {"x": 1}}, "texts={'x': 1}: a list is expected"),
        ({"numbers": 5}, "numbers=5: a collection is expected"),
        ({"colour": "BLUE"}, "colour='BLUE': one of RED is expected"),
        ({"word": "c"}, "word='c': 'a' or 'b' is expected"),
        ({"function": 5}, "function=5: a function or None is expected"),
        ({"number": "x" * 10_000}, "number='xxxxxxxxxxxx...xxxxxxxxxxxxx': an integer is expected"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_value_of_another_type_is_named_with_its_argument(given: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError) as raised:
        called(**given)
    assert error in str(raised.value)
    names = list(inspect.signature(called).parameters)
    place = names.index(next(iter(given)))
    with pytest.raises(UsageError, match=f"^{names[place]}"):
        called(*(called()[name] for name in names[:place]), *given.values())


def test_numbers_of_numpy_become_pythons_wherever_they_are() -> None:
    given: dict[str, Any] = {"mapping": {("T", np.int64(1)): np.uint64(7)}, "numbers": [np.int32(3), 4]}
    number: Any = np.int8(5)
    got = called(number, 2, **given)
    assert (got["number"], got["mapping"], got["numbers"]) == (5, {("T", 1): 7}, [3, 4])
    assert {type(got["number"]), type(*got["mapping"].values()), *map(type, got["numbers"])} == {int}


def test_what_is_right_is_passed_on_as_it_is() -> None:
    class Place(os.PathLike[str]):
        def __fspath__(self) -> str:
            return "caf\udce9"

    mapping, texts, once = {("T", 0): 1}, ["x"], iter([1])
    place: Any = Place()
    red: Any = "RED"
    got = called(1, 2, True, "ü\0", place, mapping, texts, once, red, "b", int, anything=object)
    assert got["mapping"] is mapping
    assert got["texts"] is texts
    assert got["path"] is place
    assert got["numbers"] is once
    assert got["colour"] is Colour.RED
    assert got["anything"] is object


def test_a_call_that_does_not_fit_is_pythons_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        called(nothing=1)  # type: ignore[call-arg]


def test_a_class_is_checked_but_for_what_looks_itself() -> None:
    @checked_methods("itself", constructor=True)
    class Thing:
        def __init__(self, number: int) -> None:
            self.number = number

        @classmethod
        def of(cls, number: int) -> int:
            return number

        def plain(self, number: int) -> int:
            return number

        def itself(self, number: int) -> int:
            return number

        def _inner(self, number: int) -> int:
            return number

    wrong: Any = "x"
    for call in (Thing, Thing.of, Thing(1).plain):
        with pytest.raises(UsageError, match=r"^number='x': an integer is expected$"):
            call(wrong)
    assert (Thing(1).itself(wrong), Thing(1)._inner(wrong)) == ("x", "x")  # type: ignore[comparison-overlap]


def test_the_fields_of_a_frozen_dataclass_are_checked_and_made_pythons() -> None:
    @dataclass(frozen=True, slots=True)
    class Settings:
        count: int = 1
        name: str = "n"

        def __post_init__(self) -> None:
            check_fields(self, "name")

    count: Any = np.int64(3)
    assert type(Settings(count).count) is int
    assert Settings(name=5).name == 5  # type: ignore[arg-type, comparison-overlap]
    with pytest.raises(UsageError, match="count=None: an integer is expected"):
        Settings(count=None)  # type: ignore[arg-type]


def test_arguments_beyond_the_declared_ones_are_passed_on() -> None:
    @checked
    def joined(first: int, *others: object, **named: object) -> tuple[object, ...]:
        return first, others, named

    assert joined(np.int64(1), 2, "three", four=4) == (1, (2, "three"), {"four": 4})
    with pytest.raises(UsageError, match="first='1': an integer is expected"):
        joined("1", 2, 3)


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/store", "/data/store"), ("store", "store"), ("./a:b", "./a:b"), ("/data/a:b", "/data/a:b"),
        ("file:/data/store", "/data/store"), ("file:///data/store", "/data/store"), ("FILE:/data/%20", "/data/%20"),
        ("1:2/x", "1:2/x"), ("x:y", "x:y"), ("2026-11-29T10:00", "2026-11-29T10:00"),
    ],
)  # fmt: skip
def test_a_text_names_a_local_path_by_itself_or_as_a_uri(location: str, path: str) -> None:
    assert local_path(location) == Path(path)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("file:rel", "write file:///data/store"), ("file:", "write file:///data/store"), ("File:rel", "write file:"),
        ("file://host/s", "write file:"), ("hdfs://host/s", "a store cannot be on hdfs"), ("s3a:x", "begins with ./"),
        ("rmq://ns1:9876", "names a cluster"), ("dbfs:/x", "a store cannot be on dbfs"),
        ("127.0.0.1:9876", "take rmq://127.0.0.1:9876"), ("ns1:9876;ns2:9876", "take rmq://ns1:9876;ns2:9876"),
        ("[::1]:9876", r"option nameServer"), ("localhost:10911", "is an address"),
    ],
)  # fmt: skip
def test_a_text_that_names_none_is_refused_before_a_directory_of_its_name_is_made(
    location: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=re.escape(words)):
        local_path(location)
    with pytest.raises(UsageError, match=re.escape(words)):
        Store.open(location, create=True)
    if not location.startswith("rmq:"):
        with pytest.raises(UsageError, match=re.escape(words)), Producer("pg", location):
            pass
    for command in (["init", location], ["topics", "--store", location], ["backup", location, str(tmp_path / "copy")]):
        if not location.startswith("rmq:"):
            result = CliRunner().invoke(commands, command, prog_name="rmq", env={"RMQ_STORE": None})
            assert (result.exit_code, " ".join(words.split()) in " ".join(result.stderr.split())) == (2, True), command
    assert list(tmp_path.iterdir()) == []
