"""Topics that have queues, and that `config/topics.json` does not name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from rmq_store import Message, StagingArea, Store, StoreConfig, UnknownTopicError
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.cli import commands
from rmq_store.client import LitePullConsumer
from rmq_store.verify import verify_store

CONFIG = StoreConfig(8192, 2000, 50, 200)
QUEUES = 6


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two topics with two messages in each queue; the table has lost Orders. Gone was deleted, and its queues are
    left.
    """
    with Store.open(tmp_path / "store", create=True, config=CONFIG) as store:
        for name in ("Orders", "Bills", "Gone"):
            store.create_topic(name, QUEUES)
            for number in range(2 * QUEUES):
                store.send(Message(name, b"%d" % number, queue_id=number % QUEUES))
        store.commit_offsets("shop", {("Orders", 5): 1, ("Gone", 5): 1})
        store.admin.delete_topic("Gone")
    TopicTable(tmp_path / "store").delete("Orders")
    return tmp_path / "store"


def bodies(store: Store, topic: str) -> list[bytes]:
    """Of all queues, one behind the other."""
    found: list[bytes] = []
    for queue_id, (start, end) in sorted(store.queue_ranges(topic).items()):
        for batch in store.read(topic, queue_id, start, end):
            found += batch.column("body").to_pylist()
    return found


EXPECTED = [b"%d" % number for queue_id in range(QUEUES) for number in (queue_id, queue_id + QUEUES)]


@pytest.mark.parametrize("read_only", [True, False])
def test_a_topic_that_the_table_lost_is_read_by_its_exact_name(root: Path, read_only: bool) -> None:
    with Store.open(root, read_only=read_only) as store:
        assert "Orders" not in store.topics()
        assert list(store.unlisted_topics()) == ["Orders"]
        assert store.topic("Orders").read_queue_nums == QUEUES
        assert bodies(store, "Orders") == EXPECTED


def test_what_a_deleted_topic_left_is_no_topic(root: Path) -> None:
    with Store.open(root, read_only=True) as store:
        assert store.find_topic("Gone") is None
        with pytest.raises(UnknownTopicError, match="no topic 'Gone'"):
            store.queue_ranges("Gone")


def test_unless_it_was_used_again(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("Gone", QUEUES)
        store.send(Message("Gone", b"again", queue_id=1))
    TopicTable(root).delete("Gone")
    with Store.open(root, read_only=True) as store:
        assert sorted(store.unlisted_topics()) == ["Gone", "Orders"]


def test_a_lost_table_hides_no_topic_from_who_names_it(root: Path) -> None:
    for path in TopicTable(root).paths:
        path.unlink(missing_ok=True)
    with Store.open(root, read_only=True) as store:
        assert sorted(store.unlisted_topics()) == ["Bills", "Orders"]
        assert bodies(store, "Orders") == EXPECTED


def test_a_bare_log_can_be_read(root: Path) -> None:
    bare = root.parent / "bare"
    shutil.copytree(root / "commitlog", bare / "commitlog")
    with Store.open(bare, read_only=True, config=CONFIG) as store:
        assert {"Bills", "Orders"} <= store.unlisted_topics().keys()
        assert bodies(store, "Orders") == EXPECTED
    assert [path.name for path in bare.iterdir()] == ["commitlog"]


def test_the_error_of_an_unknown_topic_names_them(root: Path) -> None:
    with Store.open(root, read_only=True) as store, pytest.raises(UnknownTopicError, match="have queues: Orders"):
        store.topic("Order")


def test_topics_are_listed_with_a_mark(root: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(commands, ["topics", "--store", str(root)])
    assert [line.split()[:2] for line in shown.stdout.splitlines()[1:]] == [["Bills", str(QUEUES)], ["Orders", "*"]]
    rows = json.loads(runner.invoke(commands, ["topics", "--json", "--store", str(root)]).stdout)
    assert [(row["topic"], row["inTable"], row["messages"]) for row in rows] == [
        ("Bills", True, 2 * QUEUES), ("Orders", False, 2 * QUEUES),
    ]  # fmt: skip


def test_verify_reports_users_topics_as_damage_and_system_topics_as_a_note(root: Path) -> None:
    report = verify_store(root)
    assert report.status == "damaged"
    (problem,) = report.problems
    assert problem.path == "config/topics.json"
    assert "exact names only: Orders;" in problem.text
    with Store.open(root) as store:
        store.create_topic("Orders", QUEUES)
    shutil.copytree(root / "consumequeue" / "Bills", root / "consumequeue" / "SCHEDULE_TOPIC_XXXX")
    TopicTable(root)._file.update(lambda table: table["topicConfigTable"].pop("SCHEDULE_TOPIC_XXXX"))
    texts = [note for note in verify_store(root).notes if note.startswith("config/topics.json")]
    assert len(texts) == 1
    assert "SCHEDULE_TOPIC_XXXX" in texts[0]


def test_nobody_is_told_of_topics_in_which_the_engine_counts(tmp_path: Path) -> None:
    root = tmp_path / "own"
    with Store.open(root, create=True) as store:
        store.create_topic("Orders", 1)
        with StagingArea.for_task(root, "w", 0, 0) as area:
            area.write(pa.RecordBatch.from_pydict({"topic": ["Orders"], "body": [b"y"]}))
            file = area.finish()
        assert file is not None
        assert store.commit_staged([file], purpose="sink", key="q", value=1)
        assert "rmq_sys_pyrmq_units" in store._queues.topic_names()
    assert verify_store(root).notes == []
    assert "pyrmq" not in CliRunner().invoke(commands, ["topics", "--store", str(root)]).stdout


def test_cleaning_unused_topics_leaves_the_offsets_of_a_topic_that_the_table_lost(root: Path) -> None:
    with Store.open(root) as store:
        store.admin.clean_unused_topics()
        assert store.committed_offsets("shop") == {("Orders", 5): 1}


def test_deleting_a_group_takes_no_topic_that_is_not_in_the_table(root: Path) -> None:
    with Store.open(root) as store:
        store.create_topic("%RETRY%shop", 1)
        store.send(Message("%RETRY%shop", b"x", queue_id=0))
    TopicTable(root).delete("%RETRY%shop")
    with Store.open(root) as store:
        assert store.admin.delete_group("shop", remove_offsets=True).topics == ()
        assert "%RETRY%shop" in store.unlisted_topics()


def test_deleting_it_by_name_makes_it_a_leftover(root: Path) -> None:
    with Store.open(root) as store:
        deletion = store.admin.delete_topic("Orders")
        assert (deletion.topics, deletion.message_count) == (("Orders",), 2 * QUEUES)
        assert store.find_topic("Orders") is None
    assert verify_store(root).status == "clean"


def test_sending_to_it_hides_none_of_its_queues(root: Path) -> None:
    with Store.open(root) as store:
        store.send(Message("Orders", b"new", queue_id=0))
        assert store.topics()["Orders"].read_queue_nums == QUEUES
        assert sorted(bodies(store, "Orders")) == sorted([*EXPECTED, b"new"])


def test_a_consumer_that_names_it_gets_its_messages(root: Path) -> None:
    with Store.open(root) as store:
        consumer = LitePullConsumer("readers", store)
        consumer.start(threads=False)
        queues = consumer.fetch_message_queues("Orders")
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        found = {message.body for _ in queues for message in consumer.poll(1000)}
        consumer.shutdown()
    assert found == set(EXPECTED)
