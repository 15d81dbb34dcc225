"""`rmq topics`: the topics of a store, with their messages and queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mqadmin_print.lines import perm_text
from rmq_store.cli.shared.output import (
    common_options,
    open_store,
    printable,
    queue_text,
    wide_option,
    write_json,
    write_table,
)
from rmq_store.errors import CorruptionError

if TYPE_CHECKING:
    from rmq_store import Store, TopicConfig


@click.command(
    short_help="Topics, their queues, and the number of messages in them.",
    epilog="\b\nExample:\n  rmq topics --store /data/rocketmq/store --queues",
)
@common_options
@wide_option
@click.option("--queues", "per_queue", is_flag=True, help="One line per queue instead of sums per topic.")
@click.option("--all", "show_all", is_flag=True, help="Also system topics, and topics that cannot be read.")
def topics(root: Path, as_json: bool, per_queue: bool, show_all: bool) -> None:
    """Topics, their queues, and the number of messages in them.

    MIN is the first offset that can be read, MAX the offset of the next message. Without --queues they are sums over
    the queues, so that MESSAGES = MAX - MIN on every line. PERM: R can be read, W can be written, X is inherited.
    MESSAGES also shows which topics are stored in a form that is not read here (docs/stores.md).

    A topic with * after its name has queues, but no entry in config/topics.json. It can be read by its exact name.
    `rmq repair` adds it to the table, `rmq deleteTopic` removes it from this list.
    """
    from rmq_store.format.text.names import LMQ_PREFIX, is_system_topic

    found: list[dict[str, Any]] = []
    with open_store(root) as store:
        unlisted = _unlisted(store)
        for name, config in sorted({**store.topics(), **unlisted}.items()):
            if show_all or (config.readable and not is_system_topic(name) and not name.startswith(LMQ_PREFIX)):
                ranges = sorted(store.queue_ranges(name).items()) if config.is_read_here else []
                queues = [{"queueId": i, "minOffset": r.min_offset, "maxOffset": r.max_offset} for i, r in ranges]
                perm = perm_text(config.perm)
                counts = {"readQueues": config.read_queue_nums, "writeQueues": config.write_queue_nums}
                messages = sum(r.max_offset - r.min_offset for _, r in ranges) if config.is_read_here else None
                kind = {"kind": config.kind.name} if config.kind is not None else {}
                found.append({"topic": name, **counts, "perm": perm, "messages": messages, "queues": queues,
                              "inTable": name not in unlisted, **kind})  # fmt: skip
    write_topics(found, as_json=as_json, per_queue=per_queue)


def write_topics(found: Sequence[Mapping[str, Any]], *, as_json: bool, per_queue: bool) -> None:
    """Print topics; queues with a `brokerName` are named by it."""
    if as_json:
        write_json(found)
    elif per_queue:
        rows = [
            (_marked(t), queue_text(q), t["perm"], q["minOffset"], q["maxOffset"], q["maxOffset"] - q["minOffset"])
            for t in found
            for q in t["queues"]
        ]
        write_table(("TOPIC", "QUEUE", "PERM", "MIN", "MAX", "MESSAGES"), rows, flexible=("TOPIC",))
    else:
        columns = ("TOPIC", "QUEUES", "PERM", "MIN", "MAX", "MESSAGES")
        write_table(columns, [_sums(topic) for topic in found], flexible=("TOPIC",))
    if not as_json and any(not topic["inTable"] for topic in found):
        click.echo("* not in config/topics.json: see `rmq topics --help`", err=True)


def _unlisted(store: Store) -> Mapping[str, TopicConfig]:
    """Topics that the table does not name. If they cannot be found out, those of the table are shown nevertheless."""
    try:
        return store.unlisted_topics()
    except CorruptionError as error:
        click.echo(printable(f"rmq: topics that are not in the table cannot be told: {error}"), err=True)
        return {}


def _marked(topic: Mapping[str, Any]) -> str:
    return str(topic["topic"]) + ("" if topic["inTable"] else " *")


def _sums(topic: Mapping[str, Any]) -> tuple[str | int, ...]:
    if topic["messages"] is None:
        return _marked(topic), topic["readQueues"], topic["perm"], "-", "-", f"not read: {topic['kind']}"
    lowest, highest = (sum(queue[key] for queue in topic["queues"]) for key in ("minOffset", "maxOffset"))
    return _marked(topic), len(topic["queues"]), topic["perm"], lowest, highest, topic["messages"]
