"""A store that is not what it was when it was mirrored: what is noticed, and where the mirror goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.kafka_mirrors import committed_rows, copy_all, fill, headers, mirror_of, values
from helpers.kafka_server import KafkaServer
from rmq_store import MirrorSourceError, Store
from rmq_store.bridge.mirror.kafka_side import CopyRules

# Behind the size of a frame.
MAGIC_CODE_OFFSET = 4


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    return kafka.new_topic("Source")


@pytest.fixture
def root(tmp_path: Path, topic: str) -> Path:
    with Store.open(tmp_path / "store", create=True) as store:
        store.create_topic(topic, queue_count=1)
        fill(store, topic, [b"1", b"2"])
    return tmp_path / "store"


def refused(kafka: KafkaServer, root: Path, topic: str, match: str) -> None:
    with (
        Store.open(root) as store,
        mirror_of(kafka, store, f"m-{topic}", [topic]) as mirror,
        pytest.raises(MirrorSourceError, match=match),
    ):
        mirror.run(until_caught_up=True)


@pytest.mark.slow
def test_a_restored_copy_is_noticed_and_goes_on_at_the_common_place(kafka: KafkaServer, root: Path, topic: str) -> None:
    mirror = f"m-{topic}"
    with Store.open(root) as store:
        copy_all(kafka, store, mirror, [topic])
    shutil.copytree(root, root.with_name("copy"))
    with Store.open(root) as store:
        fill(store, topic, [b"3", b"4"])
        copy_all(kafka, store, mirror, [topic])
    copy = root.with_name("copy")
    refused(kafka, copy, topic, "it ends at 2, and was copied to 4")
    with Store.open(copy) as store:
        # As many again: the end alone says nothing any more.
        fill(store, topic, [b"other 3", b"other 4", b"other 5"])
    refused(kafka, copy, topic, "from offset 2 on")
    with Store.open(copy) as store:
        report = copy_all(kafka, store, mirror, [topic], rules=CopyRules(on_source_change="common"))
        assert report.copied == 3
        assert copy_all(kafka, store, mirror, [topic]).copied == 0
    assert values(kafka, topic) == [b"1", b"2", b"3", b"4", b"other 3", b"other 4", b"other 5"]


def test_another_store_in_its_place_is_noticed_and_begun_anew_if_told(
    kafka: KafkaServer, root: Path, topic: str
) -> None:
    """As a broker's topic that was deleted and made again: its queue begins with 0."""
    with Store.open(root) as store:
        copy_all(kafka, store, f"m-{topic}", [topic])
    shutil.rmtree(root)
    with Store.open(root, create=True) as store:
        store.create_topic(topic, queue_count=1)
        fill(store, topic, [b"new 1", b"new 2", b"new 3"])
    refused(kafka, root, topic, "--on-source-change")
    with Store.open(root) as store:
        report = copy_all(kafka, store, f"m-{topic}", [topic], rules=CopyRules(on_source_change="restart"))
        assert report.copied == 3
        assert copy_all(kafka, store, f"m-{topic}", [topic]).copied == 0
    assert values(kafka, topic) == [b"1", b"2", b"new 1", b"new 2", b"new 3"]


def test_messages_that_retention_took_are_told_or_counted(
    kafka: KafkaServer, root: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(root) as store:
        copy_all(kafka, store, f"m-{topic}", [topic])
        fill(store, topic, [b"3", b"4", b"5"])
        ranges = store.queue_ranges
        monkeypatch.setattr(store, "queue_ranges", lambda name: {0: ranges(name)[0]._replace(min_offset=4)})
        with (
            mirror_of(kafka, store, f"m-{topic}", [topic]) as mirror,
            pytest.raises(MirrorSourceError, match="Messages 2 to 3 of queue 0"),
        ):
            mirror.run(until_caught_up=True)
        report = copy_all(kafka, store, f"m-{topic}", [topic], rules=CopyRules(on_data_loss="count"))
        assert (report.copied, report.lost) == (1, 2)
        assert copy_all(kafka, store, f"m-{topic}", [topic]).lost == 0
    assert values(kafka, topic) == [b"1", b"2", b"5"]


def test_a_damaged_message_is_a_letter_that_says_where(kafka: KafkaServer, root: Path, topic: str) -> None:
    with Store.open(root) as store:
        fill(store, topic, [b"damaged", b"3"])
        (entry,) = store.queue_entries(topic, 0, 2, 3)
    with (root / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.seek(int(entry["commit_log_offset"]) + MAGIC_CODE_OFFSET)
        file.write(b"DAMAGED")
    with Store.open(root) as store:
        report = copy_all(kafka, store, f"m-{topic}", [topic])
    assert (report.copied, report.letters, report.damaged) == (3, 1, 1)
    assert values(kafka, topic) == [b"1", b"2", b"3"]
    (letter,) = committed_rows(kafka, f"m-{topic}-dead-letters")
    assert headers(letter)["MIRROR_FROM"].split()[-1] == b"2" and headers(letter)["MIRROR_LETTER"] == b"position"


def test_the_log_is_on_disk_before_its_messages_are_committed_in_kafka(
    kafka: KafkaServer, root: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut takes messages from the store that Kafka has, and others get their places."""
    with Store.open(root) as store, mirror_of(kafka, store, f"m-{topic}", [topic]) as mirror:
        mirror._refresh_topics()
        copy = mirror._topics[topic].copy
        copy.open()
        assert copy._writer is not None
        done: list[str] = []
        flush, commit = store.flush, copy._writer.commit
        monkeypatch.setattr(store, "flush", lambda: (done.append("flush"), flush()))
        monkeypatch.setattr(copy._writer, "commit", lambda: (done.append("commit"), commit()))
        copy.copy()
    assert done == ["flush", "commit"]
