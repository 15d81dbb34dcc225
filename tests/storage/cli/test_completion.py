"""TAB after a command: names of topics and groups, and never an error in the middle of somebody's line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from rmq_store.cli import commands


def complete(words: list[str], incomplete: str) -> list[str]:
    found = ShellComplete(commands, {}, "rmq", "_RMQ_COMPLETE").get_completions(words, incomplete)
    return [item.value for item in found]


def test_topics_and_groups_are_completed(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ["--store", str(golden / "store")]
    assert complete(["read", *store], "Ord") == ["OrderTopic"]
    assert complete(["lag", *store], "cg_ord") == ["cg_orders"]
    monkeypatch.setenv("RMQ_STORE", str(golden / "store"))
    assert complete(["tail", "-f"], "Ord") == ["OrderTopic"]
    assert complete(["groups", "cg_fifo"], "cg_ord") == ["cg_orders"]


def test_where_no_store_can_be_read_there_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMQ_STORE", raising=False)
    assert complete(["read"], "") == []
    assert complete(["read", "--store", str(tmp_path)], "") == []
    (tmp_path / "config").mkdir()
    for text in ("{", "[]", '{"topicConfigTable": 7}'):
        (tmp_path / "config" / "topics.json").write_text(text)
        assert complete(["read", "--store", str(tmp_path)], "") == []
