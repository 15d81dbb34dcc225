"""Options of all commands: the same kind of value has the same form, and its unit is in the help."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from rmq_store import Message, Store, UsageError
from rmq_store.cli.shared.parameters import Seconds
from rmq_store.cli.shared.targets import Start, parse_start
from rmq_store.cli.target.commands import command_of
from rmq_store.cli.target.table import COMMANDS
from rmq_store.protocol.results import QueueRange

from .test_frame import LEAVES

Run = Callable[..., Result]
NOW_MS = 1_800_000_000_000
UNITS = {"SECONDS": "second", "HOURS": "hour", "DAYS": "day", "BYTES": "bytes"}
# A value in a unit of time or size, by the name of its option.
_MEASURED = re.compile(r"timeout|interval|every|since|older|days|hours|bytes|size|timestamp|deliver-at|time", re.I)
_UNIT = re.compile(r"second|hour|day|byte|\bms\b|\b[0-9]+(ms|s|m|h|d)\b", re.I)
_NO_MEASURE = {"--retryMaxTimes", "--max-attempts", "--old-timestamps", "--born-timestamp"}


def options() -> Iterator[tuple[str, click.Option]]:
    stores = {path.removeprefix("rmq "): command for path, command in LEAVES}
    clusters = {f"-n {path}": command_of(path, stores.get(path)) for path in COMMANDS}
    for path, command in {**stores, **clusters}.items():
        for option in command.params if command is not None else ():
            if isinstance(option, click.Option) and not option.is_flag and not option.hidden:
                yield path, option


EVERY = list(options())


def test_the_help_of_a_duration_or_a_size_has_its_unit() -> None:
    checked = set()
    for path, option in EVERY:
        text = option.help or ""
        unit = UNITS.get((option.metavar or "").strip("[]"))
        if unit is not None:
            assert unit in text.lower(), (path, option.opts, text)
        if _MEASURED.search(option.opts[-1]) and not _NO_MEASURE.intersection(option.opts):
            checked.add(option.opts[-1])
            assert _UNIT.search(f"{option.metavar} {text}"), (path, option.opts, text)
    assert {"--timeout", "--every", "--interval", "--since", "--beginTimestamp", "--to-time"} <= checked


def test_seconds_may_have_another_unit() -> None:
    for path, option in EVERY:
        if (option.metavar or "").strip("[]") == "SECONDS":
            assert isinstance(option.type, Seconds), (path, option.opts)
    kind = Seconds(0.01, 3600)
    assert [kind.convert(text, None, None) for text in ("3", "0.5", "500ms", "2m", 1.5)] == [3, 0.5, 0.5, 120, 1.5]
    for text in ("5x", "2d", "", "nan", "1ms", "-1s"):
        with pytest.raises(click.BadParameter, match="Seconds are expected, or 500ms, 30s"):
            kind.convert(text, None, None)


def test_addresses_have_one_spelling() -> None:
    for path, option in EVERY:
        for text in (option.metavar or "", option.help or ""):
            assert not re.search(r"\bip:port|IP:PORT|host:port|ADDRESS:PORT|HOST\[:", text), (path, option.opts)


# ---- --from


def test_every_from_is_a_where_or_says_what_it_is() -> None:
    wheres = [(path, option) for path, option in EVERY if "--from" in option.opts and option.metavar == "WHERE"]
    assert {path for path, _ in wheres} >= {"read", "tail", "consume", "-n read", "-n tail", "-n consume"}
    for path, option in wheres:
        assert "earliest, latest, " in (option.help or "") and "a time" in (option.help or ""), path
        assert ("a queue offset" in (option.help or "")) == ("consume" not in path), path


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", Start("earliest")),
        (" latest ", Start("latest")),
        ("0", Start("offset", 0)),
        ("9999999999", Start("offset", 9_999_999_999)),
        ("offset:1763683315000", Start("offset", 1_763_683_315_000)),
        ("9223372036854775807", Start("offset", (1 << 63) - 1)),
        ("1763683315000", Start("time", 1_763_683_315_000)),
        ("10m", Start("time", NOW_MS - 600_000)),
        ("now", Start("time", NOW_MS)),
        ("2026-11-21T00:21:55Z", Start("time", 1_795_220_515_000)),
    ],
)
def test_a_start_is_a_word_an_offset_or_a_time(text: str, start: Start) -> None:
    assert parse_start(text, NOW_MS) == start


@pytest.mark.parametrize("text", ["", "-1", "yesterday", "offset:", "offset:-1", "9223372036854775808", "١"])
def test_any_other_start_is_refused_with_what_is_possible(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no time and no offset; --from takes earliest, latest, a queue offset"):
        parse_start(text, NOW_MS)


def test_a_start_is_moved_into_the_queue() -> None:
    present = QueueRange(10, 20)

    def first(start: Start) -> int:
        return start.first_offset(present, lambda time_ms: time_ms)

    starts = [Start("earliest"), Start("latest"), Start("offset", 15), Start("offset", 3), Start("time", 99)]
    assert [first(start) for start in starts] == [10, 20, 15, 10, 20]


@pytest.fixture
def root(scratch: Path) -> Path:
    with Store.open(scratch / "store", create=True) as store:
        store.create_topic("T", 2)
        for number in range(10):
            store.send(Message("T", str(number).encode(), queue_id=number % 2))
    return scratch / "store"


def _bodies(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return sorted(int(line.split()[-1]) for line in result.stdout.splitlines() if line.split()[-1].isdigit())


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ("earliest", range(10)), ("latest", []), ("3", [6, 7, 8, 9]), ("offset:4", [8, 9]), ("99", []),
        ("1d", range(10)), ("2100-01-01", []),
    ],
)  # fmt: skip
def test_read_and_tail_begin_at_the_same_messages(run: Run, root: Path, where: str, numbers: list[int]) -> None:
    for command in ("read", "tail"):
        assert _bodies(run(command, "T", "--from", where, store=root)) == list(numbers), command


@pytest.mark.parametrize("command", ["read", "tail"])
def test_an_offset_that_the_one_queue_does_not_have_is_refused(run: Run, root: Path, command: str) -> None:
    result = run(command, "T", "--queue", "1", "--from", "6", store=root)
    assert (result.exit_code, result.stderr) == (1, "rmq: offset 6 is not in queue 1 of T: 0 to 5\n")
    assert _bodies(run(command, "T", "--queue", "1", "--from", "4", store=root)) == [9]


def test_a_group_begins_at_no_offset(run: Run, root: Path) -> None:
    for options_ in (["--peek"], ["--until-empty"]):
        result = run("consume", "T", "-g", "g", "--from", "3", *options_, store=root)
        assert (result.exit_code, "`rmq offsets reset --to-offset`" in result.stderr) == (2, True)
