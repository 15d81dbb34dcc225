"""Groups: settings and members. Source: tools/command/consumer/*.java, ConsumerConnectionSubCommand.java."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.mqadmin_print.lines import java_text, write_line
from rmq_store.format.text.names import java_name

if TYPE_CHECKING:
    from rmq_store import SubscriptionGroup
    from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig

_CONNECTION_LINE = "%-36s %-22s %-10s %s"

# SubscriptionGroupConfig#toString; subscriptionDataSet is never set by mqadmin.
_FIELDS = (
    "group_name", "consume_enable", "consume_from_min_enable", "consume_broadcast_enable", "consume_message_orderly",
    "retry_queue_nums", "retry_max_times", "group_retry_policy", "broker_id", "which_broker_when_consume_slowly",
    "notify_consumer_ids_changed_enable", "group_sys_flag", "consume_timeout_minute", "attributes",
)  # fmt: skip


def group_json(group: SubscriptionGroup | SubscriptionGroupConfig) -> dict[str, Any]:
    """A group's settings under Java's names."""
    return {name: dict(value) if hasattr(value, "keys") else value for name, value in _java_fields(group)}


def group_text(group: SubscriptionGroup | SubscriptionGroupConfig) -> str:
    """SubscriptionGroupConfig#toString."""
    fields = ", ".join(f"{name}={_field_text(value)}" for name, value in _java_fields(group))
    return f"SubscriptionGroupConfig{{{fields}}}"


def write_group(place: str, group: SubscriptionGroup | SubscriptionGroupConfig) -> None:
    """Print a group's settings under `cluster:broker`."""
    bar = "=" * 29
    write_line("%s", f"{bar}{place}{bar}")
    for name, value in _java_fields(group):
        write_line("%-40s=  %s", name, _field_text(value))


def write_connections(clients: Sequence[tuple[str, str, str, str]], subscriptions: Mapping[str, str]) -> None:
    """Print the members of a group, (client id, address, language, version), and what they subscribe to."""
    write_line(_CONNECTION_LINE, "#ClientId", "#ClientAddr", "#Language", "#Version")
    for client in clients:
        write_line(_CONNECTION_LINE, *client)
    click.echo("\nBelow is subscription:")
    write_line("%-20s %s", "#Topic", "#SubExpression")
    for topic, expression in subscriptions.items():
        write_line("%-20s %s", topic, expression)


def _java_fields(group: SubscriptionGroup | SubscriptionGroupConfig) -> list[tuple[str, Any]]:
    return [(java_name(name), getattr(group, name)) for name in _FIELDS]


def _field_text(value: Any) -> str:
    return json.dumps(dict(value)) if hasattr(value, "keys") else java_text(value)
