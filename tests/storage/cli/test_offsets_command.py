"""`rmq offsets`: what it shows, each way to move a group, and when it refuses to."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from rmq_store import Message, Store
from rmq_store.broker.metadata.leases import Lease
from rmq_store.broker.processor.local_groups import LocalGroups
from rmq_store.clock import system_clock

from .changing import NOW_MS, command

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"


@pytest.fixture
def root(scratch: Path, made_store: Path) -> Path:
    return shutil.copytree(made_store, scratch / "store")


def committed(root: Path, group: str = "g") -> dict[tuple[str, int], int]:
    with Store.open(root, read_only=True) as store:
        return store.committed_offsets(group)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("show", ["show", "cg_partial"]),
        ("export", ["export", "cg_partial"]),
        ("reset", ["reset", "cg_partial", "--to-earliest", "--dry-run"]),
    ],
)
def test_the_text_of_a_command_is_as_kept(run: Run, name: str, arguments: list[str]) -> None:
    result = run("offsets", *arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == (EXPECTED / f"offsets-{name}.txt").read_text()
    assert result.stderr == ""
    assert json.loads(run("offsets", *arguments, "--json").stdout)


@pytest.mark.parametrize("name", ["show", "export", "reset"])
def test_every_command_has_help_with_an_example(run: Run, name: str) -> None:
    text = run("offsets", name, "--help").stdout
    assert f"    rmq offsets {name} cg_orders" in text
    assert "RMQ_STORE" in text


@pytest.mark.parametrize(
    ("target", "then"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 4, 1: 0}),
        (["--to-offset", "3"], {0: 3, 1: 0}),
        (["--shift", "-1"], {0: 1, 1: 0}),
        (["--shift", "1", "--queue", "0"], {0: 3}),
        (["--to-time", str(NOW_MS + 1000)], {0: 1, 1: 0}),
        (["--to-time", "2025-11-21T07:55:17.500Z"], {0: 3, 1: 0}),
        (["--to-time", "2025-11-21#07:55:16:001"], {0: 2, 1: 0}),
        (["--to-time", "now"], {0: 4, 1: 0}),
    ],
)
def test_a_group_is_moved_to_where_it_is_told_to(root: Path, target: list[str], then: dict[int, int]) -> None:
    result = command(root, "offsets", "reset", "g", *target, "--yes")
    assert result.exit_code == 0, result.output
    assert committed(root) == {("T", queue_id): offset for queue_id, offset in then.items()}


def test_offsets_that_were_exported_can_be_set_again_on_the_queues_that_the_file_names(root: Path) -> None:
    file = root.parent / "g.json"
    file.write_text(command(root, "offsets", "export", "g").stdout)
    assert json.loads(file.read_text()) == {"T": {"0": 2}}
    command(root, "offsets", "reset", "g", "--to-latest", "--yes")
    result = command(root, "offsets", "reset", "g", "--to-offsets", str(file), "--yes")
    assert (result.exit_code, result.stderr) == (0, "1 offsets set\n")
    assert committed(root) == {("T", 0): 2, ("T", 1): 0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"T": {"7": 1}}', "topic 'T' has no queue 7"),
        ('{"t": {"0": 1}}', "no topic 't'"),
        ('{"T": {"0": -1}}', "-1 is no offset"),
        ('{"T": {"0": true}}', "True is no offset"),
        ('{"T": 1}', "no offsets as `rmq offsets export` writes them"),
        ("[]", "no offsets as `rmq offsets export` writes them"),
        ("[" * 100_000, "no offsets as `rmq offsets export` writes them"),
        ("{}", "no offsets in it"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(root: Path, content: str, message: str) -> None:
    file = root.parent / "g.json"
    file.write_text(content)
    result = command(root, "offsets", "reset", "g", "--to-offsets", str(file), "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert committed(root) == {("T", 0): 2}


def test_offsets_outside_of_their_queue_become_the_nearest_ones_and_that_is_said(root: Path) -> None:
    result = command(root, "offsets", "reset", "g", "--to-offset", "99", "--queue", "0", "--yes")
    assert result.stderr == "rmq: 1 offsets lay outside of their queues and became the nearest ones\n1 offsets set\n"
    assert committed(root) == {("T", 0): 4}


def test_retry_topics_are_moved_only_if_they_are_named(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("%RETRY%g", queue_count=1)
        store.send(Message("%RETRY%g", b"again", queue_id=0))
        store.commit_offsets("g", {("%RETRY%g", 0): 1})
    command(root, "offsets", "reset", "g", "--to-earliest", "--yes")
    assert committed(root)["%RETRY%g", 0] == 1
    command(root, "offsets", "reset", "g", "-t", "%RETRY%g", "--to-earliest", "--yes")
    assert committed(root)["%RETRY%g", 0] == 0


def test_nothing_is_set_by_a_dry_run_a_no_or_where_nobody_can_be_asked(
    root: Path, tree_hash: Callable[[Path], str]
) -> None:
    before = tree_hash(root)
    arguments = ["offsets", "reset", "g", "--to-earliest"]
    planned = json.loads(command(root, *arguments, "--dry-run", "--json").stdout)
    assert planned["reset"] is False
    assert [(q["queueId"], q["committedOffset"], q["newOffset"], q["lag"], q["newLag"]) for q in planned["queues"]] == [
        (0, 2, 0, 2, 4), (1, None, 0, 0, 0),
    ]  # fmt: skip
    refused = command(root, *arguments)
    assert refused.exit_code == 2
    assert refused.stderr == "rmq: Set 2 offsets of group g? There is no terminal to ask: repeat it with --yes\n"
    answered = command(root, *arguments, answer="n")
    assert answered.exit_code == 1
    assert "Set 2 offsets of group g? [y/N]: n" in answered.stderr
    assert tree_hash(root) == before
    assert command(root, *arguments, answer="y").exit_code == 0
    assert committed(root) == {("T", 0): 0, ("T", 1): 0}


def test_what_is_there_already_needs_no_question(root: Path) -> None:
    result = command(root, "offsets", "reset", "g", "--to-offset", "2", "--queue", "0")
    assert (result.exit_code, result.stderr) == (0, "0 offsets set\n")


@pytest.mark.parametrize("kind", ["stream", "push consumer"])
def test_a_live_consumer_is_named_and_nothing_is_moved_under_it(root: Path, kind: str) -> None:
    if kind == "stream":
        lease = Lease(root, "g", "T")
        lease.acquire("query 'orders' on host-1")
        who, leave = "query 'orders' on host-1", lease.release
    else:
        groups = LocalGroups(root, system_clock)
        groups.heartbeat("g", "10.0.0.1@4711#1")
        who, leave = "'10.0.0.1@4711#1'", groups.close
    result = command(root, "offsets", "reset", "g", "--to-earliest", "--yes")
    assert result.exit_code == 1
    assert "rmq: group 'g' has running consumers, which would overwrite this: stop them first: " in result.stderr
    assert who in result.stderr
    assert committed(root) == {("T", 0): 2}
    unasked = command(root, "offsets", "reset", "g", "--to-earliest", answer="y")
    assert (unasked.exit_code, "[y/N]" in unasked.stderr) == (1, False)
    dry = command(root, "offsets", "reset", "g", "--to-earliest", "--dry-run")
    assert dry.exit_code == 0
    assert "it would be refused now: at work as the group is" in dry.stderr
    leave()
    assert command(root, "offsets", "reset", "g", "--to-earliest", "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cg", "--to-earliest"], "no group 'cg'"),
        (["G", "--to-earliest"], "did you mean 'g'?"),
        (["g"], "name one of --to-earliest, --to-latest, --to-time, --to-offset, --shift, --to-offsets"),
        (["g", "--to-earliest", "--to-latest"], "name one of"),
        (["g", "--to-time", "yesterday"], "'yesterday' is no time"),
        (["g", "--to-latest", "-t", "U"], "no topic 'U'"),
        (["g", "--to-latest", "--queue", "2"], "topic 'T' has queues 0 to 1, not 2"),
    ],
)
def test_a_mistake_is_one_line(root: Path, arguments: list[str], message: str) -> None:
    result = command(root, "offsets", "reset", *arguments, "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_group_without_offsets_needs_a_topic(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("%RETRY%new", queue_count=1)
    assert "group 'new' has no offsets on any topic: name one with -t" in command(
        root, "offsets", "reset", "new", "--to-latest", "--yes"
    ).stderr
    assert command(root, "offsets", "reset", "new", "-t", "T", "--to-latest", "--yes").exit_code == 0
    assert committed(root, "new") == {("T", 0): 4, ("T", 1): 0}


def test_a_person_at_a_real_terminal_is_asked(root: Path) -> None:
    controller, terminal = pty.openpty()
    environment = {
        "PATH": os.defpath, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RMQ_STORE": str(root),
        "TERM": "xterm", "LANG": "C.UTF-8",
    }  # fmt: skip
    arguments = ["offsets", "reset", "g", "--to-latest", "--queue", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from rmq_store.cli import main; main()", *arguments],
        stdin=terminal, stdout=terminal, stderr=terminal, env=environment,
    )  # fmt: skip
    os.close(terminal)
    received = b""
    try:
        while b"[y/N]" not in received:
            received += os.read(controller, 65536)
        os.write(controller, b"y\n")
        while chunk := os.read(controller, 65536):
            received += chunk
    except OSError:  # EIO: the last descriptor of the terminal was closed
        pass
    finally:
        os.close(controller)
    assert process.wait(timeout=60) == 0
    assert b"1 offsets set" in received
    assert committed(root) == {("T", 0): 4}
