"""`rmq send`: what is stored, from where, and what a mistake leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rmq_store import Message, Store
from rmq_store.cli import commands
from rmq_store.cli.messages import message_lines
from rmq_store.cli.shared.times import parse_time
from rmq_store.errors import UsageError

Run = Callable[..., Result]


@pytest.fixture
def root(scratch: Path) -> Path:
    with Store.open(scratch / "store", create=True) as store:
        store.create_topic("Orders", 2)
    return scratch / "store"


def _messages(root: Path, topic: str = "Orders") -> list[dict[str, Any]]:
    with Store.open(root, read_only=True) as store:
        rows = [
            row
            for queue_id, (first, last) in store.queue_ranges(topic).items()
            for batch in store.read(topic, queue_id, first, last)
            for row in batch.to_pylist()
        ]
    return sorted(rows, key=lambda row: int(row["commitLogOffset"]))


def _fed(root: Path, data: bytes, *arguments: str) -> Result:
    return CliRunner().invoke(commands, ["send", *arguments, "--store", str(root)], input=data, prog_name="rmq")


def test_one_message_with_everything(run: Run, root: Path) -> None:
    result = run(
        "send", "Orders", "--body", "zwei Tees ☕", "--tags", "TagA", "--keys", "a b", "--property", "x=1=2",
        "--queue", "1", "--json", store=root,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    (row,) = _messages(root)
    assert (row["body"].decode(), row["tags"], row["keys"], row["queueId"]) == ("zwei Tees ☕", "TagA", "a b", 1)
    assert dict(row["properties"])["x"] == "1=2"
    assert answer["msgId"] == row["msgId"]
    assert (answer["queueId"], answer["queueOffset"], answer["status"]) == (1, row["queueOffset"], "SEND_OK")


def test_the_table_has_id_queue_and_offset(run: Run, root: Path) -> None:
    lines = run("send", "Orders", "--body", "x", "--queue", "1", store=root).stdout.splitlines()
    assert lines[0].split() == ["MSGID", "QUEUE", "OFFSET", "STATUS"]
    assert lines[1].split() == [_messages(root)[0]["msgId"], "1", "0", "SEND_OK"]


def test_a_file_is_one_message_byte_for_byte(root: Path) -> None:
    data = bytes(range(256)) + b"\r\n"
    assert _fed(root, data, "Orders", "--file", "-").exit_code == 0
    assert _fed(root, data, "Orders", "-").exit_code == 0
    assert [row["body"] for row in _messages(root)] == [data, data]


def test_of_a_file_that_is_too_large_no_more_is_read(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 42)  # all holes; reading it would take all memory
    result = _fed(root, b"", "Orders", "--file", str(path))
    assert (result.exit_code, "4194304" in result.output) == (2, True)


def test_lines_are_messages_and_share_the_options(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_lines, "BATCH_ROWS", 2)
    result = _fed(root, b"one\r\n\ntwo\nlast", "Orders", "--lines", "-", "--tags", "T", "--sharding-key", "k")
    assert (result.exit_code, result.stdout) == (0, "4 messages, 10 bytes of bodies stored in Orders\n")
    rows = _messages(root)
    assert [row["body"] for row in rows] == [b"one", b"", b"two", b"last"]
    assert {row["tags"] for row in rows} == {"T"}
    assert len({row["queueId"] for row in rows}) == 1


def test_a_line_of_json_may_say_everything(root: Path) -> None:
    lines = [
        {"body": {"id": 1}, "tags": "A", "keys": "k", "queueId": 1, "properties": {"p": "v"}, "flag": 7},
        {"bodyHex": "00ff", "tags": None},
        {"body": "text"},
    ]
    data = "\n".join(map(json.dumps, lines)).encode() + b"\n\n"
    result = _fed(root, data, "Orders", "--jsonl", "-", "--tags", "B", "--property", "q=w")
    assert result.exit_code == 0, result.output
    first, second, third = _messages(root)
    assert (json.loads(first["body"]), first["tags"], first["keys"]) == ({"id": 1}, "A", "k")
    assert (first["queueId"], first["flag"]) == (1, 7)
    assert {("p", "v"), ("q", "w")} <= set(first["properties"])
    assert (second["body"], second["tags"]) == (b"\x00\xff", "B")
    assert third["body"] == b"text"


def test_what_tail_prints_can_be_sent(run: Run, root: Path) -> None:
    for number in range(5):
        run("send", "Orders", "--body", f"body {number}", "--tags", "T", "--keys", f"k{number}", store=root)
    lines = run("tail", "Orders", "--json", store=root).stdout
    assert _fed(root, lines.encode(), "Copies", "--jsonl", "-").exit_code == 0
    seen = [(row["body"], row["tags"], row["keys"]) for row in _messages(root, "Copies")]
    assert seen == [(row["body"], row["tags"], row["keys"]) for row in _messages(root)]
    assert not {row["msgId"] for row in _messages(root)} & {row["msgId"] for row in _messages(root, "Copies")}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 3 is no JSON"),
        (b"[1]", "line 3 is no JSON object"),
        (b'{"body": "x", "tagz": "A"}', "line 3: unknown key 'tagz'; did you mean 'tags'?"),
        (b'{"body": 7}', "line 3: body is a text"),
        (b'{"bodyHex": "0"}', "line 3: bodyHex is no hex"),
        (b'{"body": "x", "queueId": true}', "line 3: queueId is a 32-bit integer"),
        (b'{"body": "x", "properties": {"a": 1}}', "line 3: properties is an object of texts"),
        (b'{"body": "x", "queueId": 9}', "line 3: "),
        (b"[" * 50_000, "line 3 is no JSON"),
    ],
)
def test_a_bad_line_is_named_and_what_was_stored_before_it_is_counted(
    root: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, words: str
) -> None:
    monkeypatch.setattr(message_lines, "BATCH_ROWS", 1)
    result = _fed(root, b'{"body": "good"}\n\n' + line, "Orders", "--jsonl", "-")
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr.splitlines()[-1]
    assert "1 messages are stored in Orders" in result.stderr
    assert [row["body"] for row in _messages(root)] == [b"good"]


LONE = json.dumps("\ud800").encode()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"body": "x", "tags": ' + LONE + b"}", "line 3: tags holds a lone surrogate, '\\ud800'"),
        (b'{"body": "x", "keys": ' + LONE + b"}", "line 3: keys holds a lone surrogate"),
        (b'{"body": "x", "shardingKey": ' + LONE + b"}", "line 3: shardingKey holds a lone surrogate"),
        (b'{"body": "x", "properties": {"a": ' + LONE + b"}}", "line 3: properties holds a lone surrogate"),
        (b'{"body": "x", "properties": {' + LONE + b': "a"}}', "line 3: properties holds a lone surrogate"),
        (b'{"body": ' + LONE + b"}", "line 3: body holds a lone surrogate"),
        (b'{"body": {"a": [' + LONE + b"]}}", "line 3: body holds a lone surrogate"),
        (b'{"body": "x", ' + LONE + b": 1}", "line 3: unknown key"),
        (b'{"body": "caf\xe9"}', "line 3 is no JSON: 'utf-8' codec can't decode"),
        (b'\xef\xbb\xbf{"body": "x"}', "line 3 is no JSON: Expecting value"),
        (b'{"body": [NaN]}', "line 3: NaN is no number of JSON"),
        (b'{"body": {"a": -Infinity}}', "line 3: -Infinity is no number of JSON"),
        (b'{"body": [' + b"9" * 5000 + b"]}", "line 3 is no JSON: Exceeds the limit"),
        (b'{"body": "a", "body": "b"}', "line 3: the key 'body' is there twice"),
        (b'{"body": {"a": 1, "a": 2}}', "line 3: the key 'a' is there twice"),
        (b'{"body": "x", "properties": {"a": "1", "a": "2"}}', "line 3: the key 'a' is there twice"),
        (b'{"body": "x", "flag": 1.0}', "line 3: flag is a 32-bit integer"),
        (b'{"body": "x", "flag": 4294967296}', "line 3: flag is a 32-bit integer"),
        (b'{"body": "x", "tags": 1.5}', "line 3: tags is a text"),
        (b'{"body": 1.5}', "line 3: body is a text"),
        (b'{"body": "x", "deliverTimestamp": 1e20}', "line 3: deliverTimestamp is milliseconds"),
        (b'{"body": "x", "deliverTimestamp": 99999999999999999999}', "line 3: deliverTimestamp is milliseconds"),
        (b'{"body": "a\x00b"}', "line 3 is no JSON: Invalid control character"),
        (b'{"body": ' + b"[" * 900 + b"]" * 900 + b"}", "line 3: body is nested too deep"),
        (b'{"body": "x", "tags": "a\\u0001"}', "line 3, column 'tags'"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_what_is_stored_says_what_the_line_says_or_the_line_is_a_mistake(root: Path, line: bytes, words: str) -> None:
    data = b'{"body": "one"}\r\n{"body": "two"}\r\n' + line + b'\r\n{"body": "four"}'
    result = _fed(root, data, "Orders", "--jsonl", "-")
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert words in result.stderr.splitlines()[-1]
    assert "2 messages are stored in Orders, and then:" in result.stderr
    assert [row["body"] for row in _messages(root)] == [b"one", b"two"]


def test_all_messages_before_a_line_that_the_store_refuses_are_stored(root: Path) -> None:
    """The queue is looked at first, the text later: the line named is the first one that cannot be stored."""
    lines = [{"body": "1"}, {"body": "2"}, {"body": "3", "tags": "\x01"}, {"body": "4"}, {"body": "5", "queueId": 9}]
    result = _fed(root, "\n".join(map(json.dumps, lines)).encode(), "Orders", "--jsonl", "-")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("rmq: line 3, column 'tags'")
    assert "2 messages are stored" in result.stderr
    assert [row["body"] for row in _messages(root)] == [b"1", b"2"]


def test_a_line_that_is_too_long_loses_nothing_before_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_lines, "LINE_BYTES_MAX", 100)
    result = _fed(root, b"one\ntwo\n" + b"x" * 200, "Orders", "--lines", "-")
    assert result.exit_code == 2
    assert "line 3 is longer than 100 bytes" in result.stderr
    assert [row["body"] for row in _messages(root)] == [b"one", b"two"]


def test_the_numbers_of_a_body_keep_their_digits(root: Path) -> None:
    body = '{"a": 1.10, "b": [1e400, -0.0, 12345678901234567890.5, 123456789012345678901], "c": {"é": null}}'
    assert _fed(root, f'\ufeff{{"body": {body}}}\r\n \r\n'.encode(), "Orders", "--jsonl", "-").exit_code == 0
    assert [row["body"].decode() for row in _messages(root)] == [body]


def test_a_body_on_the_command_line_that_is_no_text_is_refused(run: Run, root: Path) -> None:
    result = run("send", "Orders", "--body", "caf\udce9", store=root)
    assert (result.exit_code, "--body is no UTF-8; --file takes any bytes" in result.stderr) == (2, True)
    for option in ("--tags", "--keys", "--sharding-key"):
        result = run("send", "Orders", "--body", "x", option, "caf\udce9", store=root)
        assert (result.exit_code, "lone surrogate" in result.stderr) == (2, True), result.output
    assert _messages(root) == []


def test_a_message_with_a_delay_is_not_there_yet(run: Run, root: Path) -> None:
    assert run("send", "Orders", "--body", "later", "--delay-level", "3", store=root).exit_code == 0
    assert run("send", "Orders", "--body", "later", "--deliver-at", "10m", store=root).exit_code == 0
    assert _messages(root) == []
    with Store.open(root) as store:
        assert store.schedule.deliver_due().next_due_ms is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one of FILE, --body, --file, --lines, --jsonl"),
        (["--body", "x", "--lines", "-"], "given: --body, --lines"),
        (["--body", "x", "--property", "novalue"], "NAME=VALUE"),
        (["--body", "x", "--queue", "2"], "2"),
        (["--body", "x", "--deliver-at", "soon"], "'soon' is no time"),
    ],
)
def test_mistakes_are_one_line_and_code_2(run: Run, root: Path, arguments: list[str], words: str) -> None:
    result = run("send", "Orders", *arguments, store=root)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr
    assert _messages(root) == []


def test_not_flushed_in_time_is_stored_and_code_1(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rmq_store.protocol.results import SendResult, SendStatus

    answer = SendResult("Orders", 0, 0, 0, "ID", "OFFSET", SendStatus.FLUSH_DISK_TIMEOUT)
    monkeypatch.setattr(Store, "send", lambda *a, **k: answer)
    result = run("send", "Orders", "--body", "x", store=root)
    assert (result.exit_code, "FLUSH_DISK_TIMEOUT" in result.stdout) == (1, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", 1_000_000_000_000),
        ("1700000000123", 1_700_000_000_123),
        ("10m", 1_000_000_000_000 - 600_000),
        ("250ms", 1_000_000_000_000 - 250),
        ("2026-11-21T00:21:55.854Z", 1_795_220_515_854),
        ("2026-11-21 00:21:55", 1_795_220_515_000),
        ("2026-11-21T01:21:55+01:00", 1_795_220_515_000),
        ("2026-11-21#00:21:55:854", 1_795_220_515_854),
        ("999999999999d", 0),
    ],
)
def test_times_as_people_type_them(text: str, expected: int) -> None:
    assert parse_time(text, 1_000_000_000_000) == expected


def test_durations_ahead_and_texts_that_are_no_times() -> None:
    assert parse_time("2h", 5, ahead=True) == 7_200_005
    for text in ("", "10", "10 m", "-5m", "2026-13-01", "１０m", "0001-01-01T00:00:00+23:59", "1e3"):
        with pytest.raises(UsageError, match="is no time"):
            parse_time(text, 0)


def test_a_message_made_by_hand_has_the_same_properties(run: Run, root: Path) -> None:
    given = ["--tags", "T", "--keys", "a b", "--property", "p=1", "--queue", "0"]
    run("send", "Orders", "--body", "x", *given, store=root)
    with Store.open(root) as store:
        store.send(Message("Orders", b"x", tags="T", keys="a b", properties={"p": "1"}, queue_id=0))
    first, second = ({**dict(row["properties"]), "UNIQ_KEY": ""} for row in _messages(root))
    assert first == second
