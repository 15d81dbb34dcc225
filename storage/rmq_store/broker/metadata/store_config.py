"""The settings of a store: RocketMQ's, under RocketMQ's names. `store_file` stores them.

File sizes belong to the store: they are taken from its files when it is opened. Source: MessageStoreConfig,
BrokerConfig.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

from rmq_store.errors import UsageError, did_you_mean
from rmq_store.format.text.delay_levels import (
    MESSAGE_DELAY_LEVEL,
    delay_levels_text,
    parse_delay_levels,
    retry_delays_ms,
)
from rmq_store.format.text.host import Host
from rmq_store.format.text.names import java_name
from rmq_store.format.views.index import file_size as index_file_bytes
from rmq_store.lazy.dataclasses import dataclass
from rmq_store.log.core.geometry import Geometry

# Every setting and every file size is an int in Java.
_INT_MAX = (1 << 31) - 1

_HOUR = re.compile(r"[0-9]{1,2}", re.ASCII)

# Brokers before 4.9.2 made dead-letter topics that could only be written.
_DLQ_PERMS = (2, 6)

RETENTION = (
    "file_reserved_time", "delete_when", "disk_max_used_space_ratio", "disk_space_clean_forcibly_ratio",
    "disk_space_warning_level_ratio", "clean_file_forcibly_enable", "delete_file_batch_max",
    "delete_commit_log_files_interval", "destroy_maped_file_interval_forcibly", "redelete_hanged_file_interval",
    "clean_resource_interval", "unit_marker_reserved_time", "dlq_archive_path",
)  # fmt: skip
"""When old messages are deleted. A replica has its own of these."""

# Settings that may change in the life of a store: of its care, not of its bytes.
OPERATIONAL = (
    *RETENTION,
    "flush_commit_log_timed", "flush_commit_log_least_pages", "flush_commit_log_thorough_interval",
    "sync_flush_timeout", "enable_lmq", "broker_host",
)  # fmt: skip

CHANGEABLE = (*OPERATIONAL, "message_delay_level")
"""The operational settings, and the delay levels, which a broker may change at every start too."""

# Lower limits of the ratios: MessageStoreConfig, DefaultMessageStore.CleanCommitLogService. A broker takes 95, 85 and
# 90 for what is above that; here 100 means never.
_RETENTION_LIMITS = {
    "file_reserved_time": (0, _INT_MAX),
    "disk_max_used_space_ratio": (10, 100),
    "disk_space_clean_forcibly_ratio": (30, 100),
    "disk_space_warning_level_ratio": (35, 100),
    "delete_file_batch_max": (1, _INT_MAX),
    "delete_commit_log_files_interval": (0, _INT_MAX),
    "destroy_maped_file_interval_forcibly": (0, _INT_MAX),
    "redelete_hanged_file_interval": (0, _INT_MAX),
    "clean_resource_interval": (1, _INT_MAX),
    "unit_marker_reserved_time": (0, _INT_MAX),
}

# Spelling of early versions of RocketMQ (4.4 and before, one p), and of development versions of ours.
OLD_NAMES = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
    "retryAnotherBrokerWhenNotStoreOk": "retryAnotherBrokerWhenNotStoreOK",
}


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Settings of a store; the names are RocketMQ's in snake case, `broker.conf` has them in camel case.

    Sizes in bytes, intervals in ms. The defaults of the sizes suit a laptop; a broker that opens the store needs the
    same four in its broker.conf (`conf/broker.conf` has them). Four have no name in RocketMQ. `message_index_tags`:
    brokers from 5.4.0 on also put a message's tag into the index, older ones do not. `dlq_perm`: permissions of a new
    dead-letter topic. `unit_marker_reserved_time`: hours for which the commits of a sink are remembered at least.
    `dlq_archive_path`: directory for dead letters before they are deleted ("": none).

    `sync_flush_timeout` limits a sender that waits for the fsync of another one. A sender that calls fsync itself waits
    for the disk.

    `enable_lmq` is the setting of the store's broker: with it a broker keeps the offsets of groups in another file.
    None: unknown, and not needed while the two files do not contradict each other.

    OPERATIONAL ones may be changed later: see `Store.open` and `Retention.configure`. `message_delay_level` may change
    when the store is opened, as in a broker: a table other than RocketMQ's counts from then on. "" means unknown, as in
    a store that a broker wrote: the store's delayed messages then give the delays, and RocketMQ's table those of other
    levels.
    """

    mapped_file_size_commit_log: int = 64 << 20
    mapped_file_size_consume_queue: int = 6_000_000
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 4_000_000
    message_index_enable: bool = True
    message_index_tags: bool = True
    enabled_append_prop_crc: bool = True
    flush_disk_type: str = "ASYNC_FLUSH"
    flush_interval_commit_log: int = 500
    broker_name: str = "rmq-embedded"
    broker_host: str = "127.0.0.1:10911"
    message_delay_level: str = MESSAGE_DELAY_LEVEL
    max_message_size: int = 4 << 20
    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 4
    auto_create_subscription_group: bool = True
    dlq_perm: int = 6
    retry_another_broker_when_not_store_ok: bool = False
    timer_max_delay_sec: int = 259_200
    file_reserved_time: int = 72
    delete_when: str = "04"
    disk_max_used_space_ratio: int = 75
    disk_space_clean_forcibly_ratio: int = 85
    disk_space_warning_level_ratio: int = 90
    clean_file_forcibly_enable: bool = True
    delete_file_batch_max: int = 10
    delete_commit_log_files_interval: int = 100
    destroy_maped_file_interval_forcibly: int = 120_000
    redelete_hanged_file_interval: int = 120_000
    clean_resource_interval: int = 10_000
    unit_marker_reserved_time: int = 720
    dlq_archive_path: str = ""
    flush_commit_log_timed: bool = True
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    sync_flush_timeout: int = 5000
    enable_lmq: bool | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not _is_of_kind(field, value):
                raise UsageError(f"{field.name}={value!r} is no {_kind(field).__name__}")
            if isinstance(value, str) and not value.isprintable():
                raise UsageError(f"{field.name}={value!r} holds characters that are no text")
            if isinstance(value, int) and value > _INT_MAX:
                raise UsageError(f"{field.name}={value}: at most {_INT_MAX}")
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise UsageError(f"flushDiskType={self.flush_disk_type!r}: ASYNC_FLUSH or SYNC_FLUSH")
        if self.flush_interval_commit_log < 1:
            raise UsageError("flushIntervalCommitLog must be at least 1 ms")
        if min(self.flush_commit_log_least_pages, self.flush_commit_log_thorough_interval, self.sync_flush_timeout) < 0:
            raise UsageError(
                "flushCommitLogLeastPages, flushCommitLogThoroughInterval and syncFlushTimeout must not be negative"
            )
        if self.max_message_size < 1 or self.default_topic_queue_nums < 1:
            raise UsageError("maxMessageSize and defaultTopicQueueNums must be positive")
        if self.dlq_perm not in _DLQ_PERMS:
            raise UsageError(f"dlqPerm={self.dlq_perm}: 6, or 2 so that no consumer may read dead letters")
        if self.timer_max_delay_sec < 0:
            raise UsageError("timerMaxDelaySec must not be negative")
        self._check_retention()
        Host.parse(self.broker_host)
        if self.message_delay_level:
            parse_delay_levels(self.message_delay_level)
        self.geometry()
        if index_file_bytes(self.max_hash_slot_num, self.max_index_num) > _INT_MAX:
            raise UsageError("maxHashSlotNum and maxIndexNum make an index file of 2 GiB or more")

    def _check_retention(self) -> None:
        parse_delete_when(self.delete_when)
        for name, (low, high) in _RETENTION_LIMITS.items():
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{_java_name(name)}={getattr(self, name)}: {low} to {high}")
        if self.dlq_archive_path and not Path(self.dlq_archive_path).is_absolute():
            raise UsageError(f"dlqArchivePath={self.dlq_archive_path!r}: an absolute path, or nothing")

    def geometry(self) -> Geometry:
        """The four sizes."""
        return Geometry(*(getattr(self, name) for name in Geometry.__slots__))

    def with_operational(self, other: StoreConfig) -> StoreConfig:
        """These settings with those of `other` that may change in the life of a store and are not the defaults."""
        given = {name: getattr(other, name) for name in OPERATIONAL}
        if other.tells_delays():
            given["message_delay_level"] = other.message_delay_level
        changed = {name: value for name, value in given.items() if value != getattr(DEFAULTS, name)}
        return replace(self, **changed) if changed else self

    def tells_delays(self) -> bool:
        """True if the delays of the levels are known. RocketMQ's own table does not count, because it is the default of
        a caller that gave none.
        """
        return self.message_delay_level not in ("", DEFAULTS.message_delay_level)

    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of each level in ms, level 1 first; RocketMQ's table if they are unknown."""
        return parse_delay_levels(self.message_delay_level or DEFAULTS.message_delay_level)

    def retry_delays_ms(self) -> tuple[int, ...]:
        """Delays in ms of the first, second, ... retry of a message; the last one repeats."""
        return retry_delays_ms(self.delay_levels_ms())

    def with_delays(self, delays_ms: Sequence[int]) -> StoreConfig:
        """The same settings with these delays (ms, level 1 first)."""
        return replace(self, message_delay_level=delay_levels_text(delays_ms))

    def with_geometry(self, geometry: Geometry) -> StoreConfig:
        """The same settings with the sizes of an existing store."""
        return replace(self, **{name: getattr(geometry, name) for name in Geometry.__slots__})

    def broker_conf(self) -> dict[str, int | bool | str]:
        """The settings under their names in broker.conf, without unknown ones."""
        settings = {name: getattr(self, field.name) for name, field in JAVA_NAMES.items()}
        return {name: value for name, value in settings.items() if value is not None}

    @classmethod
    def from_broker_conf(cls, path: str | Path) -> StoreConfig:
        """Settings from a broker's properties file; keys that do not concern a store are ignored.

        Raises:
            UsageError: the file is missing, or a value is not of its kind.
        """
        values = read_broker_conf(path)
        if "brokerIP1" in values or "listenPort" in values:
            address, _, port = cls().broker_host.rpartition(":")
            values["brokerHost"] = f"{values.get('brokerIP1', address)}:{values.get('listenPort', port)}"
        known = JAVA_NAMES | OLD_NAMES.keys()
        return cls(**parse_settings({name: value for name, value in values.items() if name in known}, str(path)))


def read_broker_conf(path: str | Path) -> dict[str, str]:
    """All settings of a broker's properties file, as they stand there.

    Raises:
        UsageError: the file is missing, or no text.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no text: {error}") from error
    values = {}
    for line in text.splitlines():
        name, separator, value = line.strip().partition("=")
        if separator and not name.startswith(("#", "!")):
            values[name.strip()] = value.strip()
    return values


def _kind(field: Field[Any]) -> type:
    """The type of a setting. One with the default None may be unknown, and is true or false."""
    return bool if field.default is None else type(field.default)


def _is_of_kind(field: Field[Any], value: object) -> bool:
    return type(value) is _kind(field) or value is field.default is None


def _java_name(name: str) -> str:
    return java_name(name).replace("PropCrc", "PropCRC").replace("StoreOk", "StoreOK")


JAVA_NAMES: dict[str, Field[Any]] = {_java_name(field.name): field for field in fields(StoreConfig)}
"""The fields of StoreConfig by the names that RocketMQ has for them."""


def parse_settings(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Keyword arguments of StoreConfig from values under Java's names, as text or as JSON values. Errors name `where`
    they come from.

    Raises:
        UsageError: an unknown name, or a value that is not of its kind.
    """
    parsed: dict[str, Any] = {}
    for given, value in values.items():
        name = OLD_NAMES.get(given, given)
        field = JAVA_NAMES.get(name)
        if field is None:
            raise UsageError(f"{where}: unknown setting {given!r}{did_you_mean(name, JAVA_NAMES)}")
        kind = _kind(field)
        if kind is int and isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
            value = int(value)
        elif kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if not _is_of_kind(field, value):
            raise UsageError(f"{where}: {given}={value!r} is no {kind.__name__}")
        parsed[field.name] = value
    return parsed


def parse_delete_when(text: str) -> frozenset[int]:
    """The hours of the day at which expired files are deleted: "04", or "04;16" (UtilAll#isItTimeToDo). UsageError."""
    hours = text.split(";")
    for hour in hours:
        if not _HOUR.fullmatch(hour) or int(hour) > 23:
            raise UsageError(f"deleteWhen={text!r}: {hour!r} is no hour of the day; several are separated by ;")
    return frozenset(map(int, hours))


DEFAULTS = StoreConfig()
