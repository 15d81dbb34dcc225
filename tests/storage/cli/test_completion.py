"""TAB after a command: names of topics and groups, and never an error in the middle of somebody's line."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from rmq_store import Store
from rmq_store.cli import commands
from rmq_store.cli.shared.completion import GROUP, TOPIC

from .test_strangers import TEXT


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


@pytest.mark.parametrize(
    ("words", "typed", "names"),
    [
        (["printMsg", "-t"], "Ord", ["OrderTopic"]), (["trace", "-t"], "Ord", ["OrderTopic"]),
        (["offsets", "show"], "cg_ord", ["cg_orders"]), (["offsets", "reset", "cg_orders", "-t"], "Fi", ["FifoTopic"]),
        (["consumerProgress", "-g"], "cg_ord", ["cg_orders"]), (["consume", "T", "-g"], "cg_ord", ["cg_orders"]),
        (["cloneGroupOffset", "-s"], "cg_ord", ["cg_orders"]), (["dlq", "show"], "", ["cg_fifo", "cg_orders"]),
        (["dlq", "redrive"], "cg_f", ["cg_fifo"]), (["dlq", "export"], "cg_f", ["cg_fifo"]),
        (["dlq", "redrive", "cg_fifo", "--to-topic"], "Fi", ["FifoTopic"]), (["dlq", "archive"], "cg_f", ["cg_fifo"]),
    ],
)  # fmt: skip
def test_names_are_completed_wherever_one_is_asked_for(
    golden: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], typed: str, names: list[str]
) -> None:
    monkeypatch.setenv("RMQ_STORE", str(golden / "store"))
    assert complete(words, typed) == names


def test_what_a_broker_made_for_itself_is_not_offered(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_STORE", str(golden / "store"))
    topics = complete(["read"], "")
    assert {"OrderTopic", "%RETRY%cg_orders", "%DLQ%cg_orders"} <= set(topics)
    with Store.open(golden / "store", read_only=True) as store:
        system = {"TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "OFFSET_MOVED_EVENT", "RMQ_SYS_TRANS_HALF_TOPIC"}
        assert system <= set(store.topics())
    assert not [name for name in topics if name in system or name.startswith("rmq_sys_")]
    groups = complete(["lag"], "")
    assert "cg_orders" in groups
    assert not [name for name in groups if name.startswith(("CID_", "TOOLS", "SELF_TEST"))]


def test_a_name_that_no_topic_can_have_is_not_put_into_the_line(scratch: Path) -> None:
    with Store.open(scratch / "store", create=True) as store:
        store.create_topic("good")
    config = scratch / "store" / "config"
    strange = {name: {} for name in (TEXT, "$(reboot)", "a b", "good")}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": strange}))
    (config / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": strange}))
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": {"good@`x`": {}, "good@g": {}, "7": {}}}))
    store_words = ["--store", str(scratch / "store")]
    assert complete(["read", *store_words], "") == ["good"]
    assert complete(["lag", *store_words], "") == ["g", "good"]


def test_every_topic_and_group_of_a_command_is_completed() -> None:
    def check(command: click.Command, path: str) -> None:
        if isinstance(command, click.Group):
            for name, member in command.commands.items():
                check(member, f"{path} {name}".strip())
            return
        for param in command.params:
            if param.name in ("topic", "topics"):
                assert param.type is TOPIC, (path, param.name)
            if param.name in ("group", "groups") and not getattr(param, "hidden", False):
                assert isinstance(param.type, type(GROUP).__base__), (path, param.name)

    commands.add_plugins()
    check(commands, "")
