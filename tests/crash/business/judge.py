"""What is in the databases, files and queues when all is over, beside what was committed."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from crash.business.setting import STEPS, Group, Setting, effects, orders
from crash.part import Counters

Pair = tuple[str, str]
"""(group, order)."""


@dataclass(slots=True)
class Found:
    """Everything that was written. `times` {(group, order): effects}, `confirmed` pairs whose stub says so."""

    orders: dict[str, Any] = field(default_factory=dict)
    times: Counter[Pair] = field(default_factory=Counter)
    order_of_effects: dict[str, list[str]] = field(default_factory=dict)
    altered: list[str] = field(default_factory=list)
    status: dict[str, str] = field(default_factory=dict)
    manual_stubs: set[str] = field(default_factory=set)
    confirmed: set[Pair] = field(default_factory=set)
    manual: set[tuple[str, str, str]] = field(default_factory=set)

    def named(self) -> list[Pair]:
        """The pairs that must have an effect, if their stub is not void."""
        return [
            (group, order_id)
            for order_id, row in self.orders.items()
            if not row.kills
            for group in row.group_names.split()
        ]

    def missing(self) -> list[Pair]:
        """Pairs whose effect has not come yet."""
        return [pair for pair in self.named() if not self.times[pair] and self.status.get(pair[1]) != "void"]

    def unconfirmed(self) -> list[str]:
        """Stubs that are neither confirmed nor void, but for those that kill their senders."""
        return [each for each, status in self.status.items() if status == "unconfirmed" and not self._kills(each)]

    def untold_killers(self) -> list[str]:
        """Orders that kill whoever sends them, are not void, and stand on no manual list."""
        return [
            order_id
            for order_id, row in self.orders.items()
            if row.kills and self.status.get(order_id) != "void" and order_id not in self.manual_stubs
        ]

    def _kills(self, order_id: str) -> bool:
        return order_id in self.orders and bool(self.orders[order_id].kills)


def look(setting: Setting, stubs: sa.Engine, other: sa.Engine) -> Found:
    """Read it."""
    found = Found()
    tables = setting.tables
    with stubs.connect() as connection:
        found.orders = {row.order_id: row for row in connection.execute(sa.select(orders))}
        stub = tables.stub
        for row in connection.execute(sa.select(stub.c.message_id, stub.c.status, stub.c.is_manual)):
            found.status[row.message_id] = row.status
            if row.is_manual:
                found.manual_stubs.add(row.message_id)
        part = tables.stub_group
        confirmed = sa.select(part.c.group_name, part.c.message_id).where(part.c.confirmed_ms.is_not(None))
        found.confirmed = {(row.group_name, row.message_id) for row in connection.execute(confirmed)}
    with other.connect() as connection:
        for row in connection.execute(sa.select(effects).order_by(effects.c.number)):
            _count(found, row.group_name, row.order_id, row.body)
            found.order_of_effects.setdefault(row.group_name, []).append(row.order_id)
    for engine in {stubs, other}:
        with engine.connect() as connection:
            for row in connection.execute(sa.select(tables.manual)):
                found.manual.add((row.message_id, row.group_name, row.reason))
    for group in setting.groups:
        if group.outside:
            for order_id, body, _ in setting.notes(f"effects of {group.name}"):
                _count(found, group.name, order_id, body)
    return found


def _count(found: Found, group: str, order_id: str, body: str) -> None:
    found.times[group, order_id] += 1
    payload, _, crc = body.rpartition("/")
    is_whole = payload.startswith(f"{order_id}/") and str(zlib.crc32(payload.encode())) == crc
    row = found.orders.get(order_id)
    if not is_whole or (row is not None and row.body != body):
        found.altered.append(f"{group} has {body!r} of {order_id}")


def judge(setting: Setting, found: Found, counters: Counters) -> None:
    """Count violations."""

    def broken(text: str) -> None:
        counters.broken += 1
        counters.note(text)

    named = set(found.named())
    counters.acknowledged += len(named)
    groups = {group.name: group for group in setting.groups}
    for group, order_id in found.missing():
        counters.lost += 1
        counters.note(f"{group} has no effect of {order_id}, which is committed")
    for (group, order_id), times in sorted(found.times.items()):
        _judge_pair(setting, found, groups[group], order_id, times, counters)
    for text in found.altered:
        counters.altered += 1
        counters.note(text)
    for order_id in found.unconfirmed():
        broken(f"the stub of {order_id} is never confirmed")
    for order_id in found.orders.keys() ^ found.status.keys():
        broken(f"{order_id} has a row without a stub, or a stub without a row")
    for order_id in found.untold_killers():
        broken(f"{order_id} kills its senders, and nobody is told")
    _judge_order(setting, found, counters)
    for reason in sorted({reason for _, _, reason in found.manual}):
        counters.seen[f"manual: {reason}"] += sum(reason == each for _, _, each in found.manual)
    counters.seen["void"] += sum(status == "void" for status in found.status.values())
    counters.seen["rolled back"] += len(setting.notes("rolled back"))
    counters.seen["acknowledged and gone"] += len({line[0] for line in setting.notes("vanished")})
    for (what,) in setting.notes("network"):
        counters.seen[{"request": "requests lost", "answer": "answers lost", "twice": "sent twice"}.get(what, "")] += 1
    counters.seen.pop("", None)


def _judge_pair(setting: Setting, found: Found, group: Group, order_id: str, times: int, counters: Counters) -> None:
    pair = (group.name, order_id)
    if order_id not in found.orders:
        counters.broken += 1
        counters.note(f"{group.name} has an effect of {order_id}, which was never committed")
        return
    is_in_doubt = (order_id, group.name, "in_doubt") in found.manual
    if group.outside:
        counters.seen["outside more than once"] += times > 1
        if times > 1 and not is_in_doubt:
            counters.broken += 1
            counters.note(f"{group.name} had {times} effects of {order_id} elsewhere, and the manual list has no doubt")
    elif times > 1:
        counters.duplicated += times - 1
        counters.note(f"{group.name} has {times} effects of {order_id}")
    names_group = group.name in found.orders[order_id].group_names.split()
    if found.status[order_id] == "void" and setting.is_one_database and names_group:
        if pair not in found.confirmed and not (group.outside and is_in_doubt):
            counters.broken += 1
            counters.note(f"{group.name} has an effect of {order_id}, which was void before")


def _judge_order(setting: Setting, found: Found, counters: Counters) -> None:
    """First sends, and effects of who consumes in order. What a broker has acknowledged and lost comes later, by hand;
    what is void holds up nothing, and whoever sends it meanwhile does no harm.
    """
    vanished = {line[0] for line in setting.notes("vanished")}
    sequences = {"the topic": _stored(setting)}
    ordered = {group.name for group in setting.groups if group.how == "orderly"}
    sequences |= {name: sequence for name, sequence in found.order_of_effects.items() if name in ordered}
    for name, sequence in sequences.items():
        last: dict[str, str] = {}
        for order_id in dict.fromkeys(sequence):
            row = found.orders.get(order_id)
            if row is None or row.key_name is None or order_id in vanished or found.status[order_id] == "void":
                continue
            before = last.get(row.key_name)
            if before is not None and row.step < found.orders[before].step:
                counters.reordered += 1
                counters.note(
                    f"{name} has step {row.step} of {row.key_name} ({order_id}) behind step "
                    f"{found.orders[before].step} ({before})"
                )
            else:
                last[row.key_name] = order_id


def _stored(setting: Setting) -> list[str]:
    from rmq_store import Store

    found: list[str] = []
    with Store.open(setting.store_path, read_only=True) as store:
        for queue_id, limits in store.queue_ranges(STEPS).items():
            for batch in store.read(STEPS, queue_id, *limits, columns=["body"]):
                found += [body.decode().partition("/")[0] for body in batch.column("body").to_pylist()]
    return found
