"""Units: what a sink commit promises. All or nothing, once for each key and value, whatever dies or is deleted."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmq_store
from rmq_store import (
    CommitResult,
    MarkerError,
    StagedFile,
    StagingArea,
    StagingError,
    Store,
    StoreConfig,
    StoreFailedError,
    StoreLockedError,
    UsageError,
    sweep,
)
from rmq_store.broker.write import writer
from rmq_store.verify import verify_store

TOPIC = "Paid"
WORKER = Path(__file__).parent / "workers" / "commit.py"


@pytest.fixture
def root(scratch: Path, small: StoreConfig) -> Path:
    with Store.open(scratch / "store", create=True, config=small) as store:
        store.create_topic(TOPIC, queue_count=2)
    return scratch / "store"


def stage(root: Path, bodies: list[bytes], write_id: str = "w", attempt: int = 0) -> StagedFile:
    with StagingArea.for_task(root, write_id, 0, attempt, topic=TOPIC) as area:
        area.write(pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())}))
        staged = area.finish()
    assert staged is not None
    return staged


def bodies_of(store: Store, topic: str = TOPIC) -> list[bytes]:
    return sorted(
        body
        for queue_id, (first, last) in store.queue_ranges(topic).items()
        for batch in store.read(topic, queue_id, first, last, columns=["body"])
        for body in batch.column("body").to_pylist()
    )


def start(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(rmq_store.__file__).parents[1])}
    command, pipe = [sys.executable, str(WORKER), *map(str, arguments)], subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_commit_appends_all_files_and_remembers_its_value(root: Path) -> None:
    files = [stage(root, [b"a", b"b"]), stage(root, [b"c"], attempt=1)]
    with Store.open(root) as store:
        assert store.last_unit("sink", "q") is None
        assert store.commit_staged(files, key="q", value=7) == CommitResult(3, committed=True)
        assert bodies_of(store) == [b"a", b"b", b"c"]
        assert store.last_unit("sink", "q") == 7
        assert store.last_unit("sink", "another") is None
        assert store.last_unit("replay", "q") is None
    assert verify_store(root).status == "clean"


def test_a_repeated_commit_adds_nothing_even_after_its_files_were_swept(root: Path) -> None:
    files = [stage(root, [b"a", b"b"])]
    with Store.open(root) as store:
        store.commit_staged(files, key="q", value=1)
        assert sweep(root, ["w"]) == 1
        end = store.log_range()[1]
        assert store.commit_staged(files, key="q", value=1) == CommitResult(0, committed=False)
        assert store.log_range()[1] == end
    with Store.open(root) as store:
        assert store.commit_staged(files, key="q", value=1) == CommitResult(0, committed=False)
        assert bodies_of(store) == [b"a", b"b"]


def test_a_commit_whose_flush_fails_is_acknowledged_by_its_repetition_only_when_it_is_on_disk(
    scratch: Path, small: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step S5: the first attempt may have died between its append and its flush."""
    root = scratch / "store"
    config = replace(small, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=10**9)
    with Store.open(root, create=True, config=config) as store:
        store.create_topic(TOPIC, queue_count=2)
        files, page = [stage(root, [b"a", b"b"])], store._log.writing_page

        def no_time(*arguments: Any) -> None:
            raise StoreLockedError("not free", None)

        with monkeypatch.context() as patch:
            patch.setattr(writer, "flush", no_time)
            with pytest.raises(StoreFailedError, match="perhaps not on disk"):
                store.commit_staged(files, key="q", value=1)
        assert page.flushed_end < page.appended_end
        assert len(list((root / "pyrmq" / "staging" / "w").iterdir())) == 1
        assert not store.commit_staged(files, key="q", value=1).committed
        assert page.flushed_end == page.appended_end
        assert bodies_of(store) == [b"a", b"b"]


def test_the_same_rows_in_other_files_and_order_are_the_same_batch(root: Path) -> None:
    with Store.open(root) as store:
        store.commit_staged([stage(root, [b"a", b"b", b"c"])], key="q", value=1)
        again = [stage(root, [b"c"], "again"), stage(root, [b"b", b"a"], "again", 1)]
        assert not store.commit_staged(again, key="q", value=1).committed
        assert bodies_of(store) == [b"a", b"b", b"c"]


def test_a_smaller_value_is_a_rewound_checkpoint(root: Path) -> None:
    with Store.open(root) as store:
        store.commit_staged([stage(root, [b"a"])], key="q", value=5)
        with pytest.raises(MarkerError, match=r"'q' has committed 5 already, and comes with 4 again"):
            store.commit_staged([stage(root, [b"b"])], key="q", value=4)
        assert store.commit_staged([stage(root, [b"c"])], key="other", value=4).committed
        assert bodies_of(store) == [b"a", b"c"]


def test_the_same_value_with_other_rows_is_refused_unless_the_caller_says_so(root: Path) -> None:
    with Store.open(root) as store:
        store.commit_staged([stage(root, [b"a"])], key="q", value=5)
        for bodies in ([b"b"], [b"a", b"a"], [b"a", b""]):
            other = [stage(root, bodies)]
            with pytest.raises(MarkerError, match="other rows"):
                store.commit_staged(other, key="q", value=5)
            assert not store.commit_staged(other, key="q", value=5, repeatable=False).committed
        assert bodies_of(store) == [b"a"]


def test_purposes_and_keys_are_kept_apart_and_half_a_marker_is_refused(root: Path) -> None:
    with Store.open(root) as store:
        store.commit_staged([], purpose="sink", key="a/b", value=3)
        assert store.last_unit("sink", "a/b") == 3
        for purpose in ("sink/a", "", "x" * 65, "ü"):
            with pytest.raises(UsageError, match="purpose"):
                store.commit_staged([], purpose=purpose, key="b", value=1)
        for key, value in (("q", None), (None, 1)):
            with pytest.raises(UsageError, match="a key and a value"):
                store.commit_staged([], key=key, value=value)


def test_commits_without_a_key_are_all_different(root: Path) -> None:
    with Store.open(root) as store:
        assert store.commit_staged([stage(root, [b"a"])]).committed
        assert store.commit_staged([stage(root, [b"a"])]).committed
        assert bodies_of(store) == [b"a", b"a"]


def test_files_that_were_committed_are_gone(root: Path) -> None:
    """They would be written to the disk when the store is closed, and they can never be appended again."""
    files = [stage(root, [b"a"])]
    with Store.open(root) as store:
        assert store.commit_staged(files).committed
        assert not list((root / "pyrmq" / "staging").rglob("*.arrow"))
        with pytest.raises(StagingError, match="missing"):
            store.commit_staged(files)
        assert bodies_of(store) == [b"a"]


def test_an_empty_batch_moves_the_marker(root: Path) -> None:
    with Store.open(root) as store:
        assert store.commit_staged([], key="q", value=1) == CommitResult(0, committed=True)
        assert store.commit_staged([], key="q", value=1) == CommitResult(0, committed=False)
        assert store.last_unit("sink", "q") == 1


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


@pytest.mark.parametrize("damage", [Path.unlink, _cut, _flip, _link], ids=["missing", "cut", "altered", "link"])
def test_a_missing_or_altered_staged_file_refuses_the_whole_commit(root: Path, damage: Callable[[Path], None]) -> None:
    good, bad = stage(root, [b"a"]), stage(root, [b"b" * 100, b"c" * 100], attempt=1)
    damage(root / "pyrmq" / "staging" / bad.name)
    with Store.open(root) as store:
        end = store.log_range()
        with pytest.raises(StagingError, match=bad.name.rpartition("/")[2]):
            store.commit_staged([good, bad], key="q", value=1)
        assert store.log_range() == end
        assert bodies_of(store) == []
        assert store.last_unit("sink", "q") is None


@pytest.mark.parametrize("name", ["../../store.json", "..", "w/../x", "w", "/etc/passwd", "w/a/b", "w/\n"])
def test_a_reported_name_cannot_leave_the_staging_directory(root: Path, name: str) -> None:
    with Store.open(root) as store, pytest.raises(StagingError, match="no name of a staged file"):
        store.commit_staged([StagedFile(name, 1, 1, 1, 1, ((TOPIC, 1),))], key="q", value=1)


def test_a_topic_that_lost_queues_since_the_tasks_ran_refuses_the_commit(root: Path) -> None:
    staged = stage(root, [b"%d" % n for n in range(10)])
    table = json.loads((root / "config" / "topics.json").read_text())
    table["topicConfigTable"][TOPIC]["writeQueueNums"] = 1
    (root / "config" / "topics.json").write_text(json.dumps(table))
    with Store.open(root) as store:
        with pytest.raises(StagingError, match="has 1 queues now, the rows count on 2"):
            store.commit_staged([staged], key="q", value=1)
        assert bodies_of(store) == []


def test_missing_topics_are_made_by_the_commit(root: Path) -> None:
    with StagingArea.for_task(root, "w", 0, 0, topic="Fresh") as area:
        area.write(pa.RecordBatch.from_pydict({"body": [b"x"] * 9}))
        staged = area.finish()
    assert staged is not None
    with Store.open(root) as store:
        assert "Fresh" not in store.topics()
        store.commit_staged([staged], key="q", value=1)
        assert store.topic("Fresh").write_queue_nums == 4
        assert bodies_of(store, "Fresh") == [b"x"] * 9


def commit_many(root: Path, first: int, last: int, key: str = "q") -> None:
    with Store.open(root) as store:
        for value in range(first, last):
            store.commit_staged([stage(root, [b"x"])], key=f"{key}{value % 3}", value=value)


def values_of(root: Path) -> list[int | None]:
    with Store.open(root) as store:
        return [store.last_unit("sink", key) for key in ("q0", "q1", "q2", "ghost")]


def sealed(content: dict[str, Any]) -> str:
    """The JSON with the checksum of what it says."""
    rest = {name: value for name, value in content.items() if name != "crc"}
    return json.dumps({"crc": zlib.crc32(json.dumps(rest).encode()), **rest})


def test_units_json_is_rebuilt_when_it_was_deleted_or_is_nonsense(root: Path) -> None:
    commit_many(root, 0, 32)
    right = [30, 31, 29, None]
    assert values_of(root) == right
    path = root / "pyrmq" / "units.json"
    true = json.loads(path.read_text())
    assert true["queue_offset"] == 64  # up to date: nothing that is read behind it would correct a lie
    lie = {"value": 999, "rows": 0, "content": 0, "offset": 0, "seen": 0}
    liar = {f"sink/{key}": lie for key in ("q0", "q1", "q2", "ghost")}
    for content in (
        None,
        b"",
        json.dumps({**true, "newest": liar}),  # with a checksum that does not fit
        b"[" * 100_000,
        sealed({**true, "newest": []}),
        sealed({**true, "format": 99, "newest": liar}),
        sealed({**true, "queue_offset": 0, "newest": liar}),
        sealed({**true, "queue_offset": -5, "newest": liar}),
        sealed({**true, "queue_offset": true["queue_offset"] + 1, "newest": liar}),
        sealed({**true, "queue_offset": 10**30, "newest": liar}),
        sealed({**true, "log_offset": true["log_offset"] - 1, "newest": liar}),
        sealed({**true, "last": "0 0", "newest": liar}),
    ):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert values_of(root) == right, content


def test_units_json_from_a_later_state_of_the_store_is_not_believed(
    root: Path, working_copy: Callable[[Path], Path]
) -> None:
    commit_many(root, 0, 3)
    early = working_copy(root)
    commit_many(root, 3, 70)
    (early / "pyrmq" / "units.json").write_bytes((root / "pyrmq" / "units.json").read_bytes())
    assert values_of(early) == [0, 1, 2, None]


def test_a_cached_unit_is_not_taken_for_another_one_of_the_same_size_at_its_place(
    root: Path, working_copy: Callable[[Path], Path]
) -> None:
    """A power cut took the newest units of `q0`..; units of other keys, as many and as long, came to their place."""
    twin = working_copy(root)
    commit_many(root, 0, 66)
    commit_many(twin, 0, 66, key="r")
    with Store.open(root, read_only=True) as first, Store.open(twin, read_only=True) as second:
        assert first.log_range() == second.log_range()
    assert (root / "pyrmq" / "units.json").exists()
    (twin / "pyrmq" / "units.json").write_bytes((root / "pyrmq" / "units.json").read_bytes())
    assert values_of(twin) == [None] * 4
    with Store.open(twin) as store:
        assert store.commit_staged([stage(twin, [b"x"])], key="q0", value=63).committed


@pytest.mark.parametrize("first_ends", ["committed", "begun"])
def test_who_finds_the_files_used_up_by_the_same_commit_has_nothing_to_add(
    root: Path, monkeypatch: pytest.MonkeyPatch, first_ends: str
) -> None:
    """Between the look at what was committed and the look at the files another process may commit them, and remove
    them or, before that, punch holes where it has copied.
    """
    staged = stage(root, [b"%04d" % number * 100 for number in range(300)])
    path = root / "pyrmq" / "staging" / staged.name
    open_all, discard = writer.open_all_staged, writer.discard_staged

    def open_late(*arguments: Any) -> list[pa.RecordBatch]:
        monkeypatch.setattr(writer, "open_all_staged", open_all)
        with Store.open(root) as other:
            assert other.commit_staged([staged], key="q", value=7, consume_files=True).committed
        return open_all(*arguments)

    monkeypatch.setattr(writer, "open_all_staged", open_late)
    if first_ends == "begun":
        monkeypatch.setattr(writer, "discard_staged", lambda *_: None)
    with Store.open(root) as store:
        assert store.commit_staged([staged], key="q", value=7) == CommitResult(0, committed=False)
        assert path.exists() == (first_ends == "begun")
        assert len(bodies_of(store)) == 300
        if first_ends == "begun":
            with pytest.raises(StagingError, match="not what its task wrote"):
                store.commit_staged([staged], key="q", value=8)
        discard(root, [staged])
        with pytest.raises(StagingError, match="missing"):
            store.commit_staged([staged], key="q", value=8)


def test_two_processes_that_commit_the_same_value_at_once_add_it_once(root: Path) -> None:
    rounds = 20
    files = [stage(root, [b"%d-%d" % (n, row) for row in range(50)], f"w{n}") for n in range(rounds)]
    (root.parent / "files.json").write_text(
        json.dumps([[f.name, f.size_bytes, f.crc32, f.row_count, f.content_sum, f.topics] for f in files])
    )
    workers = [start("race", root, root.parent / "files.json") for _ in range(2)]
    deadline_s = time.monotonic() + 30
    while len(list(root.parent.glob("ready-*"))) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    (root.parent / "go").write_text(str(time.monotonic() + 0.05))
    answers = [worker.communicate(timeout=60) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], answers
    added = [json.loads(output) for output, _ in answers]
    assert [first + second for first, second in zip(*added, strict=True)] == [1] * rounds
    with Store.open(root) as store:
        assert bodies_of(store) == sorted(b"%d-%d" % (n, row) for n in range(rounds) for row in range(50))


@pytest.mark.slow
def test_a_commit_killed_at_any_operation_leaves_all_of_it_or_nothing(
    root: Path, working_copy: Callable[[Path], Path]
) -> None:
    """SIGKILL before every second operation on a file; then the same commit again adds what is missing."""
    bodies = [b"%05d" % n * 20 for n in range(400)]
    staged = stage(root, bodies)
    report = json.dumps(
        [staged.name, staged.size_bytes, staged.crc32, staged.row_count, staged.content_sum, staged.topics]
    )
    outcomes = []
    worker = start("die", report)
    assert worker.stdin is not None
    assert worker.stdout is not None
    for kill_at in itertools.count(1, 2):
        copy = working_copy(root)
        worker.stdin.write(f"{copy}\t{kill_at}\n")
        worker.stdin.flush()
        status = worker.stdout.readline().strip()
        with Store.open(copy) as store:
            found = bodies_of(store)
            assert found in ([], bodies), kill_at
            assert store.last_unit("sink", "q") == (1 if found else None)
            outcomes.append(bool(found))
            assert store.commit_staged([staged], key="q", value=1).committed == (not found)
            assert bodies_of(store) == bodies
        report_after = verify_store(copy)
        assert report_after.status == "clean", (kill_at, report_after.problems)
        shutil.rmtree(copy)
        if status == "0":
            break
        assert status == str(-signal.SIGKILL)
    worker.communicate(timeout=60)
    assert outcomes[0] is False
    assert outcomes[-1] is True
    assert len(outcomes) > 5


def test_sweeping_never_removes_a_directory_that_is_still_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = stage(root, [b"a"], "old")
    live = stage(root, [b"b"], "live")
    leaving = stage(root, [b"c"], "live", 1)
    staging = root / "pyrmq" / "staging"
    for path in [staging / "old", *(staging / "old").iterdir()]:
        os.utime(path, (1, 1))
    vanishing = staging / leaving.name
    stat = Path.stat

    def vanish(path: Path, **options: bool) -> os.stat_result:
        if path == vanishing:
            path.unlink(missing_ok=True)  # its task gives up between the listing and the look at the file
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", vanish)
    (staging / "stray").write_text("")
    assert sweep(root, older_than_ms=60_000) == 1
    assert not (staging / old.name).exists()
    assert (staging / live.name).exists()
    assert sweep(root, ["nobody"]) == 0
    assert sweep(root.parent / "nowhere", ["w"]) == 0


def rows(*bodies: bytes, **more: list[object]) -> pa.RecordBatch:
    columns = {"topic": [TOPIC] * len(bodies), "body": pa.array(bodies, pa.binary()), **more}
    return pa.RecordBatch.from_pydict(columns)


def test_a_unit_of_rows_follows_the_value_that_its_caller_has_seen(root: Path) -> None:
    with Store.open(root) as store:
        assert store.newest_unit("mirror", "m/t/0") is None
        first = store.append_unit([rows(b"a"), rows(b"b", b"c")], purpose="mirror", key="m/t/0", value=7, expect=None)
        assert first is not None and first.row_count == 3
        second = store.append_unit(
            [], purpose="mirror", key="m/t/0", value=9, expect=7, detail={"epoch": 2, "topic_high": -(1 << 63)}
        )
        assert second is not None and second.row_count == 0
    with Store.open(root) as store:
        newest = store.newest_unit("mirror", "m/t/0")
        assert newest is not None
        assert (newest.value, newest.detail) == (9, {"epoch": 2, "topic_high": -(1 << 63)})
        assert bodies_of(store) == [b"a", b"b", b"c"]
    assert verify_store(root).status == "clean"


@pytest.mark.parametrize("expect", [None, 6, 8])
def test_a_unit_of_rows_whose_predecessor_changed_appends_nothing(root: Path, expect: int | None) -> None:
    with Store.open(root) as store:
        store.append_unit([rows(b"a")], purpose="mirror", key="k", value=7, expect=None)
        end = store.log_range()[1]
        assert store.append_unit([rows(b"b")], purpose="mirror", key="k", value=9, expect=expect) is None
        assert store.log_range()[1] == end
        assert store.last_unit("mirror", "k") == 7
        assert bodies_of(store) == [b"a"]


def test_a_unit_of_rows_that_cannot_be_stored_moves_nothing(root: Path) -> None:
    with Store.open(root) as store:
        with pytest.raises(UsageError, match="row 1: topic 'Paid' has no queue 5"):
            store.append_unit([rows(b"a", b"b", queueId=[0, 5])], purpose="mirror", key="k", value=1, expect=None)
        with pytest.raises(UsageError, match="purpose"):
            store.append_unit([], purpose="a/b", key="k", value=1, expect=None)
        assert store.last_unit("mirror", "k") is None
        assert bodies_of(store) == []


@pytest.mark.parametrize("keep", [True, False])
def test_a_unit_of_rows_keeps_unique_keys_only_if_it_is_asked(root: Path, keep: bool) -> None:
    unique = "C0000202371F5FFD2B2767134429005D"
    batch = rows(b"a", properties=pa.array([[("UNIQ_KEY", unique)]], pa.map_(pa.string(), pa.string())))
    with Store.open(root) as store:
        store.append_unit([batch], purpose="mirror", key="k", value=1, expect=None, keep_unique_key=keep)
        found = store.query.by_unique_key(TOPIC, unique)
        assert bool(found) == keep
