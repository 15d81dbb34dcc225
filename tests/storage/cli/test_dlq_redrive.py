"""`rmq dlq list | show | redrive | export`: on the store of a real broker, and on dead letters with reasons."""

from __future__ import annotations

import csv
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from rmq_store import Message, Store, StoreConfig, SubscriptionGroup, failure
from rmq_store.broker.dlq.archive_schema import DEAD_LETTER_SCHEMA
from rmq_store.broker.dlq.redrive_ledger import RedriveLedger
from rmq_store.broker.monitoring.dead_letter_rows import DeadLetterRows, Wanted
from rmq_store.cli.target.store import letters
from rmq_store.errors import CorruptRecordError

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"
CONFIG = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=64, max_index_num=1000)


@pytest.fixture
def root(scratch: Path) -> Path:
    """6 dead letters of cg_a: 3 TimeoutError, 2 app.BadOrder, 1 without reasons."""
    with Store.open(scratch / "store", create=True, config=CONFIG) as store:
        store.create_topic("Orders", 1)
        store.create_group(SubscriptionGroup("cg_a"))
        for number, error in enumerate([TimeoutError("slow"), BadOrder("no \x1b[31mprice"), None] * 2):
            sent = store.send(Message("Orders", b"body %d" % number, tags=f"T{number % 2}", keys=f"k{number}"))
            reasons = {} if error is None else failure.failure_properties(error, now_ms=1_795_220_515_854)
            if number == 5:
                reasons = failure.failure_properties(TimeoutError("slow"), now_ms=1_795_220_515_854)
            store.retry.send_back("cg_a", sent.commit_log_offset, delay_level=-1, properties=reasons or None)
    return scratch / "store"


class BadOrder(Exception):
    pass


def _outcomes(result: Result) -> dict[str, int]:
    titles, values = (line.split() for line in result.stdout.splitlines()[:2])
    return {name: int(value) for name, value in zip(titles[1:], values[1:], strict=True) if value != "0"}


# ---- list and show


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("dlq-list", ["list"]),
        ("dlq-show", ["show", "cg_orders", "--max", "3", "--body", "none"]),
    ],
)
def test_the_text_is_as_kept(run: Run, name: str, arguments: list[str]) -> None:
    result = run("dlq", *arguments)
    assert (result.exit_code, result.stdout) == (0, (EXPECTED / f"{name}.txt").read_text())


def test_list_counts_what_there_is_why_and_from_where(run: Run, root: Path) -> None:
    (group,) = json.loads(run("dlq", "list", "--json", store=root).stdout)
    reasons = group["reasons"]
    assert (group["group"], group["deadLetters"], group["redriven"], group["archived"]) == ("cg_a", 6, 0, None)
    assert reasons.pop(next(name for name in reasons if name.endswith(".BadOrder"))) == 2
    assert reasons == {"TimeoutError": 3, "(unknown)": 1}
    assert group["topics"] == {"Orders": 6}
    assert group["oldest"] <= group["newest"]


def test_list_knows_what_was_redriven_and_archived(run: Run, root: Path, scratch: Path) -> None:
    run("dlq", "redrive", "cg_a", "--max", "2", "--yes", store=root)
    with Store.open(root) as store:
        store.retention.configure(dlq_archive_path=str(scratch / "archive"))
        store.archive(scratch / "archive").archive_up_to(store.log_range()[1])
        store.retry.send_back("cg_a", store.commit_log_offset_before("Orders", 0, 1), delay_level=-1)
    (group,) = json.loads(run("dlq", "list", "cg_a", "--json", store=root).stdout)
    assert (group["deadLetters"], group["redriven"], group["archived"]) == (7, 2, 6)
    (group,) = json.loads(run("groups", "cg_a", "--json", store=root).stdout)
    assert (group["dead"], group["deadLeft"]) == (7, 5)
    run("dlq", "redrive", "cg_a", "--yes", store=root)
    (group,) = json.loads(run("groups", "cg_a", "--json", store=root).stdout)
    assert (group["dead"], group["deadLeft"]) == (7, 0)


def test_groups_are_shown_although_a_record_of_what_was_redriven_is_damaged(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*arguments: object) -> None:
        raise CorruptRecordError("commitlog", 4096, "no record of moved dead letters")

    monkeypatch.setattr(RedriveLedger, "moved", damaged)
    result = run("groups", "cg_a", "--json", store=root)
    (group,) = json.loads(result.stdout)
    assert (result.exit_code, group["dead"], group["deadLeft"]) == (1, 6, None)
    assert "rmq: LEFT of group cg_a is not known: " in result.stderr and "4096" in result.stderr
    assert run("groups", "cg_a", store=root).stdout.splitlines()[-1].split()[-2:] == ["6", "-"]


def test_show_has_the_newest_first_with_origin_tries_and_reason(run: Run, root: Path) -> None:
    rows = [json.loads(line) for line in run("dlq", "show", "cg_a", "--json", store=root).stdout.splitlines()]
    assert [row["body"] for row in rows] == [f"body {number}" for number in (5, 4, 3, 2, 1, 0)]
    newest = rows[0]
    assert (newest["originTopic"], newest["originQueueId"], newest["originQueueOffset"]) == ("Orders", 0, 5)
    assert (newest["errorClass"], newest["errorMessage"]) == ("TimeoutError", "slow")
    assert (newest["reconsumeTimes"], newest["redriven"]) == (1, False)
    assert newest["lastFailureTime"] == "2026-11-21T00:21:55.854Z"
    text = run("dlq", "show", "cg_a", "--max", "2", store=root).stdout
    assert "BadOrder: no \\x1b[31mprice" in text
    assert len(text.splitlines()) == 3


def test_show_selects_by_reason_stack_and_time(run: Run, root: Path) -> None:
    def bodies(*arguments: str) -> list[str]:
        lines = run("dlq", "show", "cg_a", "--json", *arguments, store=root).stdout.splitlines()
        return [json.loads(line)["body"] for line in lines]

    assert bodies("--reason", "BadOrder") == ["body 4", "body 1"]
    assert bodies("--reason", "TimeoutError", "--max", "2") == ["body 5", "body 3"]
    assert bodies("--reason", "Order") == []
    rows = run("dlq", "show", "cg_a", "--json", "--reason", "BadOrder", store=root).stdout.splitlines()
    stack = json.loads(rows[0])["stackHash"]
    assert bodies("--reason", stack) == ["body 4", "body 1"]
    assert len(bodies("--since", "1h")) == 6
    assert bodies("--since", "0s") == []


def test_an_unknown_group_is_answered_with_the_nearest(run: Run, root: Path) -> None:
    for command in (["list", "cg_b"], ["show", "cg_b"], ["redrive", "cg_b"], ["export", "cg_b", "--to", "x.csv"]):
        result = run("dlq", *command, store=root)
        assert (result.exit_code, result.stderr) == (2, "rmq: group 'cg_b' has no dead letters; 'cg_a' has\n")


# ---- redrive


def test_a_dry_run_says_what_would_be_and_changes_nothing(run: Run, root: Path) -> None:
    with Store.open(root, read_only=True) as store:
        before = store.log_range()
    result = run("dlq", "redrive", "cg_a", "--dry-run", store=root)
    assert (result.exit_code, _outcomes(result)) == (0, {"REDRIVEN": 6})
    assert result.stdout.endswith("nothing was moved: this is what would be\n")
    with Store.open(root, read_only=True) as store:
        assert store.log_range() == before


def test_it_asks_and_without_a_terminal_it_refuses(run: Run, root: Path) -> None:
    result = run("dlq", "redrive", "cg_a", store=root)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[0] == "cg_a: this would be 6 REDRIVEN"
    assert "--yes" in result.stderr
    assert json.loads(run("dlq", "list", "--json", store=root).stdout)[0]["redriven"] == 0


def test_what_was_moved_is_consumed_again_and_not_moved_twice(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "CALL_ROWS", 2)
    first = run("dlq", "redrive", "cg_a", "--max", "3", "--yes", store=root)
    assert (first.exit_code, _outcomes(first)) == (0, {"REDRIVEN": 3})
    assert _outcomes(run("dlq", "redrive", "cg_a", "--yes", store=root)) == {"REDRIVEN": 3, "ALREADY_REDRIVEN": 3}
    again = run("dlq", "redrive", "cg_a", store=root)  # nothing to ask for
    assert (again.exit_code, _outcomes(again)) == (0, {"ALREADY_REDRIVEN": 6})
    shown = run("consume", "Orders", "-g", "cg_a", "--until-empty", "--json", store=root).stdout.splitlines()
    bodies = [json.loads(line)["body"] for line in shown]
    assert sorted(bodies) == sorted([f"body {number}" for number in range(6)] * 2)  # the originals, and these


@pytest.mark.parametrize("call_rows", [1, 2, 100])
def test_a_queue_is_worked_off_in_portions_by_the_same_command(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch, call_rows: int
) -> None:
    monkeypatch.setattr(letters, "CALL_ROWS", call_rows)
    command = ["dlq", "redrive", "cg_a", "--max", "2", "--max-replays", "1", "--yes"]
    moved = []
    for _ in range(4):
        planned = _outcomes(run(*command[:-1], "--dry-run", store=root))
        done = _outcomes(run(*command, store=root))
        assert planned == done
        moved.append((done.get("REDRIVEN", 0), done.get("ALREADY_REDRIVEN", 0)))
    assert moved == [(2, 0), (2, 2), (2, 4), (0, 6)]


def test_reason_filter_and_since_choose_and_a_topic_can_be_named(run: Run, root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("Repair", 1)
    dry = ["redrive", "cg_a", "--dry-run"]
    assert _outcomes(run("dlq", *dry, "--reason", "BadOrder", store=root)) == {"REDRIVEN": 2}
    assert _outcomes(run("dlq", *dry, "--filter", "TAGS = 'T1'", store=root)) == {"REDRIVEN": 3}
    chosen = ["--filter", "TAGS = 'T1'", "--reason", "TimeoutError"]
    assert _outcomes(run("dlq", *dry, *chosen, store=root)) == {"REDRIVEN": 2}
    assert _outcomes(run("dlq", *dry, "--since", "0s", store=root)) == {}
    moved = run("dlq", "redrive", "cg_a", "--reason", "BadOrder", "--to-topic", "Repair", "--yes", "--json", store=root)
    answer = json.loads(moved.stdout)
    assert (answer["REDRIVEN"], answer["dryRun"]) == (2, False)
    with Store.open(root, read_only=True) as store:
        assert store.queue_range("Repair", 0).max_offset == 2


def test_what_was_replayed_too_often_is_refused_with_code_1_or_parked(run: Run, root: Path) -> None:
    result = run("dlq", "redrive", "cg_a", "--max-replays", "0", "--yes", store=root)
    assert (result.exit_code, _outcomes(result)) == (1, {"REFUSED": 6})
    assert "refused 6: " in result.stdout
    with Store.open(root) as store:
        store.create_topic("Parking", 1)
    parked = ["--max-replays", "0", "--parking-topic", "Parking", "--yes"]
    result = run("dlq", "redrive", "cg_a", *parked, store=root)
    assert (result.exit_code, _outcomes(result)) == (0, {"PARKED": 6})


def test_a_rate_holds_between_the_calls_too(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    own_thread, real_sleep = threading.current_thread(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.current_thread() is own_thread and seconds > 0.01:  # not to wait for a thread
            slept.append(seconds)
        else:
            real_sleep(seconds)

    monkeypatch.setattr(letters, "CALL_ROWS", 3)
    monkeypatch.setattr("time.sleep", sleep)
    result = run("dlq", "redrive", "cg_a", "--rate", "2", "--yes", store=root)
    assert _outcomes(result) == {"REDRIVEN": 6}
    assert slept == [1.0, 1.0, 1.0]  # within the first call, between the two, within the second


def test_a_loop_is_refused(run: Run, root: Path) -> None:
    result = run("dlq", "redrive", "cg_a", "--to-topic", "%DLQ%cg_a", "--yes", store=root)
    assert (result.exit_code, "loop" in result.stderr) == (2, True)


# ---- export


def test_every_format_has_every_dead_letter(run: Run, root: Path, tmp_path: Path) -> None:
    with Store.open(root) as store:
        sent = store.send(Message("Orders", b"\x00\xff"))
        store.retry.send_back("cg_a", sent.commit_log_offset, delay_level=-1)
    for suffix in ("parquet", "jsonl", "csv"):
        result = run("dlq", "export", "cg_a", "--to", str(tmp_path / f"d.{suffix}"), store=root)
        assert (result.exit_code, "7 dead letters of cg_a" in result.stdout) == (0, True)
    table = pq.read_table(tmp_path / "d.parquet")
    assert table.schema.names == DEAD_LETTER_SCHEMA.names
    lines = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    with (tmp_path / "d.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert table.column("queueOffset").to_pylist() == [line["queueOffset"] for line in lines] == list(range(7))
    assert [int(row["queueOffset"]) for row in cells] == list(range(7))
    assert table.column("body").to_pylist()[-1] == bytes.fromhex(lines[-1]["bodyHex"]) == b"\x00\xff"
    assert (lines[0]["body"], cells[0]["body"], cells[-1]["bodyHex"]) == ("body 0", "body 0", "00ff")
    assert json.loads(cells[0]["properties"]) == lines[0]["properties"]
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["d.csv", "d.jsonl", "d.parquet"]


def test_a_file_that_is_there_stays_unless_told_otherwise(run: Run, root: Path, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("mine")
    result = run("dlq", "export", "cg_a", "--to", str(path), store=root)
    assert (result.exit_code, path.read_text(), "--overwrite" in result.stderr) == (2, "mine", True)
    assert run("dlq", "export", "cg_a", "--to", str(path), "--overwrite", store=root).exit_code == 0
    assert len(path.read_text().splitlines()) == 6
    assert run("dlq", "export", "cg_a", "--to", str(tmp_path / "d.xml"), store=root).exit_code == 2


def test_an_export_follows_no_link_that_somebody_put_in_its_way(run: Run, root: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for suffix in ("jsonl", "csv", "parquet"):
        (tmp_path / f".d.{suffix}.{os.getpid()}.part").symlink_to(victim)
        result = run("dlq", "export", "cg_a", "--to", str(tmp_path / f"d.{suffix}"), store=root)
        assert (result.exit_code, result.stderr.count("\n"), victim.read_text()) == (2, 1, "mine")


def test_an_export_that_fails_leaves_nothing(
    run: Run, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rmq_store.errors import CorruptRecordError

    def damaged(self: DeadLetterRows) -> None:
        raise CorruptRecordError("commitlog/0", 7, "torn")

    monkeypatch.setattr(DeadLetterRows, "batches", damaged)
    result = run("dlq", "export", "cg_a", "--to", str(tmp_path / "d.csv"), store=root)
    assert (result.exit_code, "torn" in result.stderr, list(tmp_path.iterdir())) == (1, True, [root.parent])


def test_memory_is_bounded_by_a_step(scratch: Path) -> None:
    """64 MiB of dead letters; a step holds 16 MiB of records."""
    with Store.open(scratch / "large", create=True) as store:
        store.create_topic("%DLQ%cg_big", 1)
        for _ in range(16):
            store.append(pa.RecordBatch.from_pydict({"body": [b"x" * (1 << 20)] * 4}), "%DLQ%cg_big")
        rows = DeadLetterRows(store, "cg_big", Wanted())
        before = pa.total_allocated_bytes()
        largest = max(pa.total_allocated_bytes() - before for _ in rows.batches())
    assert largest < 40 << 20
