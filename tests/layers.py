"""The layers of the product, as data: which part may import which, and in which order the folders of a part stand.

A part or folder imports only what stands above it. tests/packaging/test_import_rules.py holds the order, and
`python tests/layers.py` draws it into docs/design.md.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Final

# Part of rmq_store -> the parts that it may import. Every part may also import itself.
LAYERS: Final[dict[str, set[str]]] = {
    # Modules and methods that are loaded when they are used. Every part may import it.
    "lazy": set(),
    # Waits that a test does not freeze. Every part may import it.
    "real_time": set(),
    # How long to wait before the next try: a rule.
    "backoff": set(),
    "errors": set(),
    # Of public methods: checked against the types that they declare.
    "argument_types": set(),
    "arguments": {"errors", "argument_types"},
    "threads": set(),
    "memory": set(),
    # Functions on plain values, too, but in C. By way of format/bytes/native.py, which knows whether it is there.
    "format": {"errors", "threads", "memory", "_native"},
    # Why the C extension is not loaded, for those who tell users.
    "extension": {"format"},
    # What a client and a broker say to each other, whatever lies between them.
    "protocol": {"errors", "format"},
    # Of format the fences between loads and stores of shared words, which are C.
    "files": {"errors", "arguments", "threads", "format"},
    "clock": {"errors", "arguments", "files"},
    # Which kinds of stores there are: names of files, and sentences. Nothing of the engine: the verifier asks it, too.
    "kinds": {"errors"},
    # A cluster of brokers over the network. Nothing of the engine, nothing of the clients. Of files it uses the locks
    # between threads, which a signal handler leaves usable.
    "remoting": {"errors", "backoff", "arguments", "threads", "format", "protocol", "files", "kinds"},
    "log": {"errors", "clock", "threads", "format", "files", "kinds"},
    "verify": {"errors", "clock", "format", "files", "log", "kinds"},
    "broker": {
        "errors", "arguments", "clock", "threads", "memory", "format", "protocol", "files", "log", "verify", "kinds",
    },
    "client": {
        "errors", "backoff", "arguments", "clock", "threads", "format", "protocol", "files", "log", "broker", "kinds",
        "remoting",
    },
    # A broker's log as a local store, which one process feeds. Nothing of the clients.
    "replica": {
        "errors", "backoff", "arguments", "clock", "threads", "format", "protocol", "files", "log", "broker", "kinds",
        "remoting",
    },
    # The store's processors behind sockets; of replica what both sides of an HA port say. Nothing of the clients.
    "server": {
        "errors", "backoff", "arguments", "clock", "threads", "format", "protocol", "files", "log", "broker", "kinds",
        "remoting", "replica",
    },
    # A served store for suites of other projects.
    "testing": {"errors", "clock", "format", "protocol", "broker", "server"},
    # A user of the clients like any other, with a database beside them.
    "reliable": {"errors", "backoff", "arguments", "format", "client"},
    # A user of the store, with Kafka on its other side.
    "bridge": {
        "errors", "backoff", "arguments", "clock", "threads", "format", "protocol", "remoting", "log", "broker",
        "client",
        "_native",
    },
}  # fmt: skip

for _allowed in LAYERS.values():
    _allowed |= {"lazy", "real_time"}
LAYERS["lazy"] = {"real_time"}
LAYERS["real_time"].clear()

# The command and the public names may use all of the parts.
FREE: Final = ("cli", "cluster", "__init__", "__main__")

# Part -> its folders; each imports only folders that stand before it. "." are the modules of the part itself.
FOLDERS: Final[dict[str, tuple[str, ...]]] = {
    "rmq_store.format": ("tables", "bytes", "text", "properties", "views", "frames", "batches"),
    "rmq_store.protocol": (".", "bodies", "wire"),
    "rmq_store.files": (".", "locks", "segments"),
    "rmq_store.remoting": ("transport", "questions", "cluster", "admin"),
    "rmq_store.log": ("views", "core", "append", "integrity", "recovery", "."),
    "rmq_store.broker": (
        "filter", "read", "metadata", "rules", "write", "delay", "retry", "pop", "dlq", "transactions", "store",
        "backup", "monitoring", "repair", "processor",
    ),
    "rmq_store.replica": (".", "take_over"),
    "rmq_store.client": (
        "delivery", "backend", "group", "producer", "cluster_sink", "cluster_retry", "consume_service", "consumer",
    ),
    "rmq_store.server": (
        "requests", "transport", "access", "processors", "pop", "admin", "ha", "grpc_definitions", "grpc_v2",
        "name_server", ".", "slave",
    ),
    "rmq_store.reliable": ("database", "outbox", "inbox", "relay", "operator"),
    "rmq_store.bridge": (
        "record_batches", "records", "kafka", "source", "positions", "mirror", "offsets", "dead_letters",
    ),
    "rmq_store.cli": (
        "shared", "mqadmin_print", "target", "checks", "messages", "groups", "dlq", "outbox", "mirror", "replica",
        "maintenance", "mqadmin_targets", "mqadmin", "monitoring", "cluster_checks", "cluster_care", ".",
    ),
    "pyspark_rmq": (
        "position", "options", "cluster_read", "access", "schema", "query", "lag", "read", "older_spark", "retry",
        "checkpoint", "testing", "write", ".",
    ),
}  # fmt: skip

# Modules that make a request of a header. A question or an order has its one place in `remoting.questions`; the others
# send messages, pull them, or keep a server.
REQUESTS_ARE_MADE_IN: Final = (
    "rmq_store.remoting.questions",
    "rmq_store.remoting.cluster.pull_request",  # 11, a template
    "rmq_store.client.delivery.request",  # 310, 320, 36
    "rmq_store.client.backend.remote_broker",  # 370
    "rmq_store.client.backend.remote_transactions",  # 37
    "rmq_store.client.backend.remote_pop",  # 200050, 200051, 200053
    "rmq_store.cli.maintenance.broker_clock",  # the clock of a served store
    "rmq_store.server",
)

_PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "design.md"
_BEGIN, _END = "<!-- layers -->\n", "<!-- /layers -->"
_WIDTH: Final = 100


def figure() -> str:
    """All parts, the lowest first, each with its folders in their order."""
    parts = [f"rmq_store.{part}" for part in LAYERS] + ["rmq_store.cli", "pyspark_rmq"]
    lines = []
    for part in parts:
        folders = "  ".join(folder for folder in FOLDERS.get(part, ()) if folder != ".")
        rows = textwrap.wrap(folders, _WIDTH - 28, break_on_hyphens=False) or [""]
        lines += [f"{part if row is rows[0] else '':26}  {row}".rstrip() for row in rows]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def page_with_figure(page: str) -> str:
    """docs/design.md with the figure between its two marks."""
    before, rest = page.split(_BEGIN)
    return before + _BEGIN + figure() + _END + rest.split(_END)[1]


if __name__ == "__main__":
    _PAGE.write_text(page_with_figure(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(figure())
