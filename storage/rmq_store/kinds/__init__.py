"""Kinds of stores that brokers make: how each is recognised, and whether it can be read and written here.

    table    the kinds, with the sentences that docs/stores.md repeats
    topics   topics that a store keeps in another way than the others: they are refused one by one
    signs    the files that show a kind; every opener calls `refuse_to_read`, and for writing `refuse_to_write`

The rule: a store is opened for writing unless it has something that a writer would break. That is a sign of a kind in
the table, or a foreign entry in a directory that a writer writes to. Unknown files elsewhere and unknown members of
JSON tables are no reason to refuse: they are kept byte for byte.
"""

from rmq_store.kinds.detection import (
    Seen,
    find_kinds,
    is_only_read,
    is_rocksdb_file,
    missing_log,
    queues_are_in,
    refuse_to_check,
    refuse_to_read,
    refuse_to_repair,
    refuse_to_write,
    store_nearby,
    tables_are_in_rocksdb,
)
from rmq_store.kinds.table import BATCH_QUEUES, COMMON, KINDS, Effect, Kind
from rmq_store.kinds.topics import (
    is_read,
    kind_by_attributes,
    kinds_by_files,
    refuse_to_read_topic,
    refuse_to_write_topic,
    topics_with_batch_queues,
)

__all__ = [
    "BATCH_QUEUES",
    "COMMON",
    "KINDS",
    "Effect",
    "Kind",
    "Seen",
    "find_kinds",
    "is_only_read",
    "is_read",
    "is_rocksdb_file",
    "kind_by_attributes",
    "kinds_by_files",
    "missing_log",
    "queues_are_in",
    "refuse_to_check",
    "refuse_to_read",
    "refuse_to_read_topic",
    "refuse_to_repair",
    "refuse_to_write",
    "refuse_to_write_topic",
    "store_nearby",
    "tables_are_in_rocksdb",
    "topics_with_batch_queues",
]
