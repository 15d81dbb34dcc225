"""Names: topics, groups, system topics, and the files and directories of a store.

A topic name becomes a directory name: it is checked by a full ASCII match before any path is built from it.
Source: TopicValidator.java, MixAll.java (getRetryTopic, getDLQTopic), UtilAll.java (offset2FileName,
timeMillisToHumanString), StorePathConfigHelper.java.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo

from rmq_store.errors import UsageError

COMMIT_LOG_DIRECTORY = "commitlog"
CONFIG_DIRECTORY = "config"
LOCK_FILE = "lock"

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
"""Queues of a broker's that hold second entries of other topics' messages: nothing can make them again here."""
SYSTEM_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
AUTO_CREATE_TOPIC = "TBW102"
TIMER_TOPIC = "rmq_sys_wheel_timer"
# Ours, not RocketMQ's: messages that wait for an absolute time. Its queue entries hold that time as tags code.
PYRMQ_PREFIX = "rmq_sys_pyrmq_"
PYRMQ_TIMER_TOPIC = "rmq_sys_pyrmq_timer"
PYRMQ_RECALLED_TOPIC = "rmq_sys_pyrmq_recalled"
"""Ours, too: which of them were taken back."""

SYSTEM_TOPICS = frozenset(
    (
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANSACTION_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        AUTO_CREATE_TOPIC,
        BENCHMARK_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
        # since 5.5.0
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    )
)

# System topics that belong to clients all the same: traces of their sends, and the topic of RocketMQ's benchmark.
_TOPICS_OF_CLIENTS = frozenset((TRACE_TOPIC, BENCHMARK_TOPIC))

TOPIC_LENGTH_MAX = 127
RETRY_TOPIC_LENGTH_MAX = 255
GROUP_LENGTH_MAX = 120

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_RETRY_TOPIC_NAME = re.compile(rf"{_NAME.pattern}|{RETRY_PREFIX}[%|a-zA-Z0-9_+-]+", re.ASCII)
_POP_RETRY_SEPARATOR = "+"
_SEGMENT_NAME = re.compile(r"[0-9]{20}", re.ASCII)
_INDEX_NAME = re.compile(r"[0-9]{17}", re.ASCII)
_OFFSET_MAX = (1 << 63) - 1
_INDEX_TIME_MAX_MS = 253_370_764_800_000  # the year 9999, in any time zone


def validate_topic(name: str) -> None:
    """Refuse what RocketMQ refuses: other characters than `[%|a-zA-Z0-9_-]`, over 127 (retry and DLQ topics: 255).

    A + in a retry topic is a broker's own: `%RETRY%group+topic` of POP with enableRetryTopicV2 (KeyBuilder.java).

    Raises:
        UsageError: says what is wrong with the name.
    """
    special = isinstance(name, str) and name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    length_max = RETRY_TOPIC_LENGTH_MAX if special else TOPIC_LENGTH_MAX
    _validate("topic", name, length_max, _RETRY_TOPIC_NAME if special else _NAME)


def validate_group(name: str) -> None:
    """Refuse a consumer group with other characters than `[%|a-zA-Z0-9_-]` or longer than 120.

    Raises:
        UsageError: says what is wrong with the name.
    """
    _validate("group", name, GROUP_LENGTH_MAX, _NAME)


def is_group_name(name: str) -> bool:
    """True if `validate_group` accepts it."""
    return len(name) <= GROUP_LENGTH_MAX and _NAME.fullmatch(name) is not None


def _validate(what: str, name: str, length_max: int, allowed: re.Pattern[str]) -> None:
    if not isinstance(name, str) or not name:
        raise UsageError(f"a {what} needs a name, got {name!r}")
    if len(name) > length_max:
        raise UsageError(f"the {what} name has {len(name)} characters, more than {length_max}: {name[:40]!r}...")
    if not allowed.fullmatch(name):
        raise UsageError(f"the {what} name {name!r} holds characters other than %|a-zA-Z0-9_-")


def is_system_topic(name: str) -> bool:
    """True for the topics that belong to the broker; retry and DLQ topics belong to users."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def is_sent_by_broker_only(name: str) -> bool:
    """True for the system topics that no client sends to (TopicValidator#isNotAllowedSendTopic; stricter: a broker also
    takes sends to TBW102 and the topics of `rmq_sys_`).
    """
    return is_system_topic(name) and name not in _TOPICS_OF_CLIENTS


# MixAll#isSysConsumerGroup, TopicConfigManager and SubscriptionGroupManager: what a broker makes by itself.
SYSTEM_GROUPS = frozenset((
    "DEFAULT_CONSUMER", "DEFAULT_PRODUCER", "TOOLS_CONSUMER", "SCHEDULE_CONSUMER", "FILTERSRV_CONSUMER",
    "__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER", "SELF_TEST_P_GROUP", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL",
))  # fmt: skip


def is_system_group(name: str) -> bool:
    """True for the groups that a broker makes for itself (MixAll.CID_RMQ_SYS_PREFIX)."""
    return name.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """`%RETRY%group`, the topic for a group's failed messages, which it consumes again."""
    return RETRY_PREFIX + group


def retry_group(topic: str) -> str:
    """The group of a retry topic; for a topic of POP, the part before the +."""
    return topic.removeprefix(RETRY_PREFIX).partition(_POP_RETRY_SEPARATOR)[0]


def dlq_topic(group: str) -> str:
    """`%DLQ%group`, the topic for messages that failed too often."""
    return DLQ_PREFIX + group


def parse_segment_name(name: str) -> int | None:
    """Start in bytes of a commit-log, consume-queue or timer-log segment: its name is that number in 20 digits. None
    for any other name.
    """
    if not _SEGMENT_NAME.fullmatch(name):
        return None
    offset = int(name)
    return offset if offset <= _OFFSET_MAX else None


def index_file_name(time_ms: int, zone: tzinfo | None = None) -> str:
    """Name of an index file created at `time_ms`: yyyyMMddHHmmssSSS in `zone`, None = the process's time zone.

    A damaged record can hold a time outside the calendar. It becomes the nearest time with 17 digits.
    """
    time_ms = min(max(time_ms, 0), _INDEX_TIME_MAX_MS)
    local = datetime.fromtimestamp(time_ms // 1000, UTC).astimezone(zone)
    return f"{local:%Y%m%d%H%M%S}{time_ms % 1000:03d}"


def is_index_file_name(name: str) -> bool:
    """True for 17 digits; other files in `index/` are none of RocketMQ's."""
    return _INDEX_NAME.fullmatch(name) is not None


def java_name(name: str) -> str:
    """A name of ours as Java spells it: `read_queue_nums` becomes readQueueNums."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
