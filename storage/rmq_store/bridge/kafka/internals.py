"""Parts of kafka-python that the bridge uses beyond its documented interface. The import of the bridge checks them.

kafka-python returns record sets only as one Python object per record, its producer is not safe with transactions, and
its connections are not public. The modules of this folder use its internal parts. They are listed here, so that a
release that renames one fails at once, with the name.
"""

from __future__ import annotations

import importlib
from typing import Any

import kafka

from rmq_store.errors import UsageError

_PARTITION_RECORDS = "consumer.fetcher:Fetcher.PartitionRecords"

# Attributes of classes.
_OF_CLASSES = {
    # raw_fetch
    "consumer.fetcher:Fetcher": ("PartitionRecords", "fetched_records", "_append", "_parse_fetched_data"),
    _PARTITION_RECORDS: ("__init__", "__bool__", "take", "drain"),
    "record.memory_records:MemoryRecords": ("_buffer",),
    # reader
    "consumer.subscription_state:SubscriptionState": ("seek", "request_position_validation"),
    # administration
    "admin.client:KafkaAdminClient": (
        "_list_group_offsets_requests", "_process_create_partitions_input", "_get_cluster_metadata"
    ),
    # broker_link and transactions
    "net.manager:KafkaConnectionManager": ("run", "call_soon", "send", "bootstrap_async", "close"),
    "net.selector:NetworkSelector": ("start", "stop", "close", "sleep"),
    "cluster:ClusterMetadata": ("broker_metadata", "refresh_metadata"),
}
# Names that the __init__ of classes uses: attributes that it sets, and calls.
_OF_OBJECTS = {
    "consumer.group:KafkaConsumer": ("_fetcher", "_subscription"),
    "consumer.subscription_state:SubscriptionState": ("assignment",),
    "admin.client:KafkaAdminClient": ("_manager",),
    "net.manager:KafkaConnectionManager": ("cluster",),
    _PARTITION_RECORDS: (
        "topic_partition", "leader_epoch", "next_fetch_offset", "bytes_read", "records_read", "isolation_level",
        "check_crcs", "record_iterator",
    ),
}  # fmt: skip
_PART_ARGUMENTS = ("self", "fetch_offset", "tp", "records")


def missing() -> list[str]:
    """Names that this kafka-python lacks: `Class.name`, or a class with its module."""
    lost = [place for place in _OF_CLASSES | _OF_OBJECTS if _found(place) is None]
    for place, names in _OF_CLASSES.items():
        if (owner := _found(place)) is not None:
            lost += [f"{owner.__qualname__}.{name}" for name in names if not hasattr(owner, name)]
    for place, names in _OF_OBJECTS.items():
        if (owner := _found(place)) is not None:
            used = owner.__init__.__code__.co_names
            lost += [f"{owner.__qualname__}.{name}" for name in names if name not in used]
    part = _found(_PARTITION_RECORDS)
    if part is not None and part.__init__.__code__.co_varnames[: len(_PART_ARGUMENTS)] != _PART_ARGUMENTS:
        lost.append(f"{part.__qualname__}({', '.join(_PART_ARGUMENTS[1:])}, ...)")
    return lost


def check() -> None:
    """Refuse a kafka-python that lacks a part.

    Raises:
        UsageError: names the missing parts, and the version.
    """
    if lost := missing():
        raise UsageError(
            f"kafka-python {kafka.__version__} is not one that the bridge can use: it has no {', '.join(lost)}. "
            "Install one of the versions that the extra [kafka] asks for"
        )


def _found(place: str) -> Any:
    """The class at `module:Class`, or None."""
    module_name, _, names = place.partition(":")
    try:
        found: Any = importlib.import_module(f"kafka.{module_name}")
    except ModuleNotFoundError:
        return None
    for name in names.split("."):
        found = getattr(found, name, None)
    return found


check()

PartitionRecords: Any = _found(_PARTITION_RECORDS)
