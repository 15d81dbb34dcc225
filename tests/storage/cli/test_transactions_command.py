"""`rmq transactions`: what is open, why, and how it goes on."""

from __future__ import annotations

import json
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.transactions.checks import TransactionChecks
from rmq_store.broker.write.single_copy import CopiedMessage
from rmq_store.format.text.host import Host
from rmq_store.verify import verify_store

EXPECTED = Path(__file__).parent / "expected"
ARCHIVES = Path(__file__).parents[2] / "data" / "stores"
FIRST_MS = 1_700_000_000_000


class Everybody:
    """Producers that never decide."""

    def is_there(self, group: str) -> bool:
        return group == "pg"

    def ask(self, half: object, message: object) -> bool:
        return True


@pytest.fixture
def root(scratch: Path, small: StoreConfig) -> Path:
    """One transaction each: given up, committed, rolled back, open, of a broker."""
    now = [FIRST_MS]
    path = scratch / "store"
    with Store.open(path, create=True, config=small, clock=lambda: now[0]) as store:
        store.create_topic("Orders", 1)
        halves = store.transactions

        def send(name: str, group: str = "pg") -> Any:
            return halves.prepare(Message("Orders", b"tea", properties={"UNIQ_KEY": name}), 0, group)

        send("U-GIVEN-UP")
        checks = TransactionChecks(halves, Everybody(), store.clock, file_reserved_hours=72)
        for _ in range(17):
            now[0] += 30_000
            checks.round()
        for name, commit in (("U-COMMITTED", True), ("U-ROLLED-BACK", False)):
            sent = send(name)
            halves.end("pg", sent.queue_offset, sent.commit_log_offset, commit=commit)
        send("U-OPEN", "pg-away")
        own = {"UNIQ_KEY": "U-BROKER", "TRAN_MSG": "true", "PGROUP": "pg", "REAL_TOPIC": "Orders", "REAL_QID": "0"}
        left = CopiedMessage(b"tea", 0, 0, now[0], Host.parse("10.1.2.3:1"), own)
        store._writer.put(halves._records.half(left))
    return path


def states(root: Path, run: Any) -> dict[str, str]:
    result = run("transactions", "list", "--json", store=root)
    assert result.exit_code == 0, result.output
    return {row["transactionId"]: row["state"] for row in json.loads(result.stdout)}


def test_open_transactions_are_listed_with_their_state(root: Path, run: Any) -> None:
    assert states(root, run) == {"U-OPEN": "open", "U-BROKER": "of a broker", "U-GIVEN-UP": "given up"}
    result = run("transactions", "list", store=root)
    header, first, *_ = result.stdout.splitlines()
    assert header.split() == ["STATE", "GROUP", "TOPIC", "QUEUE", "AGE", "CHECKS", "TRANSACTION"]
    assert first.split()[:4] == ["open", "pg-away", "Orders", "0"]


@pytest.mark.parametrize(("name", "text"), [
    ("U-OPEN", "The next question is due now, as soon as a producer of group pg-away is connected."),
    ("U-BROKER", "A RocketMQ broker left it"), ("U-GIVEN-UP", "after 15 questions without an outcome"),
    ("U-COMMITTED", "queue 0 of Orders, offset 0"), ("U-ROLLED-BACK", "It was rolled back"),
])  # fmt: skip
def test_each_transaction_is_explained(root: Path, run: Any, name: str, text: str) -> None:
    result = run("transactions", "explain", name, store=root)
    assert result.exit_code == 0, result.output
    assert text in result.stdout


def test_an_unknown_transaction_is_an_error(root: Path, run: Any) -> None:
    for command in ("explain", "resume"):
        result = run("transactions", command, "U-NONE", store=root)
        assert (result.exit_code, "'U-NONE'" in result.stderr) == (2, True)


def test_what_was_given_up_or_left_by_a_broker_is_resumed_once(root: Path, run: Any) -> None:
    result = run("transactions", "resume", "U-BROKER", "U-GIVEN-UP", "--json", store=root)
    assert json.loads(result.stdout) == {"resumed": ["U-BROKER", "U-GIVEN-UP"]}
    result = run("transactions", "resume", "--all", store=root)
    assert result.stdout == "nothing to resume\n"
    result = run("transactions", "resume", "U-BROKER", "U-OPEN", store=root)
    said = "nothing to resume, its producers are asked already"
    assert result.stdout == f"U-BROKER: {said}\nU-OPEN: {said}\n"
    with Store.open(root, read_only=True) as store:
        pending = {half.transaction_id: half for half in store.transactions.pending()}
    assert {name: (half.is_ours, half.check_times) for name, half in pending.items()} == {
        "U-OPEN": (True, 0), "U-BROKER": (True, 0), "U-GIVEN-UP": (True, 0),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("commit", "text"),
    [(None, "No producer was asked yet."), (True, "It was committed"), (False, "It was rolled back")],
)
def test_what_was_resumed_is_not_given_up_any_more(root: Path, run: Any, commit: bool | None, text: str) -> None:
    run("transactions", "resume", "U-GIVEN-UP", store=root)
    if commit is not None:
        with Store.open(root) as store:
            (half,) = [half for half in store.transactions.pending() if half.transaction_id == "U-GIVEN-UP"]
            store.transactions.end("pg", half.queue_offset, half.commit_log_offset, commit=commit)
    result = run("transactions", "list", "--json", store=root)
    found = [row["state"] for row in json.loads(result.stdout) if row["transactionId"] == "U-GIVEN-UP"]
    assert found == (["open"] if commit is None else [])
    assert text in run("transactions", "explain", "U-GIVEN-UP", store=root).stdout


def test_a_store_without_an_index_lists_what_was_given_up(root: Path, run: Any) -> None:
    shutil.rmtree(root / "index")
    assert states(root, run)["U-GIVEN-UP"] == "given up"


def test_transactions_are_named_or_all_are_meant(root: Path, run: Any) -> None:
    assert run("transactions", "resume", store=root).exit_code == 2
    assert run("transactions", "resume", "--all", "U-OPEN", store=root).exit_code == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("transactions-list", ["list"]),
        ("transactions-explain", ["explain", "U-GIVEN-UP"]),
        ("transactions-resume", ["resume", "U-GIVEN-UP", "U-BROKER"]),
    ],
)
def test_the_text_is_as_kept(
    root: Path, run: Any, name: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one time of day: an age grows with each hour, and its column with the number of digits."""
    now_ms = FIRST_MS + (1_109 * 24 + 12) * 3_600_000 + 1_800_000
    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    result = run("transactions", *words, store=root)
    assert result.exit_code == 0, result.output
    assert result.output == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("version", ["4.4.0", "4.9.7", "5.5.0"])
def test_what_a_released_broker_left_is_listed_taken_over_and_ended(scratch: Path, run: Any, version: str) -> None:
    with tarfile.open(ARCHIVES / f"plain-{version}.tar.xz") as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(scratch)
    root = scratch / "store"
    [(left, state)] = states(root, run).items()
    assert state == "of a broker"
    assert "A RocketMQ broker left it" in run("transactions", "explain", left, store=root).stdout
    assert json.loads(run("transactions", "resume", left, "--json", store=root).stdout) == {"resumed": [left]}
    assert states(root, run) == {left: "open"}
    with Store.open(root) as store:
        begin = store.queue_range("Tx", 0)[1]
        [half] = store.transactions.pending()
        body = store.transactions.half_message(half).body
        store.transactions.end("pg_transactions", half.queue_offset, half.commit_log_offset, commit=True)
        [committed] = [row for batch in store.read("Tx", 0, begin, begin + 1) for row in batch.to_pylist()]
    assert (committed["msgId"], committed["body"]) == (left, body)
    assert states(root, run) == {}
    assert verify_store(root).status == "clean"
