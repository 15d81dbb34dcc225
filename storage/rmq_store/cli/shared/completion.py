"""Names of topics and groups for TAB, from the store's JSON tables. Tables that cannot be read give no names.

A shell inserts an offered name into the command line. So only valid names are offered, whatever a table has. Topics and
groups that a broker creates for itself are left out; a user can type them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rmq_store.cli.shared.parameters import named_store
from rmq_store.errors import StoreError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Text = click.ParamType[str]
else:
    Text = click.ParamType  # no generic type before click 8.4


class _Name(Text):
    """A text option; subclasses know the existing names."""

    name = "text"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin with the typed text."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in sorted(self._known(ctx)) if name.startswith(incomplete)]

    def _known(self, ctx: click.Context) -> set[str]:
        raise NotImplementedError


class _Topic(_Name):
    def _known(self, ctx: click.Context) -> set[str]:
        from rmq_store.format.text.names import is_system_topic

        return {topic for topic in _topics(ctx) if not is_system_topic(topic)}


class _Group(_Name):
    def _known(self, ctx: click.Context) -> set[str]:
        """As `name_lookup.known_groups`: groups with settings, offsets or a retry topic."""
        from rmq_store.format.text.names import RETRY_PREFIX, SYSTEM_GROUPS, is_group_name, is_system_group, retry_group

        offsets = _names(ctx, "consumerOffset.json", "offsetTable")  # topic@group
        names = _names(ctx, "subscriptionGroup.json", "subscriptionGroupTable")
        names |= {key.partition("@")[2] for key in offsets}
        names |= {retry_group(topic) for topic in _topics(ctx) if topic.startswith(RETRY_PREFIX)}
        return {name for name in names - SYSTEM_GROUPS if is_group_name(name) and not is_system_group(name)}


class _DeadGroup(_Name):
    def _known(self, ctx: click.Context) -> set[str]:
        from rmq_store.format.text.names import DLQ_PREFIX

        return {topic.removeprefix(DLQ_PREFIX) for topic in _topics(ctx) if topic.startswith(DLQ_PREFIX)}


TOPIC, GROUP = _Topic(), _Group()
"""Types of options and arguments that name one."""

DEAD_GROUP = _DeadGroup()
"""A group that has dead letters."""


def _topics(ctx: click.Context) -> set[str]:
    return {name for name in _names(ctx, "topics.json", "topicConfigTable") if _is_topic_name(name)}


def _is_topic_name(name: str) -> bool:
    from rmq_store.format.text.names import validate_topic

    try:
        validate_topic(name)
    except UsageError:
        return False
    return True


def _names(ctx: click.Context, file: str, table: str) -> set[str]:
    from rmq_store.files.durable import read_limited
    from rmq_store.format.tables.config_json import SIZE_MAX, loads

    root = named_store(ctx)
    if not root:
        return set()
    try:
        found: Any = loads(read_limited(Path(root) / "config" / file, SIZE_MAX)).get(table)
    except (OSError, ValueError, StoreError):
        return set()
    return {name for name in found if isinstance(name, str)} if isinstance(found, dict) else set()
