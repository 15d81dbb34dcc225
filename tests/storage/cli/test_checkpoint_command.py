"""`rmq checkpoint`: what it shows of a checkpoint that Spark wrote, what it compares, what it writes, what it refuses.

`spark-checkpoint/` is what Spark 4.3 wrote for a query that read OrderTopic of the store in examples/data in four
batches: readStream with startingOffsets=earliest, maxOffsetsPerTrigger=1000, availableNow, to the sink noop. Whether
Spark accepts what is written here: tests/connector/test_checkpoint_spark.py.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rmq_store import Message, Store
from rmq_store.broker.metadata.leases import Lease
from rmq_store.files import durable

from .changing import NOW_MS, command

Run = Callable[..., Result]
EXPECTED = Path(__file__).parent / "expected"
SPARK_WROTE = Path(__file__).parent / "spark-checkpoint"
QUERY_ID = json.loads((SPARK_WROTE / "metadata").read_text())["id"]


@pytest.fixture
def root(scratch: Path, made_store: Path) -> Path:
    """T: queue 0 holds [0, 4), a second apart from NOW_MS on; queue 1 is empty; group g is at 2."""
    return shutil.copytree(made_store, scratch / "store")


def identity(root: Path) -> str:
    with Store.open(root, read_only=True) as store:
        return store.identity


def place(root: Path, offset: int, queue_id: int = 0) -> int:
    with Store.open(root, read_only=True) as store:
        return store.commit_log_offset_before("T", queue_id, offset)


def position(root: Path, queues: dict[str, int], topic: str = "T", **more: Any) -> dict[str, Any]:
    return {"version": 1, "store": identity(root), "topics": {topic: queues}} | more


def make(path: Path, *batches: list[Any] | Any, committed: int | None = None, version: str = "v1") -> Path:
    """A checkpoint as Spark lays it out, without checksums: a batch for each of `batches` (what its source says, or a
    list for several sources), all of them committed unless `committed` says how many.
    """
    about = {"batchWatermarkMs": 77, "batchTimestampMs": NOW_MS, "conf": {"spark.sql.shuffle.partitions": "2"}}
    for name in ("offsets", "commits"):
        (path / name).mkdir(parents=True)
    (path / "metadata").write_text(json.dumps({"id": QUERY_ID}))
    for number, batch in enumerate(batches):
        sources = batch if isinstance(batch, list) else [batch]
        lines = [one if isinstance(one, str) else json.dumps(one) for one in sources]
        (path / "offsets" / str(number)).write_text("\n".join([version, json.dumps(about), *lines]))
    for number in range(len(batches) if committed is None else committed):
        (path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":77}')
    return path


def rewound(path: Path, batch: int, source: int = 0) -> dict[str, Any]:
    """What a source says in a batch of a new checkpoint."""
    found: dict[str, Any] = json.loads((path / "offsets" / str(batch)).read_text().split("\n")[2 + source])
    return found


# ---- what Spark wrote


@pytest.fixture
def unfinished(scratch: Path) -> Path:
    """Spark's checkpoint, its last batch planned and not committed."""
    path = shutil.copytree(SPARK_WROTE, scratch / "checkpoint")
    (path / "commits" / "3").unlink()
    (path / "commits" / ".3.crc").unlink()
    return path


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("show", ["show", "CHECKPOINT"]),
        ("show-batch", ["show", "CHECKPOINT", "--batch", "1"]),
        ("diff", ["diff", "CHECKPOINT", "--group", "cg_partial"]),
        ("rewind", ["rewind", "CHECKPOINT", "NEW", "--to-time", "2026-11-21T00:21:57Z", "--dry-run"]),
    ],
)
def test_the_text_of_a_command_is_as_kept(
    run: Run, broker_store: Any, unfinished: Path, tree_hash: Callable[[Path], str], name: str, arguments: list[str]
) -> None:
    new = unfinished.parent / "new"
    places = {"CHECKPOINT": str(unfinished), "NEW": str(new)}
    words = [places.get(word, word) for word in arguments]
    before = tree_hash(unfinished)
    result = run("checkpoint", *words, store=broker_store.path)
    assert result.exit_code == 0, result.output
    assert result.stdout == (EXPECTED / f"checkpoint-{name}.txt").read_text()
    assert result.stderr == ("" if name != "rewind" else (EXPECTED / "checkpoint-rewind-notes.txt").read_text())
    assert json.loads(run("checkpoint", *words, "--json", store=broker_store.path).stdout)
    assert tree_hash(unfinished) == before
    assert not new.exists()


@pytest.mark.parametrize("name", ["show", "diff", "rewind"])
def test_every_command_has_help_with_an_example(run: Run, name: str) -> None:
    assert f"    rmq checkpoint {name} /data/checkpoint" in run("checkpoint", name, "--help").stdout


def test_files_are_written_as_spark_writes_them(run: Run, broker_store: Any, scratch: Path) -> None:
    """Each with Hadoop's checksums; the JSON in the bytes that Spark would give it."""
    new = scratch / "new"
    result = run("checkpoint", "rewind", str(SPARK_WROTE), str(new), "--shift", "0", "--yes", store=broker_store.path)
    assert result.exit_code == 0, result.output
    files = {str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()}
    assert files == {"metadata", ".metadata.crc", "commits/3", "commits/.3.crc"} | {
        f"offsets/{name}" for name in ("2", ".2.crc", "3", ".3.crc")
    }
    for name in ("offsets/3", "commits/3", "offsets/.3.crc", "commits/.3.crc"):
        assert (new / name).read_bytes() == (SPARK_WROTE / name).read_bytes()
    assert (new / "offsets" / "2").read_bytes() == (new / "offsets" / "3").read_bytes()
    old, now = (json.loads((path / "metadata").read_text())["id"] for path in (SPARK_WROTE, new))
    assert old != now
    assert (new / "metadata").read_text() == (SPARK_WROTE / "metadata").read_text().replace(old, now)


# ---- show


def test_a_batch_that_is_to_run_again_and_the_sources_of_others_are_shown(root: Path) -> None:
    first = position(root, {"0": 1})
    second = position(root, {"0": 3}, after={"T": {"0": 400}}, stored={"T": {"0": NOW_MS}})
    path = make(root.parent / "c", [first, '{"orders":{"0":7}}'], [second, "-"], committed=1)
    shown = json.loads(command(root, "checkpoint", "show", str(path), "--json").stdout)
    assert (shown["queryId"], shown["planned"], shown["committed"], shown["runsAgain"]) == (QUERY_ID, [0, 1], [0], 1)
    (queue,) = shown["sources"][0]["queues"]
    assert (queue["committed"], queue["planned"]) == (1, 3)
    assert (queue["lastCommitLogOffset"], queue["lastStoreTimestamp"]) == (400, NOW_MS)
    assert shown["sources"][1] == {"source": 1, "name": None, "offset": "-"}
    text = command(root, "checkpoint", "show", str(path)).stdout
    assert "next      batch 1 again: it is planned and not committed\n" in text
    assert "source 1  other source: -\n" in text


def test_the_start_of_a_query_over_a_cluster_is_shown_and_goes_along(root: Path) -> None:
    """What it is for: queues that turn up later (`since`, version 3)."""
    since = {"*": NOW_MS, "Bills": NOW_MS + 1000}
    one = {"version": 3, "store": "cluster:c", "topics": {"Orders": {"broker-a:0": 5}}, "since": since}
    checkpoint = make(root.parent / "checkpoint", one)
    shown = command(root, "checkpoint", "show", str(checkpoint))
    assert re.search(r"queues that turn up later are read from \S+Z on, in Bills from \S+Z on\n", shown.stdout)
    (source,) = json.loads(command(root, "checkpoint", "show", str(checkpoint), "--json").stdout)["sources"]
    assert source["since"] == since
    later = make(root.parent / "later", position(root, {"0": 2}) | {"version": 3, "since": since})
    assert command(root, "checkpoint", "diff", str(later)).exit_code == 0
    assert "since" not in json.loads(command(root, "checkpoint", "show", str(later), "--json").stdout)
    again = root.parent / "again"
    words = ["checkpoint", "rewind", str(later), str(again), "--to-offset", "1", "--yes"]
    assert command(root, *words).exit_code == 0
    assert (rewound(again, 0)["since"], rewound(again, 0)["version"]) == (since, 3)


def test_a_first_batch_that_runs_again_has_the_start_of_its_query(root: Path) -> None:
    from pyspark_rmq.checkpoint.reading import open_checkpoint

    one = position(root, {"0": 2}, began={"T": {"0": 0}}) | {"version": 3, "since": {"*": 5}}
    (standing,) = open_checkpoint(str(make(root.parent / "checkpoint", one, committed=0))).standings()
    assert standing.begin.since == {"*": 5}


def test_a_position_of_a_later_version_is_named(root: Path) -> None:
    checkpoint = make(root.parent / "checkpoint", position(root, {"0": 2}) | {"version": 4})
    result = command(root, "checkpoint", "show", str(checkpoint))
    assert result.exit_code != 0
    assert "written by a newer version of this data source (position version 4)" in result.stderr


def test_names_of_sources_and_sinks_are_shown_where_spark_kept_them(root: Path) -> None:
    """OffsetSeqLog v2, CommitLog v3."""
    path = make(root.parent / "c", f"bills:{json.dumps(position(root, {'0': 1}))}", version="v2")
    sink = {"sinkName": "s\x1b", "providerName": "noop", "commitOffset": "", "apiVersion": "v2", "isActive": True}
    commit = {"nextBatchWatermarkMs": 0, "sinkMetadataMap": {"s": sink}}
    (path / "commits" / "0").write_text(f"v3\n{json.dumps(commit)}")
    text = command(root, "checkpoint", "show", str(path)).stdout
    assert f"source 0  bills, rmq, store {identity(root)}\n" in text
    assert "sink      s\\x1b (noop)\n" in text
    new = root.parent / "new"
    assert command(root, "checkpoint", "rewind", str(path), str(new), "--to-earliest", "--yes").exit_code == 0
    assert (new / "offsets" / "0").read_text().split("\n")[2].startswith('bills:{"version": 1, ')
    assert (new / "commits" / "0").read_text().startswith("v3\n")


def test_a_query_that_planned_nothing_begins_where_its_options_say(root: Path) -> None:
    path = make(root.parent / "c")
    result = command(root, "checkpoint", "show", str(path))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "next      batch 0, from where the options of the query say\n" in result.stdout
    for name, words in (("diff", []), ("rewind", [str(root.parent / "new"), "--to-latest"])):
        result = command(root, "checkpoint", name, str(path), *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "no batch was" in result.stderr


def test_old_batches_that_spark_has_removed_are_named(root: Path) -> None:
    path = make(root.parent / "c", *[position(root, {"0": n}) for n in range(4)])
    for name in ("offsets/0", "offsets/1", "commits/0", "commits/1"):
        (path / name).unlink()
    assert "planned   batches 2 to 3\n" in command(root, "checkpoint", "show", str(path)).stdout
    result = command(root, "checkpoint", "rewind", str(path), str(root.parent / "new"), "--to-batch", "1", "--yes")
    assert (result.exit_code, result.stderr) == (2, f"rmq: {path}: there is no batch 1: it has 2 to 3\n")


def test_a_query_reads_from_the_batch_before_the_last_one_whatever_the_other_commits_say(root: Path) -> None:
    """MicroBatchExecution: async progress tracking leaves out commits, people remove them."""
    path = make(root.parent / "c", *[position(root, {"0": n}) for n in range(4)], committed=1)
    assert [queue["position"] for queue in states(root, path)[1]] == [2]


# ---- diff


def states(root: Path, path: Path, *more: str) -> tuple[int, list[dict[str, Any]]]:
    result = command(root, "checkpoint", "diff", str(path), "--json", *more)
    return result.exit_code, json.loads(result.stdout)


def test_a_position_is_compared_with_the_store_and_with_a_group(root: Path) -> None:
    path = make(root.parent / "c", position(root, {"0": 3, "1": 0}))
    code, (first, second) = states(root, path, "--group", "g")
    assert code == 0
    assert (first["minOffset"], first["maxOffset"], first["position"], first["behind"]) == (0, 4, 3, 1)
    assert (first["committedOffset"], second["committedOffset"]) == (2, None)
    assert {first["state"], second["state"]} == {"in range"}
    assert "0    0    4         3       1      2      1  in range" in command(
        root, "checkpoint", "diff", str(path), "--group", "g"
    ).stdout


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"topics": {"T": {"0": 5}}}, "ahead of the log"),
        ({"topics": {"gone": {"0": 5}}}, "no such topic"),
        ({"topics": {"T": {"0": 3}}, "after": {"T": {"0": 1}}}, "other messages"),
        ({"topics": {"T": {"0": 3}}, "store": "another"}, "other store"),
    ],
)
def test_what_cannot_go_on_is_said_and_is_exit_code_1(root: Path, change: dict[str, Any], state: str) -> None:
    path = make(root.parent / "c", position(root, {"0": 3}) | change)
    code, (queue,) = states(root, path)
    assert (code, queue["state"]) == (1, state)
    result = command(root, "checkpoint", "diff", str(path))
    assert result.stdout.endswith(f"{state}\n")
    assert result.stderr == "rmq: 1 of 1 queues cannot go on; `rmq checkpoint rewind` makes one that can\n"


@pytest.mark.parametrize(
    ("stored_ms", "state"), [(None, "in range"), (NOW_MS + 2000, "in range"), (NOW_MS, "other messages")]
)
def test_another_message_at_the_same_place_is_known_by_its_time(root: Path, stored_ms: int | None, state: str) -> None:
    marks = {"after": {"T": {"0": place(root, 3)}}} | ({"stored": {"T": {"0": stored_ms}}} if stored_ms else {})
    path = make(root.parent / "c", position(root, {"0": 3}, **marks))
    assert [queue["state"] for queue in states(root, path)[1]] == [state]


def test_the_end_of_a_batch_that_runs_again_counts_too(root: Path) -> None:
    path = make(root.parent / "c", position(root, {"0": 3}), position(root, {"0": 5}), committed=1)
    assert [queue["state"] for queue in states(root, path)[1]] == ["ahead of the log"]
    path = make(root.parent / "d", position(root, {"0": 3}, began={"T": {"0": 1}}), committed=0)
    code, (queue,) = states(root, path)
    assert (code, queue["position"], queue["planned"], queue["behind"]) == (0, 1, 3, 3)
    back = position(root, {"0": 3}, began={"T": {"0": 1}})
    path = make(root.parent / "e", position(root, {"0": 9}, after={"T": {"0": 77}}), back, committed=1)
    assert [(queue["position"], queue["state"]) for queue in states(root, path)[1]] == [(1, "in range")]


def test_messages_that_retention_took_are_counted(root: Path) -> None:
    with Store.open(root) as store:
        for _ in range(3000):
            store.send(Message("T", b"x" * 300, queue_id=0))
        for path in (root / "commitlog").iterdir():
            durable.os.utime(path, (0, 0))
        store.retention.run(manual=True)
        minimum, maximum = store.queue_range("T", 0)
    assert minimum > 2
    path = make(root.parent / "c", position(root, {"0": 2}))
    code, (queue,) = states(root, path)
    assert (code, queue["state"], queue["lost"], queue["behind"]) == (
        1, "overtaken by retention", minimum - 2, maximum - minimum,
    )  # fmt: skip
    new = root.parent / "new"
    assert command(root, "checkpoint", "rewind", str(path), str(new), "--shift", "0", "--yes").exit_code == 0
    assert rewound(new, 0)["topics"] == {"T": {"0": minimum}}
    assert states(root, new)[0] == 0


def test_a_queue_that_was_closed_before_it_was_read(root: Path) -> None:
    path = make(root.parent / "c", position(root, {"0": 4, "1": 0}))
    with Store.open(root) as store:
        store.send(Message("T", b"x", queue_id=1))
    file = root / "config" / "topics.json"
    file.write_text(file.read_text().replace('"readQueueNums":2', '"readQueueNums":1'))
    code, found = states(root, path)
    assert (code, [queue["state"] for queue in found]) == (1, ["in range", "closed queue"])


def test_a_closed_queue_stays_where_it_goes_on_when_the_others_are_moved(root: Path) -> None:
    closed = {"version": 2, "closed": {"T": {"1": 0}}}
    path = make(root.parent / "c", position(root, {"0": 3}, **closed), position(root, {"0": 4}, **closed), committed=1)
    new = root.parent / "new"
    assert command(root, "checkpoint", "rewind", str(path), str(new), "--to-earliest", "--yes").exit_code == 0
    assert rewound(new, 1) == position(root, {"0": 0}, **closed)


@pytest.mark.parametrize(
    ("now", "words", "then", "closed"),
    [
        ({"topics": {"T": {"0": 4, "1": 0}}}, [], {"0": 2}, None),  # opened since
        ({"topics": {"T": {"1": 0}}, "closed": {"T": {"0": 4}}}, [], {}, {"0": 2}),  # opened, and closed again
        ({"topics": {"T": {"1": 0}}, "closed": {"T": {"0": 4}}}, ["--queue", "1"], {}, {"0": 4}),
    ],
)
def test_a_queue_that_was_closed_then_goes_back_to_where_it_would_have_gone_on(
    root: Path, now: dict[str, Any], words: list[str], then: dict[str, int], closed: dict[str, int] | None
) -> None:
    marks = {"after": {"T": {"0": 55, "1": 66}}}
    before = position(root, {"1": 0}, version=2, closed={"T": {"0": 2}}, **marks)
    path = make(root.parent / "c", before, position(root, {}, **now))
    new = root.parent / "new"
    result = command(root, "checkpoint", "rewind", str(path), str(new), "--to-batch", "0", *words, "--yes")
    assert (result.exit_code, "left out" in result.stderr) == (0, False)
    found = rewound(new, 1)
    assert found["topics"] == {"T": {"1": 0} | then}
    assert found.get("closed") == (None if closed is None else {"T": closed})


def test_a_closed_queue_that_a_batch_opens_again_is_no_closed_one(root: Path) -> None:
    closed = position(root, {"1": 0}, version=2, closed={"T": {"0": 2}})
    opens = position(root, {"0": 3, "1": 0}, began={"T": {"0": 2}})
    path = make(root.parent / "c", closed, opens, committed=1)
    new = root.parent / "new"
    assert command(root, "checkpoint", "rewind", str(path), str(new), "--shift", "0", "--yes").exit_code == 0
    assert (rewound(new, 1)["topics"], "closed" in rewound(new, 1)) == ({"T": {"0": 2, "1": 0}}, False)


def test_sources_of_other_stores_are_left_out_unless_all_are(root: Path) -> None:
    other = position(root, {"0": 1}) | {"store": "another"}
    path = make(root.parent / "c", [other, position(root, {"0": 3})])
    assert [(queue["source"], queue["state"]) for queue in states(root, path)[1]] == [(1, "in range")]
    new = root.parent / "new"
    command(root, "checkpoint", "rewind", str(path), str(new), "--to-earliest", "--yes")
    assert (rewound(new, 0, 0), rewound(new, 0, 1)["topics"]) == (other, {"T": {"0": 0}})


# ---- rewind


@pytest.mark.parametrize(
    ("target", "then"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 4),
        (["--to-offset", "1"], 1),
        (["--to-offset", "9"], 4),
        (["--shift", "-2"], 1),
        (["--to-time", str(NOW_MS + 1000)], 1),
        (["--to-batch", "0"], 1),
        (["--to-group", "g"], 2),
    ],
)
def test_the_new_query_begins_where_it_is_told_to(root: Path, target: list[str], then: int) -> None:
    path = make(root.parent / "c", position(root, {"0": 1}), position(root, {"0": 3}))
    new = root.parent / "new"
    result = command(root, "checkpoint", "rewind", str(path), str(new), *target, "--yes", "--json")
    assert result.exit_code == 0, result.output
    after = {"after": {"T": {"0": place(root, then)}}, "stored": {"T": {"0": NOW_MS + 1000 * (then - 1)}}}
    if not then:
        after = {}
    assert rewound(new, 1) == position(root, {"0": then}, **after)
    said = json.loads(result.stdout)
    assert (said["written"], said["again"], said["skipped"]) == (True, max(3 - then, 0), max(then - 3, 0))
    shown = json.loads(command(root, "checkpoint", "show", str(new), "--json").stdout)
    assert shown["queryId"] == said["queryId"] != QUERY_ID
    assert (shown["planned"], shown["committed"], shown["runsAgain"]) == ([0, 1], [1], None)


def test_watermarks_begin_anew(root: Path) -> None:
    """What is read again would be too late for the old one."""
    path = make(root.parent / "c", position(root, {"0": 3}))
    command(root, "checkpoint", "rewind", str(path), str(root.parent / "new"), "--to-earliest", "--yes")
    about = json.loads((root.parent / "new" / "offsets" / "0").read_text().split("\n")[1])
    assert about == {
        "batchWatermarkMs": 0, "batchTimestampMs": NOW_MS, "conf": {"spark.sql.shuffle.partitions": "2"},
    }  # fmt: skip
    assert (root.parent / "new" / "commits" / "0").read_text() == 'v1\n{"nextBatchWatermarkMs":0}'


def test_batches_go_on_behind_the_last_planned_one_and_begin_at_the_last_committed_one(root: Path) -> None:
    """A sink that knows batches by their number has perhaps seen the planned one."""
    path = make(root.parent / "c", *[position(root, {"0": n}) for n in (1, 2, 4)], committed=2)
    new = root.parent / "new"
    result = command(root, "checkpoint", "rewind", str(path), str(new), "--shift", "0", "--yes")
    assert "rmq: batch 2 is planned and not committed: what a sink has of it, it gets again" in result.stderr
    assert sorted(file.name for file in (new / "offsets").glob("[0-9]*")) == ["1", "2"]
    assert [file.name for file in (new / "commits").glob("[0-9]*")] == ["2"]
    assert rewound(new, 1)["topics"] == rewound(new, 2)["topics"] == {"T": {"0": 2}}


def test_a_queue_or_a_topic_may_be_moved_alone_and_retry_topics_only_if_they_are_named(root: Path) -> None:
    with Store.open(root) as store:
        for topic in ("U", "%RETRY%g"):
            store.create_topic(topic, queue_count=1)
            store.send(Message(topic, b"x", queue_id=0))
    topics = {"%RETRY%g": {"0": 1}, "T": {"0": 3, "1": 0}, "U": {"0": 1}}
    path = make(root.parent / "c", position(root, {}, topics=topics, after={"T": {"0": 77}, "U": {"0": 88}}))
    for number, (words, moved, after) in enumerate([
        (["--to-earliest"], {"T": {"0": 0, "1": 0}, "U": {"0": 0}}, None),
        (["--to-earliest", "-t", "T"], {"T": {"0": 0, "1": 0}}, {"U": {"0": 88}}),
        (["--to-latest", "--queue", "1"], {}, {"T": {"0": 77}, "U": {"0": 88}}),
        (["--to-earliest", "-t", "%RETRY%g", "-t", "U"], {"%RETRY%g": {"0": 0}, "U": {"0": 0}}, {"T": {"0": 77}}),
    ]):  # fmt: skip
        new = root.parent / str(number)
        assert command(root, "checkpoint", "rewind", str(path), str(new), *words, "--yes").exit_code == 0
        assert rewound(new, 0)["topics"] == topics | moved
        assert rewound(new, 0).get("after") == after


def test_a_batch_is_gone_back_to_with_all_its_sources_unless_something_is_named(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("%RETRY%g", queue_count=1)
        store.send(Message("%RETRY%g", b"x", queue_id=0))
    first = position(root, {}, topics={"%RETRY%g": {"0": 0}, "T": {"0": 1}, "gone": {"0": 9}})
    second = position(root, {}, topics={"%RETRY%g": {"0": 1}, "T": {"0": 3, "1": 0}})
    path = make(root.parent / "c", [first, '{"logOffset":0}'], [second, '{"logOffset":5}'])
    new = root.parent / "new"
    result = command(root, "checkpoint", "rewind", str(path), str(new), "--to-batch", "0", "--yes")
    note = "left out, because they are gone or were not read then; new ones begin at their start: T-1, gone-0"
    assert f"rmq: {note}\n" in result.stderr
    assert rewound(new, 1)["topics"] == {"%RETRY%g": {"0": 0}, "T": {"0": 1}}
    assert rewound(new, 1, 1) == {"logOffset": 0}
    alone = root.parent / "alone"
    command(root, "checkpoint", "rewind", str(path), str(alone), "--to-batch", "0", "-t", "T", "--queue", "0", "--yes")
    assert rewound(alone, 1)["topics"] == {"%RETRY%g": {"0": 1}, "T": {"0": 1, "1": 0}}
    assert rewound(alone, 1, 1) == {"logOffset": 5}


def test_what_other_sources_keep_beside_is_taken_along(root: Path) -> None:
    path = make(root.parent / "c", [position(root, {"0": 3}), '{"logOffset":0}'])
    (path / "sources" / "1").mkdir(parents=True)
    (path / "sources" / "1" / "0").write_text("v1\n{}")
    new = root.parent / "new"
    assert command(root, "checkpoint", "rewind", str(path), str(new), "--to-earliest", "--yes").exit_code == 0
    assert (new / "sources" / "1" / "0").read_text() == "v1\n{}"
    (path / "sources" / "2").symlink_to("/")
    result = command(root, "checkpoint", "rewind", str(path), str(root.parent / "other"), "--to-earliest", "--yes")
    assert (result.exit_code, "found a symbolic link" in result.stderr) == (2, True)
    assert sorted(entry.name for entry in root.parent.iterdir()) == ["c", "new", "store"]


def test_state_is_dropped_only_if_it_is_said(root: Path) -> None:
    path = make(root.parent / "c", position(root, {"0": 1}), position(root, {"0": 3}))
    (path / "state" / "0").mkdir(parents=True)
    new = root.parent / "new"
    refused = command(root, "checkpoint", "rewind", str(path), str(new), "--to-earliest", "--yes")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "the query has state" in refused.stderr and "--drop-state" in refused.stderr
    result = command(root, "checkpoint", "rewind", str(path), str(new), "--to-offset", "1", "--drop-state", "--yes")
    assert result.exit_code == 0
    assert "rmq: batches begin at 0 again" in result.stderr
    assert [str(file.relative_to(new)) for file in sorted(new.rglob("[0-9]*"))] == ["offsets/0"]
    marks = {"after": {"T": {"0": place(root, 1)}}, "stored": {"T": {"0": NOW_MS}}}
    assert rewound(new, 0) == position(root, {"0": 1}, **marks, began={"T": {"0": 1}})
    mixed = make(root.parent / "d", [position(root, {"0": 3}), "-"])
    (mixed / "state" / "0").mkdir(parents=True)
    refused = command(root, "checkpoint", "rewind", str(mixed), str(root.parent / "x"), "--to-latest", "--drop-state")
    assert "state can be dropped only if all sources read this store" in refused.stderr


def test_nothing_is_written_by_a_dry_run_a_no_or_where_nobody_can_be_asked(root: Path) -> None:
    path = make(root.parent / "c", position(root, {"0": 3}))
    words = ["checkpoint", "rewind", str(path), str(root.parent / "new"), "--to-earliest"]
    assert json.loads(command(root, *words, "--dry-run", "--json").stdout)["written"] is False
    question = f"Write {root.parent / 'new'}: 3 messages again, 0 skipped?"
    assert command(root, *words).stderr == f"rmq: {question} There is no terminal to ask: repeat it with --yes\n"
    assert command(root, *words, answer="n").exit_code == 1
    assert sorted(entry.name for entry in root.parent.iterdir()) == ["c", "store"]
    assert command(root, *words, answer="y").exit_code == 0
    assert (root.parent / "new").is_dir()


def test_a_query_that_runs_is_named_if_its_group_is_known(root: Path) -> None:
    path = make(root.parent / "c", position(root, {}, topics={"%RETRY%g": {"0": 0}, "T": {"0": 3}}))
    words = ["checkpoint", "rewind", str(path), str(root.parent / "new"), "--to-earliest"]
    lease = Lease(root, "g", "T")
    lease.acquire("query 'orders' on host-1")
    result = command(root, *words, "--yes")
    assert (result.exit_code, (root.parent / "new").exists()) == (1, False)
    assert "stop the query first: running as its group 'g': \"query 'orders' on host-1\"" in result.stderr
    dry = command(root, *words, "--dry-run")
    assert (dry.exit_code, "it would be refused now" in dry.stderr) == (0, True)
    lease.release()
    assert command(root, *words, "--yes").exit_code == 0


def test_an_old_checkpoint_stays_as_it_is_and_a_failure_leaves_nothing(
    root: Path, tree_hash: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, new = make(root.parent / "c", position(root, {"0": 3})), root.parent / "new"
    (path / "sources" / "1").mkdir(parents=True)
    (path / "sources" / "1" / "0").write_text("v1\n{}")
    before = tree_hash(path)
    words = ["checkpoint", "rewind", str(path), str(new), "--to-earliest", "--yes"]
    calls: list[tuple[str, str]] = []

    def fail_at(number: int | None) -> Result:
        calls.clear()

        def hook(operation: str, name: str) -> None:
            if "new" in name:
                calls.append((operation, Path(name).name))
                if len(calls) - 1 == number:
                    raise OSError(28, "No space left on device")

        monkeypatch.setattr(durable, "hook", hook)
        result = command(root, *words)
        monkeypatch.setattr(durable, "hook", None)
        return result

    assert fail_at(None).exit_code == 0
    last = [operation for operation, _ in calls].index("rename", len(calls) - 2)
    assert calls[last] == ("rename", "new")
    synced = {name for operation, name in calls[:last] if operation == "fsync_directory"}
    assert synced >= {"offsets", "commits", "sources", "1"}
    assert {name for operation, name in calls if operation == "mkdir"} >= {"offsets", "commits", "sources", "1"}
    shutil.rmtree(new)
    for number in range(last + 1):
        result = fail_at(number)
        assert (result.exit_code, "No space left on device" in result.stderr) == (1, True), number
        assert sorted(entry.name for entry in root.parent.iterdir()) == ["c", "store"], number
    assert tree_hash(path) == before


# ---- mistakes and hostile files


@pytest.mark.parametrize(
    ("new", "words", "message"),
    [
        ("c", ["--to-latest"], "exists: a new checkpoint needs a directory of its own"),
        ("c/new", ["--to-latest"], "lies in the old checkpoint"),
        ("a/b", ["--to-latest"], "is no directory"),
        ("new", [], "name one of --to-earliest, --to-latest, --to-time, --to-offset, --shift, --to-batch, --to-group"),
        ("new", ["--to-latest", "--to-batch", "0"], "name one of"),
        ("new", ["--to-latest", "-t", "U"], "the checkpoint has no topic 'U'; it has T"),
        ("new", ["--to-latest", "--queue", "7"], "no queue is left to move"),
        ("new", ["--to-group", "G"], "did you mean 'g'?"),
        ("new", ["--to-batch", "5"], "there is no batch 5: it has 0"),
        ("s3a://bucket/new", ["--to-latest"], "copy the checkpoint from s3a to one, and the new one back"),
    ],
)
def test_a_mistake_is_one_line(root: Path, new: str, words: list[str], message: str) -> None:
    path = make(root.parent / "c", position(root, {"0": 3}))
    target = new if ":" in new else str(root.parent / new)
    result = command(root, "checkpoint", "rewind", str(path), target, *words, "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_checkpoint_of_another_store_is_not_rewound(root: Path) -> None:
    path = make(root.parent / "c", position(root, {"0": 3}) | {"store": "another"})
    result = command(root, "checkpoint", "rewind", str(path), str(root.parent / "new"), "--to-latest", "--yes")
    message = f"rmq: {path}: none of its sources reads the store {identity(root)}\n"
    assert (result.exit_code, result.stderr) == (2, message)


def test_a_checkpoint_may_be_a_file_uri_and_nothing_else(root: Path) -> None:
    path = make(root.parent / "c", position(root, {"0": 3}))
    for location in (f"file:{path}", f"file://{path}"):
        assert command(root, "checkpoint", "show", location).exit_code == 0
    for location, message in (
        ("hdfs://host/c", "is no local directory"),
        (str(root.parent / "none"), "is no directory"),
        (str(root), "is no checkpoint of a streaming query"),
    ):
        result = command(root, "checkpoint", "show", location)
        assert (result.exit_code, message in result.stderr) == (2, True)


V1 = 'v1\n{"batchWatermarkMs":0}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metadata", b"", "JSON object is expected"),
        ("metadata", b'{"id":"../../etc"}', "no query id"),
        ("metadata", b'{"id":7}', "no query id"),
        ("metadata", b"[" * 100_000, "JSON object is expected"),
        ("metadata", b"\xff", "not UTF-8"),
        ("offsets/0", b"", "empty: its writer was stopped"),
        ("offsets/0", b"v1", "ends after its first line"),
        ("offsets/0", b"v3\n{}\n-", "version 3 is of a newer Spark; 2 is known here"),
        ("offsets/0", b"v" + b"9" * 5000, "the version is expected"),
        ("offsets/0", b'{"version":1}', "the version is expected"),
        ("offsets/0", b"v1\n[]\n-", "JSON object is expected"),
        ("offsets/0", b"v2\n{}\n-", "has no name of a source"),
        ("offsets/0", V1.encode() + b'{"version":3,"store":"","topics":{}}', "newer version of this data source"),
        ("offsets/0", V1.encode() + b'{"version":1,"store":"","topics":{"T":{"0":-1}}}', "not an integer"),
        ("offsets/0", V1.encode() + b'{"version":1,"store":"","topics":{"../T":{"0":1}}}', "topic"),
        ("offsets/0", V1.encode() + b'{"version":1,"store":"\\u001b[2J","topics":{}}', "no identity of a store"),
        ("commits/0", b"v4\n{}", "version 4 is of a newer Spark"),
        ("commits/0", b"v1", "ends after its first line"),
    ],
)
def test_a_file_that_spark_did_not_write_is_named(root: Path, name: str, content: bytes, message: str) -> None:
    path = make(root.parent / "c", position(root, {"0": 3}))
    (path / name).write_bytes(content)
    result = command(root, "checkpoint", "show", str(path))
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr and str(path / name) in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 10_000, "nonsense", '{"version":{},"store":{},"topics":{}}'])
def test_what_is_no_position_of_ours_is_another_source(root: Path, text: str) -> None:
    path = make(root.parent / "c", [position(root, {"0": 3}), text])
    result = command(root, "checkpoint", "show", str(path))
    assert (result.exit_code, "source 1  other source: " in result.stdout) == (0, True)


def test_temporary_files_and_names_that_are_no_batch_are_passed_over(root: Path) -> None:
    path = make(root.parent / "c", position(root, {"0": 3}))
    for name in (".1.0f5c.tmp", "1.compact", "01", "²", "-1", "9" * 400):
        (path / "offsets" / name[:200]).write_text("x")
    assert "planned   batches 0\n" in command(root, "checkpoint", "show", str(path)).stdout


@pytest.mark.parametrize("name", ["metadata", "offsets/0", "commits/0", "offsets", "commits", "state"])
def test_a_symbolic_link_is_not_followed(root: Path, name: str) -> None:
    path = make(root.parent / "c", position(root, {"0": 3}))
    target = root.parent / "elsewhere"
    if (path / name).exists():
        (path / name).rename(target)
    else:
        target.mkdir()
    (path / name).symlink_to(target)
    result = command(root, "checkpoint", "show", str(path))
    assert (result.exit_code, "expected a" in result.stderr) == (2, True)


def test_a_file_is_compared_with_its_checksums(root: Path) -> None:
    """ChecksumFileSystem.java: Spark refuses such a file, and reads one without checksums, or with no checksum file."""
    path = make(root.parent / "c", position(root, {"0": 3}))
    file, sums = path / "offsets" / "0", path / "offsets" / ".0.crc"
    right = b"crc\0" + struct.pack(">II", 512, zlib.crc32(file.read_bytes()))
    wrong = right[:-1] + bytes([right[-1] ^ 1])
    for content, code in ((right, 0), (wrong, 1), (right + b"abcd", 1), (right[:8], 1), (b"", 0), (b"something", 0)):
        sums.write_bytes(content)
        result = command(root, "checkpoint", "show", str(path))
        assert (result.exit_code, "other bytes were written" in result.stderr) == (code, code == 1), content


def test_a_file_of_any_size_is_refused_before_it_is_read(root: Path) -> None:
    path = make(root.parent / "c", position(root, {"0": 3}))
    with (path / "offsets" / "0").open("ab") as file:
        file.truncate(1 << 40)
    result = command(root, "checkpoint", "show", str(path))
    assert (result.exit_code, re.search("larger than [0-9]+ bytes", result.stderr) is not None) == (1, True)


def test_a_batch_before_the_one_that_runs_again_must_be_there(root: Path) -> None:
    """MicroBatchExecution: Spark does not start without it, either."""
    path = make(root.parent / "c", *[position(root, {"0": n}) for n in (1, 2)], committed=1)
    (path / "offsets" / "0").unlink()
    result = command(root, "checkpoint", "diff", str(path))
    assert (result.exit_code, result.stderr) == (2, f"rmq: {path}: there is no batch 0: it has 1\n")
