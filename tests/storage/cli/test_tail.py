"""`rmq tail`: which messages, in which order, and that following goes on whatever happens to the store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import Result

from rmq_store import Message, Store, StoreConfig
from rmq_store.cli.messages import tail as tail_module
from rmq_store.cli.target.store.follow import Follower

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"
SMALL = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=64, max_index_num=100
)
COLUMNS = ("queueId", "queueOffset", "body")


@pytest.fixture
def root(scratch: Path) -> Path:
    with Store.open(scratch / "store", create=True, config=SMALL) as store:
        store.create_topic("Orders", 3)
        for number in range(30):
            store.send(Message("Orders", b"%d" % number, tags=f"Tag{number % 2}", properties={"n": str(number)}))
    return scratch / "store"


@pytest.fixture
def reader(root: Path) -> Iterator[Store]:
    with Store.open(root, read_only=True) as store:
        yield store


def _bodies(lines: str) -> list[int]:
    return [int(line.split("  ")[-1]) for line in lines.splitlines()]


def _follow(store: Store, told: list[str] | None = None) -> Follower:
    return Follower(store, "Orders", columns=COLUMNS, tell=(told if told is not None else []).append)


def _taken(follower: Follower) -> list[bytes]:
    return [row["body"] for row in follower.take()]


# ---- which messages


def test_the_text_is_as_kept(run: Run) -> None:
    result = run("tail", "FifoTopic", "-n", "4")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (EXPECTED / "tail.txt").read_text()


def test_the_queues_are_merged_in_the_order_in_which_messages_were_stored(run: Run, root: Path) -> None:
    assert _bodies(run("tail", "Orders", "--from", "earliest", store=root).stdout) == list(range(30))


def test_n_counts_the_messages_that_are_wanted_over_all_queues(run: Run, root: Path) -> None:
    assert _bodies(run("tail", "Orders", store=root).stdout) == list(range(20, 30))
    assert _bodies(run("tail", "Orders", "-n", "4", "--tags", "Tag1", store=root).stdout) == [23, 25, 27, 29]
    assert _bodies(run("tail", "Orders", "-n", "3", "--filter", "n < 12", store=root).stdout) == [9, 10, 11]
    assert run("tail", "Orders", "-n", "0", store=root).stdout == ""
    assert run("tail", "Orders", "--from", "latest", store=root).stdout == ""
    assert len(_bodies(run("tail", "Orders", "-n", "500", store=root).stdout)) == 30


def test_from_a_time_begins_with_what_was_stored_then_or_later(run: Run, golden: Path) -> None:
    rows = json.loads((golden / "manifest.json").read_text())["topics"]["OrderTopic"]["queues"]
    messages = [message for queue in rows.values() for message in queue["messages"]]
    middle_ms = sorted(message["storeTimestamp"] for message in messages)[len(messages) // 2]
    shown = run("tail", "OrderTopic", "--from", str(middle_ms), "--json").stdout.splitlines()
    assert len(shown) == sum(message["storeTimestamp"] >= middle_ms for message in messages)


def test_one_queue_only(run: Run, root: Path) -> None:
    lines = run("tail", "Orders", "--queue", "1", "--json", store=root).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert {row["queueId"] for row in rows} == {1}
    assert [row["queueOffset"] for row in rows] == list(range(10))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Order"], "did you mean 'Orders'?"),
        (["Orders", "--queue", "3"], "has no queue 3"),
        (["Orders", "-n", "1", "--from", "latest"], "exclude each other"),
        (["Orders", "--from", "yesterday"], "'yesterday' is no time"),
        (["Orders", "--filter", "n >"], "SQL92 selector, position 3"),
        (["Orders", "--tags", "||"], "names no tag"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(run: Run, root: Path, arguments: list[str], words: str) -> None:
    result = run("tail", *arguments, store=root)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr


# ---- bodies


def test_bodies_do_nothing_to_the_terminal_and_stay_on_their_line(run: Run, root: Path) -> None:
    with Store.open(root) as store:
        store.send(Message("Orders", b"\x1b[2J\nbad\xff", tags="T\x1b[31m", keys="k\x9b"))
    text = run("tail", "Orders", "-n", "1", store=root).stdout
    assert text.count("\n") == 1
    assert text.rstrip("\n").isprintable()
    assert text.endswith("  T\\x1b[31m  k\\x9b  \\x1b[2J\\nbad\\xff\n")
    assert run("tail", "Orders", "-n", "1", "--body", "hex", store=root).stdout.endswith("  1b5b324a0a626164ff\n")
    assert run("tail", "Orders", "-n", "1", "--body", "none", store=root).stdout.endswith("  k\\x9b\n")


def test_json_bodies_are_values_and_what_is_none_stays_text(run: Run, root: Path) -> None:
    deep = b"[" * 15_000
    with Store.open(root) as store:
        for body in (b'{"a":\n [1, "\\u001b"]}', b"NaN", deep):
            store.send(Message("Orders", body, queue_id=0))
    result = run("tail", "Orders", "-n", "3", "--body", "json", store=root)
    first, second, third = (line.split("  ")[-1] for line in result.stdout.splitlines())
    assert (first, second, len(third)) == ('{"a": [1, "\\u001b"]}', "NaN", len(deep))
    rows = run("tail", "Orders", "-n", "3", "--body", "json", "--json", store=root).stdout.splitlines()
    assert [json.loads(row)["body"] for row in rows[:2]] == [{"a": [1, "\x1b"]}, "NaN"]


# ---- following


def test_what_comes_is_yielded_once_and_nothing_is_read_while_nothing_happens(root: Path, reader: Store) -> None:
    follower = _follow(reader)
    assert len(_taken(follower)) == 30
    with Store.open(root) as store:
        store.send(Message("Orders", b"new"))
        assert _taken(follower) == [b"new"]
        reader.queue_ranges = None  # type: ignore[assignment, method-assign]
        assert _taken(follower) == []
    del reader.queue_ranges
    assert _taken(follower) == []


def test_following_goes_on_when_the_store_is_closed_and_opened_again(root: Path, reader: Store) -> None:
    follower = _follow(reader)
    follower.start_last(0)
    assert _taken(follower) == []
    for number in range(3):
        with Store.open(root) as store:
            store.send(Message("Orders", b"%d" % number))
        assert _taken(follower) == [b"%d" % number]


def test_a_queue_that_is_added_is_followed_from_its_first_message(root: Path, reader: Store) -> None:
    follower = _follow(reader)
    follower.start_last(0)
    path = root / "config" / "topics.json"
    with Store.open(root) as store:
        assert _taken(follower) == []
        text = path.read_text()
        changed = json.loads(text)
        changed["topicConfigTable"]["Orders"].update(readQueueNums=4, writeQueueNums=4)
        path.write_text(json.dumps(changed))
        store.send(Message("Orders", b"fourth", queue_id=3))
        assert _taken(follower) == [b"fourth"]


def test_what_retention_takes_is_passed_over_and_told(root: Path, reader: Store) -> None:
    told: list[str] = []
    follower = _follow(reader, told)
    follower.start_from(dict.fromkeys(range(3), 0))
    with Store.open(root) as store:
        for _ in range(4):
            store.send(Message("Orders", b"x" * 8000, queue_id=0))
        first, *_ = sorted((root / "commitlog").iterdir())
        store.retention.run(manual=True, file_reserved_time=0)
        assert not first.exists()
        least = store.queue_range("Orders", 0).min_offset
        bodies = _taken(follower)
    assert least > 0
    assert len(bodies) == sum(q.max_offset - q.min_offset for q in reader.queue_ranges("Orders").values())
    assert f"messages 0 to {least - 1} of Orders queue 0 are gone: retention took them" in told


def test_a_long_queue_is_read_in_steps(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with the backlog: no step reads more than 1 MiB of records, or 512 of them."""
    steps: list[int] = []
    with Store.open(scratch / "long", create=True) as store:
        store.create_topic("Orders", 1)
        store.send_all([Message("Orders", b"x" * 100_000, queue_id=0) for _ in range(30)])
        store.send_all([Message("Orders", b"y", queue_id=0) for _ in range(1200)])
        read = store.read
        monkeypatch.setattr(store, "read", lambda *a, **k: (steps.append(a[3] - a[2]), read(*a, **k))[1])
        assert len(_taken(_follow(store))) == 1230
    assert steps[:2] == [10, 10]
    assert max(steps) == 512


# ---- a process of its own


def _spawn(root: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "RMQ_STORE": str(root)}
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", "tail", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def test_ctrl_c_ends_it_well_and_a_new_message_is_printed_at_once(root: Path) -> None:
    process = _spawn(root, "-f", "Orders", "-n", "1")
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline().endswith(b"  29\n")
    with Store.open(root) as store:
        store.send(Message("Orders", b"fresh"))
        assert process.stdout.readline().endswith(b"  fresh\n")
    process.send_signal(signal.SIGINT)
    assert (process.wait(timeout=60), process.stderr.read(), process.stdout.read()) == (0, b"", b"")
    process.stdout.close()
    process.stderr.close()


def test_it_ends_when_nobody_reads_any_more_although_nothing_comes(root: Path) -> None:
    """`rmq tail -f | head -1` on a topic that is quiet."""
    process = _spawn(root, "-f", "Orders", "-n", "1")
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline().endswith(b"  29\n")
    process.stdout.close()
    process.wait(timeout=60)
    assert process.stderr.read() == b""
    process.stderr.close()


def test_waiting_says_whether_the_reader_left(capfd: pytest.CaptureFixture[str]) -> None:
    assert tail_module.reader_left(0.0) is False


# ---- what a person sees


def test_a_terminal_gets_the_beginning_of_a_long_body_and_a_pipe_all_of_it(
    run: Run, run_in_terminal: Callable[..., tuple[int, str]], root: Path
) -> None:
    with Store.open(root) as store:
        store.send(Message("Orders", b"x" * 10_000, tags="T"))
    code, text = run_in_terminal("tail", "Orders", "-n", "1", columns=100, store=root)
    line = click.unstyle(text).rstrip()
    assert (code, len(line), line[-3:]) == (0, 100, "xx…")
    _, text = run_in_terminal("tail", "Orders", "-n", "1", columns=30, store=root)
    assert click.unstyle(text).rstrip().count("x") == 39
    assert run("tail", "Orders", "-n", "1", store=root).stdout.count("x") == 10_000
