"""Bad input of every kind: a typed error that names the file, offset or argument, and nothing is written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmq_store
from rmq_store import (
    CorruptConfigError,
    CorruptIndexError,
    CorruptionError,
    CorruptRecordError,
    Message,
    NotAStoreError,
    ReadOnlyError,
    StagingArea,
    Store,
    StoreConfig,
    StoreError,
    StoreKindError,
    UsageError,
)
from rmq_store.format.frames.compression import compress
from rmq_store.format.frames.stored_message import encode_frame
from rmq_store.format.text.host import Host

TOPIC = "Victim"
HOSTILE_NAMES = {
    "parent": "../../evil",
    "absolute": "/tmp/evil",
    "slash": "a/b",
    "dots": "..",
    "newline": "a\nb",
    "nul": "a\0b",
    "full-width": "Ｔｏｐｉｃ",
    "dotless": "ı",
    "empty": "",
    "space": "a b",
    "long": "x" * 128,
    "surrogate": "\ud800",
    "number": 5,
    "none": None,
}
SMALL = StoreConfig(
    mapped_file_size_commit_log=65536, mapped_file_size_consume_queue=2000, max_hash_slot_num=100, max_index_num=1000
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cleanly stopped store with 700 messages in one queue: two segments, several queue and index files."""
    root = tmp_path_factory.mktemp("hostile") / "store"
    with Store.open(root, create=True, config=SMALL) as store:
        store.create_topic(TOPIC, queue_count=1)
        keys = [f"key-{n}" for n in range(700)]
        store.append(pa.RecordBatch.from_pydict({"body": [b"x" * 50] * 700, "keys": keys}), topic=TOPIC)
    yield root
    shutil.rmtree(root.parent)


@pytest.fixture
def store(filled: Path, working_copy: Callable[[Path], Path]) -> Iterator[Store]:
    with Store.open(working_copy(filled)) as opened:
        yield opened


@pytest.fixture
def unchanged(store: Store, tree_hash: Callable[[Path], str]) -> Iterator[None]:
    """Nothing that another process or a broker would see was written."""

    def contents() -> list[str]:
        names = sorted(path.name for path in (store.path / "pyrmq").iterdir())
        return [tree_hash(store.path / name) for name in ("commitlog", "consumequeue", "index", "config")] + names

    before, end = contents(), store.log_range()
    outside = sorted(store.path.parent.rglob("*evil*"))
    yield
    assert contents() == before
    assert store.log_range() == end
    assert sorted(store.path.parent.rglob("*evil*")) == outside


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_hostile_names_of_topics_and_groups_are_refused_everywhere(store: Store, name: Any) -> None:
    column = pa.RecordBatch.from_arrays([pa.array([b"x"])], names=["body"])
    calls: list[Callable[[], object]] = [
        lambda: store.create_topic(name),
        lambda: store.send(Message(name, b"x")),
        lambda: store.queue_range(name, 0),
        lambda: list(store.read(name, 0, 0, 1)),
        lambda: store.offset_by_time(name, 0, 0),
        lambda: store.commit_offsets("group", {(name, 0): 1}),
        lambda: store.commit_offsets(name, {(TOPIC, 0): 1}),
        lambda: store.lease(name, TOPIC, "me"),
        lambda: store.lease("group", name, "me"),
        lambda: store.topic(name),
    ]
    if isinstance(name, str) and name != "\ud800":
        calls.append(lambda: store.append(column, topic=name))
        calls.append(lambda: store.append(pa.RecordBatch.from_pydict({"topic": [TOPIC, name], "body": [b"x"] * 2})))
        calls.append(lambda: _stage(store.path, name))
    for call in calls:
        with pytest.raises(UsageError):
            call()
    if isinstance(name, str) and name != "\ud800":
        assert store.committed_offsets(name) == {}
    else:
        with pytest.raises(UsageError, match=r"^group"):
            store.committed_offsets(name)


def _stage(root: Path, topic: str) -> None:
    with StagingArea.for_task(root, "hostile", 0, 0, topic=topic) as area:
        area.write(pa.RecordBatch.from_pydict({"body": [b"x"]}))


@pytest.mark.parametrize("write_id", ["..", ".", "", "a/b", "../x", "a\n", "x" * 201, "ü"])
def test_a_write_id_cannot_leave_the_staging_directory(filled: Path, write_id: str) -> None:
    with pytest.raises(UsageError, match="cannot name a staging directory"):
        StagingArea.for_task(filled, write_id, 0, 0)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"body": "text"}, "body is str"),
        ({"body": None}, "body is NoneType"),
        ({"body": b"x" * (4 << 20) + b"x"}, "maxMessageSize=4194304"),
        ({"body": b"x" * 65536}, "does not fit a segment of 65536"),
        ({"tags": 5}, "'TAGS'"),
        ({"tags": "a\x01b"}, "'TAGS'.*separator"),
        ({"keys": "a\x02b"}, "'KEYS'.*separator"),
        ({"keys": [5]}, "keys"),
        ({"sharding_key": "\x01"}, "'__SHARDINGKEY'.*separator"),
        ({"sharding_key": 5}, "sharding key"),
        ({"properties": {"a": "\x01"}}, "'a'.*separator"),
        ({"properties": {"a\x02": "b"}}, "separator"),
        ({"properties": {"": "x"}}, "empty name"),
        ({"properties": {"a": ""}}, "empty value"),
        ({"properties": {"a": None}}, "'a'"),
        ({"properties": {1: "a"}}, "property 1"),
        ({"properties": [("a", "b")]}, "properties"),
        ({"properties": {"a": "\ud800"}}, "surrogate"),
        ({"properties": {"a": "x" * 32768}}, "more than 32767"),
        ({"flag": 1 << 40}, "does not fit"),
        ({"flag": "1"}, "flag='1' is str, not int"),
        ({"queue_id": 1}, "no queue 1"),
        ({"queue_id": -1}, "no queue -1"),
        ({"queue_id": "0"}, "queue_id='0' is str, not int"),
        ({"born_timestamp_ms": 1 << 70}, "does not fit"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "system topic"),
        ({"topic": "rmq_sys_pyrmq_units"}, "system topic"),
    ],
    ids=lambda value: str(value)[:40],  # one body has 4 MB
)
def test_a_message_that_breaks_a_rule_is_refused_with_the_reason(
    store: Store, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        store.send(Message(**{"topic": TOPIC, "body": b"x", **fields}))


TEXT_MAP = pa.map_(pa.string(), pa.string())


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"body": [b"x", None]}, "row 1, column 'body'"),
        ({"body": [b"x", b"x" * (4 << 20) + b"x"]}, "row 1, column 'body': 4194305 bytes"),
        ({"body": [b"x", b"x" * 65536]}, "row 1: a record of .* does not fit a segment"),
        ({"body": [1, 2]}, "column 'body' is int64"),
        ({"body": [[1], [2]]}, "column 'body' is list"),
        ({"tags": ["a", "b"]}, "no column 'body'"),
        ({"bodyy": [b"x", b"x"]}, "unknown column 'bodyy'; known are topic, body"),
        ({"body": [b"x", b"x"], "tags": [1, 2]}, "column 'tags' is int64"),
        ({"body": [b"x", b"x"], "tags": ["a", "b\x01"]}, "row 1, column 'tags'.*separator"),
        ({"body": [b"x", b"x"], "keys": ["\x02", None]}, "row 0, column 'keys'.*separator"),
        ({"body": [b"x", b"x"], "keys": [True, False]}, "column 'keys' is bool"),
        ({"body": [b"x", b"x"], "shardingKey": [1.5, 2]}, "column 'shardingKey' is double"),
        ({"body": [b"x", b"x"], "properties": [1, 2]}, "column 'properties' is int64"),
        ({"body": [b"x", b"x"], "properties": pa.array([[], [("a", "\x01")]], TEXT_MAP)}, "row 1, column 'properties'"),
        ({"body": [b"x", b"x"], "properties": pa.array([[], [("a", "x" * 32768)]], TEXT_MAP)}, "row 1.*32767"),
        ({"body": [b"x", b"x"], "flag": ["1", "2"]}, "column 'flag' is string"),
        ({"body": [b"x", b"x"], "flag": [1.0, 2.0]}, "column 'flag' is double"),
        ({"body": [b"x", b"x"], "flag": [1, 1 << 40]}, "row 1, column 'flag': 1099511627776 does not fit int32"),
        ({"body": [b"x", b"x"], "bornTimestamp": [1, 2]}, "column 'bornTimestamp' is int64"),
        ({"body": [b"x", b"x"], "queueId": [0, 1]}, "row 1.*has no queue 1"),
        ({"body": [b"x", b"x"], "queueId": ["0", "0"]}, "column 'queueId' is string"),
        ({"topic": [TOPIC, None], "body": [b"x", b"x"]}, "row 1: column 'topic' is null"),
        ({"topic": [5, 6], "body": [b"x", b"x"]}, "column 'topic' is int64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_batch_with_wrong_columns_or_values_is_refused_as_a_whole(
    store: Store, columns: dict[str, Any], reason: str
) -> None:
    batch = pa.RecordBatch.from_pydict(columns)
    with pytest.raises(UsageError, match=reason):
        store.append(batch, topic=None if "topic" in columns else TOPIC)


@pytest.mark.usefixtures("unchanged")
def test_what_is_no_batch_and_columns_given_twice_are_refused(store: Store) -> None:
    with pytest.raises(UsageError, match="RecordBatch is expected, got Table"):
        store.append(pa.table({"body": [b"x"]}), topic=TOPIC)
    with pytest.raises(UsageError, match="twice"):
        store.append(pa.RecordBatch.from_arrays([pa.array([b"x"])] * 2, names=["body", "body"]), topic=TOPIC)
    with pytest.raises(UsageError, match="no topic was given"):
        store.append(pa.RecordBatch.from_pydict({"body": [b"x"]}))


@pytest.mark.usefixtures("unchanged")
def test_reads_outside_of_a_queue_or_of_unknown_columns_say_what_there_is(store: Store) -> None:
    for start, end in ((0, 701), (-1, 1), (5, 4), (700, 701)):
        with pytest.raises(StoreError, match=r"the queue has \[0, 700\)"):
            store.read(TOPIC, 0, start, end)
    with pytest.raises(UsageError, match=r"unknown column 'boddy'; known are topic, queueId"):
        store.read(TOPIC, 0, 0, 1, columns=["boddy"])
    with pytest.raises(UsageError, match="negative"):
        store.queue_range(TOPIC, -1)
    with pytest.raises(UsageError, match="names no tag"):
        store.read(TOPIC, 0, 0, 1, tags="||")
    with pytest.raises(UsageError, match="lower or upper"):
        store.offset_by_time(TOPIC, 0, 0, "middle")
    for bad in ({(TOPIC, 0): -1}, {(TOPIC, -1): 1}, {(TOPIC, 0): "1"}, {(TOPIC, 0): 1 << 63}):
        with pytest.raises(UsageError):
            store.commit_offsets("group", bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="NoSuch"):
        store.queue_ranges("NoSuch")


def test_a_store_opened_for_reading_refuses_every_write(filled: Path, tree_hash: Callable[[Path], str]) -> None:
    before = tree_hash(filled)
    with Store.open(filled, read_only=True) as store:
        for call in (
            lambda: store.send(Message(TOPIC, b"x")),
            lambda: store.append(pa.RecordBatch.from_pydict({"body": [b"x"]}), topic=TOPIC),
            lambda: store.create_topic("New"),
            lambda: store.commit_offsets("group", {(TOPIC, 0): 1}),
            lambda: store.lease("group", TOPIC, "me"),
            lambda: store.commit_staged([]),
            lambda: store.last_unit("sink", "q"),
            lambda: store.flush(),
        ):
            with pytest.raises(ReadOnlyError, match="read_only"):
                call()
    assert tree_hash(filled) == before


def test_a_closed_store_answers_nothing(filled: Path, working_copy: Callable[[Path], Path]) -> None:
    for read_only in (True, False):
        store = Store.open(working_copy(filled), read_only=read_only)
        store.close()
        store.close()
        with pytest.raises(UsageError, match="is closed"):
            store.log_range()
        with pytest.raises(UsageError, match="is closed"):
            store.queue_range(TOPIC, 0)
        with pytest.raises(ReadOnlyError if read_only else UsageError, match=str(store.path)):
            store.send(Message(TOPIC, b"x"))


# -- what lies at the path --------------------------------------------------------------------------------------------


def test_the_name_of_a_cluster_is_no_path_and_makes_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("rmq://ns1:9876", Path("rmq://ns1:9876")):
        for options in ({}, {"read_only": True}, {"create": True}):
            with pytest.raises(UsageError, match=r"names a cluster.*nameServer"):
                Store.open(place, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_no_store_is_left_alone(tmp_path: Path, tree_hash: Callable[[Path], str]) -> None:
    (tmp_path / "file").write_text("a file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.jpg").write_text("precious")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = tree_hash(tmp_path)
    for name in ("file", "full", "empty", "missing", "link", "file/below", "full/photo.jpg"):
        for options in ({}, {"read_only": True}):
            with pytest.raises(NotAStoreError, match="no RocketMQ store"):
                Store.open(tmp_path / name, **options)
    for name in ("file", "full", "file/below", "link"):
        with pytest.raises(NotAStoreError):
            Store.open(tmp_path / name, create=True)
    with pytest.raises(UsageError, match="read_only excludes"):
        Store.open(tmp_path / "empty", create=True, read_only=True)
    with pytest.raises(NotAStoreError, match="not on this host"):
        StagingArea.for_task(tmp_path / "empty", "w", 0, 0)
    assert tree_hash(tmp_path) == before


def test_a_table_that_cannot_be_understood_does_not_leave_the_store_unclean(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", create=True, config=SMALL) as store:
        store.create_topic(TOPIC)
    table = tmp_path / "store" / "config" / "topics.json"
    table.write_text('{"topicConfigTable":[]}')
    with pytest.raises(CorruptConfigError, match="topicConfigTable"):
        Store.open(tmp_path / "store")
    assert not (tmp_path / "store" / "abort").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give its rights up")
def test_without_rights_every_use_is_a_clear_error() -> None:
    # Not below pytest's own directory, which nobody else may enter.
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        place.chmod(0o755)
        with Store.open(place / "store", create=True, config=SMALL) as store:
            store.create_topic(TOPIC)
        worker = Path(__file__).parent / "workers" / "without_rights.py"
        environment = {**os.environ, "PYTHONPATH": str(Path(rmq_store.__file__).parents[1])}
        answer = subprocess.run(
            [sys.executable, str(worker), str(place / "store")], env=environment, capture_output=True, text=True
        )
        assert answer.returncode == 0, answer.stderr
        outcomes = json.loads(answer.stdout)
    assert set(outcomes) == {"read", "write", "create", "create inside", "task", "sweep"}
    for name, outcome in outcomes.items():
        assert outcome.startswith("UsageError /"), (name, outcome)
        assert outcome.endswith("ermission denied"), (name, outcome)


IDENTITY = '"identity":"00000000-0000-0000-0000-000000000001"'


@pytest.mark.parametrize(
    ("content", "error", "reason"),
    [
        (b'{"format":3,%s,"settings":{}}' % IDENTITY.encode(), NotAStoreError, "newer version .format 3, we know 2."),
        (b'{"format":99}', NotAStoreError, "newer version .format 99, we know 2."),
        (b'{"format":2,%s,"settings":{}}' % IDENTITY.encode(), CorruptConfigError, "'replica'"),
        (b"", CorruptConfigError, "not a description"),
        (b"null", CorruptConfigError, "not a description"),
        (b"[" * 65000, CorruptConfigError, "not a description"),
        (b"1" * 65000, CorruptConfigError, "not a description"),
        (b" " * 65537, CorruptConfigError, "larger than 65536 bytes"),
        (b"\xff\xfe", CorruptConfigError, "not a description"),
        (b'{"format":1,"identity":"../..","settings":{}}', CorruptConfigError, "UUID"),
        (b'{"format":1,"identity":5,"settings":{}}', CorruptConfigError, "at byte 0"),
        *[
            (f'{{"format":1,{IDENTITY},"settings":{settings}}}'.encode(), CorruptConfigError, reason)
            for settings, reason in (
                ("[]", "at byte 0"),
                ('{"mappedFileSizeCommitLog":1}', "at least 4096"),
                ('{"mappedFileSizeCommitLog":99999999999999}', "at most"),
                ('{"mappedFileSizeConsumeQueue":21}', "multiple of 20"),
                ('{"maxHashSlotNum":500000000,"maxIndexNum":500000000}', "2 GiB"),
                ('{"flushIntervalCommitLog":true}', "is no int"),
                ('{"flushIntervalCommitLog":1e5}', "is no int"),
                ('{"flushDiskType":"NEVER"}', "ASYNC_FLUSH or SYNC_FLUSH"),
                ('{"brokerHost":"evil.example:1"}', "not an ip:port"),
                ('{"messageDelayLevel":"1x"}', "no delay"),
                ('{"defaultTopicQueueNumz":1}', "did you mean 'defaultTopicQueueNums'"),
            )
        ],
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hostile_or_newer_store_json_is_refused_by_name_and_changed_by_nobody(
    filled: Path,
    working_copy: Callable[[Path], Path],
    tree_hash: Callable[[Path], str],
    content: bytes,
    error: type[StoreError],
    reason: str,
) -> None:
    root = working_copy(filled)
    (root / "pyrmq" / "store.json").write_bytes(content)
    before = tree_hash(root)
    for call in (
        lambda: Store.open(root),
        lambda: Store.open(root, read_only=True),
        lambda: StagingArea.for_task(root, "w", 0, 0),
    ):
        with pytest.raises(error, match=reason) as raised:
            call()
        assert str(root) in str(raised.value)
    assert tree_hash(root) == before


def test_sizes_that_contradict_the_files_are_refused(filled: Path, tree_hash: Callable[[Path], str]) -> None:
    before = tree_hash(filled)
    for name, value in (("mapped_file_size_commit_log", 1 << 20), ("max_index_num", 500)):
        sizes = {field: getattr(SMALL, field) for field in SMALL.geometry().__slots__}
        with pytest.raises(UsageError, match="asked for"):
            Store.open(filled, config=StoreConfig(**{**sizes, name: value}))
    assert tree_hash(filled) == before


def _halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _scramble(path: Path) -> None:
    path.write_bytes(bytes((byte * 7 + 131) % 256 for byte in path.read_bytes()))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "damage", "error"),
    [
        ("commitlog/00000000000000000000", _halve, CorruptionError),
        ("commitlog/00000000000000000000", _fifo, CorruptionError),
        ("commitlog/00000000000000000000", _scramble, CorruptRecordError),
        ("commitlog/00000000000000065536", _halve, CorruptionError),
        ("commitlog/00000000000000065536", _empty, CorruptionError),
        ("consumequeue/Victim/0/00000000000000000000", _halve, CorruptionError),
        ("consumequeue/Victim/0/00000000000000002000", _empty, CorruptionError),
        ("consumequeue/Victim/0/00000000000000002000", _fifo, CorruptionError),
        ("pyrmq/progress", _fifo, NotAStoreError),
        ("pyrmq/state", _fifo, NotAStoreError),
        ("lock", _fifo, NotAStoreError),
        ("config/topics.json", _fifo, NotAStoreError),
    ],
)
def test_truncated_damaged_and_replaced_files_are_named(
    filled: Path,
    working_copy: Callable[[Path], Path],
    name: str,
    damage: Callable[[Path], None],
    error: type[StoreError],
) -> None:
    for read_only in (True, False):
        root = working_copy(filled)
        damage(root / name)
        # Halving the first file makes it the measure of its neighbours: the directory is what can be named for sure.
        with pytest.raises(error, match=str(root / Path(name).parent)):
            _read_all(root, read_only)


def _read_all(root: Path, read_only: bool) -> None:
    with Store.open(root, read_only=read_only) as store:
        list(store.read(TOPIC, 0, 0, 700))
        store.topics()


def test_a_truncated_or_scrambled_index_file_is_no_reason_to_write_into_it(
    filled: Path, working_copy: Callable[[Path], Path], tree_hash: Callable[[Path], str]
) -> None:
    root = working_copy(filled)
    newest = max((root / "index").iterdir())
    _halve(newest)
    before = tree_hash(root / "index")
    with Store.open(root) as store:
        store.send(Message(TOPIC, b"new", keys="k"))
        with pytest.raises(CorruptIndexError, match=f"{root}/index.*store.json says"):
            store.query.by_key(TOPIC, "k")
    assert tree_hash(root / "index") == before
    _read_all(root, read_only=True)
    # A header from another world must not stop a reader, who needs no index.
    root = working_copy(filled)
    newest = max((root / "index").iterdir())
    newest.write_bytes(b"\xff" * 40 + newest.read_bytes()[40:])
    _read_all(root, read_only=True)


def test_files_that_are_none_of_rocketmqs_are_passed_over_and_left_alone(
    filled: Path, working_copy: Callable[[Path], Path]
) -> None:
    root = working_copy(filled)
    strangers = ["config/x", "consumequeue/Victim/0/x", "consumequeue/Victim/abc/y", "pyrmq/z", "x"]
    for name in strangers:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name)
    with Store.open(root) as store:
        assert store.queue_range(TOPIC, 0) == (0, 700)
        store.send(Message(TOPIC, b"x"))
    assert [(root / name).read_text() for name in strangers] == strangers


@pytest.mark.parametrize(
    "name", ["commitlog/notes.txt", "commitlog/1", "commitlog/0000000000000000000x", "index/readme", "consumequeue/x"]
)
def test_nobody_writes_where_files_are_that_are_none_of_rocketmqs(
    filled: Path, working_copy: Callable[[Path], Path], name: str
) -> None:
    root = working_copy(filled)
    (root / name).write_text(name)
    with Store.open(root, read_only=True) as store:
        assert store.queue_range(TOPIC, 0) == (0, 700)
    with pytest.raises(StoreKindError, match=f"{name}: .* move it away"):
        Store.open(root)
    assert (root / name).read_text() == name


# -- frames of somebody else ------------------------------------------------------------------------------------------


def foreign_store(root: Path, **fields: Any) -> Path:
    """What a broker would have left that wrote one record and was killed."""
    host = Host.parse("127.0.0.1:10911")
    record = {
        "topic": "Plain", "body": b"body", "properties": b"", "queue_id": 0, "queue_offset": 0, "commit_log_offset": 0,
        "born_timestamp_ms": 1, "born_host": host, "store_timestamp_ms": 1_700_000_000_000, "store_host": host,
    }  # fmt: skip
    frame = encode_frame(**{**record, **fields})
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(frame + bytes(65536 - len(frame)))
    (root / "abort").touch()
    (root / "lock").write_bytes(b"lock")
    return root


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "fields",
    [
        *({"topic": name} for name in HOSTILE_NAMES.values() if isinstance(name, str) and name not in ("", "\ud800")),
        {"topic": "x" * 5000},
        {"queue_offset": 1 << 62},
        {"queue_offset": (1 << 63) - 1},
    ],
    ids=lambda fields: ascii(fields)[:40],
)
def test_names_and_numbers_in_foreign_frames_never_become_paths(
    tmp_path: Path, tree_hash: Callable[[Path], str], fields: dict[str, Any]
) -> None:
    root = foreign_store(tmp_path / "a" / "b" / "store", **fields)
    views = [root / name for name in ("consumequeue", "index", "config")]
    before = tree_hash(root / "commitlog")
    for read_only in (True, False):
        with pytest.raises(CorruptRecordError, match=f"commitlog/{0:020d}: at byte 0"):
            Store.open(root, read_only=read_only).log_range()
    assert tree_hash(root / "commitlog") == before
    assert not any(path for view in views if view.exists() for path in view.rglob("*"))
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == sorted(
        {"a", "b", "store", "commitlog", "pyrmq"} | {view.name for view in views if view.exists()}
    )


@pytest.mark.parametrize("fields", [{"queue_id": (1 << 31) - 1}, {"queue_offset": 10_000_000}], ids=str)
def test_large_queue_ids_and_offsets_that_are_possible_cost_one_small_file(
    scratch: Path, fields: dict[str, int]
) -> None:
    root = foreign_store(scratch / "store", **fields)
    with Store.open(root, config=SMALL) as store:
        queue_id, queue_offset = fields.get("queue_id", 0), fields.get("queue_offset", 0)
        assert store.queue_range("Plain", queue_id) == (queue_offset, queue_offset + 1)
        (batch,) = store.read("Plain", queue_id, queue_offset, queue_offset + 1, columns=["body"])
        assert batch.to_pylist() == [{"body": b"body"}]
    assert len([path for path in (root / "consumequeue").rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_a_decompression_bomb_is_read_as_it_lies(scratch: Path, kind: str) -> None:
    body, sys_flag = compress(bytes(65 << 20), kind)
    frame_bytes = len(body)
    assert frame_bytes < 1 << 20
    root = foreign_store_of_size(scratch / "store", 1 << 20, body=body, sys_flag=sys_flag)
    with Store.open(root, read_only=True) as store:
        for raw_body in (False, True):
            (batch,) = store.read("Plain", 0, 0, 1, columns=["body", "sysFlag"], raw_body=raw_body)
            assert batch.to_pylist() == [{"body": body, "sysFlag": sys_flag}]
        (batch,) = store.read("Plain", 0, 0, 1, columns=["queueOffset"])
        assert batch.num_rows == 1


def foreign_store_of_size(root: Path, segment_bytes: int, **fields: Any) -> Path:
    foreign_store(root.parent / "one", topic="Plain")
    host = Host.parse("127.0.0.1:10911")
    frame = encode_frame(
        topic="Plain", properties=b"", queue_id=0, queue_offset=0, commit_log_offset=0, born_timestamp_ms=1,
        born_host=host, store_timestamp_ms=1_700_000_000_000, store_host=host, **fields,
    )  # fmt: skip
    shutil.move(root.parent / "one", root)
    (root / "commitlog" / f"{0:020d}").write_bytes(frame + bytes(segment_bytes - len(frame)))
    return root


def test_a_body_that_claims_a_compression_it_does_not_have_is_read_as_it_lies(scratch: Path) -> None:
    body = zlib.compress(b"x" * 100)[:-3]
    root = foreign_store(scratch / "store", body=body, sys_flag=0x301)
    with Store.open(root, read_only=True) as store:
        (batch,) = store.read("Plain", 0, 0, 1, columns=["body", "sysFlag"])
        assert batch.to_pylist() == [{"body": body, "sysFlag": 0x301}]
