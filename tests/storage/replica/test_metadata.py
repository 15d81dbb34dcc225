"""The metadata of a replica: as the master has it, and no offset ahead of the replica's log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_store import Message, Store, StoreConfig
from rmq_store.broker.metadata.deleted_topics import deleted_topics
from rmq_store.broker.metadata.groups import GroupTable
from rmq_store.broker.metadata.offsets import DelayOffsetTable, OffsetTable
from rmq_store.broker.metadata.topics import TopicTable
from rmq_store.errors import CorruptConfigError
from rmq_store.files import durable
from rmq_store.format.tables.config_json import dumps, loads
from rmq_store.protocol.errors import MQBrokerError, RemotingCommandError, RemotingError
from rmq_store.replica.metadata import MetadataCopy

from .fake_master import (
    CHECK_POINT,
    DELAYS,
    GROUPS,
    METRICS,
    MODES,
    OFFSETS,
    TOPICS,
    V4_9_7,
    FakeMaster,
    check_point,
    groups,
    master_of_5,
    offsets,
    topics,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Tables need no log."""
    (tmp_path / "replica").mkdir()
    return tmp_path / "replica"


@pytest.fixture
def store_root(root: Path, small: StoreConfig) -> Path:
    Store.open(root, create=True, config=small).close()
    return root


def committed(root: Path, group: str = "billing") -> dict[tuple[str, int], int]:
    return dict(OffsetTable(root).committed(group))


def test_a_replica_has_the_tables_of_its_master(root: Path) -> None:
    master = master_of_5()
    copy = MetadataCopy(root, master)
    copy.take(copy.ask())
    assert set(TopicTable(root).all()) == {"Orders", "Bills"}
    assert set(GroupTable(root).all()) == {"billing"}
    assert not (root / "config/consumerOffset.json").exists()
    assert copy.write_offsets(1000)
    assert committed(root) == {("Orders", 0): 7, ("Orders", 1): 3}
    assert DelayOffsetTable(root).all() == {3: 2, 4: 1}
    for name, code in {
        "subscriptionGroup.json": GROUPS, "consumerOffset.json": OFFSETS, "delayOffset.json": DELAYS,
        "messageRequestMode.json": MODES,
    }.items():  # fmt: skip
        text = (root / "config" / name).read_text()
        assert text == dumps(loads(master.bodies[code]), "5.x"), name
    assert (root / "config/timermetrics").read_bytes() == master.bodies[METRICS]
    written = json.loads((root / "config/topics.json").read_text())
    assert list(written) == ["dataVersion", "topicConfigTable"]
    assert written["dataVersion"] == json.loads(master.bodies[TOPICS])["dataVersion"], "the master's, not counted up"


def test_a_table_of_4_is_written_as_4_writes_it(root: Path) -> None:
    master = FakeMaster(
        {
            TOPICS: topics("Orders", state=""),
            GROUPS: groups("billing"),
            OFFSETS: b'{"offsetTable":{"Orders@billing":{0:7,1:3}}}',
            DELAYS: b'{"offsetTable":{3:2}}',
        },
        end=10,
        version=V4_9_7,
    )
    copy = MetadataCopy(root, master)
    copy.take(copy.ask())
    copy.write_offsets(10)
    text = (root / "config/consumerOffset.json").read_text()
    assert text == '{\n\t"offsetTable":{\n\t\t"Orders@billing":{0:7,1:3\n\t\t}\n\t}\n}'
    assert not (root / "config/messageRequestMode.json").exists()
    assert not (root / "config/timercheck").exists()


def test_offsets_wait_until_the_log_has_reached_the_end_that_the_master_had(root: Path) -> None:
    master = master_of_5()
    copy = MetadataCopy(root, master)
    assert not copy.write_offsets(1 << 40), "nothing was read"
    copy.take(copy.ask())
    assert (copy.waiting_end, copy.written_end) == (1000, None)
    assert not copy.write_offsets(999)
    assert committed(root) == {} and DelayOffsetTable(root).all() == {}
    assert not (root / "config/timercheck").exists()
    assert copy.write_offsets(1000)
    assert (copy.waiting_end, copy.written_end) == (None, 1000)
    assert not copy.write_offsets(2000), "they are written once"


def test_the_end_is_asked_for_after_the_offsets(root: Path) -> None:
    """An offset that was committed in between is below it. In the other order one could be above."""
    master = master_of_5()
    MetadataCopy(root, master).ask()
    assert master.asked.index(28) > max(master.asked.index(code) for code in (OFFSETS, DELAYS, CHECK_POINT, METRICS))
    assert master.asked.index(28) > master.asked.index(TOPICS), "of a topic that is gone no message is above it"


def test_offsets_that_wait_are_not_replaced_by_newer_ones(root: Path) -> None:
    """A replica that is far behind would never have offsets: the newer end is later."""
    master = master_of_5()
    copy = MetadataCopy(root, master)
    copy.take(copy.ask())
    master.bodies[OFFSETS], master.end = offsets(billing={0: 70}), 5000
    master.bodies[TOPICS] = topics("Orders", "Bills", "New")
    copy.take(copy.ask())
    assert copy.waiting_end == 1000
    assert "New" in TopicTable(root).all(), "topics do not wait"
    assert copy.write_offsets(1200)
    assert committed(root)["Orders", 0] == 7
    copy.take(copy.ask())
    assert copy.write_offsets(5000)
    assert committed(root) == {("Orders", 0): 70}


def test_a_reset_backwards_and_offsets_that_were_removed_arrive(root: Path) -> None:
    master = master_of_5()
    copy = MetadataCopy(root, master)
    copy.take(copy.ask())
    copy.write_offsets(1000)
    master.bodies[OFFSETS] = offsets(audit={0: 1})
    master.bodies[DELAYS] = b'{"dataVersion":{"counter":4,"stateVersion":0},"offsetTable":{3:1}}'
    copy.take(copy.ask())
    copy.write_offsets(1000)
    assert committed(root) == {}
    assert committed(root, "audit") == {("Orders", 0): 1}
    assert DelayOffsetTable(root).all() == {3: 1}


def test_what_was_deleted_at_the_master_is_deleted(store_root: Path) -> None:
    root = store_root
    with Store.open(root) as store:
        store.create_topic("Bills", 1)
        store.send(Message("Bills", b"old"))
        end = store.log_range()[1]
    master = master_of_5()
    master.end = end
    copy = MetadataCopy(root, master)
    copy.take(copy.ask())
    master.bodies[TOPICS], master.bodies[GROUPS] = topics("Orders"), groups("audit")
    copy.take(copy.ask())
    assert set(TopicTable(root).all()) == {"Orders"}
    assert set(GroupTable(root).all()) == {"audit"}
    assert deleted_topics(root) == {"Bills": end}
    with Store.open(root, read_only=True) as store:
        assert store.unlisted_topics() == {}, "a topic that only old frames name is not offered again"
    master.bodies[TOPICS] = topics("Orders", "Bills")
    copy.take(copy.ask())
    with Store.open(root, read_only=True) as store:
        assert store.topics().keys() == {"Orders", "Bills"}


def test_a_topic_that_only_frames_name_is_known(store_root: Path) -> None:
    root = store_root
    with Store.open(root) as store:
        store.create_topic("Unknown", 1)
        store.send(Message("Unknown", b"body"))
    (root / "config/topics.json").unlink()
    (root / "config/topics.json.bak").unlink(missing_ok=True)
    copy = MetadataCopy(root, master_of_5())
    copy.take(copy.ask())
    with Store.open(root, read_only=True) as store:
        assert set(store.unlisted_topics()) == {"Unknown"}


def test_a_broker_that_opens_the_replica_reads_its_timers_again(root: Path) -> None:
    """The log of the wheel does not travel: an offset into it would skip timers."""
    copy = MetadataCopy(root, master_of_5())
    copy.take(copy.ask())
    copy.write_offsets(1000)
    content = (root / "config/timercheck").read_bytes()
    assert len(content) == 4096
    assert content.rstrip(b"\0") == check_point(1_700_000_000_000, 0, 0, 12).rstrip(b"\0")


def test_the_offsets_of_a_broker_with_lmq_are_in_its_other_file(root: Path) -> None:
    master = master_of_5()
    copy = MetadataCopy(root, master)
    copy.take(copy.ask())
    copy.write_offsets(1000)
    master.bodies[OFFSETS] = b'{"lmqOffsetTable":{"%LMQ%a@%LMQ%g":5},"offsetTable":{"Orders@billing":{0:9}}}'
    copy.take(copy.ask())
    copy.write_offsets(1000)
    assert committed(root) == {("Orders", 0): 9}
    assert list(OffsetTable(root).conflicts()) == []
    master.bodies[OFFSETS] = offsets(billing={0: 4})
    copy.take(copy.ask())
    copy.write_offsets(1000)
    assert committed(root) == {("Orders", 0): 4}


def test_static_topics_are_known_as_such(root: Path) -> None:
    from rmq_store.kinds.topics import static_topics

    master = master_of_5()
    static = b'"topicQueueMappingDetailMap":{"Bills":{"topic":"Bills","hostedQueues":{0:[]}}}'
    plain = master.bodies[TOPICS]
    master.bodies[TOPICS] = plain.replace(b'"topicQueueMappingDetailMap":{}', static)
    copy = MetadataCopy(root, master)
    copy.take(copy.ask())
    assert static_topics(root) == {"Bills"}
    master.bodies[TOPICS] = plain
    copy.take(copy.ask())
    assert static_topics(root) == frozenset()


@pytest.mark.parametrize("code", [TOPICS, GROUPS, OFFSETS, DELAYS, METRICS, MODES, CHECK_POINT])
@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"{", b"\xff", b'{"topicConfigTable":7,"offsetTable":7}'])
def test_an_answer_that_is_no_table_changes_nothing(root: Path, code: int, body: bytes) -> None:
    master = master_of_5()
    copy = MetadataCopy(root, master)
    copy.take(copy.ask())
    copy.write_offsets(1000)
    before = _files(root)
    good, master.bodies[code] = master.bodies[code], body
    with pytest.raises(RemotingCommandError, match=rf"broker broker-a answered \w+ \({code}\)"):
        copy.take(copy.ask())
    assert not copy.write_offsets(1 << 40)
    assert _files(root) == before
    master.bodies[code] = good
    copy.take(copy.ask())


@pytest.mark.parametrize("code", [TOPICS, GROUPS, OFFSETS, DELAYS])
def test_a_refusal_and_a_lost_answer_change_nothing(root: Path, code: int) -> None:
    master = master_of_5()
    copy = MetadataCopy(root, master)
    before = _files(root)
    master.refused[code] = 16, "no permission"
    with pytest.raises(MQBrokerError, match="no permission"):
        copy.take(copy.ask())
    del master.refused[code]
    master.lost.add(code)
    with pytest.raises(RemotingError, match="connection lost"):
        copy.take(copy.ask())
    assert _files(root) == before and copy.waiting_end is None


def test_a_table_that_is_as_before_is_not_written_again(root: Path) -> None:
    copy = MetadataCopy(root, master_of_5())
    copy.take(copy.ask())
    copy.write_offsets(1000)
    stamps = {path: path.stat().st_ino for path in (root / "config").iterdir() if path.name != "timercheck"}
    copy.take(copy.ask())
    copy.write_offsets(1000)
    assert {path: path.stat().st_ino for path in stamps} == stamps


def test_a_table_that_cannot_be_read_is_replaced(root: Path) -> None:
    copy = MetadataCopy(root, master_of_5())
    copy.take(copy.ask())
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_bytes(b"{torn")
    with pytest.raises(CorruptConfigError):
        TopicTable(root).all()
    copy.take(copy.ask())
    assert set(TopicTable(root).all()) == {"Orders", "Bills"}


def test_a_death_at_any_write_leaves_whole_tables_and_no_offset_ahead(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a second copy is the last one in turn; the third copy finds what it needs."""

    class Death(BaseException):
        pass

    master = master_of_5()
    first = MetadataCopy(root, master)
    first.take(first.ask())
    first.write_offsets(1000)
    old, new = _tables(root), 0
    master.bodies[TOPICS], master.end = topics("Orders", "New"), 2000
    master.bodies[OFFSETS] = offsets(billing={0: 20, 1: 3})
    for last in range(1000):
        steps = 0

        def step(*_: object, last: int = last) -> None:
            nonlocal steps
            if steps == last:
                raise Death
            steps += 1

        before = committed(root)
        monkeypatch.setattr(durable, "before", step)
        copy = MetadataCopy(root, master)
        try:
            copy.take(copy.ask())
            monkeypatch.setattr(durable, "before", lambda *_: None)
            assert committed(root) == before, "the log has not reached the end"
            monkeypatch.setattr(durable, "before", step)
            copy.write_offsets(2000)
        except Death:
            monkeypatch.setattr(durable, "before", lambda *_: None)
            names, known = _tables(root)
            assert names in (old[0], {"Orders", "New"})
            assert known in (old[1], {("Orders", 0): 20, ("Orders", 1): 3})
            continue
        new += 1
        break
    assert new and last > 5
    monkeypatch.undo()
    assert _tables(root) == ({"Orders", "New"}, {("Orders", 0): 20, ("Orders", 1): 3})


def _tables(root: Path) -> tuple[set[str], dict[tuple[str, int], int]]:
    return set(TopicTable(root).all()), committed(root)


def _files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(root.glob("config/*"))}
