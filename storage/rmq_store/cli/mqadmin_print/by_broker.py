"""Rows that several brokers give: as JSON, each with its broker. A store is one, and is not named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rmq_store.cli.shared.output import write_json


class At(NamedTuple):
    """The broker that a row is of. `name` None: a store, which JSON does not name. `title`: `cluster:broker`."""

    address: str
    name: str | None = None
    title: str = ""
    broker_id: int = 0


def write_by_broker(rows: Sequence[tuple[At, Mapping[str, Any]]]) -> None:
    """Print rows as JSON: a list, each with the name and the address of its broker; the row of a store alone."""
    if rows and rows[0][0].name is None:
        write_json(rows[0][1])
        return
    write_json([{"brokerName": at.name, "brokerAddr": at.address, **row} for at, row in rows])
