"""mqadmin's commands that find, print, consume and send messages: its flags, its layout, and what a real broker's Java
client saw of the same store (manifest.json of the golden store).

Layouts are those of QueryMsgByKeySubCommand, QueryMsgByIdSubCommand and their kin. The text of each command is kept in
`expected/`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rmq_store import Message, Store, StoreConfig

Run = Callable[..., Result]
RunInTerminal = Callable[..., tuple[int, str]]
EXPECTED = Path(__file__).parent / "expected"

UNIQUE_ID = "C0000202371F5FFD2B2767134429005D"
OFFSET_ID = "7F000001000051AF0000000000009E67"


@pytest.fixture(scope="module")
def manifest(golden: Path) -> Any:
    return json.loads((golden / "manifest.json").read_text(encoding="utf-8"))


# ---- text


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("queryMsgByKey", ["queryMsgByKey", "-t", "OrderTopic", "-k", "DUP-AaBB"]),
        ("queryMsgById", ["queryMsgById", "-i", OFFSET_ID]),
        ("queryMsgByUniqueKey", ["queryMsgByUniqueKey", "-t", "OrderTopic", "-i", UNIQUE_ID]),
        ("queryMsgByOffset", ["queryMsgByOffset", "-t", "PopTopic", "-b", "golden-a", "-i", "1", "-o", "4"]),
        ("queryMsgByOffset-dead", ["queryMsgByOffset", "-t", "%DLQ%cg_orders", "-i", "0", "-o", "4", "-f", "utf-8"]),
        ("printMsg", ["printMsg", "-t", "FifoTopic", "-b", "2026-11-21#00:22:15:600"]),
        ("printMsgByQueue", ["printMsgByQueue", "-t", "OrderTopic", "-a", "golden-a", "-i", "0", "-f", "true"]),
        ("consumeMessage", ["consumeMessage", "-t", "PopTopic", "-b", "golden-a", "-i", "0", "-o", "28", "-c", "3"]),
        ("dumpCompactionLog", ["dumpCompactionLog", "--at", "40551"]),
    ],
)
def test_the_text_of_a_command_is_as_kept(run: Run, name: str, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert result.stdout == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")


def test_a_frame_fits_a_terminal(run_in_terminal: RunInTerminal) -> None:
    code, text = run_in_terminal("dumpCompactionLog", "--at", "40551", columns=100)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()
    assert (code, len(lines)) == (0, 21)
    assert max(map(len, lines)) <= 100
    assert [line.split()[2] for line in lines[1:4]] == ["totalSize", "magicCode", "bodyCRC"]


# ---- what the Java client saw


def test_keys_find_what_mqadmin_found(run: Run, manifest: Any) -> None:
    """All keys of the manifest, in the same order; colliding ones (DUP-AaBB, DUP-BBAa) find their own messages only,
    absent ones none.
    """
    compared, absent, longest = 0, 0, 0
    for query in manifest["keyQueries"]:
        window = ["-b", str(query["begin"]), "-e", str(query["end"]), "-m", str(query["maxNum"])]
        arguments = ["queryMsgByKey", "-t", query["topic"], "-k", query["key"], *window]
        result = run(*arguments, "--json")
        if not query["offsetMsgIds"]:
            assert (result.exit_code, result.stdout) == (1, "")
            assert result.stderr == "rmq: CODE: 208  DESC: query message by key finished, but no message.\n"
            absent += 1
            continue
        shown = json.loads(result.stdout)
        assert [message["offsetMsgId"] for message in shown] == query["offsetMsgIds"], query["key"]
        printed = [line.split() for line in run(*arguments).stdout.splitlines()[1:]]
        assert printed == [[m["msgId"], str(m["queueId"]), str(m["queueOffset"])] for m in shown]
        longest = max(longest, len(shown))
        compared += 1
    assert compared >= 10
    assert absent
    assert longest > 2


def test_unique_keys_find_what_mqadmin_found(run: Run, manifest: Any) -> None:
    compared = 0
    for query in manifest["uniqKeyQueries"]:
        arguments = ["queryMsgByUniqueKey", "-t", query["topic"], "-i", query["uniqKey"], "-a", "all", "--json"]
        result = run(*arguments)
        if query["offsetMsgIds"]:
            found = [message["offsetMsgId"] for message in json.loads(result.stdout)]
            assert sorted(found) == sorted(query["offsetMsgIds"])
            compared += 1
        else:
            assert (result.exit_code, "CODE: 208" in result.stderr) == (1, True)
    assert compared


def test_a_message_has_the_fields_that_the_java_client_saw(run: Run, manifest: Any) -> None:
    """Compressed bodies too: the client shows them decompressed, and sysFlag without that bit."""
    compared = 0
    for topic in ("OrderTopic", "TxTopic", "PopTopic"):
        for queue_id, queue in manifest["topics"][topic]["queues"].items():
            for wanted in [m for m in queue["messages"] if m["sysFlag"] or m["queueOffset"] < 2]:
                place = ["-t", topic, "-b", "golden-a", "-i", queue_id, "-o", str(wanted["queueOffset"])]
                (found,) = json.loads(run("queryMsgByOffset", *place, "-f", "utf-8", "--json").stdout)
                for name in ("queueId", "queueOffset", "commitLogOffset", "sysFlag", "flag", "reconsumeTimes", "tags",
                             "keys", "properties", "bodyCRC", "storeSize", "offsetMsgId"):  # fmt: skip
                    assert found[name] == wanted[name], (place, name)
                assert found["msgId"] == wanted["uniqKey"]
                if "bodyBase64" in wanted:
                    assert found["body"].encode() == base64.b64decode(wanted["bodyBase64"])
                compared += 1
    assert compared > 30


def test_bodies_are_written_where_they_are_asked_for(run: Run, manifest: Any, tmp_path: Path) -> None:
    wanted = next(m for m in manifest["topics"]["OrderTopic"]["queues"]["0"]["messages"] if m["keys"] == "BIG-RND")
    place = ["-t", "OrderTopic", "-i", "0", "-o", str(wanted["queueOffset"])]
    result = run("queryMsgByOffset", *place, "--body-dir", str(tmp_path / "bodies"))
    path = tmp_path / "bodies" / wanted["uniqKey"]
    assert f"Message Body Path:   {path}\n" in result.stdout
    assert "Message Body:" not in result.stdout
    assert hashlib.sha256(path.read_bytes()).hexdigest() == wanted["bodySha256"]


def test_an_id_that_is_no_file_name_does_not_become_one(run: Run, scratch: Path) -> None:
    with _made(scratch / "store") as store:
        sent = store.send(Message("T", b"x", properties={"UNIQ_KEY": "../../evil"}), as_given=True)
    place = ["-t", "T", "-i", "0", "-o", "0"]
    run("queryMsgByOffset", *place, "--body-dir", str(scratch / "out"), store=scratch / "store")
    assert [path.name for path in (scratch / "out").iterdir()] == [sent.offset_msg_id]


def test_without_a_group_mqadmin_warns(run: Run, scratch: Path) -> None:
    with _made(scratch / "store") as store:
        store.send(Message("T", b"x"))
    text = run("queryMsgByOffset", "-t", "T", "-i", "0", "-o", "0", store=scratch / "store").stdout
    assert text.endswith("Message Body:        x\n\n\nWARN: No Consumer\n")
    assert "Tags:                [null]\n" in text


def test_an_id_is_found_either_way(run: Run) -> None:
    """MQAdminImpl#viewMessage: an offset id first, then as a unique id of the topic."""
    by_offset = run("queryMsgById", "-i", OFFSET_ID, "-t", "OrderTopic").stdout
    assert run("queryMsgById", "-i", UNIQUE_ID, "-t", "OrderTopic").stdout == by_offset
    both = run("queryMsgById", "-i", f"{OFFSET_ID},{OFFSET_ID.lower()}", "--json")
    assert [message["offsetMsgId"] for message in json.loads(both.stdout)] == [OFFSET_ID, OFFSET_ID]
    lost = run("queryMsgById", "-i", UNIQUE_ID)
    assert (lost.exit_code, lost.stderr.startswith("rmq: CODE: 208  DESC: ")) == (1, True)
    assert f"rmq queryMsgByUniqueKey -i {UNIQUE_ID} -t TOPIC" in lost.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["queryMsgByKey", "-t", "OrderTopci", "-k", "x"], 2, "did you mean 'OrderTopic'?"),
        (["queryMsgById", "-i", "xyz"], 2, "not an offset message id"),
        (["queryMsgByOffset", "-t", "OrderTopic", "-b", "broker-b", "-i", "0", "-o", "0"], 2, "'golden-a'"),
        (["queryMsgByOffset", "-t", "OrderTopic", "-i", "0", "-o", "751"], 1, "the queue has [0, 751)"),
        (["queryMsgByOffset", "-t", "OrderTopic", "-i", "0", "-o", "1", "-f", "utf-88"], 2, "unknown character set"),
        (["queryMsgByOffset", "-t", "OrderTopic", "-i", "0", "-o", "1", "-f", "hex"], 2, "unknown character set"),
        (["queryMsgByOffset", "-t", "OrderTopic", "-i", "0", "-o", "1", "-f", "idna"], 2, "unknown character set"),
        (["queryMsgByOffset", "-t", "OrderTopic", "-i", "0", "-o", "9" * 30], 2, "an integer of 64 bits is expected"),
        (["queryMsgTraceById", "-i", UNIQUE_ID, "-t", "Ordertopic"], 2, "did you mean 'OrderTopic'?"),
        (["queryMsgTraceById", "-i", UNIQUE_ID], 1, f"rmq trace --uniq-key {UNIQUE_ID}"),
        (["printMsg", "-t", "OrderTopic", "-b", "noon"], 2, "'noon' is no time"),
        (["printMsgByQueue", "-t", "OrderTopic", "-i", "9"], 2, "has no queue 9"),
        (["consumeMessage", "-t", "OrderTopic", "-o", "9"], 2, "please set queueId before offset!"),
        (["dumpCompactionLog", "--at", "40552"], 2, "no message begins at 40552"),
        (["DecodeMessageId", "-i", "00"], 2, "not a unique id"),
    ],
)
def test_mistakes_and_what_is_not_there_are_one_line(run: Run, arguments: list[str], code: int, words: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_names_are_taken_in_any_case_and_c_as_mqadmin_takes_it(run: Run) -> None:
    """MQAdminStartup#findSubCommand ignores case."""
    plain = run("queryMsgByKey", "-t", "OrderTopic", "-k", "ORD-000007").stdout
    where = ["-c", "DefaultCluster"]
    fingers = run("querymsgbykey", *where, "-t", "OrderTopic", "-k", "ORD-000007")
    assert (fingers.exit_code, fingers.stdout) == (0, plain)


def test_the_window_of_a_key_query_is_that_of_its_times(run: Run) -> None:
    key = ["queryMsgByKey", "-t", "OrderTopic", "-k", "CUST-0010"]
    found = json.loads(run(*key, "--json").stdout)
    assert len(found) > 10
    assert len(json.loads(run(*key, "-m", "3", "--json").stdout)) == 3
    assert run(*key, "-e", "1795220515000").exit_code == 1
    later = json.loads(run(*key, "-b", "1795220525000", "--json").stdout)
    assert 0 < len(later) < len(found)


def test_an_id_is_taken_apart(run: Run) -> None:
    found = json.loads(run("DecodeMessageId", "-i", UNIQUE_ID, "--json", store=None).stdout)
    assert (found["ip"], found["pid"], found["counter"]) == ("192.0.2.2", 0x371F, 0x5D)
    assert "storeHost" not in found
    text = run("DecodeMessageId", "-i", OFFSET_ID).stdout
    assert "storeHost=127.0.0.1:20911\ncommitLogOffset=40551\n" in text


def test_printing_selects_by_tags_and_time_and_counts(run: Run) -> None:
    rows = [
        json.loads(line)
        for line in run("printMsg", "-t", "OrderTopic", "-s", "AaAa", "-d", "false", "--json").stdout.splitlines()
    ]
    assert rows
    assert {row["tags"] for row in rows} == {"AaAa"}  # BBBB has the same hash
    assert all("body" not in row for row in rows)
    silent = run("printMsgByQueue", "-t", "OrderTopic", "-i", "0")
    assert (silent.exit_code, silent.stdout) == (0, "")
    counted = json.loads(run("printMsgByQueue", "-t", "OrderTopic", "-i", "0", "-f", "true", "--json").stdout)
    assert counted["TagE"] == 243


def test_consuming_moves_no_offset_and_keeps_to_its_number(run: Run) -> None:
    rows = run("consumeMessage", "-t", "OrderTopic", "-c", "760", "-g", "cg_orders", "--json").stdout.splitlines()
    queues = [json.loads(row)["queueId"] for row in rows]
    assert (len(queues), queues.count(0), queues.count(1)) == (760, 751, 9)
    assert "NO_NEW_MSG" not in run("consumeMessage", "-t", "OrderTopic", "-i", "0", "-c", "2").stdout  # there are more


# ---- writing and raw files


def _made(root: Path) -> Store:
    config = StoreConfig(mapped_file_size_commit_log=1 << 16, max_hash_slot_num=100, max_index_num=400)
    store = Store.open(root, create=True, config=config)
    store.create_topic("T", 1)
    return store


def test_a_message_that_was_sent_is_found(run: Run, scratch: Path) -> None:
    root = scratch / "store"
    _made(root).close()
    arguments = ["sendMessage", "-t", "T", "-p", "tea für zwei", "-k", "K1 K2", "-c", "TagA", "-i", "0"]
    lines = run(*arguments, store=root).stdout.splitlines()
    assert lines[0] == "#Broker Name                      #QID  #Send Result            #MsgId"
    broker, queue, status, msg_id = lines[1].split()
    assert (broker, queue, status) == ("rmq-embedded", "0", "SEND_OK")
    (found,) = json.loads(run("queryMsgByUniqueKey", "-t", "T", "-i", msg_id, "--json", store=root).stdout)
    assert (found["keys"], found["tags"], found["body"]) == ("K1 K2", "TagA", "tea für zwei")
    as_json = json.loads(run("sendMessage", "-t", "T", "-p", "x", "--json", store=root).stdout)
    assert (as_json["sendStatus"], as_json["queueOffset"]) == ("SEND_OK", 1)


def test_all_records_of_a_segment_are_dumped(run: Run, golden: Path, manifest: Any) -> None:
    path = golden / "store" / "commitlog" / f"{0:020d}"
    rows = [json.loads(line) for line in run("dumpCompactionLog", "-f", str(path), "--json").stdout.splitlines()]
    assert rows[0]["commitLogOffset"] == 0
    assert [row["commitLogOffset"] for row in rows] == sorted(row["commitLogOffset"] for row in rows)
    assert len(rows) > 500
    lines = run("dumpCompactionLog", "-f", str(path)).stdout.splitlines()
    assert len(lines) == len(rows)
    assert lines[0].startswith("MessageExt [brokerName=null, queueId=0, storeSize=")
    (field,) = [f for f in json.loads(run("dumpCompactionLog", "-f", str(path), "--at", "40551", "--json").stdout)
                if f["field"] == "body"]  # fmt: skip
    assert (field["byte"], field["size"], len(field["hex"])) == (88, 2587, 2 * 2587)


def test_a_dump_says_where_the_records_end_too_early(run: Run, golden: Path, scratch: Path) -> None:
    records = (golden / "store" / "commitlog" / f"{0:020d}").read_bytes()
    path = scratch / "segment"
    for end, code, words in ((bytes(64), 0, ""), (b"\x01" * 64, 1, "at byte 385: no record begins here; 64 bytes are")):
        path.write_bytes(records[:385] + end)
        result = run("dumpCompactionLog", "-f", str(path), store=None)
        assert (result.exit_code, len(result.stdout.splitlines())) == (code, 1)
        assert words in result.stderr


def test_a_frame_with_ipv6_hosts_and_a_long_topic_is_whole(run: Run, scratch: Path) -> None:
    from rmq_store.format.frames.stored_message import encode_frame
    from rmq_store.format.text.host import Host

    host = Host.parse("[fe80::1]:10911")
    frame = encode_frame(
        topic="%RETRY%" + "g" * 200, body=b"", properties=b"a\x01b\x02", queue_id=1, queue_offset=2,
        commit_log_offset=0, born_timestamp_ms=3, born_host=host, store_timestamp_ms=4, store_host=host,
    )  # fmt: skip
    (scratch / "frame").write_bytes(frame)
    fields = json.loads(run("dumpCompactionLog", "-f", str(scratch / "frame"), "--at", "0", "--json").stdout)
    assert "".join(field["hex"] for field in fields) == frame.hex()
    assert sum(field["size"] for field in fields) == len(frame)
    assert [field["byte"] for field in fields] == [sum(f["size"] for f in fields[:i]) for i in range(len(fields))]
    values = {field["field"]: field["value"] for field in fields}
    assert (values["bornHost"], values["magicCode"]) == ("[fe80::1]:10911", "MESSAGE_MAGIC_CODE_V2")


def test_traces_of_clients_are_shown_by_group(run: Run, scratch: Path) -> None:
    """TraceDataEncoder.java: one trace message may hold several entries, also of other messages."""
    pub = ["Pub", "1795220515881", "DefaultRegion", "pg", "T", UNIQUE_ID, "TagA", "K1", "127.0.0.1:1", "5", "7", "0",
           OFFSET_ID, "true"]  # fmt: skip
    after = ["SubAfter", "R1", UNIQUE_ID, "12", "false", "K1", "3", "1795220516000", "cg"]
    other = ["SubAfter", "R2", "OTHER", "12", "true", "K1", "3", "1795220516000", "cg2"]
    with _made(scratch / "store") as store:
        store.create_topic("Traces", 1)
        body = "".join("\x01".join(line) + "\x02" for line in (pub, after, other))
        store.send(Message("Traces", body.encode(), keys=UNIQUE_ID))
    arguments = ["queryMsgTraceById", "-i", UNIQUE_ID, "-t", "Traces"]
    found = json.loads(run(*arguments, "--json", store=scratch / "store").stdout)
    assert [(one["type"], one["group"], one["costTime"], one["status"]) for one in found] == [
        ("Pub", "pg", 7, "success"),
        ("Sub", "cg", 12, "failed"),
    ]
    text = run(*arguments, store=scratch / "store").stdout
    assert "Pub        pg                   " in text
    assert "2026-11-21 00:21:55  7ms        success\n" in text


def test_looking_changes_nothing_below_the_store(
    run: Run, golden: Path, tree_hash: Callable[[Path], str]
) -> None:
    before = tree_hash(golden / "store")
    for arguments in (
        ["queryMsgById", "-i", OFFSET_ID],
        ["queryMsgByUniqueKey", "-t", "OrderTopic", "-i", UNIQUE_ID],
        ["consumeMessage", "-t", "PopTopic", "-g", "cg_pop"],
        ["dumpCompactionLog", "--at", "40551"],
        ["trace", "--uniq-key", UNIQUE_ID],
    ):
        assert run(*arguments).exit_code == 0
    assert tree_hash(golden / "store") == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["queryMsgById", "-g", "cg"], "-g (consumerGroup): hands the message to a running client"),
        (["queryMsgById", "-d", "10.0.0.1@1"], "-d (clientId): hands the message to a running client"),
        (["queryMsgById", "-s", "true"], "-s (sendMessage): sends the message again; `rmq sendMessage` sends one"),
        (["queryMsgByUniqueKey", "-t", "OrderTopic", "-g", "cg"], "-g (consumerGroup): hands"),
        (["queryMsgByUniqueKey", "-t", "OrderTopic", "-d", "c"], "-d (clientId): hands"),
    ],
)
def test_what_needs_a_running_client_is_refused_with_the_reason(
    run: Run, arguments: list[str], reason: str
) -> None:
    """QueryMsgByIdSubCommand.java, QueryMsgByUniqueKeySubCommand.java"""
    result = run(*arguments, "-i", "7F000001000051AF0000000000009E67")
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr


def test_a_unit_name_is_taken(run: Run) -> None:
    assert run("queryMsgById", "-i", "7F000001000051AF0000000000009E67", "-u", "unit").exit_code == 0
