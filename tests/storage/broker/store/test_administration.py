"""Deleting topics and groups: what goes, what stays, and that no queue offset is given out twice.

Rules: AdminBrokerProcessor.java deleteTopic and deleteSubscriptionGroup; broker/store/administration.py says where we
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store import (
    Message,
    ReadOnlyError,
    Store,
    StoreConfig,
    StoreLockedError,
    SubscriptionGroup,
    TopicConfig,
    UnknownTopicError,
    UsageError,
)
from rmq_store.broker.pop import pop_journal
from rmq_store.broker.store.administration import Deletion
from rmq_store.broker.store.unlisted_topics import UnlistedTopics
from rmq_store.files import durable
from rmq_store.format.tables.config_json import loads
from rmq_store.verify import verify_store

Open = Callable[..., Store]


@pytest.fixture
def reopen(scratch: Path, small: StoreConfig) -> Open:
    return lambda **options: Store.open(scratch / "store", create=True, config=small, **options)


@pytest.fixture
def store(reopen: Open) -> Iterator[Store]:
    with reopen() as store:
        yield store


def send(store: Store, topic: str, count: int) -> None:
    for number in range(count):
        store.send(Message(topic, b"%s-%d" % (topic.encode(), number), queue_id=0))


def bodies(store: Store, topic: str) -> list[bytes]:
    span = store.queue_range(topic, 0)
    return [
        body
        for batch in store.read(topic, 0, span.min_offset, span.max_offset, columns=["body"])
        for body in batch.column("body").to_pylist()
    ]


def test_a_deleted_topic_takes_its_settings_offsets_and_pop_state_and_nothing_of_others(store: Store) -> None:
    for topic in ("T", "U"):
        store.create_topic(topic, queue_count=1)
        send(store, topic, 3)
        store.pop.receive("g_pop", topic, 1, 60_000)
        store.commit_offsets("g", {(topic, 0): 2})
    before = loads((store.path / "config" / "topics.json").read_bytes())
    planned = store.admin.plan_topic_deletion("T")
    deletion = store.admin.delete_topic("T")
    assert planned == deletion
    assert (deletion.topics, deletion.offsets, deletion.pops, deletion.message_count) == (
        ("T",), (("g", ("T",)), ("g_pop", ("T",))), (("g_pop", "T"),), 3,
    )  # fmt: skip
    after = loads((store.path / "config" / "topics.json").read_bytes())
    assert after["dataVersion"]["counter"] == before["dataVersion"]["counter"] + 1
    del before["topicConfigTable"]["T"]
    assert after["topicConfigTable"] == before["topicConfigTable"]
    assert store.committed_offsets("g") == {("U", 0): 2}
    assert sorted(path.parent.name for path in store.path.glob("pyrmq/pop/g_pop/*/journal")) == ["U"]
    with pytest.raises(UnknownTopicError):
        store.admin.delete_topic("T")


def test_a_topic_made_again_goes_on_where_it_ended_also_after_its_queues_were_rebuilt(reopen: Open) -> None:
    with reopen() as store:
        for topic in ("T", "U"):
            store.create_topic(topic, queue_count=1)
        send(store, "T", 3)
        store.admin.delete_topic("T")
        send(store, "U", 2)
    with reopen(rebuild_views=True) as store:  # brings back the queue files of the topic that is not there
        assert "T" not in store.topics()
        assert store.admin.leftover_count("T") == 3
        store.create_topic("T", queue_count=1)
        assert store.send(Message("T", b"again", queue_id=0)).queue_offset == 3
        store.admin.delete_topic("T")
        store.create_topic("T", queue_count=1)
        assert store.send(Message("T", b"once more", queue_id=0)).queue_offset == 4
        store.flush()
        wanted = [b"T-0", b"T-1", b"T-2", b"again", b"once more"]
        assert bodies(store, "T") == wanted
        root = store.path
    with reopen(rebuild_views=True) as store:
        assert bodies(store, "T") == wanted
        assert bodies(store, "U") == [b"U-0", b"U-1"]
    assert not verify_store(root).problems


def test_a_topic_whose_messages_retention_has_deleted_still_goes_on_where_it_ended(reopen: Open) -> None:
    """What remembers it is the queue's last file, which retention never takes (ConsumeQueue#deleteExpiredFile)."""
    with reopen() as store:
        for topic in ("T", "U"):
            store.create_topic(topic, queue_count=1)
        send(store, "T", 3)
        store.admin.delete_topic("T")
        for _ in range(9):
            store.send(Message("U", bytes(300_000), queue_id=0))
        assert len(store.retention.run(manual=True, file_reserved_time=0).removed) == 2
        store.admin.clean_unused_topics()
        assert store.admin.leftover_count("T") == 0
        store.create_topic("T", queue_count=1)
        assert store.queue_range("T", 0) == (3, 3)
        assert store.send(Message("T", b"again", queue_id=0)).queue_offset == 3
    with reopen(rebuild_views=True) as store:
        assert bodies(store, "T") == [b"again"]
        assert store.queue_range("T", 0) == (3, 4)


def test_pop_retry_topics_of_java_go_with_the_topic_but_not_another_groups_retry_topic(store: Store) -> None:
    """clearRetryTopicWhenDeleteTopic (BrokerConfig.java); KeyBuilder#buildPopRetryTopicV1 and V2."""
    for topic in ("T", "%RETRY%a_T", "%RETRY%b_T", "%RETRY%b+T"):
        store.create_topic(topic, queue_count=1)
    for group in ("a", "b"):
        store.commit_offsets(group, {("T", 0): 0})
    store.create_group(SubscriptionGroup("b_T"))
    store.commit_offsets("a", {("%RETRY%a_T", 0): 1})
    assert store.admin.delete_topic("T").topics == ("T", "%RETRY%a_T", "%RETRY%b+T")
    assert "%RETRY%b_T" in store.topics()
    assert store.committed_offsets("a") == {}


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_pyrmq_timer"])
def test_topics_of_the_broker_are_neither_deleted_nor_changed(store: Store, topic: str) -> None:
    with pytest.raises(UsageError, match="belongs to the broker"):
        store.admin.delete_topic(topic)
    with pytest.raises(UsageError, match="belongs to the broker"):
        store.admin.update_topic(topic, lambda known: known, default=TopicConfig(topic))


def test_a_groups_settings_go_alone_and_with_its_offsets_everything_that_is_its_own(store: Store) -> None:
    own = ("%RETRY%g", "%DLQ%g")
    for topic in ("T", *own):
        store.create_topic(topic, queue_count=1)
        send(store, topic, 2)
    for group in ("g", "other"):
        store.create_group(SubscriptionGroup(group))
        store.commit_offsets(group, {("T", 0): 1})
    store.commit_offsets("g", {("%RETRY%g", 0): 1})
    store.commit_offsets("dead_letter_reader", {("%DLQ%g", 0): 1, ("T", 0): 1})
    store.pop.receive("g", "T", 1, 60_000)

    assert store.admin.delete_group("g").groups == ("g",)
    assert set(store.groups()) == {"other"}
    assert store.committed_offsets("g").keys() == {("T", 0), ("%RETRY%g", 0)}

    deletion = store.admin.delete_group("g", remove_offsets=True)
    assert deletion.groups == ()
    assert deletion.topics == own
    assert deletion.offsets == (("dead_letter_reader", ("%DLQ%g",)), ("g", ("%RETRY%g", "T")))
    assert deletion.pops == (("g", "T"),)
    assert deletion.message_count == 4
    assert store.committed_offsets("g") == {}
    assert store.committed_offsets("dead_letter_reader") == {("T", 0): 1}
    assert store.committed_offsets("other") == {("T", 0): 1}
    assert not store.topics().keys() & set(own)
    assert not list(store.path.glob("pyrmq/pop/*/*/journal"))
    with pytest.raises(UsageError, match="no group 'g'"):
        store.admin.delete_group("g", remove_offsets=True)


def test_a_simple_consumer_at_work_begins_anew_when_its_group_is_deleted(store: Store) -> None:
    store.create_topic("T", queue_count=1)
    send(store, "T", 2)
    store.commit_offsets("g", {("T", 0): 0})
    assert len(store.pop.receive("g", "T", 2, 60_000)) == 2
    store.admin.delete_group("g", remove_offsets=True)
    store.commit_offsets("g", {("T", 0): 0})
    assert len(store.pop.receive("g", "T", 2, 60_000)) == 2


def test_pop_state_is_not_taken_from_under_a_consumer_that_is_changing_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_journal, "LOCK_TIMEOUT_MS", 20)
    store.create_topic("T", queue_count=1)
    send(store, "T", 1)
    store.pop.receive("g", "T", 1, 60_000)
    journal = pop_journal.PopJournal(store.path / "pyrmq" / "pop" / "g" / "T", sync=False)
    with journal.exclusive(), pytest.raises(StoreLockedError):
        store.admin.delete_topic("T")
    assert journal.exists()
    assert store.admin.clean_unused_topics().pops == (("g", "T"),)
    assert not journal.exists()
    journal.close()


def test_what_a_deletion_that_died_has_left_goes_with_its_repetition_and_with_a_cleaning(
    reopen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PowerCutError(Exception):
        pass

    def cut(operation: str, path: str) -> None:
        if operation == "rename" and path.endswith("consumerOffset.json"):
            raise PowerCutError

    with reopen() as store:
        for topic in ("T", "U"):
            store.create_topic(topic, queue_count=1)
            send(store, topic, 1)
            store.commit_offsets("g", {(topic, 0): 1})
            monkeypatch.setattr(durable, "hook", cut)
            with pytest.raises(PowerCutError):
                store.admin.delete_topic(topic)
            monkeypatch.setattr(durable, "hook", None)
            assert topic not in store.topics()
        assert store.committed_offsets("g") == {("T", 0): 1, ("U", 0): 1}
        assert store.admin.delete_topic("T").offsets == (("g", ("T",)),)
        assert store.admin.plan_cleaning() == store.admin.clean_unused_topics()
        assert store.committed_offsets("g") == {}
        assert not store.admin.plan_cleaning()


def test_a_cleaning_leaves_a_topic_alone_that_is_made_while_it_looks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread makes a topic again, and its group commits, when the cleaning has seen that the topic is gone."""
    real = UnlistedTopics.get
    for topic in ("T", "U"):
        store.create_topic(topic, queue_count=1)
        send(store, topic, 2)
    store.admin.delete_topic("T")
    store.commit_offsets("g", {("T", 0): 1})
    store.admin.delete_topic("U")
    store.commit_offsets("g", {("U", 0): 1})

    def made_meanwhile(self: UnlistedTopics, name: str) -> TopicConfig | None:
        found = real(self, name)
        if name == "T" and name not in store.topics():
            store.create_topic("T", queue_count=1)
            store.commit_offsets("g", {("T", 0): 2})
        return found

    monkeypatch.setattr(UnlistedTopics, "get", made_meanwhile)
    assert store.admin.clean_unused_topics() == Deletion(offsets=(("g", ("U",)),))
    assert "T" in store.topics()
    assert store.committed_offsets("g") == {("T", 0): 2}


def test_a_read_only_store_says_what_would_go_and_changes_nothing(
    reopen: Open, tree_hash: Callable[[Path], str]
) -> None:
    with reopen() as store:
        store.create_topic("T", queue_count=1)
        store.create_group(SubscriptionGroup("g"))
        root = store.path
    before = tree_hash(root)
    with Store.open(root, read_only=True) as store:
        assert store.admin.plan_topic_deletion("T").topics == ("T",)
        assert store.admin.plan_group_deletion("g").groups == ("g",)
        for change in (
            lambda: store.admin.delete_topic("T"),
            lambda: store.admin.delete_group("g"),
            store.admin.clean_unused_topics,
            lambda: store.admin.update_topic("T", lambda topic: topic, default=TopicConfig("T")),
            lambda: store.admin.update_group("g", lambda group: group, default=SubscriptionGroup("g")),
        ):
            with pytest.raises(ReadOnlyError):
                change()
    assert tree_hash(root) == before


def test_an_update_makes_a_topic_or_changes_what_is_there_and_keeps_fields_of_newer_versions(store: Store) -> None:
    default = TopicConfig("T", 8, 8)
    assert store.admin.update_topic("T", lambda topic: replace(topic, perm=4), default=default) == (
        None, TopicConfig("T", 8, 8, 4),
    )  # fmt: skip
    path = store.path / "config" / "topics.json"
    path.write_text(path.read_text().replace('"topicName":"T"', '"fromTheFuture":1,\n\t\t\t"topicName":"T"'))
    before, after = store.admin.update_topic("T", lambda topic: replace(topic, order=True), default=default)
    assert (before, after) == (TopicConfig("T", 8, 8, 4), TopicConfig("T", 8, 8, 4, order=True))
    stored = loads(path.read_bytes())
    assert stored["topicConfigTable"]["T"]["fromTheFuture"] == 1
    counter = stored["dataVersion"]["counter"]
    store.admin.update_topic("T", lambda topic: topic, default=default)
    assert loads(path.read_bytes())["dataVersion"]["counter"] == counter
    with pytest.raises(UsageError):
        store.admin.update_topic("T", lambda topic: replace(topic, perm=99), default=default)
    assert store.topic("T") == after


def test_an_update_makes_a_group_or_changes_what_is_there(store: Store) -> None:
    default = SubscriptionGroup("g", consume_broadcast_enable=False)
    made = store.admin.update_group("g", lambda group: replace(group, retry_max_times=3), default=default)
    assert made == store.groups()["g"] == replace(default, retry_max_times=3)
    changed = store.admin.update_group("g", lambda group: replace(group, retry_queue_nums=2), default=default)
    assert changed == store.groups()["g"] == replace(default, retry_max_times=3, retry_queue_nums=2)
    with pytest.raises(UsageError):
        store.admin.update_group("bad/name", lambda group: group, default=default)
