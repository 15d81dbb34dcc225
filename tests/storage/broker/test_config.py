"""Settings: RocketMQ's names in both directions, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store import NotAStoreError, StoreConfig, UsageError
from rmq_store.broker.config import StoreFile, parse_delay_levels

IDENTITY = "6f1c1d0e-0b54-4f6e-9f3d-0c1f6d0a7b11"


def conf(directory: Path, *lines: str) -> Path:
    path = directory / "broker.conf"
    path.write_text("\n".join(lines))
    return path


def test_every_setting_of_a_broker_conf_arrives_under_rocketmqs_own_name(tmp_path: Path) -> None:
    path = conf(
        tmp_path,
        "# a comment",
        "brokerClusterName=DefaultCluster",
        "brokerName=broker-b",
        "brokerIP1=10.1.2.3",
        "listenPort=20911",
        "mappedFileSizeCommitLog=1048576",
        "mappedFileSizeConsumeQueue=12000",
        "maxHashSlotNum=1000",
        "maxIndexNum=4000",
        "messageIndexEnable=false",
        "enabledAppendPropCRC=false",
        "flushDiskType=SYNC_FLUSH",
        "flushIntervalCommitLog=200",
        "messageDelayLevel=1s 2m",
        "maxMessageSize=65536",
        "autoCreateTopicEnable=false",
        "defaultTopicQueueNums=6",
    )
    assert StoreConfig.from_broker_conf(path) == StoreConfig(
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=12000,
        max_hash_slot_num=1000,
        max_index_num=4000,
        message_index_enable=False,
        enabled_append_prop_crc=False,
        flush_disk_type="SYNC_FLUSH",
        flush_interval_commit_log=200,
        broker_name="broker-b",
        broker_host="10.1.2.3:20911",
        message_delay_level="1s 2m",
        max_message_size=65536,
        auto_create_topic_enable=False,
        default_topic_queue_nums=6,
    )


def test_early_spelling_of_the_segment_size_is_understood(tmp_path: Path) -> None:
    config = StoreConfig.from_broker_conf(conf(tmp_path, "mapedFileSizeCommitLog=1048576"))
    assert config.mapped_file_size_commit_log == 1 << 20


@pytest.mark.parametrize(
    "line",
    [
        "mappedFileSizeCommitLog=big",
        "mappedFileSizeCommitLog=100",
        "mappedFileSizeConsumeQueue=12001",
        "enabledAppendPropCRC=perhaps",
        "flushDiskType=NO_FLUSH",
        "messageDelayLevel=1s  5s",
        "listenPort=http",
        "brokerIP1=nowhere",
    ],
)
def test_value_of_the_wrong_kind_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError):
        StoreConfig.from_broker_conf(conf(tmp_path, line))


def test_missing_broker_conf_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"broker\.conf"):
        StoreConfig.from_broker_conf(tmp_path / "broker.conf")


def test_store_file_gives_back_every_setting(tmp_path: Path) -> None:
    (tmp_path / "pyrmq").mkdir()
    config = replace(StoreConfig(), enabled_append_prop_crc=False, message_index_tags=False, broker_name="b")
    StoreFile(IDENTITY, config).save(tmp_path)
    assert StoreFile.load(tmp_path) == StoreFile(IDENTITY, config)
    assert '"enabledAppendPropCRC": false' in (tmp_path / "pyrmq" / "store.json").read_text()


def test_store_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyrmq").mkdir()
    StoreFile(IDENTITY, StoreConfig()).save(tmp_path)
    path = tmp_path / "pyrmq" / "store.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(NotAStoreError, match="newer"):
        StoreFile.load(tmp_path)


def test_delay_levels_are_rocketmqs() -> None:
    levels = parse_delay_levels(StoreConfig().message_delay_level)
    assert [level // 1000 for level in levels] == [
        1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
    ]  # fmt: skip
    assert sum(levels[2:]) == 17_140_000
