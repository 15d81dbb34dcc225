"""What the bridge uses of kafka-python beyond its documented interface, checked when the bridge is imported.

kafka-python gives record sets only as one Python object per record, and takes them only so. The two modules beside this
one reach under that; what they reach for is listed here, so that a release that renames it fails by name, and at once.
"""

from __future__ import annotations

from typing import Any

import kafka
from kafka.consumer.fetcher import Fetcher
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import TransactionManager
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from rmq_store.errors import UsageError

# Attributes of the classes.
_OF_CLASSES: dict[type, tuple[str, ...]] = {
    Fetcher: ("PartitionRecords", "fetched_records", "_append", "_parse_fetched_data"),
    Fetcher.PartitionRecords: ("__init__", "__bool__", "take", "drain"),
    MemoryRecords: ("_buffer",),
    ProducerBatch: ("try_append", "record_count", "complete_exceptionally", "done", "in_retry"),
    RecordAccumulator: ("_tp_lock", "split_and_reenqueue", "drain_batches_for_one_node", "abort_batches"),
    Sender: ("wakeup", "_can_split", "_record_exceptions_fn"),
    TransactionManager: ("maybe_add_partition_to_transaction", "is_transactional"),
    # What a stand-in for a builder must have.
    MemoryRecordsBuilder: (
        "append", "set_producer_state", "producer_id", "producer_epoch", "base_sequence", "close", "size_in_bytes",
        "compression_rate", "is_full", "next_offset", "buffer",
    ),
}  # fmt: skip
# Names that their __init__ uses: attributes that it sets, and calls.
_OF_OBJECTS: dict[type, tuple[str, ...]] = {
    kafka.KafkaConsumer: ("_fetcher",),
    kafka.KafkaProducer: ("_accumulator", "_sender", "_metadata", "_transaction_manager"),
    Fetcher.PartitionRecords: (
        "topic_partition", "leader_epoch", "next_fetch_offset", "bytes_read", "records_read", "isolation_level",
        "check_crcs", "record_iterator",
    ),
    RecordAccumulator: ("_closed", "_appends_in_progress", "_batches", "_incomplete"),
    ProducerBatch: ("produce_future", "max_record_size", "records", "topic_partition"),
}  # fmt: skip
_PART_ARGUMENTS = ("self", "fetch_offset", "tp", "records")


def missing() -> list[str]:
    """What this kafka-python does not have, as `Class.name`."""
    lost = []
    for owner, names in _OF_CLASSES.items():
        lost += [f"{_name(owner)}.{name}" for name in names if not hasattr(owner, name)]
    for owner, names in _OF_OBJECTS.items():
        used = _code_of(owner).co_names
        lost += [f"{_name(owner)}.{name}" for name in names if name not in used]
    if _code_of(Fetcher.PartitionRecords).co_varnames[: len(_PART_ARGUMENTS)] != _PART_ARGUMENTS:
        lost.append(f"{_name(Fetcher.PartitionRecords)}({', '.join(_PART_ARGUMENTS[1:])}, ...)")
    return lost


def check() -> None:
    """Refuse a kafka-python that has not all of it.

    Raises:
        UsageError: names what is missing, and the version.
    """
    if lost := missing():
        raise UsageError(
            f"kafka-python {kafka.__version__} is not one that the bridge can use: it has no {', '.join(lost)}. "
            "Install one of the versions that the extra [kafka] asks for"
        )


def _code_of(owner: type) -> Any:
    return owner.__init__.__code__  # type: ignore[misc]


def _name(owner: type) -> str:
    return owner.__qualname__


check()
