"""`rmq consume`: what is consumed, what comes again, and what only looks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rmq_store import Message, Store
from rmq_store.client import PushConsumer, PushConsumerConfig

from .conftest import mind_ctrl_c

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"


@pytest.fixture
def root(scratch: Path) -> Path:
    with Store.open(scratch / "store", create=True) as store:
        store.create_topic("Orders", 1)
        for number in range(5):
            store.send(Message("Orders", b"%d" % number, tags=f"Tag{number % 2}"))
    return scratch / "store"


def _committed(root: Path, group: str = "cg") -> int:
    with Store.open(root, read_only=True) as store:
        return sum(store.committed_offsets(group).values())


def _bodies(result: Result) -> list[str]:
    return [line.split("  ")[-1] for line in result.stdout.splitlines()]


def _tree(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_what_was_printed_is_consumed_and_nothing_more(run: Run, root: Path) -> None:
    first = run("consume", "Orders", "-g", "cg", "--max", "2", store=root)
    assert (first.exit_code, _bodies(first), _committed(root)) == (0, ["0", "1"], 2)
    rest = run("consume", "Orders", "-g", "cg", "--until-empty", store=root)
    assert (_bodies(rest), _committed(root)) == (["2", "3", "4"], 5)
    assert run("consume", "Orders", "-g", "cg", "--until-empty", store=root).stdout == ""


def test_other_tags_count_as_consumed(run: Run, root: Path) -> None:
    result = run("consume", "Orders", "-g", "cg", "--until-empty", "--tags", "Tag1", store=root)
    assert (_bodies(result), _committed(root)) == (["1", "3"], 5)


def test_a_new_group_begins_where_it_is_told(run: Run, root: Path) -> None:
    rows = run("consume", "Orders", "-g", "all", "--until-empty", "--json", store=root).stdout.splitlines()
    assert [json.loads(row)["queueOffset"] for row in rows] == [0, 1, 2, 3, 4]
    assert _bodies(run("consume", "Orders", "-g", "late", "--until-empty", "--from", "1m", store=root)) == [
        "0", "1", "2", "3", "4",
    ]  # fmt: skip


def test_peek_shows_what_would_come_and_changes_nothing(run: Run, root: Path) -> None:
    run("consume", "Orders", "-g", "cg", "--max", "3", store=root)
    before = _tree(root)
    assert _bodies(run("consume", "Orders", "-g", "cg", "--peek", store=root)) == ["3", "4"]
    assert _bodies(run("consume", "Orders", "-g", "cg", "--peek", "--max", "1", store=root)) == ["3"]
    assert _bodies(run("consume", "Orders", "-g", "nobody", "--peek", store=root)) == ["0", "1", "2", "3", "4"]
    assert _tree(root) == before


def test_the_text_is_as_kept(run: Run) -> None:
    result = run("consume", "OrderTopic", "-g", "cg_partial", "--peek", "--max", "3", "--body", "none")
    assert (result.exit_code, result.stdout) == (0, (EXPECTED / "consume-peek.txt").read_text())


def test_exit_code_0_of_the_command_consumes_and_another_sends_back(run: Run, root: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = tmp_path / "handle.py"
    script.write_text(
        "import os, sys\n"
        "body = sys.stdin.read()\n"
        f"open({str(seen)!r}, 'a').write(body + os.environ['RMQ_TAGS'] + os.environ['RMQ_TOPIC'] + ' ')\n"
        "sys.exit(int(body == '3'))\n"
    )
    command = f"{sys.executable} -S {script}"
    result = run("consume", "Orders", "-g", "cg", "--until-empty", "--exec", command, "--json", store=root)
    assert (result.exit_code, json.loads(result.stdout)) == (1, {"consumed": 4, "sentBack": 1})
    assert "Orders 0:3: exit code 1, sent back" in result.stderr
    assert seen.read_text() == "0Tag0Orders 1Tag1Orders 2Tag0Orders 3Tag1Orders 4Tag0Orders "
    assert _committed(root) == 5
    with Store.open(root) as store:
        assert store.schedule.deliver_due().next_due_ms is not None
        assert "%RETRY%cg" in store.topics()


def test_the_command_runs_without_a_shell(run: Run, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "made"
    run("consume", "Orders", "-g", "cg", "--max", "1", "--exec", f"true; touch {target}", store=root)
    assert not target.exists()


def test_a_program_that_does_not_exist_consumes_nothing(run: Run, root: Path) -> None:
    result = run("consume", "Orders", "-g", "cg", "--until-empty", "--exec", "/no/such/program", store=root)
    assert (result.exit_code, result.stderr.count("\n"), _committed(root)) == (2, 1, 0)
    assert "/no/such/program" in result.stderr
    with Store.open(root, read_only=True) as store:
        assert not any(name.startswith("%DLQ%") for name in store.topics())


def test_a_reader_that_leaves_does_not_send_messages_back(root: Path) -> None:
    """`rmq consume | head -1`: what could not be printed is not consumed, and not failed either."""
    with Store.open(root) as store:
        store.send_all([Message("Orders", b"x" * 1000) for _ in range(2000)])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "RMQ_STORE": str(root)}
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", "consume", "Orders", "-g", "cg"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline().endswith(b"  0\n")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(timeout=60)
    assert 0 < _committed(root) < 2005
    with Store.open(root) as store:
        assert store.schedule.deliver_due().next_due_ms is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_told_to_stop_commits_and_closes_the_store(root: Path, number: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "RMQ_STORE": str(root)}
    command = [sys.executable, "-uc", "from rmq_store.cli import main; main()", "consume", "Orders", "-g", "cg"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, preexec_fn=mind_ctrl_c
    ) as process:
        assert process.stdout
        try:
            assert [process.stdout.readline()[-2:-1] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
            process.send_signal(number)
            assert process.communicate(timeout=60)[1] == b""
            assert process.returncode == 0
        finally:
            process.kill()
    assert _committed(root) >= 4  # the signal may have come before the last one was done
    assert not (root / "abort").exists()


def test_queues_are_shared_with_the_other_members_of_the_group(run: Run, root: Path) -> None:
    with Store.open(root) as store:
        other = PushConsumer("cg", store, PushConsumerConfig())
        other.subscribe("Orders")
        from rmq_store.client import ConsumeConcurrentlyStatus, MessageListenerConcurrently

        other.register_message_listener(
            MessageListenerConcurrently(lambda messages, context: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
        )
        with other:
            other.start(threads=False)
            other.run_once()
            result = run("consume", "Orders", "-g", "cg", "--until-empty", store=root)
    assert len(_bodies(result)) < 5


def test_a_stream_that_reads_the_topic_as_the_group_is_named(run: Run, root: Path) -> None:
    with Store.open(root) as store:
        lease = store.lease("cg", "Orders", "query 'orders'")
        result = run("consume", "Orders", "-g", "cg", "--until-empty", store=root)
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"'Orders' is being read by \"query 'orders'\" (process {os.getpid()}, since " in result.stderr
        assert _bodies(run("consume", "Orders", "-g", "cg", "--peek", store=root)) == ["0", "1", "2", "3", "4"]
        assert _bodies(run("consume", "Orders", "-g", "other", "--max", "1", store=root)) == ["0"]
        lease.release()
        assert run("consume", "Orders", "-g", "cg", "--max", "1", store=root).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Order", "-g", "cg"], "did you mean 'Orders'?"),
        (["Orders", "-g", "bad group!"], "bad group!"),
        (["Orders", "-g", "cg", "--peek", "--exec", "true"], "--peek changes nothing"),
        (["Orders", "-g", "cg", "--exec", ""], "--exec is empty"),
        (["Orders", "-g", "cg", "--exec", "'"], "--exec"),
        (["Orders", "-g", "cg", "--from", "soon"], "'soon' is no time"),
    ],
)
def test_mistakes_are_one_line_and_code_2(run: Run, root: Path, arguments: list[str], words: str) -> None:
    result = run("consume", *arguments, store=root)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr
