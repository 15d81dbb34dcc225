"""The names that a command of another package may use. `rmq_store.cli.plugin_loader` says how to register it.

Such a command has the same options, tables, questions and error lines as every other command. It also gets the parts of
the engine with which `rmq` moves offsets and writes files. They are imported at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rmq_store.cli.plugin_loader import Plugin
from rmq_store.cli.shared.completion import GROUP, TOPIC
from rmq_store.cli.shared.confirm import changing_options, confirm
from rmq_store.cli.shared.name_lookup import require_group
from rmq_store.cli.shared.output import (
    common_options,
    open_store,
    printable,
    time_text,
    wide_option,
    write_json,
    write_table,
)
from rmq_store.cli.shared.targets import one_of, target, target_options
from rmq_store.cli.target.cluster_target import ClusterCommand, ClusterTarget, cluster_options

if TYPE_CHECKING:
    from rmq_store.broker.backup.backup_files import copy_tree
    from rmq_store.broker.monitoring.active_consumers import active_consumers
    from rmq_store.broker.monitoring.offset_reset import OffsetChange, QueuePlace, Target, given
    from rmq_store.files import durable
    from rmq_store.format.text.names import RETRY_PREFIX, retry_group

# Module -> the names of it that are imported when they are asked for.
_LAZY = {
    "broker.backup.backup_files": "copy_tree",
    "broker.monitoring.active_consumers": "active_consumers",
    "broker.monitoring.offset_reset": "OffsetChange QueuePlace Target given",
    "files": "durable",
    "format.text.names": "RETRY_PREFIX retry_group",
}
_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names.split()}

__all__ = [
    "GROUP",
    "RETRY_PREFIX",
    "TOPIC",
    "ClusterCommand",
    "ClusterTarget",
    "OffsetChange",
    "Plugin",
    "QueuePlace",
    "Target",
    "active_consumers",
    "changing_options",
    "cluster_options",
    "common_options",
    "confirm",
    "copy_tree",
    "durable",
    "given",
    "one_of",
    "open_store",
    "printable",
    "require_group",
    "retry_group",
    "target",
    "target_options",
    "time_text",
    "wide_option",
    "write_json",
    "write_table",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"rmq_store.{_MODULE_OF[name]}")
    return import_module("rmq_store.files.durable") if name == "durable" else getattr(module, name)
