"""`rmq topics | groups | read | verify` on the store of a real broker: what they print, and how they answer mistakes.

The text of each command is kept in `expected/`. To renew it, look at what the failing test shows and put it there.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.cells import set_cell_size

from rmq_store import Store
from rmq_store.cli.shared import output

pytestmark = pytest.mark.long

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"


def _manifest(golden: Path) -> Any:
    return json.loads((golden / "manifest.json").read_text())


def _tree_hash(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(f"{path.relative_to(root)} {path.stat().st_mtime_ns} {path.stat().st_mode}".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


# ---- text


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("topics", ["topics"]),
        ("topics-queues", ["topics", "--queues"]),
        ("groups", ["groups"]),
        ("groups-queues", ["groups", "cg_partial", "cg_pop"]),
        ("read", ["read", "FifoTopic", "--max", "5"]),
        ("read-hex", ["read", "FifoTopic", "--queue", "3", "--from", "40", "--max", "2", "--body", "hex"]),
        ("verify", ["verify"]),
        ("help", ["--help"]),
    ],
)
def test_the_text_of_a_command_is_as_kept(run: Run, golden: Path, name: str, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.replace(str(golden), "GOLDEN") == (EXPECTED / f"{name}.txt").read_text()
    assert result.stderr == ""


@pytest.mark.parametrize("command", ["topics", "groups", "read", "verify"])
def test_every_command_has_help_with_an_example_the_store_option_and_json(run: Run, command: str) -> None:
    text = run(command, "--help").stdout
    assert re.search(rf"Examples?:\n    rmq {command} ", text)
    assert "--store PATH" in text
    assert "RMQ_STORE" in text
    assert "--json" in text


# ---- numbers


def test_topics_have_the_queues_and_offsets_of_the_manifest(run: Run, golden: Path) -> None:
    shown = {topic["topic"]: topic for topic in json.loads(run("topics", "--all", "--json").stdout)}
    wanted = _manifest(golden)["topics"]
    assert shown.keys() == wanted.keys()
    for name, topic in wanted.items():
        assert (shown[name]["readQueues"], shown[name]["writeQueues"]) == (
            topic["readQueueNums"],
            topic["writeQueueNums"],
        )
        offsets = {queue["queueId"]: (queue["minOffset"], queue["maxOffset"]) for queue in shown[name]["queues"]}
        for queue_id, queue in topic["queues"].items():
            assert offsets[int(queue_id)] == (queue["minOffset"], queue["maxOffset"]), (name, queue_id)


def test_groups_have_the_offsets_and_the_lag_that_mqadmin_shows(run: Run, golden: Path) -> None:
    shown = {group["group"]: group for group in json.loads(run("groups", "--all", "--json").stdout)}
    compared = 0
    for name, group in _manifest(golden)["groups"].items():
        assert name in shown
        if group["totalLag"] is None:  # the broker has no %RETRY% topic of it, and gave no answer
            continue
        assert shown[name]["lag"] == group["totalLag"], name
        rows = {
            (q["topic"], q["queueId"]): (q["committedOffset"] or 0, q["maxOffset"], q["lag"])
            for q in shown[name]["queues"]
        }
        for queue in group["queues"]:
            row = (queue["committedOffset"], queue["brokerOffset"], queue["lag"])
            assert rows.pop((queue["topic"], queue["queueId"])) == row, (name, queue)
            compared += 1
        assert rows == {}, name
    assert compared > 20


@pytest.mark.statement("D04")
def test_dead_letters_and_retries_are_counted(run: Run) -> None:
    shown = {group["group"]: group for group in json.loads(run("groups", "--json").stdout)}
    assert {name: group["dead"] for name, group in shown.items() if group["dead"]} == {"cg_orders": 297, "cg_fifo": 2}
    assert all(group["retries"] == 0 for group in shown.values())


def test_retries_that_wait_are_part_of_the_lag(run: Run, golden: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden / "store", root)
    path = root / "config" / "consumerOffset.json"
    path.write_text(path.read_text().replace("0:1483", "0:1400"))
    (group,) = json.loads(run("groups", "cg_orders", "--json", store=root).stdout)
    assert (group["lag"], group["retries"]) == (83, 83)


def test_filters_that_a_broker_noted_down_are_shown(run: Run, golden: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden / "store", root)
    entry = {"topic": "OrderTopic", "consumerGroup": "cg_tags", "expression": "amount > 10", "expressionType": "SQL92"}
    data = {"filterDataByTopic": {"OrderTopic": {"topic": "OrderTopic", "groupFilterData": {"cg_tags": entry}}}}
    (root / "config" / "consumerFilter.json").write_text(json.dumps(data))
    (group,) = json.loads(run("groups", "cg_tags", "--json", store=root).stdout)
    assert group["filters"] == [{"topic": "OrderTopic", "type": "SQL92", "expression": "amount > 10"}]
    assert "amount > 10" in run("groups", store=root).stdout
    assert "FILTER" not in run("groups", "cg_orders", store=root).stdout


def test_read_prints_every_message_of_a_topic_as_the_manifest_has_it(run: Run, golden: Path) -> None:
    lines = run("read", "OrderTopic", "--json", "--max", "10000", "--body", "hex").stdout.splitlines()
    shown = {(row["queueId"], row["queueOffset"]): row for row in map(json.loads, lines)}
    wanted = _manifest(golden)["topics"]["OrderTopic"]["queues"]
    messages = [message for queue in wanted.values() for message in queue["messages"]]
    assert len(lines) == len(shown) == len(messages)
    for message in messages:
        row = shown[message["queueId"], message["queueOffset"]]
        body = bytes.fromhex(row["body"])
        assert (len(body), hashlib.sha256(body).hexdigest()) == (message["bodyLength"], message["bodySha256"])
        assert (row["tags"], row["keys"], row["properties"]) == (
            message["tags"],
            message["keys"],
            message["properties"],
        )
        assert row["commitLogOffset"] == message["commitLogOffset"]


def test_read_counts_max_over_all_queues_and_begins_at_from(run: Run) -> None:
    rows = [
        json.loads(line)
        for line in run("read", "OrderTopic", "--from", "750", "--max", "4", "--json").stdout.splitlines()
    ]
    assert [(row["queueId"], row["queueOffset"]) for row in rows] == [(0, 750), (1, 750), (2, 750), (2, 751)]


def test_read_without_bodies_has_no_body_column(run: Run) -> None:
    assert "BODY" not in run("read", "FifoTopic", "--body", "none").stdout
    assert "body" not in json.loads(run("read", "FifoTopic", "--body", "none", "--json", "--max", "1").stdout)


def test_the_times_are_utc_with_milliseconds(run: Run) -> None:
    row = json.loads(run("read", "OrderTopic", "--queue", "0", "--max", "1", "--json").stdout)
    assert row["storeTimestamp"] == "2026-11-21T00:21:55.854Z"


def test_verify_ends_with_1_and_names_file_and_byte_of_a_problem(run: Run, golden: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(golden / "store", root)
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(770 + 88)
        byte = file.read(1)[0]
        file.seek(770 + 88)
        file.write(bytes([byte ^ 4]))
    result = run("verify", store=root)
    assert result.exit_code == 1
    assert "store: damaged" in result.stdout
    assert f"problem   commitlog/{0:020d}: at byte 770: body CRC is wrong" in result.stdout
    as_json = run("verify", "--json", store=root)
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["problems"][0]["offset"] == 770


def test_a_store_that_needs_recovery_has_an_exit_code_of_its_own(run: Run, golden_small: Path) -> None:
    result = run("verify", store=golden_small / "crash")
    assert (result.exit_code, "crash: unclean" in result.stdout) == (3, True)
    assert "recovery  `abort` exists" in result.stdout


@pytest.mark.parametrize(
    "arguments", [["topics", "--all"], ["groups", "--all"], ["read", "OrderTopic", "--max", "5000"], ["verify"]]
)
def test_no_command_changes_anything_below_the_store(run: Run, golden: Path, arguments: list[str]) -> None:
    before = _tree_hash(golden / "store")
    assert run(*arguments).exit_code == 0
    assert _tree_hash(golden / "store") == before


# ---- mistakes


def _assert_one_line(result: Result, code: int, words: str) -> None:
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("rmq: ")
    assert result.stdout == ""


def test_an_unknown_topic_group_or_queue_is_one_line_and_exit_code_2(run: Run) -> None:
    _assert_one_line(run("read", "NoTopic"), 2, "NoTopic")
    _assert_one_line(run("read", "OrderTopc"), 2, "did you mean 'OrderTopic'?")
    _assert_one_line(run("groups", "no_group"), 2, "no group 'no_group' in ")
    for name in ("groups", "lag"):
        _assert_one_line(run(name, "cg_orders", "cg_order"), 2, "did you mean 'cg_orders'?")
    _assert_one_line(run("read", "OrderTopic", "--queue", "9"), 2, "has no queue 9")


def test_an_offset_outside_of_a_queue_is_one_line_with_the_range(run: Run) -> None:
    _assert_one_line(run("read", "OrderTopic", "--queue", "1", "--from", "752"), 1, "0 to 751")


@pytest.mark.parametrize("command", [["topics"], ["groups"], ["read", "T"], ["verify"]])
def test_a_directory_that_is_no_store_is_one_line_and_exit_code_2(run: Run, tmp_path: Path, command: list[str]) -> None:
    _assert_one_line(run(*command, store=tmp_path), 2, str(tmp_path))


def test_the_wrong_options_are_clicks_usage_error(run: Run, tmp_path: Path) -> None:
    for arguments in (
        ["topics", "--bogus"],
        ["bogus"],
        ["read"],
        ["read", "T", "--body", "xml"],
        ["read", "T", "--max", "0"],
    ):
        result = run(*arguments)
        assert (result.exit_code, "Traceback" in result.output) == (2, False), arguments
    missing = run("topics", store=None)
    assert (missing.exit_code, "--store" in missing.stderr) == (2, True)
    absent = run("topics", "--store", str(tmp_path / "absent"))
    assert (absent.exit_code, "does not exist" in absent.stderr) == (2, True)


def test_a_hostile_name_in_an_error_stays_on_its_line(run: Run) -> None:
    result = run("read", "a\nb\x1b[31m")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr


def test_a_reader_that_stops_early_ends_the_command_without_a_trace(golden: Path) -> None:
    """`rmq read ... | head -1`: the pipe breaks while the command is writing."""
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", "read", "OrderTopic", "--max", "5000"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "RMQ_STORE": str(golden / "store"),
    }
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline().startswith(b"QUEUE")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE, "1 says that something is wrong with the store"


@pytest.mark.parametrize("words", [["read", "OrderTopic"], ["topics", "--json"], ["verify"], ["--help"]])
def test_where_nothing_can_be_written_no_trace_is_left(golden: Path, words: list[str]) -> None:
    """A full disk behind standard output; and streams that are closed, as some services start programs."""
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", *words]
    environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                   "RMQ_STORE": str(golden / "store")}  # fmt: skip
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "rmq: [Errno 28] No space left on device\n")
    for closed in (">&-", "2>&-", "<&- >&- 2>&-"):
        line = f'exec "$@" {closed}'
        done = subprocess.run(
            ["sh", "-c", line, "sh", *command], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), closed


def test_what_a_command_starts_does_not_write_into_the_store(
    copy_store: Callable[[Path, Path], Path], made_store: Path, scratch: Path
) -> None:
    """With standard output closed its number would be that of the next file that is opened: one of the store's."""
    store = copy_store(made_store, scratch / "store")
    environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "RMQ_STORE": str(store)}
    words = ["consume", "T", "-g", "g", "--until-empty", "--exec", "sh -c 'echo written; echo written >&2'"]
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", *words]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], env=environment, check=False)
    assert done.returncode == 0
    assert not [path for path in store.rglob("*") if path.is_file() and b"written" in path.read_bytes()]
    with Store.open(store, read_only=True) as opened:
        assert opened.committed_offsets("g") == {("T", 0): 4}


def test_the_modules_of_the_command_import_numpy_pyarrow_and_rich_only_when_they_run() -> None:
    """A shell calls the command for every TAB."""
    for path in Path(output.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:  # the top level only
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
                assert not {name.split(".")[0] for name in names} & {"numpy", "pyarrow", "rich"}, path.name
                assert "rmq_store" not in names, path.name


def test_completion_offers_the_commands() -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "_RMQ_COMPLETE": "bash_complete",
        "COMP_WORDS": "rmq ",
        "COMP_CWORD": "1",
    }
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert {line.split(",")[1] for line in result.stdout.split()} >= {"groups", "read", "topics", "verify"}


@pytest.mark.parametrize(("arguments", "together"), [(["OrderTopic", "--from", "745"], 1000), (["FifoTopic"], 7)])
def test_read_in_a_pipe_is_one_table(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], together: int
) -> None:
    """Each queue is read by itself, and long ones in parts; all lines have the widths of the first part."""
    monkeypatch.setattr("rmq_store.cli.messages.read._TOGETHER", together)
    head, *lines = run("read", *arguments, "--max", "60").stdout.splitlines()
    for line in lines:
        for title in ("STORED", "TAGS", "KEYS", "BODY"):
            before = set_cell_size(line, head.index(f"  {title}") + 2)
            assert before.endswith("  "), line
        assert line[len(before)] != " ", line
    assert len({line.split()[0] for line in lines}) > 1 or len(lines) > 2 * together
