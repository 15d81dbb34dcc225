"""The modes of groups in `config/messageRequestMode.json`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_store import CorruptConfigError
from rmq_store.server.pop.request_modes import RequestMode, RequestModeTable
from rmq_store.verify.entries import odd_entries

OF_A_BROKER = """{
\t"messageRequestModeMap":{
\t\t"Orders":{
\t\t\t"cg":{
\t\t\t\t"consumerGroup":"cg",
\t\t\t\t"mode":"POP",
\t\t\t\t"popShareQueueNum":8,
\t\t\t\t"topic":"Orders"
\t\t\t}
\t\t}
\t}
}"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config" / "messageRequestMode.json"
    path.parent.mkdir()
    return path


def test_the_file_is_that_of_a_broker_byte_for_byte(tmp_path: Path, file: Path) -> None:
    table = RequestModeTable(tmp_path)
    assert table.get("Orders", "cg") == RequestMode("PULL", 0)
    table.set("Orders", "cg", RequestMode("POP", 8))
    assert file.read_text() == OF_A_BROKER
    assert table.get("Orders", "cg") == RequestMode("POP", 8)
    assert table.get("Orders", "other") == table.get("Other", "cg") == RequestMode()


def test_unknown_members_and_other_groups_stay(tmp_path: Path, file: Path) -> None:
    file.write_text('{"messageRequestModeMap":{"Orders":{"a":{"mode":"POP","popShareQueueNum":-1,"x":1}}},"y":2}')
    table = RequestModeTable(tmp_path)
    assert table.get("Orders", "a") == RequestMode("POP", -1)
    table.set("Orders", "b", RequestMode())
    kept = json.loads(file.read_text())
    assert kept["messageRequestModeMap"]["Orders"]["a"] == {"mode": "POP", "popShareQueueNum": -1, "x": 1}
    assert kept["y"] == 2


@pytest.mark.parametrize(
    "entry", ["7", "null", "{}", '{"mode":"PUSH"}', '{"mode":7}', '{"mode":"POP","popShareQueueNum":2147483648}']
)
def test_an_entry_that_cannot_be_a_mode_is_named_and_the_others_can_be_used(
    tmp_path: Path, file: Path, entry: str
) -> None:
    file.write_text(f'{{"messageRequestModeMap":{{"Orders":{{"bad":{entry},"good":{{"mode":"POP"}}}}}}}}')
    table = RequestModeTable(tmp_path)
    assert table.get("Orders", "good") == RequestMode("POP", 0)
    with pytest.raises(CorruptConfigError, match="mode of group 'bad'"):
        table.get("Orders", "bad")
    (odd,) = odd_entries(file.name, json.loads(file.read_text()))
    assert odd.startswith("mode of topic 'Orders', group 'bad': ")
