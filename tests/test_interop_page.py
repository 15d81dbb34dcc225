"""docs/interop.md has a cell for each client and feature, and each of them was tried, in a store that was sound."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.interop import results
from helpers.interop.matrix import BY_THE_CLIENT, CANNOT_BE, COLUMNS, REFUSED, ROWS, Cell, record, recorded
from helpers.interop.refusals import NAMES
from helpers.interop.results import Results
from interop import conftest
from interop_page import ADMIN_MARKS, DASHBOARD_MARKS, MARKS, PAGE
from rmq_store import Message, Store
from rmq_store.server.scratch_store import make_scratch_store

TESTS = Path(__file__).parent / "interop"
BASIC = {
    "updateTopic", "deleteTopic", "topicList", "topicRoute", "topicStatus", "topicClusterList", "consumerProgress",
    "updateSubGroup", "deleteSubGroup", "getConsumerConfig", "queryMsgById", "queryMsgByKey", "queryMsgByUniqueKey",
    "queryMsgByOffset", "printMsg", "printMsgByQueue", "sendMessage", "consumeMessage", "resetOffsetByTime",
    "skipAccumulatedMessage", "cloneGroupOffset", "brokerStatus", "getBrokerConfig", "updateBrokerConfig",
    "clusterList", "consumerConnection", "producerConnection",
}  # fmt: skip
"""The commands of mqadmin that a server should be able to answer."""


def test_each_feature_has_a_test() -> None:
    marked = [
        name for path in TESTS.glob("test_*.py") for name in re.findall(r'mark\.column\("(.+?)"\)', path.read_text())
    ]
    assert sorted(marked) == sorted(COLUMNS)


def test_the_page_has_each_command_of_mqadmin() -> None:
    begin, end = ADMIN_MARKS
    table = PAGE.read_text(encoding="utf-8").split(begin)[1].split(end)[0]
    tried = re.findall(r'^(?:REFUSED = \[| +)\("(\w+)[ "]', (TESTS / "test_mqadmin.py").read_text(), re.MULTILINE)
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == sorted(set(tried))
    assert set(tried) >= BASIC
    for line in table.strip().splitlines()[2:]:
        for cell in line.strip("|").split("|")[1:]:
            assert cell.strip() == "works" or is_refusal(cell.strip()), line


def test_the_page_has_each_question_of_the_dashboard() -> None:
    begin, end = DASHBOARD_MARKS
    lines = PAGE.read_text(encoding="utf-8").split(begin)[1].split(end)[0].strip().splitlines()
    asked = re.findall(r'^ +\("(\w+)[ "]', (TESTS / "test_dashboard.py").read_text(), re.MULTILINE)
    assert [line.split("`")[1] for line in lines[2:]] == sorted(asked)
    for line in lines[2:]:
        old, new = (cell.strip() for cell in line.strip("|").split("|")[1:])
        assert (old == "works" or old.startswith("- (rocketmq-tools 4.9.7 has no `")) and new == "works", line


def test_the_page_has_a_result_for_each_client_and_feature() -> None:
    begin, end = MARKS
    lines = PAGE.read_text(encoding="utf-8").split(begin)[1].split(end)[0].strip().splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert head[1:] == list(ROWS)
    assert [column for column, *_ in rows] == list(COLUMNS)
    for column, *cells in rows:
        for row, cell in zip(ROWS, cells, strict=True):
            if (row, column) in CANNOT_BE:
                assert cell == f"- ({CANNOT_BE[row, column].text})"
            else:
                is_right = is_refusal(cell) if column in REFUSED else cell == "works"
                assert is_right, f"{row}, {column}: {cell}; `make interop` writes the page"


def is_refusal(cell: str) -> bool:
    """Whether a cell has a code of the server and its name, or says that the client did not ask."""
    told = re.fullmatch(r"refused, (\d+) ([A-Z_]+)", cell)
    return cell == f"refused, {BY_THE_CLIENT}" if told is None else NAMES.get(int(told[1])) == told[2]


@pytest.mark.parametrize("cell", ["works", "refused", "refused, 13", "refused, 13 NO_PERMISSION", "refused, CODE: 13"])
def test_a_refusal_has_a_code_and_its_name(cell: str) -> None:
    assert is_refusal("refused, 13 MESSAGE_ILLEGAL") and not is_refusal(cell)


@pytest.mark.parametrize(
    ("release", "file", "line"),
    [
        ("rocketmq-client-java 5.2.0", "java/pom.xml", "<version>5.2.0</version>"),
        ("rocketmq-client-nodejs 1.0.8", "node/package.json", '"rocketmq-client-nodejs": "1.0.8"'),
        ("rocketmq-client-go 2.1.2", "go/go.mod", "rocketmq-client-go/v2 v2.1.2"),
        ("golang/v5 5.1.4", "go/go.mod", "rocketmq-clients/golang/v5 v5.1.4"),
        ("rocketmq 5.0.0", "rust/Cargo.toml", 'rocketmq = "=5.0.0"'),
        ("librocketmq of rocketmq 0.4.4", "cpp/requirements.txt", "rocketmq==0.4.4"),
    ],
)
def test_a_reason_names_the_release_that_the_tests_use(release: str, file: str, line: str) -> None:
    assert any(cell.text.startswith(release) for cell in CANNOT_BE.values())
    assert line in (TESTS / file).read_text()


def test_a_test_that_begins_withdraws_what_an_earlier_one_has_found(tmp_path: Path) -> None:
    record("Go", "tags", Cell("works"), tmp_path)
    Results(tmp_path).begin("Go", "tags")
    assert recorded(tmp_path) == {}


def test_a_result_is_written_down_when_its_store_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Path] = []
    monkeypatch.setattr(results, "check_store", lambda path, versions: checked.append(path))
    found, one, other = Results(tmp_path / "found"), tmp_path / "one", tmp_path / "other"
    found.add(one, "Go", "tags", Cell("works"))
    found.add(other, "Go", "POP", Cell("works"))
    assert recorded(tmp_path / "found") == {}
    found.finish(one)
    assert checked == [one]
    assert recorded(tmp_path / "found") == {("Go", "tags"): Cell("works")}


def test_a_test_that_leaves_a_damaged_store_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "RESULTS", Results(tmp_path / "found"))
    path = damaged_store(tmp_path)
    used = {"admin": SimpleNamespace(row="mqadmin 5.5.0", path=path), "line": "topicList"}
    test: Any = SimpleNamespace(funcargs=used, stash=pytest.Stash(), get_closest_marker=lambda name: None)
    hook = conftest.pytest_pyfunc_call(test)
    next(hook)
    with pytest.raises(AssertionError, match="CRC"):
        next(hook)


def test_a_result_in_a_damaged_store_is_not_written_down(tmp_path: Path) -> None:
    path = damaged_store(tmp_path)
    found = Results(tmp_path / "found")
    found.add(path, "Go", "tags", Cell("works"))
    with pytest.raises(AssertionError, match="CRC"):
        found.finish(path)
    assert recorded(tmp_path / "found") == {}


def damaged_store(tmp_path: Path) -> Path:
    """A store with a message whose body is another one than its CRC says."""
    path = tmp_path / "store"
    make_scratch_store(path)
    with Store.open(path) as store:
        for body in (b"first", b"damaged", b"last"):
            store.send(Message("Orders", body))
    [log] = (path / "commitlog").iterdir()
    data = log.read_bytes()
    log.write_bytes(data.replace(b"damaged", b"DAMAGED"))
    return path
