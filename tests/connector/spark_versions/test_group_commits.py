"""The group's offsets behind a run of one batch: by a listener, a call and a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pyspark_rmq
from pyspark_rmq.checkpoint.command import checkpoint as command
from pyspark_rmq.older_spark import group_listener
from pyspark_rmq.older_spark.group_listener import GroupListener, listen
from rmq_store import Message, Store
from rmq_store.errors import DataLossError, LeaseHeldError, UsageError

from .micro_batches import Kill, Query

EXPECTED = Path(__file__).resolve().parents[2] / "storage" / "cli" / "expected" / "checkpoint-commit-group.txt"

Make = Callable[..., Query]
Committed = Callable[[Path], int]


@pytest.fixture
def ran(
    monkeypatch: pytest.MonkeyPatch, make_store: Callable[..., Path], query: Make
) -> Callable[..., tuple[Path, Query]]:
    """A query over 100 messages whose first run has ended."""
    from .conftest import play

    def run(kill: Kill | None = None, **options: Any) -> tuple[Path, Query]:
        path = make_store(Orders=100)
        one = query(play("4.0", monkeypatch), path, **options)
        one.run(kill=kill)
        return path, one

    return run


def test_the_call_commits_what_the_last_run_has_read(
    ran: Callable[..., Any], committed: Committed, tmp_path: Path
) -> None:
    path, one = ran()
    assert committed(path) == 0
    assert pyspark_rmq.commit_groups(str(one.checkpoint.written(tmp_path / "checkpoint"))) == ["cg"]
    assert committed(path) == 100
    assert pyspark_rmq.commit_groups(str(tmp_path / "checkpoint")) == ["cg"]
    assert committed(path) == 100


def test_nothing_is_committed_before_the_commit_entry_of_spark(
    ran: Callable[..., Any], committed: Committed, add_messages: Callable[..., None], tmp_path: Path
) -> None:
    path, one = ran("before the commit entry")
    assert pyspark_rmq.commit_groups(str(one.checkpoint.written(tmp_path / "none"))) == []
    assert committed(path) == 0
    one.run()
    add_messages(path, "Orders", 100, 150)
    one.run(kill="before the commit entry")
    assert pyspark_rmq.commit_groups(str(one.checkpoint.written(tmp_path / "first"))) == ["cg"]
    assert committed(path) == 100


def test_a_run_that_was_killed_before_the_call_is_committed_by_the_next_one(
    ran: Callable[..., Any], committed: Committed
) -> None:
    path, one = ran("behind the commit entry")
    assert committed(path) == 0
    one.run()
    assert committed(path) == 100


def test_offsets_that_are_further_stay(ran: Callable[..., Any], committed: Committed, tmp_path: Path) -> None:
    """Another consumer of the group went on."""
    path, one = ran()
    with Store.open(path) as store:
        store.send(Message("Orders", b"more", queue_id=0))
        store.commit_offsets("cg", {("Orders", 0): 26})
    pyspark_rmq.commit_groups(str(one.checkpoint.written(tmp_path / "checkpoint")))
    assert committed(path) == 101


def test_a_running_query_is_not_disturbed(
    ran: Callable[..., Any], committed: Committed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark_rmq.read import group

    monkeypatch.setattr(group, "CLAIM_TIMEOUT_S", 0.3)
    path, one = ran()
    where = str(one.checkpoint.written(tmp_path / "checkpoint"))
    with Store.open(path) as store:
        lease = store.lease("cg", "Orders", "another")
        with pytest.raises(LeaseHeldError, match="another"):
            pyspark_rmq.commit_groups(where)
        lease.release()
    assert committed(path) == 0


def test_a_store_that_was_replaced_is_not_committed_to(
    ran: Callable[..., Any], committed: Committed, tmp_path: Path, make_store: Callable[..., Path]
) -> None:
    path, one = ran()
    other = make_store("other", Orders=100)
    path.rename(tmp_path / "away")
    other.rename(path)
    with pytest.raises((UsageError, DataLossError)):
        pyspark_rmq.commit_groups(str(one.checkpoint.written(tmp_path / "checkpoint")))
    assert committed(path) == 0


def test_a_stream_without_a_group_has_nothing_to_commit(ran: Callable[..., Any], tmp_path: Path) -> None:
    _, one = ran(commitOffsets="false")
    assert pyspark_rmq.commit_groups(str(one.checkpoint.written(tmp_path / "checkpoint"))) == []


@pytest.mark.parametrize("given", [["--dry-run"], ["--yes"], ["--yes", "--json"]])
def test_the_command(
    given: list[str], ran: Callable[..., Any], committed: Committed, tmp_path: Path, run: Callable[..., Any]
) -> None:
    path, one = ran()
    done = run(["commit-group", str(one.checkpoint.written(tmp_path / "checkpoint")), *given])
    assert done.exit_code == 0, done.output
    assert committed(path) == (0 if given == ["--dry-run"] else 100)
    if "--json" in given:
        found = json.loads(done.stdout)
        assert found["written"]
        assert [row["position"] for row in found["queues"]] == [25, 25, 25, 25]
    elif given == ["--yes"]:
        said = done.stdout.replace(str(path), "STORE").replace(str(tmp_path), "DIRECTORY")
        assert said == EXPECTED.read_text(encoding="utf-8")
    else:
        assert "Orders" in done.stdout


@pytest.fixture
def run() -> Callable[..., Any]:
    from click.testing import CliRunner

    return lambda words: CliRunner().invoke(command, words)


def progress(run_id: str, end: dict[str, Any] | str, *, committed: bool = True, on_connect: bool = False) -> Any:
    """`on_connect`: as 4.0 and 4.1 show it there."""
    durations = {"addBatch": 1} | ({"commitOffsets": 1} if committed else {})
    text = end if isinstance(end, str) else str(end) if on_connect else json.dumps(end)
    source = SimpleNamespace(endOffset=text, json=json.dumps({"endOffset": end}))
    return SimpleNamespace(progress=SimpleNamespace(runId=run_id, durationMs=durations, sources=[source]))


def ended(run_id: str) -> Any:
    return SimpleNamespace(id="q", runId=run_id, exception=None)


@pytest.mark.parametrize("on_connect", [False, True], ids=["classic", "Connect"])
def test_the_listener_commits_when_the_query_has_ended(
    on_connect: bool, ran: Callable[..., Any], committed: Committed
) -> None:
    path, one = ran()
    listener = GroupListener()
    listener.onQueryProgress(progress("r", one.checkpoint.planned[-1], on_connect=on_connect))
    assert committed(path) == 0
    listener.onQueryTerminated(ended("another run"))
    assert committed(path) == 0
    listener.onQueryTerminated(ended("r"))
    assert committed(path) == 100


@pytest.mark.parametrize("end", ['{"a":1}', "-", "null", '{"version":9,"store":"","topics":{}}'])
def test_the_listener_leaves_other_sources_alone(end: str) -> None:
    listener = GroupListener()
    listener.onQueryProgress(progress("r", end))
    listener.onQueryTerminated(ended("r"))


def test_the_listener_takes_no_batch_without_a_commit_entry(ran: Callable[..., Any], committed: Committed) -> None:
    path, one = ran()
    listener = GroupListener()
    listener.onQueryProgress(progress("r", one.checkpoint.planned[-1], committed=False))
    listener.onQueryTerminated(ended("r"))
    assert committed(path) == 0


def test_the_listener_tells_what_it_cannot_commit(
    ran: Callable[..., Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path, one = ran()
    path.rename(tmp_path / "gone")
    listener = GroupListener()
    listener.onQueryProgress(progress("r", one.checkpoint.planned[-1]))
    listener.onQueryTerminated(ended("r"))
    assert "its last batch is not committed for group cg" in caplog.text


class Session:
    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.streams = SimpleNamespace(addListener=self.listeners.append)


def test_a_session_is_listened_to_once_and_only_where_spark_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Session()
    monkeypatch.setattr(group_listener, "TELLS_STARTS", True)
    listen(session)
    assert session.listeners == []
    monkeypatch.setattr(group_listener, "TELLS_STARTS", False)
    listen(session)
    listen(session)
    assert len(session.listeners) == 1
