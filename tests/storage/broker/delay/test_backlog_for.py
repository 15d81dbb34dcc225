"""For whom messages wait: failed ones for their group's retry topic, delayed ones for their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store import Message, Store
from rmq_store.broker.delay import backlog

NOW_MS = 1_795_220_000_000


def test_what_waits_is_counted_by_where_it_comes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "_PIECE", 2)
    now_ms = [NOW_MS]
    with Store.open(tmp_path / "store", create=True, clock=lambda: now_ms[0]) as store:
        store.create_topic("T", 2)
        assert store.backlog_by_topic() == {}
        sent = [store.send(Message("T", b"%d" % number)) for number in range(5)]
        for one in sent:
            store.retry.send_back("g", one.commit_log_offset)
        store.retry.send_back("h", sent[0].commit_log_offset, delay_level=5)
        store.send(Message("T", b"later", delay_level=9))
        store.send(Message("T", b"at a time", deliver_timestamp_ms=NOW_MS + 3_600_000))
        wanted = {"%RETRY%g": 5, "%RETRY%h": 1, "T": 2}
        assert store.backlog_by_topic() == wanted
        with Store.open(store.path, read_only=True) as reader:
            assert reader.backlog_by_topic() == wanted
        now_ms[0] += 10_000
        store.schedule.deliver_due()
        assert store.backlog_by_topic() == {"%RETRY%h": 1, "T": 2}
        now_ms[0] += 3_600_000
        store.schedule.deliver_due()
        assert store.backlog_by_topic() == {}


def test_a_damaged_record_is_left_out_and_the_others_are_counted(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", create=True) as store:
        sent = [store.send(Message("T", b"%d" % number, delay_level=18)) for number in range(5)]
        (log,) = (store.path / "commitlog").iterdir()
    with log.open("r+b") as file:
        file.seek(sent[2].commit_log_offset + 4)
        file.write(b"\xff\xff\xff\xff")
    with Store.open(tmp_path / "store", read_only=True) as store:
        assert store.backlog_by_topic() == {"T": 4}
