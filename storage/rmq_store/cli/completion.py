"""Names of topics and groups for TAB, out of the store's JSON tables; what cannot be read is not named."""

from __future__ import annotations

import os
from pathlib import Path

import click

from rmq_store.errors import StoreError


def complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The topics of --store or RMQ_STORE that begin with what was typed (config/topics.json)."""
    return _beginning(incomplete, _names(ctx, "topics.json", "topicConfigTable"))


def complete_group(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The groups that have settings or offsets; an offset's key is `topic@group`."""
    offsets = _names(ctx, "consumerOffset.json", "offsetTable")
    names = _names(ctx, "subscriptionGroup.json", "subscriptionGroupTable")
    return _beginning(incomplete, names | {key.rpartition("@")[2] for key in offsets})


def _beginning(incomplete: str, names: set[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _names(ctx: click.Context, file: str, table: str) -> set[str]:
    from rmq_store.format.config_json import loads

    root = ctx.params.get("root") or os.environ.get("RMQ_STORE")
    if not root:
        return set()
    try:
        found = loads((Path(root) / "config" / file).read_text("utf-8")).get(table)
    except (OSError, ValueError, AttributeError, StoreError):
        return set()
    return set(found) if isinstance(found, dict) else set()
