"""Keys, tags, bodies, properties, reasons and ids come from strangers, and file names from whoever made them: no
command sends any of them to a terminal as it is.

Every command is run, as text and as JSON, on a store whose messages hold one character of each kind that a terminal
acts on, or that nobody sees. A command that is not in the table fails the test.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from rmq_store import Message, Store, StoreConfig, SubscriptionGroup, failure
from rmq_store.cli import commands
from rmq_store.cli.shared.output import printable, printable_json, remarks_shown, write_json
from rmq_store.reliable import Tables, open_engine
from rmq_store.reliable.database import manual_list
from rmq_store.reliable.database.leases import now_ms

Run = Callable[..., Result]

# C0 without what separates properties (U+0001, U+0002), DEL, C1, writing direction, line ends, without width, letters
# without a shape, private use, tags of emoji.
STRANGE = (
    "\x03\x07\x08\t\n\r\x1b[31m\x1b]0;title\x07\x7f\x80\x9b31m\x9d\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
    "\u2066\u2067\u2068\u2069\u2028\u2029\u0085\u200b\u200c\u200d\u2060\ufeff\u00ad\u3164\u115f\uffa0\u034f\u180e\u00a0"
    "\ue000\U000e0041\U000e0100"
)
TEXT = f"a{STRANGE}z 订单"
ID = "C0000202371F5FFD2B2767134429005D"
_UNSEEN = re.compile("[\u034f\u115f\u3164\uffa0\U000e0100]")

CHECKPOINT = Path(__file__).parent / "spark-checkpoint"


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in a directory with such a name: T with messages, one of which waits for its retry and one is dead."""
    root = tmp_path_factory.mktemp("strange") / f"s\x1b\u202e{os.fsdecode(b'ore')}"
    config = StoreConfig(mapped_file_size_commit_log=1 << 20, max_hash_slot_num=64, max_index_num=1000)
    with Store.open(root, create=True, config=config) as store:
        for topic in ("T", "Traces"):
            store.create_topic(topic, 1)
        store.create_group(SubscriptionGroup("g", attributes={TEXT: TEXT}))
        properties = {f"p{TEXT}": TEXT, "UNIQ_KEY": f"{ID}{TEXT}"}
        strange = Message("T", TEXT.encode(), tags=TEXT, keys=TEXT, properties=properties)
        sent = [store.send(strange, as_given=True) for _ in range(3)]
        store.send(Message("T", b"\x00\xff\x9b" + TEXT.encode("utf-16"), keys=ID))
        reasons = failure.failure_properties(ValueError(TEXT), now_ms=1_795_220_515_854)
        reasons |= dict.fromkeys((failure.ERROR_CLASS, failure.ERROR_MESSAGE, failure.ORIGIN_TOPIC), TEXT)
        store.retry.send_back("g", sent[0].commit_log_offset, delay_level=-1, properties=reasons)
        store.retry.send_back("g", sent[1].commit_log_offset, delay_level=0, properties=reasons)
        store.commit_offsets("g", {("T", 0): 1})
        entry = ["Pub", "1795220515881", "R", TEXT, "T", ID, TEXT, TEXT, TEXT, "5", "7", "0", "true"]
        store.send(Message("Traces", ("\x01".join(entry) + "\x02").encode(), keys=ID))
    filters = {"T": {"groupFilterData": {"g": {"consumerGroup": "g", "topic": "T", "expression": f"a = '{TEXT}'",
                                               "expressionType": "SQL92", "bornTime": 1, "deadTime": 0}}}}  # fmt: skip
    (root / "config" / "consumerFilter.json").write_text(json.dumps({"filterDataByTopic": filters}))
    return root


# What every mirror is told.
MIRROR = ["--name", "m", "--cluster-id", "c"]

# Words behind `rmq` for each command: WHERE is a directory of the test.
WORDS: dict[str, list[list[str]]] = {
    "init": [["WHERE/new"], ["WHERE/lines"]],
    "broker promote": [[], ["--dry-run"]],
    "broker rejoin": [["--master", "127.0.0.1:9"], ["--master", TEXT]],
    "topics": [[], ["--queues"]],
    "top": [["--every", "0.01"]],
    "read": [["T"], ["T", "--body", "json"], ["%DLQ%g"]],
    "trace": [["-t", "T", "-k", ID], ["--uniq-key", f"{ID}{TEXT}", "-t", "T", "--events"], ["-t", TEXT, "-k", TEXT]],
    "tail": [["T"], ["T", "--filter", TEXT]],
    "send": [["T", "--body", TEXT, "--keys", TEXT, "--tags", TEXT], ["T", "--lines", "WHERE/lines"],
             ["T", "--jsonl", "WHERE/bad"]],
    "consume": [["T", "-g", "g", "--peek"], ["T", "-g", "new", "--until-empty"],
                ["T", "-g", "new2", "--until-empty", "--exec", "false"], ["T", "-g", "n", "--exec", TEXT]],
    "groups": [[], ["g"], [TEXT]],
    "lag": [[], ["g"], [TEXT]],
    "offsets show": [["g"], [TEXT]],
    "offsets export": [["g"]],
    "offsets reset": [["g", "--to-earliest", "--dry-run"], ["g", "--to-offsets", "WHERE/lines"]],
    "checkpoint show": [[str(CHECKPOINT)], [TEXT], ["WHERE/checkpoint"]],
    "checkpoint diff": [["WHERE/checkpoint"]],
    "checkpoint commit-group": [["WHERE/checkpoint", "--dry-run"], ["WHERE/checkpoint", "--option", TEXT],
                                ["WHERE/checkpoint", "--option", f"group={TEXT}", "--yes"]],
    "checkpoint forget-broker": [["WHERE/checkpoint", TEXT]],
    "checkpoint rewind": [["WHERE/checkpoint", "WHERE/new", "--to-earliest", "--dry-run"],
                          [str(CHECKPOINT), "WHERE/new", "--to-batch", "1", "--yes"]],
    "transactions list": [[]],
    "transactions explain": [[ID], [TEXT]],
    "transactions resume": [[TEXT], ["--all"]],
    "dlq list": [[], ["g"]],
    "dlq show": [["g"], [TEXT]],
    "dlq redrive": [["g", "--dry-run"], ["g", "--filter", TEXT, "--yes"], ["g", "--reason", TEXT, "--dry-run"]],
    "dlq export": [["g", "--to", "WHERE/d.csv"], ["g", "--to", "WHERE/d.xml"]],
    "dlq archive": [["--to", "WHERE/archive"]],
    "dlq restore": [["WHERE"]],
    "mirror kafka-to-rmq": [
        [*MIRROR, "--topics", TEXT, "--bootstrap-servers", TEXT],
        [*MIRROR, "--topics", "t", "--bootstrap-servers", "k:1", "--kafka", f"{TEXT}=x"],
        [*MIRROR, "--topics", "t", "--bootstrap-servers", "k:1", "--kafka", f"security_protocol={TEXT}"],
        [*MIRROR, "--pattern", f"({TEXT}", "--bootstrap-servers", "k:1"],
        [*MIRROR, "--topics", "t", "--rename", TEXT, "--bootstrap-servers", "k:1"],
        [*MIRROR, "--topics", "t", "--window", TEXT, "--bootstrap-servers", "k:1"],
        [*MIRROR, "--topics", "t", "--from", TEXT, "--bootstrap-servers", "k:1"],
    ],
    "mirror rmq-to-kafka": [
        [*MIRROR, "--topics", TEXT, "--bootstrap-servers", TEXT],
        [*MIRROR, "--topics", "t", "--bootstrap-servers", "k:1", "--topic-setting", TEXT],
        [*MIRROR, "--topics", "t", "--bootstrap-servers", "k:1", "--namesrv", TEXT],
        [*MIRROR, "--topics", "t", "--name", TEXT, "--bootstrap-servers", "k:1"],
        [*MIRROR, "--topics", "t", "--from", TEXT, "--bootstrap-servers", "k:1"],
    ],
    "mirror offsets": [
        [*MIRROR, "--to", "rmq", "-g", "g", "--bootstrap-servers", TEXT],
        [*MIRROR, "--to", "kafka", "-g", f"{TEXT}=", "--bootstrap-servers", "k:1"],
        [*MIRROR, "--to", "kafka", "-g", f"{TEXT}=a", "-g", "b=a", "--bootstrap-servers", "k:1"],
        [*MIRROR, "--to", "rmq", "-g", "g", "--back-name", TEXT, "--bootstrap-servers", "k:1"],
    ],
    "mirror dead-letters": [
        [*MIRROR, "--topics", TEXT, "--group", "g", "--bootstrap-servers", TEXT],
        [*MIRROR, "--topics", "t", "--group", TEXT, "--bootstrap-servers", "k:1"],
    ],
    "mirror redrive": [
        ["g", "--bootstrap-servers", TEXT, "--dry-run"],
        ["g", "--topic", TEXT, "--filter", TEXT, "--bootstrap-servers", "k:1", "--yes"],
    ],
    "mirror retry": [["g", *MIRROR, "--failed", TEXT, "--topic", TEXT, "--bootstrap-servers", TEXT]],
    "resend list": [[], ["--state", "unsent"], ["--group", TEXT], ["--database", TEXT], ["--prefix", TEXT]],
    "resend run": [["--once"], ["--dry-run"], ["--smtp", TEXT], ["--once", "--inbox", TEXT]],
    "resend show": [[ID], [TEXT], [ID, "--body", "json"]],
    "resend void": [[ID, TEXT, "--dry-run"], [ID, "--yes"]],
    "resend retry": [[ID, TEXT, "--yes"]],
    "resend schema": [[], ["--prefix", "other_"], ["--prefix", TEXT], ["--create", "--migrate"]],
    "resend clear": [[ID, TEXT, "--yes"]],
    "verify": [[]],
    "repair": [["--dry-run"]],
    "backup": [["WHERE/copy"]],
    "retention run": [["--dry-run", "--manual"]],
    "retention status": [[]],
    "doctor": [["--no-spark"]],
    "metrics": [[], ["--output", "WHERE/none/x"], ["--listen", TEXT]],
    "queryMsgById": [["-i", "OFFSET_ID"], ["-i", TEXT], ["-i", "OFFSET_ID", "--body-dir", "WHERE/bodies"]],
    "queryMsgByKey": [["-t", "T", "-k", ID], ["-t", "T", "-k", TEXT]],
    "queryMsgByUniqueKey": [["-t", "T", "-i", f"{ID}{TEXT}", "-a", "all"]],
    "queryMsgByOffset": [["-t", "T", "-i", "0", "-o", "0"], ["-t", "T", "-i", "0", "-o", "0", "-f", "GBK"]],
    "DecodeMessageId": [["-i", ID], ["-i", TEXT]],
    "printMsg": [["-t", "T"], ["-t", "T", "-c", TEXT]],
    "printMsgByQueue": [["-t", "T", "-i", "0", "-p", "true", "-d", "true", "-f", "true"]],
    "consumeMessage": [["-t", "T"], ["-t", "T", "-b", TEXT]],
    "sendMessage": [["-t", "T", "-p", "x", "-k", TEXT, "-c", TEXT], ["-t", TEXT, "-p", "x"]],
    "queryMsgTraceById": [["-i", ID, "-t", "Traces"], ["-i", TEXT, "-t", "Traces"]],
    "dumpCompactionLog": [["--at", "0"], ["-f", "WHERE/segment"], ["-f", "WHERE/lines"]],
    "topicList": [["-c"]],
    "topicStatus": [["-t", "T"]],
    "topicRoute": [["-t", "T"], ["-t", "T", "-l"]],
    "topicClusterList": [["-t", "T"]],
    "updateTopic": [["-t", "New"], ["-t", "New", "-a", f"+{TEXT}=x"]],
    "updateTopicPerm": [["-t", "Traces", "-p", "6"]],
    "deleteTopic": [["-t", "Traces", "--dry-run"]],
    "consumerProgress": [[], ["-g", "g"]],
    "updateSubGroup": [["-g", "g", "--attributes", f"+{TEXT}=x"], ["-g", "g", "-p", TEXT]],
    "deleteSubGroup": [["-g", "g", "--dry-run"]],
    "getConsumerConfig": [["-g", "g"]],
    "consumerConnection": [["-g", "g"]],
    "resetOffsetByTime": [["-g", "g", "-t", "T", "-s", "now", "--dry-run"], ["-g", "g", "-t", "T", "-s", TEXT]],
    "skipAccumulatedMessage": [["-g", "g", "-t", "T", "--dry-run"]],
    "cloneGroupOffset": [["-s", "g", "-d", "h", "-t", "T", "--dry-run"], ["-s", "g", "-d", TEXT, "-t", "T", "--yes"]],
    "clusterList": [[]],
    "brokerStatus": [[]],
    "getBrokerConfig": [[]],
    "updateBrokerConfig": [["-k", TEXT, "-v", "1"]],
    "statsAll": [[]],
    "queryCq": [["-t", "T", "-q", "0", "-i", "0"]],
    "cleanExpiredCQ": [[]],
    "deleteExpiredCommitLog": [["--dry-run"]],
    "cleanUnusedTopic": [["--dry-run"]],
    "exportMetadata": [["-f", "WHERE/out"]],
    "exportConfigs": [["-f", "WHERE/out"]],
}
# Two run until they are stopped, and one asks such a process; what they print is escaped where they print
# (tests/storage/cli/test_broker_run.py, test_broker_serving.py). The fourth one lists what only a broker writes
# (tests/storage/broker/delay/test_broker_backlog.py). The last one needs a broker, and prints numbers and the path.
NOT_RUN = {"broker run", "broker clock advance", "namesrv run", "delayed", "follow"}


def leaves(group: click.Group, before: str = "") -> Iterator[str]:
    for name, member in group.commands.items():
        if isinstance(member, click.Group):
            yield from leaves(member, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def is_safe(text: str) -> bool:
    """Whether each line of it can be printed, and is seen as it is."""
    lines = [line.replace("\t", "") for line in text.split("\n")]
    return all(line.isprintable() and not _UNSEEN.search(line) for line in lines)


def test_every_command_is_run() -> None:
    commands.add_plugins()
    assert set(leaves(commands)) == {*WORDS, *NOT_RUN}


def make_database(url: str) -> None:
    """Of an outbox, with one message that is on the manual list."""
    tables = Tables()
    engine = open_engine(url)
    tables.metadata.create_all(engine)
    stub = {
        "message_id": ID, "topic": TEXT, "body": TEXT.encode(), "flag": 0, "properties": json.dumps([[TEXT, TEXT]]),
        "sharding_key": TEXT, "status": "unconfirmed", "pending_groups": 1, "created_ms": now_ms(), "send_count": 0,
        "resend_ms": 1, "claim_until_ms": 0, "is_manual": False,
    }  # fmt: skip
    with engine.begin() as connection:
        connection.execute(tables.stub.insert(), [stub])
        connection.execute(tables.stub_group.insert(), [{"message_id": ID, "group_name": TEXT}])
        for reason in manual_list.REASONS:
            manual_list.add(connection, tables, ID, TEXT, reason, TEXT, 1)
            manual_list.add(connection, tables, TEXT, TEXT, reason, TEXT, 1)
    engine.dispose()


@pytest.mark.parametrize("name", WORDS)
def test_a_command_shows_nothing_that_a_terminal_acts_on(
    run: Run,
    strange: Path,
    copy_store: Callable[[Path, Path], Path],
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    store = copy_store(strange, scratch / strange.name)
    place = scratch / f"w{STRANGE.replace(chr(10), '')}"
    place.mkdir()
    (place / "lines").write_text(f"{TEXT}\nx\n")
    (place / "bad").write_text(json.dumps({"body": "x", TEXT: 1}))
    shutil.copytree(CHECKPOINT, place / "checkpoint")
    (place / "checkpoint" / "offsets" / "4").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps({"x": TEXT})}')
    shutil.copy(store / "commitlog" / f"{0:020d}", place / "segment")
    with Store.open(store, read_only=True) as opened:
        offset_id = opened.query.by_queue_offset("T", 0, 0).offset_msg_id
    if name.startswith("resend "):
        make_database(f"sqlite:///{scratch}/orders.db")
        monkeypatch.setenv("RMQ_DATABASE", f"sqlite:///{scratch}/orders.db")
    for words in WORDS[name]:
        words = [word.replace("WHERE", str(place)).replace("OFFSET_ID", offset_id) for word in words]
        shown = run(*name.split(), *words, store=store)
        assert is_safe(shown.output), (words, shown.output)
        answered = run(*name.split(), *words, "--json", store=store)
        assert is_safe(answered.output), (words, answered.output)


@pytest.mark.parametrize(
    "words",
    [
        [TEXT], [f"--{TEXT}"], ["read", f"--{TEXT}"], ["dlq", TEXT], ["dlq", "restore", TEXT],
        ["read", "T", "--body", TEXT], ["read", "T", "--max", TEXT], ["topics", TEXT],
    ],
)  # fmt: skip
def test_a_mistake_is_told_without_what_was_typed_acting(run: Run, strange: Path, words: list[str]) -> None:
    result = run(*words, store=strange)
    assert result.exit_code == 2
    assert "Error: " in result.stderr and "Usage: rmq" in result.stderr
    assert is_safe(result.stderr)


def test_json_has_the_values_as_they_are(run: Run, strange: Path) -> None:
    lines = [json.loads(line) for line in run("read", "T", "--json", store=strange).stdout.splitlines()]
    assert (lines[0]["keys"], lines[0]["tags"], lines[0]["body"]) == (TEXT, TEXT, TEXT)
    assert lines[0]["properties"][f"p{TEXT}"] == TEXT
    assert "订单" in run("read", "T", "--json", store=strange).stdout


@pytest.mark.long
def test_every_character_is_seen_or_escaped_and_json_means_the_same() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        shown, document = printable(character), printable_json(json.dumps(character, ensure_ascii=False))
        assert shown.isprintable() and document.isprintable()
        assert shown == character or shown.startswith("\\")
        assert json.loads(document) == character
    assert printable("❤\ufe0f é") == "❤\ufe0f é"


def test_json_on_a_terminal_that_knows_ascii_only_is_still_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ascii:
        encoding = "ascii"

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    real = sys.stdout
    monkeypatch.setattr(sys, "stdout", Ascii())
    write_json({"key": TEXT, "订": "é"}, one_line=True)
    text = capsys.readouterr().out
    assert text.isascii() and is_safe(text)
    assert json.loads(text) == {"key": TEXT, "订": "é"}


def test_a_terminal_that_knows_few_letters_gets_the_others_escaped(strange: Path) -> None:
    environment = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                   "PYTHONIOENCODING": "latin-1", "RMQ_STORE": str(strange)}  # fmt: skip
    command = [sys.executable, "-c", "from rmq_store.cli import main; main()", "read", "T"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u8ba2\\u5355" in done.stdout


def test_what_modules_log_is_shown_safely(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("rmq_store.test")
    root = logging.getLogger()
    kept = root.handlers[:]
    try:
        root.handlers.clear()  # as in the command: nobody has set up logging
        with remarks_shown():
            try:
                raise ValueError(TEXT)
            except ValueError:
                logger.exception("message %s was not taken back", TEXT)
    finally:
        root.handlers[:] = kept
    text = capsys.readouterr().err
    assert "was not taken back" in text and "Traceback" in text
    assert is_safe(text)


# ---- files


def test_an_export_is_for_its_owner_and_no_cell_of_it_is_a_formula(run: Run, scratch: Path) -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "\nx", "＝1", "'x", "x=1", " =1"]
    with Store.open(scratch / "store", create=True) as store:
        store.create_topic("%DLQ%g", 1)
        for text in texts:
            letter = Message("%DLQ%g", text.encode(), tags=text.strip() or None, keys=text, queue_id=0,
                             properties={failure.ERROR_MESSAGE: text})  # fmt: skip
            store.send(letter, as_given=True)
    before = os.umask(0)
    try:
        for name, options in (("d.csv", []), ("raw.csv", ["--raw"]), ("d.jsonl", []), ("d.parquet", [])):
            result = run("dlq", "export", "g", "--to", str(scratch / name), *options, store=scratch / "store")
            assert (result.exit_code, result.stderr) == (0, "")
            assert stat.S_IMODE((scratch / name).stat().st_mode) == 0o600
    finally:
        os.umask(before)
    rows = {}
    for name in ("d.csv", "raw.csv"):
        with (scratch / name).open(newline="", encoding="utf-8") as file:
            rows[name] = list(csv.DictReader(file))
    defused = [f"'{text}" for text in texts[:8]] + texts[8:]
    for column in ("body", "keys", "errorMessage"):
        assert [row[column] for row in rows["d.csv"]] == defused
        assert [row[column] for row in rows["raw.csv"]] == texts
    numbers = ("queueId", "queueOffset", "reconsumeTimes", "commitLogOffset", "storeTimestamp")
    assert [[row[name] for name in numbers] for row in rows["d.csv"]] == [
        [row[name] for name in numbers] for row in rows["raw.csv"]
    ]
    assert [json.loads(line)["keys"] for line in (scratch / "d.jsonl").read_text().splitlines()] == texts
    assert pq.read_table(scratch / "d.parquet").column("body") == pa.chunked_array([[text.encode() for text in texts]])
    refused = run("dlq", "export", "g", "--to", str(scratch / "e.jsonl"), "--raw", store=scratch / "store")
    assert (refused.exit_code, "--raw goes with .csv" in refused.stderr) == (2, True)


def test_whatever_writes_messages_or_settings_to_files_keeps_them_from_others(
    run: Run, strange: Path, copy_store: Callable[[Path, Path], Path], scratch: Path
) -> None:
    store = copy_store(strange, scratch / "store")
    with Store.open(store, read_only=True) as opened:
        offset_id = opened.query.by_queue_offset("T", 0, 0).offset_msg_id
    made = scratch / "made"
    made.mkdir()
    before = os.umask(0)
    try:
        for words in (
            ["dlq", "archive", "--to", f"{made}/archive"], ["backup", f"{made}/copy"],
            ["queryMsgById", "-i", offset_id, "--body-dir", f"{made}/bodies"], ["exportMetadata", "-f", f"{made}/x/y"],
            ["exportConfigs", "-f", f"{made}/x/y"],
        ):  # fmt: skip
            result = run(*words, store=store)
            assert result.exit_code == 0, result.output
    finally:
        os.umask(before)
    found = list(made.rglob("*"))
    assert {path.relative_to(made).parts[0] for path in found} >= {"archive", "copy", "bodies", "x"}
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
