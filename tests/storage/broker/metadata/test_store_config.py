"""Settings: RocketMQ's names, a broker's own file, and store.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store import NotAStoreError, Store, StoreConfig, UsageError
from rmq_store.broker.metadata.store_config import parse_delete_when
from rmq_store.broker.metadata.store_file import StoreFile
from rmq_store.format.text.delay_levels import parse_delay_levels
from rmq_store.log.core.commit_log import CommitLog
from rmq_store.log.recovery import opening
from rmq_store.log.recovery.recovery import RecoveryReport

IDENTITY = "00000000-0000-0000-0000-00000000abcd"
REPOSITORY = Path(__file__).parents[4]


def conf(directory: Path, text: str) -> Path:
    path = directory / "broker.conf"
    path.write_text(text)
    return path


def test_the_broker_conf_that_comes_with_us_is_what_a_new_store_gets_and_deletes_nothing_for_ten_years() -> None:
    assert StoreConfig.from_broker_conf(REPOSITORY / "conf" / "broker.conf") == StoreConfig(file_reserved_time=87_600)


def test_a_broker_conf_is_read_as_a_properties_file(tmp_path: Path) -> None:
    text = """
# a comment
! another = one
 mappedFileSizeCommitLog = 1048576
mapedFileSizeConsumeQueue=12000
maxHashSlotNum=1000
messageIndexEnable=FALSE
flushDiskType=SYNC_FLUSH
brokerName = shop-a
brokerIP1=10.0.0.7
listenPort=20911
namesrvAddr=127.0.0.1:9876
a line without a value
messageDelayLevel=1s 5m
"""
    config = StoreConfig.from_broker_conf(conf(tmp_path, text))
    assert config == StoreConfig(
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=12000,
        max_hash_slot_num=1000,
        message_index_enable=False,
        flush_disk_type="SYNC_FLUSH",
        broker_name="shop-a",
        broker_host="10.0.0.7:20911",
        message_delay_level="1s 5m",
    )


def test_a_port_without_an_address_counts_too(tmp_path: Path) -> None:
    assert StoreConfig.from_broker_conf(conf(tmp_path, "listenPort=1234")).broker_host == "127.0.0.1:1234"
    assert StoreConfig.from_broker_conf(conf(tmp_path, "brokerIP1=10.1.1.1")).broker_host == "10.1.1.1:10911"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("maxIndexNum=many", "maxIndexNum='many' is no int"),
        ("maxIndexNum=-5", "is no int"),
        ("maxIndexNum=٣", "is no int"),
        ("messageIndexEnable=yes", "is no bool"),
        ("listenPort=high", "not an ip:port"),
        ("brokerIP1=localhost", "not an ip:port"),
        ("mappedFileSizeCommitLog=4095", "at least 4096"),
        ("mappedFileSizeConsumeQueue=30", "multiple of 20"),
        ("flushDiskType=SOMETIMES", "ASYNC_FLUSH or SYNC_FLUSH"),
        ("messageDelayLevel=1s  5s", "no delay"),
        ("deleteWhen=4;", "'' is no hour"),
        ("deleteWhen=24", "'24' is no hour"),
        ("deleteWhen=04,16", "'04,16' is no hour"),
        ("diskMaxUsedSpaceRatio=101", "10 to 100"),
        ("diskSpaceWarningLevelRatio=34", "35 to 100"),
        ("deleteFileBatchMax=0", "1 to"),
        ("dlqArchivePath=archive", "an absolute path"),
    ],
)
def test_a_value_that_is_not_of_its_kind_is_named(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        StoreConfig.from_broker_conf(conf(tmp_path, text))


def test_a_broker_conf_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        StoreConfig.from_broker_conf(tmp_path / "missing.conf")
    (tmp_path / "broker.conf").write_bytes(b"brokerName=\xff\xfe")
    with pytest.raises(UsageError, match="no text"):
        StoreConfig.from_broker_conf(tmp_path / "broker.conf")


@pytest.mark.parametrize(
    "fields",
    [
        {"mapped_file_size_commit_log": 1 << 31},
        {"mapped_file_size_consume_queue": 20 << 30},
        {"max_hash_slot_num": 0},
        {"max_index_num": 1},
        {"max_hash_slot_num": 1 << 28, "max_index_num": 1 << 28},
        {"flush_interval_commit_log": 0},
        {"max_message_size": 0},
        {"default_topic_queue_nums": 0},
        {"flush_interval_commit_log": True},
        {"broker_name": None},
        {"auto_create_topic_enable": 1},
        {"max_message_size": 4e6},
    ],
    ids=str,
)
def test_settings_that_no_broker_could_have_are_refused(fields: dict) -> None:
    with pytest.raises(UsageError):
        StoreConfig(**fields)


@pytest.mark.statement("C07")
def test_delay_levels_have_units() -> None:
    assert parse_delay_levels("1s 5m 2h 1d") == (1000, 300_000, 7_200_000, 86_400_000)
    assert sum(parse_delay_levels(StoreConfig().message_delay_level)[2:]) == 17_140_000
    for text in ("", "1", "s", "1S", "-1s", "1s 5x", "1s,5s", "1s ", "٣s", "1s 0d"):
        with pytest.raises(UsageError, match="no delay"):
            parse_delay_levels(text)


def test_store_json_gives_back_what_was_saved(tmp_path: Path) -> None:
    (tmp_path / "pyrmq").mkdir()
    assert StoreFile.load(tmp_path) is None
    saved = StoreFile(IDENTITY, StoreConfig(max_index_num=77, broker_name="händler", flush_disk_type="SYNC_FLUSH"))
    saved.save(tmp_path)
    assert StoreFile.load(tmp_path) == saved
    text = (tmp_path / "pyrmq" / "store.json").read_text()
    assert '"maxIndexNum": 77' in text
    (tmp_path / "pyrmq" / "store.json").write_text(text.replace('"format": 1', '"format": 3'))
    with pytest.raises(NotAStoreError, match="newer version"):
        StoreFile.load(tmp_path)


def test_a_setting_that_is_an_abbreviation_has_rocketmqs_spelling(tmp_path: Path) -> None:
    assert not StoreConfig.from_broker_conf(conf(tmp_path, "enabledAppendPropCRC=false")).enabled_append_prop_crc
    (tmp_path / "pyrmq").mkdir()
    config = StoreConfig(enabled_append_prop_crc=False)
    stored = StoreFile("6f1c1d0e-0b54-4f6e-9f3d-0c1f6d0a7b11", config)
    stored.save(tmp_path)
    assert '"enabledAppendPropCRC": false' in (tmp_path / "pyrmq" / "store.json").read_text()
    assert StoreFile.load(tmp_path) == stored


def test_the_hours_of_deletion_are_those_of_a_day() -> None:
    assert parse_delete_when("04") == {4}
    assert parse_delete_when("4;16;23;0") == {0, 4, 16, 23}


def test_what_a_store_is_looked_after_with_may_change_and_how_it_is_written_may_not(
    scratch: Path, tiny: StoreConfig
) -> None:
    root = scratch / "store"
    Store.open(root, create=True, config=tiny).close()
    with Store.open(root, config=StoreConfig(file_reserved_time=5, delete_when="23")) as store:
        assert (store.config.file_reserved_time, store.config.delete_when) == (5, "23")
    with Store.open(root, config=StoreConfig(delete_file_batch_max=3)) as store:  # the others stay
        assert (store.config.file_reserved_time, store.config.delete_file_batch_max) == (5, 3)
    found = StoreFile.load(root)
    assert found is not None
    assert found.config == replace(tiny, file_reserved_time=5, delete_when="23", delete_file_batch_max=3)
    with pytest.raises(UsageError, match="was made with"):
        Store.open(root, config=StoreConfig(file_reserved_time=7, max_message_size=1 << 10))
    assert StoreFile.load(root) == found


def test_a_reader_changes_no_setting_on_disk(scratch: Path, tiny: StoreConfig) -> None:
    root = scratch / "store"
    Store.open(root, create=True, config=tiny).close()
    before = (root / "pyrmq" / "store.json").read_bytes()
    with Store.open(root, read_only=True, config=StoreConfig(file_reserved_time=5)) as store:
        assert store.config.file_reserved_time == 5
    assert (root / "pyrmq" / "store.json").read_bytes() == before


def test_settings_changed_by_two_at_once_all_hold(
    scratch: Path, tiny: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one changes them between the first one's look and its lock."""
    root = scratch / "store"
    Store.open(root, create=True, config=tiny).close()
    calls = []
    opened = opening.open_for_writing

    def slowly(log: CommitLog, **options: Any) -> RecoveryReport | None:
        calls.append(log)
        if len(calls) == 1:
            Store.open(root, config=StoreConfig(delete_when="23")).close()
        return opened(log, **options)

    monkeypatch.setattr(opening, "open_for_writing", slowly)
    with Store.open(root, config=StoreConfig(file_reserved_time=5)) as store:
        assert (store.config.file_reserved_time, store.config.delete_when) == (5, "23")
