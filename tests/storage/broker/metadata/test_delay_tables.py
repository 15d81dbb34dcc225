"""A broker's messageDelayLevel is in no file of its store: what its queue entries say is kept, and tells the delays."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from rmq_store import Message, Store, StoreConfig, backup
from rmq_store.broker.delay.scheduler import Delivery
from rmq_store.broker.metadata.store_config import DEFAULTS
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.broker.write.staging import StagingArea
from rmq_store.cli import commands
from rmq_store.cli.checks import directory
from rmq_store.format.views.consume_queue import ENTRY
from rmq_store.log.recovery import recovery
from rmq_store.verify import verify_store

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
OTHER = "1m 2m 5m"
"""The broker's: levels 1 to 3 of 60, 120 and 300 s, RocketMQ's are of 1, 5 and 10."""

START_MS = 1_700_000_000_000


@dataclass
class Broker:
    """A store as a broker with `OTHER` leaves it: three messages wait for each of its levels."""

    root: Path
    now_ms: int = START_MS

    def open(self, **options: Any) -> Store:
        return Store.open(self.root, clock=lambda: self.now_ms, **options)

    def queue(self, level: int) -> Path:
        return self.root / "consumequeue" / SCHEDULE / str(level - 1)

    def entries(self, level: int) -> np.ndarray:
        file = min(self.queue(level).iterdir())
        entries = np.frombuffer(file.read_bytes(), ENTRY)
        return entries[entries["frame_size"] > 0]

    def put(self, level: int, entries: np.ndarray) -> None:
        """The first entries of a level's queue; none behind them."""
        file = min(self.queue(level).iterdir())
        file.write_bytes(entries.astype(ENTRY).tobytes().ljust(file.stat().st_size, b"\0"))

    def due_s(self, level: int) -> list[int]:
        """When its messages are due, in s after they were stored."""
        return ((self.entries(level)["tags_code"].astype(np.int64) - START_MS) // 1000).tolist()

    def is_killed(self) -> None:
        """It did not close the store."""
        (self.root / "abort").write_bytes(b"1")

    def was_here(self) -> None:
        """It wrote the store last."""
        (self.root / "lock").write_bytes(b"lock")

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads((self.root / "pyrmq" / "store.json").read_text())["settings"]
        return settings


@pytest.fixture
def broker(scratch: Path, tiny: StoreConfig) -> Broker:
    made = Broker(scratch / "broker")
    config = replace(tiny, message_delay_level=OTHER, enabled_append_prop_crc=False)
    with made.open(create=True, config=config) as store:
        store.create_topic("T", queue_count=1)
        for level in (1, 2, 3):
            for number in range(3):
                store.send(Message("T", b"%d of level %d" % (number, level), delay_level=level))
    shutil.rmtree(made.root / "pyrmq")
    made.was_here()
    assert [made.due_s(level) for level in (1, 2, 3)] == [[60] * 3, [120] * 3, [300] * 3]
    return made


@pytest.mark.parametrize("way", ["clean", "killed", "its views are built again", "twice"])
def test_what_waits_stays_due_when_its_entry_says(broker: Broker, way: str) -> None:
    before = {level: broker.entries(level).tobytes() for level in (1, 2, 3)}
    if way == "killed":
        broker.is_killed()
    broker.open(rebuild_views=way == "its views are built again").close()
    if way == "twice":
        broker.open(rebuild_views=True).close()
        broker.open(rebuild_views=True).close()
    assert {level: broker.entries(level).tobytes() for level in (1, 2, 3)} == before
    assert not (broker.root / "pyrmq" / "schedule_copies").exists()
    assert verify_store(broker.root).status == "clean"
    with broker.open() as store:
        assert store.schedule.deliver_due() == Delivery(0, START_MS + 60_000)
        for level_s, count in ((60, 3), (120, 3), (300, 3)):
            broker.now_ms = START_MS + level_s * 1000 - 1
            assert store.schedule.deliver_due().delivered == 0
            broker.now_ms += 1
            assert store.schedule.deliver_due().delivered == count


@pytest.mark.parametrize("was", ["killed", "closed"])
def test_a_message_without_an_entry_waits_as_long_as_others_of_its_level(
    broker: Broker, was: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that is killed may not have made the last entries yet; one that is damaged is made again as well."""
    for level in (1, 2, 3):
        entries = broker.entries(level).copy()
        if was == "killed":
            broker.put(level, entries[:1])
        else:
            entries["tags_code"][1] += 1  # no delay has half a second
            broker.put(level, entries)
    broker.is_killed()
    with caplog.at_level(logging.WARNING):
        broker.open().close()
    assert [broker.due_s(level) for level in (1, 2, 3)] == [[60] * 3, [120] * 3, [300] * 3]
    assert not [record for record in caplog.records if "are due" in record.getMessage()]


def test_the_newest_message_of_a_level_tells_its_delay(broker: Broker) -> None:
    """The operator has changed the table: what waited before is due as ever."""
    entries = broker.entries(3).copy()
    entries["tags_code"][1] += 60_000
    broker.put(3, entries[:2])
    broker.is_killed()
    broker.open().close()
    assert broker.due_s(3) == [300, 360, 360]


def test_a_level_that_nothing_tells_of_waits_as_in_rocketmq_and_that_is_said(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(broker.queue(3))
    broker.is_killed()
    with caplog.at_level(logging.WARNING), broker.open() as store:
        (warning,) = [text for record in caplog.records if "are due" in (text := record.getMessage())]
        assert "when 3 messages of delay level 3 are due" in warning
        assert "They wait 10 s" in warning
        assert broker.due_s(3) == [10] * 3
        assert broker.due_s(2) == [120] * 3
        # Stored "later than now", and further ahead than the level's delay: it waits all the same.
        broker.now_ms = START_MS - 3_600_000
        assert store.schedule.deliver_due() == Delivery(6, START_MS + 10_000), "levels 1 and 2 are known"
        broker.now_ms = START_MS + 9_999
        assert store.schedule.deliver_due().delivered == 0
        broker.now_ms += 1
        assert store.schedule.deliver_due().delivered == 3


def test_the_part_of_a_table_that_no_message_tells_is_named_once(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            broker.open().close()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert len(warning.removeprefix(str(broker.root))) < 200
    assert "rmq updateBrokerConfig -k messageDelayLevel" in warning and "rmq doctor" in warning
    broker.open(config=StoreConfig(message_delay_level=OTHER)).close()
    assert len(caplog.records) == 1


def test_a_time_further_ahead_than_the_delay_of_the_newest_message_is_believed(broker: Broker) -> None:
    """The level may have been shortened, or its newest entry been made with another table."""
    entries = broker.entries(3).copy()
    entries["tags_code"][0] += 300_000
    broker.put(3, entries)
    with broker.open() as store:
        broker.now_ms += 300_000
        assert store.schedule.deliver_due() == Delivery(6, START_MS + 600_000), "in queue order"
        broker.now_ms = START_MS + 599_999
        assert store.schedule.deliver_due().delivered == 0
        broker.now_ms += 1
        assert store.schedule.deliver_due().delivered == 3


def test_new_messages_and_retries_wait_as_long_as_the_brokers(broker: Broker) -> None:
    with broker.open() as store:
        assert store.config.message_delay_level == OTHER + DEFAULTS.message_delay_level.removeprefix("1s 5s 10s")
        store.send(Message("T", b"new", delay_level=3))
        offset = store.send(Message("T", b"failed")).commit_log_offset
        store.retry.send_back("g", offset, delay_level=2)
    assert broker.due_s(3) == [300] * 4
    assert broker.due_s(2) == [120] * 4


def test_a_task_that_stages_knows_the_brokers_delays(broker: Broker) -> None:
    broker.open().close()
    area = StagingArea.for_task(broker.root, "w", 0, 0, clock=lambda: broker.now_ms)
    with area:
        area.write(pa.RecordBatch.from_pydict({
            "topic": ["T"], "body": [b"new"], "delayLevel": pa.array([3], pa.int32()),
        }))  # fmt: skip
        staged = area.finish()
    with broker.open() as store:
        store.commit_staged([staged])
    assert broker.due_s(3) == [300] * 4


def test_no_guess_is_written_down(broker: Broker) -> None:
    broker.open().close()
    assert "messageDelayLevel" not in broker.settings()
    known = StoreFile.load(broker.root)
    assert known is not None
    assert known.config.message_delay_level == ""
    with broker.open() as store:
        store.retention.configure(file_reserved_time=5)
    assert "messageDelayLevel" not in broker.settings()
    assert "messageDelayLevel" not in json.loads((broker.root / "pyrmq" / "store.json.bak").read_text())["settings"]


@pytest.mark.parametrize("first", [True, False])
def test_a_table_that_is_given_counts_from_then_on(broker: Broker, first: bool) -> None:
    """For new messages, and those without an entry; those that wait are due when they are."""
    if not first:
        broker.open().close()
    broker.put(3, broker.entries(3)[:2])
    broker.is_killed()
    broker.was_here()
    given = StoreConfig(message_delay_level="7s 8s 9s")
    with broker.open(config=given) as store:
        store.send(Message("T", b"new", delay_level=3))
    assert broker.due_s(3) == [300, 300, 9, 9]
    assert broker.settings()["messageDelayLevel"] == "7s 8s 9s"
    with broker.open() as store:
        store.send(Message("T", b"new", delay_level=3))
        assert store.config.message_delay_level == "7s 8s 9s"
    with broker.open(config=StoreConfig(message_delay_level="1s 2s 3s")) as store:
        store.send(Message("T", b"new", delay_level=3))
    assert broker.due_s(3) == [300, 300, 9, 9, 9, 3]


def test_the_table_of_a_brokers_store_can_be_told_by_hand(broker: Broker) -> None:
    broker.open().close()
    arguments = ["updateBrokerConfig", "--store", str(broker.root), "-k", "messageDelayLevel", "-v", "7s 8s 9s"]
    assert CliRunner().invoke(commands, arguments).exit_code == 0
    assert broker.settings()["messageDelayLevel"] == "7s 8s 9s"
    with broker.open() as store:
        store.send(Message("T", b"new", delay_level=3))
    assert broker.due_s(3) == [300] * 3 + [9]


def test_a_broker_that_took_over_a_store_of_ours_tells_its_delays(scratch: Path, tiny: StoreConfig) -> None:
    broker = Broker(scratch / "store")
    with broker.open(create=True, config=tiny) as store:
        store.create_topic("T", queue_count=1)
        store.send(Message("T", b"a", delay_level=3))
    assert broker.settings()["messageDelayLevel"] == DEFAULTS.message_delay_level
    assert broker.due_s(3) == [10]
    entries = broker.entries(3).copy()
    entries["tags_code"] = START_MS + 300_000
    broker.put(3, entries)
    broker.was_here()
    for _ in range(2):
        with broker.open() as store:
            store.send(Message("T", b"b", delay_level=3))
    assert broker.due_s(3) == [300] * 3
    assert "messageDelayLevel" not in broker.settings()


def test_a_store_that_an_earlier_version_took_over_is_freed_of_its_guess(broker: Broker) -> None:
    """That version wrote RocketMQ's table down as if somebody had told it."""
    broker.open().close()
    path = broker.root / "pyrmq" / "store.json"
    data = json.loads(path.read_text())
    data["settings"]["messageDelayLevel"] = DEFAULTS.message_delay_level
    path.write_text(json.dumps(data))
    with broker.open() as store:
        store.send(Message("T", b"new", delay_level=3))
    assert broker.due_s(3) == [300] * 4
    assert "messageDelayLevel" not in broker.settings()


def test_a_rebuild_that_was_killed_still_knows_when_messages_are_due(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.open().close()

    def killed(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recovery, "_scan_and_repair", killed)
    with pytest.raises(KeyboardInterrupt):
        broker.open(rebuild_views=True)
    monkeypatch.undo()
    assert not list(broker.queue(3).glob("0*"))
    broker.open().close()
    assert [broker.due_s(level) for level in (1, 2, 3)] == [[60] * 3, [120] * 3, [300] * 3]


def test_a_backup_of_an_open_store_has_the_times_of_its_entries(broker: Broker, scratch: Path) -> None:
    with broker.open():
        backup(broker.root, scratch / "copy")
    copy = Broker(scratch / "copy")
    assert [copy.due_s(level) for level in (1, 2, 3)] == [[60] * 3, [120] * 3, [300] * 3]
    with copy.open() as store:
        store.send(Message("T", b"new", delay_level=3))
    assert copy.due_s(3) == [300] * 4


def notes(broker: Broker) -> list[str]:
    return [note for note in verify_store(broker.root).notes if "delay level" in note]


def test_verify_and_doctor_say_what_is_told_and_what_is_assumed(broker: Broker) -> None:
    shutil.rmtree(broker.queue(3))
    broker.is_killed()
    assert notes(broker) == [
        "messages of delay level 1 wait 60 s, not as in RocketMQ's own messageDelayLevel",
        "messages of delay level 2 wait 120 s, not as in RocketMQ's own messageDelayLevel",
        "consumequeue/SCHEDULE_TOPIC_XXXX/2: nothing tells how long messages of delay level 3 wait: for those without "
        "an entry RocketMQ's delay will be assumed",
    ]
    (broker.queue(3)).mkdir()
    found = directory.delay_levels(broker.root)
    assert (found.status, found.text) == (
        "WARN",
        "messages tell: level 1 60 s, level 2 120 s; nothing tells those of levels 3: RocketMQ's are assumed",
    )
    broker.open(config=StoreConfig(message_delay_level=OTHER)).close()
    assert broker.due_s(3) == [300] * 3
    assert directory.delay_levels(broker.root)[1:3] == ("OK", f"messageDelayLevel={OTHER}")


def test_get_broker_config_shows_the_delays_that_messages_tell(broker: Broker) -> None:
    for _ in range(2):
        shown = CliRunner().invoke(commands, ["getBrokerConfig", "--store", str(broker.root)])
        assert "1m 2m 5m 30s 1m" in shown.output
        broker.open().close()
