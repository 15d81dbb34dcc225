"""Kinds of stores: which ones brokers make, how each is recognised, and whether it can be read and written here.

    table    the kinds, and the sentences that docs/stores.md has, too
    signs    what is looked at; who opens a store asks `refuse_to_read`, and for writing `refuse_to_write`

The rule: a store is opened for writing, unless something is found that a writer would break. That is a sign of one of
the kinds in the table, or something foreign in the directories that a writer writes to. Files elsewhere that are not
known here, and members of JSON tables that are not, are no reason to refuse: they are kept byte for byte.
"""

from rmq_store.kinds.signs import (
    Seen,
    is_rocksdb_file,
    look,
    missing_log,
    queues_are_in,
    refuse_to_read,
    refuse_to_repair,
    refuse_to_write,
    static_topics,
)
from rmq_store.kinds.table import COMMON, KINDS, Effect, Kind

__all__ = [
    "COMMON",
    "KINDS",
    "Effect",
    "Kind",
    "Seen",
    "is_rocksdb_file",
    "look",
    "missing_log",
    "queues_are_in",
    "refuse_to_read",
    "refuse_to_repair",
    "refuse_to_write",
    "static_topics",
]
