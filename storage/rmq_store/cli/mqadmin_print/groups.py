"""Groups: settings and members. Source: tools/command/consumer/*.java, ConsumerConnectionSubCommand.java."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rmq_store.cli.mqadmin_print.by_broker import At, write_by_broker
from rmq_store.cli.mqadmin_print.lines import java_text, write_line
from rmq_store.cli.shared.output import write_json
from rmq_store.format.text.names import java_name

if TYPE_CHECKING:
    from rmq_store import SubscriptionGroup
    from rmq_store.protocol.bodies.groups import SubscriptionGroupConfig

    GroupRow = tuple[At, SubscriptionGroup | SubscriptionGroupConfig]
    """A broker, and the settings that a group has there."""

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


def write_made_groups(rows: Sequence[GroupRow], *, as_json: bool) -> None:
    """Print groups that were made or changed: the brokers, and the settings, each of them once."""
    if as_json:
        _write_json(rows)
        return
    for at, _ in rows:
        write_line("create subscription group to %s success.", at.address)
    for text in dict.fromkeys(group_text(settings) for _, settings in rows):
        write_line("%s", text)


def write_groups(rows: Sequence[GroupRow], *, as_json: bool) -> None:
    """Print the settings of a group, broker by broker."""
    if as_json:
        _write_json(rows)
        return
    for at, settings in rows:
        write_group(at.title, settings)


def _write_json(rows: Sequence[GroupRow]) -> None:
    write_by_broker([(at, group_json(settings)) for at, settings in rows])


def write_group(place: str, group: SubscriptionGroup | SubscriptionGroupConfig) -> None:
    """Print a group's settings under `cluster:broker`."""
    bar = "=" * 29
    write_line("%s", f"{bar}{place}{bar}")
    for name, value in _java_fields(group):
        write_line("%-40s=  %s", name, _field_text(value))


class Members(NamedTuple):
    """The members of a group, (client id, address, language, version), as JSON and as the columns of a line, and what
    they subscribe to: topic -> expression. `kinds`: consumeType, messageModel and consumeFromWhere as JSON; a store
    does not know them.
    """

    as_json: Sequence[Mapping[str, Any]]
    lines: Sequence[tuple[str, str, str, str]]
    subscriptions: Mapping[str, str]
    kinds: Mapping[str, str | None] | None = None


def write_members(group: str, members: Members, *, as_json: bool) -> None:
    """Print the members of a group."""
    if as_json:
        found = {"group": group, "connections": members.as_json, "subscriptions": members.subscriptions}
        write_json({**found, **(members.kinds or {})})
        return
    write_line(_CONNECTION_LINE, "#ClientId", "#ClientAddr", "#Language", "#Version")
    for client in members.lines:
        write_line(_CONNECTION_LINE, *client)
    click.echo("\nBelow is subscription:")
    write_line("%-20s %s", "#Topic", "#SubExpression")
    for topic, expression in members.subscriptions.items():
        write_line("%-20s %s", topic, expression)
    if members.kinds is not None:
        click.echo()
        for name, value in members.kinds.items():
            write_line("%s: %s", name[0].upper() + name[1:], value or "null")


def _java_fields(group: SubscriptionGroup | SubscriptionGroupConfig) -> list[tuple[str, Any]]:
    return [(java_name(name), getattr(group, name)) for name in _FIELDS]


def _field_text(value: Any) -> str:
    return json.dumps(dict(value)) if hasattr(value, "keys") else java_text(value)
